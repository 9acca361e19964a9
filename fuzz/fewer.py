"""What says the same in fewer operations: the steps of the shrinker that leave out more than one thing at once.

All work on pieces, lists of operations that come one behind the other: a case is one piece, and what a relation
compares is made of three. None asks whether the finding is still there; each leaves fewer operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from fuzz.cut import names_in
from oracle import ops
from oracle.ops import Alloc, Case, Config, Cut, Extend, Free, FreeSwa, Grow, Operation, Part
from properties.workload import NAMES

FEW = 12  # operations of a case in which all pairs are tried
Pieces = tuple[tuple[Operation, ...], ...]


def without_two(pieces: Pieces) -> Iterator[Pieces]:
    """Without two operations that do nothing without each other; of few operations only."""
    places = [(at, place) for at, piece in enumerate(pieces) for place in range(len(piece))]
    if len(places) > FEW:
        return
    for second in range(len(places) - 1, 0, -1):
        for first in range(second - 1, -1, -1):
            yield _without(pieces, {places[first], places[second]})


def with_one_moved(pieces: Pieces) -> Iterator[Pieces]:
    """Without an operation, and another one at another place of its piece; of few operations only."""
    if sum(map(len, pieces)) > FEW // 2 + 1:
        return
    for at, piece in enumerate(pieces):
        for left_out in range(len(piece)):
            rest = [*piece[:left_out], *piece[left_out + 1 :]]
            for place, operation in enumerate(rest):
                others = [*rest[:place], *rest[place + 1 :]]
                for to in range(len(rest)):
                    if to != place:
                        moved = (*others[:to], operation, *others[to:])
                        yield (*pieces[:at], moved, *pieces[at + 1 :])


def two_as_one(pieces: Pieces, config: Config) -> Iterator[Pieces]:
    """Two operations as one, in the place of either; where there are many, of neighbours alone."""
    far = FEW if sum(map(len, pieces)) <= FEW else 1
    for at, piece in enumerate(pieces):
        for first in range(len(piece)):
            for second in range(first + 1, min(first + far, len(piece) - 1) + 1):
                yield from _pair_as_one(pieces, at, first, second, config)
                yield from _one_request(pieces, at, first, second)


def _pair_as_one(pieces: Pieces, at: int, first: int, second: int, config: Config) -> Iterator[Pieces]:
    for alike in (pieces, *_with_new_requests(pieces, at, first, second)):
        piece = alike[at]
        rest = [*piece[:first], *piece[first + 1 : second], *piece[second + 1 :]]
        for joined in _joined(piece[first], piece[second], config):
            for place in dict.fromkeys((second - 1, first)):
                yield (*alike[:at], (*rest[:place], joined, *rest[place:]), *alike[at + 1 :])


def _with_new_requests(pieces: Pieces, at: int, first: int, second: int) -> Iterator[Pieces]:
    """The same where a name that stands for one request, and later for another, is two names."""
    one, other = ({item.request for item in _growth(pieces[at][place])} for place in (first, second))
    if one & other and second > first + 1:
        used = {name for piece in pieces for operation in piece for name in names_in(operation)}
        unused = (name for name in NAMES if name not in used)
        new = dict(zip(sorted(one & other), unused, strict=False))
        yield tuple(
            tuple(
                renamed(o, lambda name: new.get(name, name)) if (n, p) >= (at, second) else o
                for p, o in enumerate(piece)
            )
            for n, piece in enumerate(pieces)
        )


def renamed(operation: Operation, new: Callable[[str], str]) -> Operation:
    """The same operation of requests with other names."""
    match operation:
        case Extend(batch):
            items = (replace(item, request=new(item.request), prefix=new(item.prefix)) for item in batch)
            return replace(operation, batch=tuple(items))
        case ops.Decode(requests):
            return replace(operation, requests=tuple(map(new, requests)))
        case Free(parts) | FreeSwa(parts):
            return replace(operation, parts=tuple(replace(p, request=new(p.request)) for p in parts))
        case Alloc(request) | Cut(request) | ops.CopyOut(request) | ops.CopyIn(request):
            return replace(operation, request=new(request))
    return operation


def _without(pieces: Pieces, places: set[tuple[int, int]]) -> Pieces:
    return tuple(
        tuple(o for place, o in enumerate(piece) if (at, place) not in places)
        for at, piece in enumerate(pieces)
    )


def _joined(first: Operation, second: Operation, config: Config) -> Iterator[Operation]:
    """One operation that does what both do."""
    match first, second:
        case ops.Decode(names, ""), ops.Decode(others, flaw) if not set(names) & set(others):
            yield ops.Decode(names + others, flaw)
        case Alloc(name, size, ""), Alloc(other, more, flaw) if name == other and min(size, more) >= 0:
            yield Alloc(name, size + more, flaw)
        case Free(parts, ""), Free(more_parts, flaw):
            yield Free(parts + more_parts, flaw)
        case FreeSwa(parts), FreeSwa(more_parts):
            yield FreeSwa(parts + more_parts)
        case Cut(name, tokens), Cut(other, more) if name == other:
            yield Cut(name, tokens + more)
        case Alloc(name, size, ""), Cut(other, tokens) if (
            name == other and 0 < tokens < size and not config.extends
        ):
            yield Alloc(name, size - tokens)
        case Extend() | ops.Decode() | Alloc(), Cut(name, tokens) if config.extends:
            yield from _cut_at_once(first, name, tokens)
    grown, more_grown = _growth(first), _growth(second)
    if config.extends and grown and more_grown and not getattr(first, "flaw", ""):
        if isinstance(second, ops.Decode) and not {item.request for item in grown} & set(second.requests):
            yield ops.Decode(tuple(item.request for item in grown) + second.requests, second.flaw)
        yield Extend(_one_batch(grown, more_grown), second.flaw if isinstance(second, Extend) else "")


def _cut_at_once(growth: Operation, name: str, tokens: int) -> Iterator[Extend]:
    """A growth that leaves out what is cut off again."""
    batch = _growth(growth)
    for place, item in enumerate(batch):
        if item.request == name and tokens < item.tokens and not getattr(growth, "flaw", ""):
            shorter = replace(item, tokens=item.tokens - tokens)
            yield Extend((*batch[:place], shorter, *batch[place + 1 :]))


def _growth(operation: Operation) -> tuple[Grow, ...]:
    """The requests that an operation grows, as an extend would."""
    match operation:
        case Extend(batch):
            return batch
        case ops.Decode(names, ""):
            return tuple(Grow(name, 1) for name in names)
        case Alloc(name, size, "") if size > 0:
            return (Grow(name, size),)
    return ()


def _one_batch(first: tuple[Grow, ...], second: tuple[Grow, ...]) -> tuple[Grow, ...]:
    """Both as one. Nobody begins behind what comes with it: such a prefix is left out."""
    batch = list(first)
    begun = {item.request: place for place, item in enumerate(first)}
    for item in second:
        place = begun.get(item.request)
        if place is None:
            batch.append(replace(item, prefix="" if item.prefix in begun else item.prefix))
        else:
            batch[place] = replace(batch[place], tokens=batch[place].tokens + item.tokens)
    return tuple(batch)


def _one_request(pieces: Pieces, at: int, first: int, second: int) -> Iterator[Pieces]:
    """What two requests are allocated, as the whole of one: the other's frees cut it back."""
    match pieces[at][first], pieces[at][second]:
        case Alloc(name, size, ""), Alloc(other, more, "") if name != other and min(size, more) > 0:
            for kept, gone, tokens in ((name, other, more), (other, name, size)):
                # The other one is gone before anybody asks for it.
                rest = _without(pieces, {(at, second)})
                behind = Alloc(kept, size + more)
                changed = [
                    tuple(_named_by_one(o, kept, gone, tokens) if (n, p) > (at, first) else o for p, o in enumerate(piece))
                    for n, piece in enumerate(rest)
                ]  # fmt: skip
                changed[at] = (*changed[at][:first], behind, *changed[at][first + 1 :])
                yield tuple(changed)


def _named_by_one(operation: Operation, kept: str, gone: str, tokens: int) -> Operation:
    """The operation where `kept` has the tokens of `gone` as well, behind its own."""
    match operation:
        case Free(parts, flaw) if Part(gone) in parts:
            left = tuple(part for part in parts if part.request != gone)
            if any(part.request == kept for part in left):
                return Free(left, flaw)
            return Cut(kept, tokens) if not left and not flaw else Free((*left, Part(kept)), flaw)
        case Cut(request, count) if request == gone:
            return Cut(kept, count)
        case Alloc(request, size, flaw) if request == gone:
            return Alloc(kept, size, flaw)
        case ops.CopyOut(request) | ops.CopyIn(request) if request == gone:
            return replace(operation, request=kept)
    return operation


# -- on another pool -----------------------------------------------------------------------------------


def with_another_pool(case: Case) -> Iterator[Case]:
    """Without one operation, or two, on a pool that is smaller by what they took, or has a page more or less.

    Or on one that keeps what is freed in another list.
    """
    config, operations = case.config, case.operations
    for left_out in (*((place,) for place in range(len(operations))), *_couples(len(operations))):
        rest = tuple(o for place, o in enumerate(operations) if place not in left_out)
        tokens = sum(item.tokens for place in left_out for item in _growth(operations[place]))
        taken = -(-tokens // config.page_size)
        changes = ((-taken, -taken), (1, 1), *(((-1, -1), (0, 1), (1, 0)) if len(left_out) == 1 else ()))
        for pages, window in dict.fromkeys(changes):
            pool = _pool(config, pages, window if config.swa_pages else 0)
            if pool is not None and pool != config:
                yield Case(pool, rest)
        yield Case(replace(config, need_sort=not config.need_sort), rest)


def _couples(count: int) -> Iterator[tuple[int, int]]:
    return combinations(range(count), 2) if count <= FEW // 2 else iter(())


def _pool(config: Config, pages: int, window: int) -> Config | None:
    if config.pages + pages < 1 or (config.swa_pages and config.swa_pages + window < 1):
        return None
    return replace(config, pages=config.pages + pages, swa_pages=config.swa_pages + window)


def all_at_once(case: Case) -> Iterator[Case]:
    """All that is ever allocated as one request that is there first, and every free as a cut of it."""
    size = case.config.page_size
    held: dict[str, int] = {}
    first: int | None = None
    total, operations = 0, list[tuple[int, Operation]]()  # what is given back, or 0 and the operation
    for operation in case.operations:
        match operation:
            case Alloc(_, count, "") if count > 0:
                pass
            case Extend(_, "") | ops.Decode(_, ""):
                pass
            case Free(parts, "") if all(part == Part(part.request) for part in parts):
                operations.append((sum(held.pop(part.request, 0) for part in parts), operation))
                continue
            case Cut(name, count):
                back = min(held.get(name, 0), -(-count // size) * size)
                held[name] = held.get(name, 0) - back
                operations.append((back, operation))
                continue
            case _:
                operations.append((0, operation))
                continue
        first = len(operations) if first is None else first
        for item in _growth(operation):
            pages = -(-item.tokens // size)
            held[item.request] = held.get(item.request, 0) + pages * size
            total += pages * size
    if first is None or not total:  # a batch may have no requests
        return
    name = next(item.request for o in case.operations for item in _growth(o))
    config = replace(case.config, pages=max(case.config.pages, total // size))
    made: list[Operation] = []
    left = total
    for back, operation in operations:
        left -= back
        made.append((Cut(name, back) if left else Free((Part(name),))) if back else operation)
    if len(made) + 1 < len(case.operations):
        for place in dict.fromkeys((first, 0)):
            yield Case(config, (*made[:place], Alloc(name, total), *made[place:]))
