"""The smallest case with the same finding: greedy, deterministic, and never another finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from fuzz import fewer
from impl.subject import Space
from oracle import ops
from oracle.ops import Alloc, Case, Config, Cut, Extend, Free, FreeSwa, Grow, Operation, Part
from properties.relations import Pair
from properties.workload import NAMES

PAIR_RUNS = 600
Holds = Callable[[Case], bool]
T = TypeVar("T")


@dataclass(slots=True)
class Shrinker:
    """Makes a case smaller as long as `holds` says that the finding is still there.

    space: the pools that the subject can be made with; the case stays in it, or has pages of the size that it had.
    runs: how often `holds` was asked; limit: how often it may be.
    """

    holds: Holds
    space: Space
    limit: int = 2000
    runs: int = 0
    _own: int = 0

    def shrink(self, case: Case) -> Case:
        """The smallest case that was reached. `case` itself must hold."""
        self._own = case.config.page_size
        while self.runs < self.limit:
            before = case
            case = self._first_that_holds(self._drop(case), _with_fewer)
            case = self._first_that_holds(case, _plainer_configs)
            case = self._first_that_holds(case, _simpler_operations)
            if case == before:
                break
        return self._first_that_holds(case, _renamed, once=True)

    def _drop(self, case: Case) -> Case:
        """Without runs of operations: halves first, then ever shorter runs, from the end."""
        length = max(1, len(case.operations) // 2)
        while length:
            end = len(case.operations)
            while end > 0:
                start = max(0, end - length)
                shorter = replace(case, operations=case.operations[:start] + case.operations[end:])
                if self._ask(shorter):
                    case = shorter
                end = start
            length //= 2
        return case

    def _first_that_holds(
        self, case: Case, candidates: Callable[[Case], Iterator[Case]], once: bool = False
    ) -> Case:
        while True:
            for candidate in candidates(case):
                if candidate != case and self._ask(candidate):
                    case = candidate
                    break
            else:
                return case
            if once:
                return case

    def _ask(self, case: Case) -> bool:
        if self.runs >= self.limit or not self._possible(case.config):
            return False
        self.runs += 1
        return self.holds(case)

    def _possible(self, config: Config) -> bool:
        fixed = self.space.fixed
        if any(getattr(config, name) != value for name, value in fixed.items()):
            return False
        sizes = (fixed["page_size"],) if "page_size" in fixed else self.space.page_sizes
        return config.page_size in (*sizes, self._own) and config.need_sort in self.space.need_sort


def shrink_pair(pair: Pair, holds: Callable[[Pair], bool]) -> Pair:
    """The smallest pair of runs with the same finding: fewer operations in each piece, then a plainer pool."""
    progress, runs = True, 0
    while progress:
        progress = False
        for candidate in _smaller_pairs(pair):
            runs += 1
            if runs > PAIR_RUNS:
                return pair
            if holds(candidate):
                pair, progress = candidate, True
                break
    return pair


def _smaller_pairs(pair: Pair) -> Iterator[Pair]:
    for pieces in (*fewer.without_two(pair.pieces), *fewer.two_as_one(pair.pieces, pair.config)):
        yield replace(pair, pieces=pieces)
    for at, piece in enumerate(pair.pieces):
        for place in range(len(piece)):
            shorter = (*piece[:place], *piece[place + 1 :])
            yield replace(pair, pieces=(*pair.pieces[:at], shorter, *pair.pieces[at + 1 :]))
        for simpler in _simpler_operations(Case(pair.config, piece)):
            yield replace(pair, pieces=(*pair.pieces[:at], simpler.operations, *pair.pieces[at + 1 :]))
    for plainer in _plainer_configs(Case(pair.config, ())):
        if not pair.relation.sorts or plainer.config.need_sort:
            yield replace(pair, config=plainer.config)


def _with_fewer(case: Case) -> Iterator[Case]:
    """The same in fewer operations: what no step that leaves out one thing alone comes to."""
    pieces = (case.operations,)
    for candidates in (
        fewer.without_two(pieces), fewer.two_as_one(pieces, case.config), fewer.with_one_moved(pieces)
    ):  # fmt: skip
        yield from (replace(case, operations=operations) for (operations,) in candidates)
    yield from fewer.all_at_once(case)
    yield from fewer.with_another_pool(case)


def _plainer_configs(case: Case) -> Iterator[Case]:
    """Pools with fewer and smaller pages, and callers that do less."""
    config = case.config
    for name in ("need_sort", "spare", "overwrite", "data", "undefined"):
        plain = _default(name) if name != "overwrite" else False
        if getattr(config, name) != plain:
            yield from _with(case, **{name: plain})
    for name in ("pages", "swa_pages", "page_size"):
        value = getattr(config, name)
        for smaller in dict.fromkeys((1, 2, 3, 4, value // 2, value - 1)):
            if 1 <= smaller < value:
                changes = {name: smaller}
                if name == "pages":
                    if config.swa_pages > smaller:  # one that is larger than the other may be the fault
                        both = {"pages": smaller, "swa_pages": smaller}
                        yield from _with(_with_less(case, (value - smaller) * config.page_size), **both)
                        yield from _with(case, **both)
                    yield from _with(_with_less(case, (value - smaller) * config.page_size), **changes)
                if name == "page_size":
                    yield _rescaled(case, smaller)
                    changes["spare"] = min(config.spare, smaller - 1)
                yield from _with(case, **changes)


def _with(case: Case, **changes: Any) -> Iterator[Case]:
    try:
        yield replace(case, config=replace(case.config, **changes))
    except ValueError:
        return  # no such pool


def _with_less(case: Case, tokens: int) -> Case:
    """The same case with the large allocations smaller by so many tokens: as full a pool on fewer pages."""
    return _resized(case, lambda value: value - tokens if value > tokens else value)


def _rescaled(case: Case, page_size: int) -> Case:
    """The same case on smaller pages: as many of them are filled, and as many partly."""
    old = case.config.page_size

    def scaled(value: int) -> int:
        return value // old * page_size + min(value % old, page_size - 1) if value >= 0 else value

    config = replace(case.config, page_size=page_size, spare=min(case.config.spare, page_size - 1))
    return Case(config, _resized(case, scaled, everywhere=True).operations)


def _resized(case: Case, size: Callable[[int], int], everywhere: bool = False) -> Case:
    """The same case with other sizes of allocations; `everywhere`, of what is cut and freed as well."""

    def part(p: Part) -> Part:
        return Part(p.request, size(p.start), None if p.stop is None else size(p.stop))

    operations: list[Operation] = []
    for o in case.operations:
        match o:
            case Alloc():
                operations.append(replace(o, size=size(o.size)))
            case Extend():
                operations.append(replace(o, batch=tuple(replace(g, tokens=size(g.tokens)) for g in o.batch)))
            case Cut() if everywhere:
                operations.append(replace(o, tokens=size(o.tokens)))
            case Free() | FreeSwa() if everywhere:
                operations.append(replace(o, parts=tuple(map(part, o.parts))))
            case _:
                operations.append(o)
    return replace(case, operations=tuple(operations))


def _default(name: str) -> Any:
    return next(f.default for f in fields(Config) if f.name == name)


def _simpler_operations(case: Case) -> Iterator[Case]:
    for place, operation in enumerate(case.operations):
        for simpler in _simpler(operation, case.config):
            yield replace(case, operations=(*case.operations[:place], simpler, *case.operations[place + 1 :]))


def _simpler(operation: Operation, config: Config) -> Iterator[Operation]:
    """Simpler forms of one operation; each is strictly smaller, so that shrinking ends."""
    match operation:
        case Extend(batch, flaw):
            yield Extend((), flaw)
            for grown in _fewer(batch):
                yield Extend(grown, flaw)
            for place, item in enumerate(batch):
                rest = (*batch[:place], *batch[place + 1 :])
                yield Extend(rest, flaw)
                if item.prefix:
                    yield Extend((*batch[:place], replace(item, prefix=""), *batch[place + 1 :]), flaw)
                for tokens in _smaller(item.tokens, config.page_size):
                    shorter = Grow(item.request, tokens, item.prefix)
                    yield Extend((*batch[:place], shorter, *batch[place + 1 :]), flaw)
        case ops.Decode(requests, flaw):
            yield ops.Decode((), flaw)
            for names in _fewer(requests):
                yield ops.Decode(names, flaw)
            for place in range(len(requests)):
                yield ops.Decode((*requests[:place], *requests[place + 1 :]), flaw)
        case Alloc(request, size):
            for smaller in _smaller(size, config.page_size):
                yield Alloc(request, smaller)
            if size < -1:
                yield Alloc(request, -1)
        case Cut(request, tokens):
            yield Free((Part(request),))
            for smaller in _smaller(tokens, config.page_size):
                yield Cut(request, smaller)
        case Free(parts, flaw):
            for fewer in _fewer_parts(parts):
                yield Free(fewer, flaw)
        case FreeSwa(parts):
            for fewer in _fewer_parts(parts):
                yield FreeSwa(fewer)
        case _:
            return


def _fewer(items: tuple[T, ...]) -> Iterator[tuple[T, ...]]:
    """Without runs of items: halves first, then quarters, down to runs of two."""
    length = len(items) // 2
    while length > 1:
        for start in range(0, len(items), length):
            yield (*items[:start], *items[start + length :])
        length //= 2


def _fewer_parts(parts: tuple[Part, ...]) -> Iterator[tuple[Part, ...]]:
    yield from filter(None, _fewer(parts))
    for place, part in enumerate(parts):
        before, after = parts[:place], parts[place + 1 :]
        if len(parts) > 1:
            yield (*before, *after)
        if part.stop is not None:
            yield (*before, Part(part.request, part.start), *after)
        if part.start:
            yield (*before, Part(part.request, 0, part.stop), *after)
            if part.start > 1:
                yield (*before, Part(part.request, 1, part.stop), *after)


def _smaller(value: int, page_size: int) -> Iterator[int]:
    for smaller in dict.fromkeys((0, 1, page_size, value // 2, value - page_size, value - 1)):
        if 0 <= smaller < value:
            yield smaller


def _renamed(case: Case) -> Iterator[Case]:
    """The same case with its requests called A, B, … in the order in which they come."""
    names: dict[str, str] = {}

    def new(name: str) -> str:
        if name and name not in names:
            names[name] = NAMES[len(names)] if len(names) < len(NAMES) else f"R{len(names)}"
        return names.get(name, name)

    yield replace(case, operations=tuple(fewer.renamed(o, new) for o in case.operations))
