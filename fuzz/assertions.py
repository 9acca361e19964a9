"""What a finding says, as an assertion: chosen by what the subject answered, so that it is the finding and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzz.constructors import NoHandover
from oracle.ops import Case
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall, FreeCall, StateCall, Step, World

if TYPE_CHECKING:
    from fuzz.handover import Emitter

Lines = list[str]
Late = Callable[["Emitter"], Lines]  # lines that need to know which variable has which slots


def _none(_: Emitter) -> Lines:
    return []


@dataclass(frozen=True, slots=True)
class Claim:
    """The lines around the call that is wrong.

    after, before: behind and in front of it. wrap: the call itself, where an error is part of the finding.
    first: in front of all. kept_at: behind earlier steps. data: K and V are written; watches: answers are kept;
    crashes: the process is to die.
    """

    after: Late = _none
    before: Late = _none
    wrap: Callable[[Lines], Iterator[str]] | None = None
    first: tuple[str, ...] = ()
    kept_at: dict[int, Late] = field(default_factory=dict)
    data: bool = False
    watches: bool = False
    crashes: bool = False


def quoted(text: str) -> str:
    """A text as a literal of Python, in double quotes where that needs no escape."""
    text = text.encode("utf-8", "backslashreplace").decode()
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain.startswith("'") and '"' not in plain else plain


def says(condition: str, violation: Violation) -> str:
    """An assertion with the finding's sentence."""
    return f"assert {condition}, {quoted(violation.summary)}"


def claim_of(emitter: Emitter, violation: Violation) -> Claim:
    """What is asserted of the last step that was answered. NoHandover where that can't be said."""
    if not emitter.steps or violation.operation == "__init__":
        return Claim(first=tuple(_new_allocator(emitter, violation)))
    step, seen = emitter.steps[-1], emitter.answers[-1]
    past_the_list = seen.guard.startswith("out-of-bounds load") and "free_page_ptr" in seen.guard
    if seen.outcome == "crashed" or (past_the_list and emitter.maker.fenced):
        return Claim(crashes=True)
    if seen.guard:
        raise NoHandover(
            "what lies outside the arguments shows under the emulator or between guard zones only"
        )
    if seen.disturbed:
        return Claim(_asserted(violation, "all(tensor.tolist() == values for tensor, values in kept)"),
                     first=("kept = []",), watches=True)  # fmt: skip
    if seen.damaged:
        return _damaged(emitter, step, violation)
    if step.status == "misuse":
        return _misuse(emitter, step, seen, violation)
    return _legal(emitter, step, seen, violation)


def _asserted(violation: Violation, condition: str) -> Late:
    return lambda _: [says(condition, violation)]


def _new_allocator(emitter: Emitter, violation: Violation) -> Iterator[str]:
    config = emitter.config
    if violation.code == "MAP":
        yield says(_mismapped(violation.summary, emitter.claims.translates), violation)
        return
    name = violation.summary.removeprefix("of a new allocator ").partition(" is ")[0]
    if violation.code == "TYPE" and name.isidentifier():
        right = {
            "size": config.size, "page_size": config.page_size, "num_pages": config.pages,
            "need_sort": config.need_sort, "size_full": config.size, "size_swa": config.swa_pages * config.page_size,
        }  # fmt: skip
        yield says(f"getattr(allocator, {name!r}, None) == {right.get(name)!r}", violation)
        return
    yield says(
        f"allocator.available_size() == {_available(emitter, World(config.pages, config.swa_pages))}",
        violation,
    )


def _available(emitter: Emitter, world: World) -> int:
    config = emitter.config
    return (min(world.free, world.swa_free) if config.swa_pages else world.free) * config.page_size


BY_ASKING = "(asked for its state)"
ASKED = {
    False: ("allocator.available_size()", "lists()"),
    True: ("allocator.full_available_size()", "allocator.swa_available_size()", "lists()"),
}


def _raises(violation: Violation, asked: tuple[str, ...]) -> Callable[[Lines], Iterator[str]]:
    """asked: what is asked of its state behind the call, where that is what raised."""
    text = quoted(violation.summary)

    def wrap(call: Lines) -> Iterator[str]:
        yield from ("try:", *(f"    {line}" for line in (*call, *asked)), "except Exception as error:")
        yield f"    raise AssertionError({text}) from error"

    return wrap


# -- legal calls ---------------------------------------------------------------------------------------


def _legal(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim:
    if seen.outcome == "raised":
        return Claim(
            wrap=_raises(
                violation, ASKED[emitter.config.kind == "swa"] if seen.error.endswith(BY_ASKING) else ()
            )
        )
    if isinstance(step.call, AllocCall | BatchCall):
        lines = _answer(emitter, step, seen, violation)
        if lines is not None:
            return Claim(lines)
    claim = _state_call(emitter, step, seen, violation)
    if claim is not None:
        return claim
    return _state(emitter, step.after, seen, violation) or _parity(emitter, step, seen, violation)


def _answer(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Late | None:
    """What is wrong with the answer of an allocation; None where nothing is."""
    size, got = emitter.config.page_size, seen.slots
    if seen.outcome == "odd":
        return _asserted(violation, "isinstance(answer, torch.Tensor)")
    if not step.fits:
        return None if seen.outcome == "none" else _asserted(violation, "answer is None")
    if seen.outcome == "none":
        return _asserted(violation, "answer is not None")
    if seen.tensor:
        return _asserted(violation, _tensor(emitter, seen.tensor, violation))
    if len(got) != step.tokens:
        return _asserted(violation, f"answer.numel() == {step.tokens}")
    if seen.forecast is not None and seen.forecast < len(step.fresh):
        call = step.call
        assert isinstance(call, BatchCall)
        forecast = f"allocator.estimated_num_new_pages({len(call.seq)}, {call.total})"
        return _asserted(violation, f"{forecast} >= {len(step.fresh)}")
    binding = _binding(emitter)
    for uid, offset, place, count in step.grown:
        first = binding[uid] * size + offset
        piece = got[place : place + count]
        if piece != tuple(range(first, first + count)):
            return _grown(violation, uid, offset, place, count)
    for _, place, count in step.fresh:
        first = got[place]
        piece = got[place : place + count]
        if any(not size <= slot < (emitter.config.pages + 1) * size for slot in piece):
            return _asserted(violation, _inside(emitter, f"answer[{place}:{place + count}]"))
        if first % size or piece != tuple(range(first, first + count)):
            return _fresh(violation, size, place, count)
    pages = [got[place] // size for _, place, _ in step.fresh]
    before = {binding[uid] for uid in _bound_before(emitter)}
    if len(set(pages)) < len(pages) or before.intersection(pages):
        places = [place for _, place, _ in step.fresh]
        return lambda late: _two_owners(late, violation, size, places)
    return None


def _two_owners(emitter: Emitter, violation: Violation, size: int, places: list[int]) -> Lines:
    opened = ", ".join(f"int(answer[{place}]) // {size}" for place in places)
    held = f"set(({emitter.held()} // {size}).tolist())" if emitter.bound else "set()"
    return [
        f"opened, held = [{opened}], {held}",
        says("len({*opened, *held}) == len(opened) + len(held)", violation),
    ]


def _tensor(emitter: Emitter, text: str, violation: Violation) -> str:
    if text.startswith("has shape"):
        return "answer.dim() == 1"
    if text.startswith("is not contiguous"):
        return "answer.is_contiguous()"
    if text.startswith("is on"):
        return 'answer.device.type == "cpu"'
    return f"answer.dtype == torch.{emitter.claims.dtype_of(violation.operation)}"


def _inside(emitter: Emitter, what: str) -> str:
    size = emitter.config.page_size
    return f"all({size} <= slot < {(emitter.config.pages + 1) * size} for slot in {what}.tolist())"


def _grown(violation: Violation, uid: int, offset: int, place: int, count: int) -> Late:
    def late(emitter: Emitter) -> Lines:
        last = emitter.slot((uid, offset - 1))
        right = f"list(range(int({last}) + 1, int({last}) + {1 + count}))"
        return [says(f"answer[{place}:{place + count}].tolist() == {right}", violation)]

    return late


def _fresh(violation: Violation, size: int, place: int, count: int) -> Late:
    lines = [
        f"page = answer[{place}:{place + count}].tolist()",
        says(f"page[0] % {size} == 0 and page == list(range(page[0], page[0] + {count}))", violation),
    ]
    return lambda _: lines


def _binding(emitter: Emitter) -> dict[int, int]:
    """The page of each uid, by the answers up to the last."""
    pages: dict[int, int] = {}
    for step, seen in zip(emitter.steps, emitter.answers, strict=True):
        for uid, place, _ in step.fresh:
            if step.status == "legal" and place < len(seen.slots):
                pages[uid] = seen.slots[place] // emitter.config.page_size
    return pages


def _bound_before(emitter: Emitter) -> set[int]:
    """The uids that are held, or wait, when the last step is asked."""
    world = emitter.steps[-1].before
    uids = {uid for request in world.requests.values() for uid in request.pages if uid}
    return uids | set((*world.group.pages, *world.group.parts) if world.group is not None else ())


def _state_call(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim | None:
    """RESTORE and CLEAR, where the lists are not what they were."""
    if not isinstance(step.call, StateCall) or seen.lists is None:
        return None
    if step.call.method == "clear" and violation.summary.startswith("free list"):
        return Claim(_asserted(violation, "lists() == new"), first=("new = lists()",))
    if step.call.method == "restore_state" and "was saved, and now" in violation.summary:
        name = step.call.name
        saved = max(
            at
            for at, earlier in enumerate(emitter.steps[:-1])
            if isinstance(earlier.call, StateCall) and earlier.call == StateCall("backup_state", name)
        )
        return Claim(_asserted(violation, "lists() == then"), kept_at={saved: lambda _: ["then = lists()"]})
    return None


# -- the state -----------------------------------------------------------------------------------------


def _state(emitter: Emitter, world: World, seen: Observation, violation: Violation) -> Claim | None:
    """What is wrong with what the allocator says that it has: counts, lists, mapping."""
    condition = _counts(emitter, world, seen)
    if condition:
        return Claim(_asserted(violation, condition))
    lines = _lists(emitter, world, seen, violation)
    if lines is not None:
        return Claim(lines)
    return _mapping(emitter, world, seen, violation)


def _counts(emitter: Emitter, world: World, seen: Observation) -> str:
    size = emitter.config.page_size
    for what, got, right in (
        ("available_size", seen.available, _available(emitter, world)),
        ("full_available_size", seen.full, world.free * size),
        ("swa_available_size", seen.window, world.swa_free * size),
    ):
        if got is not None and got != right:
            return f"allocator.{what}() == {right}"
    return ""


def _held_in(world: World) -> list[int]:
    uids = [uid for request in world.requests.values() for uid in request.pages if uid]
    waiting = (*world.group.pages, *world.group.parts) if world.group is not None else ()
    return list(dict.fromkeys((*uids, *waiting)))


def _lists(emitter: Emitter, world: World, seen: Observation, violation: Violation) -> Late | None:
    if seen.lists is None:
        return None
    config, binding = emitter.config, _binding(emitter)
    held = {binding[uid] for uid in _held_in(world) if uid in binding}
    pools = [(0, config.pages, world.free, held)]
    if config.swa_pages:
        pools.append((2, config.swa_pages, world.swa_free, set()))
    for at, capacity, free, owned in pools:
        pages = seen.lists[at] + seen.lists[at + 1]
        first = f"free = lists()[{at}] + lists()[{at + 1}]"
        if any(not 1 <= page <= capacity for page in pages):
            return _listed(first, f"all(1 <= page <= {capacity} for page in free)", violation)
        if len(set(pages)) < len(pages):
            return _listed(first, "len(free) == len(set(free))", violation)
        if owned.intersection(pages):
            return lambda late, first=first: _free_and_held(late, first, world, violation)  # type: ignore[misc]
        if len(pages) != free:
            return _listed(first, f"len(free) == {free}", violation)
    return None


def _listed(first: str, condition: str, violation: Violation) -> Late:
    return lambda _: [first, says(condition, violation)]


def _free_and_held(emitter: Emitter, first: str, world: World, violation: Violation) -> Lines:
    """The requests' slots as they are after the operation; of an answer, those that it brought."""
    size = emitter.config.page_size
    held = emitter.slots((uid, 0, emitter.count[uid]) for uid in _held_in(world) if uid in emitter.place)
    lines = [first, f"held = set(({held} // {size}).tolist())" if held != "ints()" else "held = set()"]
    step = emitter.steps[-1]
    if isinstance(step.call, AllocCall | BatchCall) and step.fresh and step.fits:
        lines.append(f"held |= set((answer // {size}).tolist())")
    return [*lines, says("not held.intersection(free)", violation)]


TRANSLATE = "allocator.translate_loc_from_full_to_swa"


def _mismapped(text: str, dtype: str) -> str:
    if text.startswith("-1"):
        return f"int({TRANSLATE}(ints(-1))[0]) == -1"
    if text.startswith("translated slots"):
        return f"{TRANSLATE}(ints(-1, 0)).dtype == torch.{dtype}"
    return "allocator.get_kvcache().full_to_swa_index_mapping is allocator.full_to_swa_index_mapping"


def _mapping(emitter: Emitter, world: World, seen: Observation, violation: Violation) -> Claim | None:
    if seen.mapping is None:
        return None
    translate = TRANSLATE
    if seen.mismapped:
        return Claim(_asserted(violation, _mismapped(seen.mismapped, emitter.claims.translates)))
    config, size, binding = emitter.config, emitter.config.page_size, _binding(emitter)
    waiting = world.group.swa if world.group is not None else frozenset()
    partly = world.group.parts if world.group is not None else {}
    seen_windows: dict[int, int] = {}
    fresh_of = {uid: index for index, step in enumerate(emitter.steps) for uid, _, _ in step.fresh}
    for request in world.requests.values():
        for index, uid in enumerate(request.pages):
            if not uid or uid in waiting or uid in partly or uid not in binding:
                continue
            count = min(size, request.length - request.base - index * size)
            got = seen.mapping[binding[uid] * size : binding[uid] * size + count]
            if uid in world.gone:
                if any(got):
                    return Claim(_of_slots(uid, count, f"not {translate}({{}}).any()", violation))
                continue
            window = got[0] // size
            right = tuple(range(window * size, window * size + count))
            if got != right or not 1 <= window <= config.swa_pages:
                condition = (
                    f"window[0] % {size} == 0 and {size} <= window[0] < {(config.swa_pages + 1) * size} and "
                )
                condition += "window == list(range(window[0], window[0] + len(window)))"
                return Claim(
                    _of_slots(uid, count, condition, violation, f"window = {translate}({{}}).tolist()")
                )
            if window in seen_windows:
                return Claim(_two_to_one(seen_windows[window], uid, size, translate, violation))
            seen_windows[window] = uid
            then = emitter.answers[fresh_of[uid]].mapping
            before = then[binding[uid] * size] // size if then is not None else window
            if before != window and fresh_of[uid] < len(emitter.steps) - 1:
                kept = _translated(uid, translate)
                late = _of_slots(uid, 1, f"{translate}({{}}).tolist() == then", violation)
                return Claim(late, kept_at={fresh_of[uid]: kept})
    return None


def _translated(uid: int, translate: str) -> Late:
    return lambda late: [f"then = {translate}({late.slots([(uid, 0, 1)])}).tolist()"]


def _of_slots(uid: int, count: int, condition: str, violation: Violation, first: str = "") -> Late:
    """An assertion about the slots of a page, which an answer may just have brought."""

    def late(emitter: Emitter) -> Lines:
        step = emitter.steps[-1]
        place = next((at for fresh, at, _ in step.fresh if fresh == uid), None)
        slots = f"answer[{place}:{place + count}]" if place is not None else emitter.slots([(uid, 0, count)])
        for grown, offset, at, more in step.grown:
            if grown == uid:
                slots = f"joined({emitter.slots([(uid, 0, offset)])}, answer[{at}:{at + more}])"
        lines = [first.format(slots)] if first else []
        return [*lines, says(condition.format(slots), violation)]

    return late


def _two_to_one(one: int, other: int, size: int, translate: str, violation: Violation) -> Late:
    def late(emitter: Emitter) -> Lines:
        step = emitter.steps[-1]
        places = {uid: at for uid, at, _ in step.fresh}
        both = [
            f"answer[{places[uid]}:{places[uid] + 1}]" if uid in places else emitter.slots([(uid, 0, 1)])
            for uid in (one, other)
        ]
        return [
            f"one, other = (int({translate}(first)[0]) // {size} for first in ({both[0]}, {both[1]}))",
            says("one != other", violation),
        ]

    return late


def _parity(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim:
    right = emitter.right[-1]
    if (
        violation.code == "ORDER"
        and isinstance(step.call, AllocCall | BatchCall)
        and seen.slots != right.slots
    ):
        return Claim(_asserted(violation, f"answer.tolist() == {list(right.slots)}"))
    if violation.code == "ORDER" and right.lists is not None:
        return Claim(_asserted(violation, f"lists() == {[list(listed) for listed in right.lists]}"))
    raise NoHandover(f"there is no line of Python for this {violation.code}: replay it")


# -- K and V -------------------------------------------------------------------------------------------


def _damaged(emitter: Emitter, step: Step, violation: Violation) -> Claim:
    if emitter.config.kind == "swa" or not any(
        "kv = " in line for line in (*emitter.maker.setup, *emitter.maker.after)
    ):
        raise NoHandover("K and V of this subject can't be had without kvassay: replay it")
    call = step.call
    assert isinstance(call, FreeCall)

    def before(late: Emitter) -> Lines:
        runs, stamps = late.stamps(call.runs)
        return [
            "for layer in range(kv.layers):",
            f"    k, v = kv.get_kv(layer, {late.slots(runs)})",
            f"    right = torch.tensor({stamps}, dtype=k.dtype).view(-1, 1, 1).expand(k.shape) * (layer + 1)",
            "    " + says("torch.equal(k, right) and torch.equal(v, -right)", violation),
        ]

    return Claim(before=before, data=True)


# -- misuse --------------------------------------------------------------------------------------------


def _misuse(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim:
    """The call that breaks a rule is the last one: what is wrong with how it was taken."""
    text = quoted(violation.summary)
    if violation.code == "REJECT" and seen.outcome == "raised":
        accidents = "(NameError, AttributeError, IndexError, KeyError)"

        def by_accident(call: Lines) -> Iterator[str]:
            yield from ("try:", *(f"    {line}" for line in call), f"except {accidents} as error:")
            yield f"    raise AssertionError({text}) from error"
            yield from ("except Exception:", "    return  # a check refused it")
            yield f"raise AssertionError({text})"

        return Claim(wrap=by_accident)
    if violation.code == "REJECT":
        return _not_refused(text)
    gift = isinstance(step.call, AllocCall | BatchCall) and seen.outcome == "slots"
    inner = _gift(emitter, step, seen, violation) if gift else None
    claim = inner or _state(emitter, step.before, seen, violation)
    if claim is None:
        raise NoHandover(f"there is no line of Python for this misuse ({violation.rule}): replay it")

    def refused(call: Lines) -> Iterator[str]:
        yield from ("try:", *(f"    {line}" for line in call), "except Exception:")
        yield (
            "    pass  # refused, which is right: then nothing may have changed"
            if inner is None
            else "    return  # refused, which is right"
        )

    return Claim(claim.after, claim.before, refused, claim.first, claim.kept_at)


def _not_refused(text: str) -> Claim:
    """REJECT: the misuse was taken, and nothing came of it up to the end."""

    def wrap(call: Lines) -> Iterator[str]:
        yield from ("try:", *(f"    {line}" for line in call), "except Exception:")
        yield from ("    return  # refused, which is right", f"raise AssertionError({text})")

    return Claim(wrap=wrap)


def _gift(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim | None:
    """What was handed out to a call that breaks a rule."""
    size, config = emitter.config.page_size, emitter.config
    if "is free: " in violation.summary or "in the free list as well" in violation.summary:
        late: Late = lambda e: _free_and_held(e, "free = lists()[0] + lists()[1]", step.before, violation)  # noqa: E731
        twice = _listed("free = lists()[0] + lists()[1]", "len(free) == len(set(free))", violation)
        listed = seen.lists[0] + seen.lists[1] if seen.lists is not None else ()
        return Claim(twice if len(set(listed)) < len(listed) else late)
    if "rose to" in violation.summary:
        return Claim(
            _asserted(violation, f"allocator.available_size() <= {_available(emitter, step.before)}")
        )
    if len(seen.slots) != step.tokens:
        return Claim(_asserted(violation, f"answer.numel() == {step.tokens}"))
    if any(not size <= slot < (config.pages + 1) * size for slot in seen.slots):
        return Claim(_asserted(violation, _inside(emitter, "answer")))
    if len(set(seen.slots)) < len(seen.slots):
        return Claim(_asserted(violation, "answer.unique().numel() == answer.numel()"))
    if "was granted, and operation" in violation.summary:
        last = {uid for uid, _ in step.call.last} if isinstance(step.call, BatchCall) else set()

        def owned(late: Emitter) -> Lines:
            held = late.slots((uid, 0, late.count[uid]) for uid in late.bound if uid not in last)
            return [says(f"not torch.isin(answer // {size}, {held} // {size}).any()", violation)]

        return Claim(owned)
    if "available_size() says" in violation.summary:
        pages = {slot // size for slot in seen.slots} - set(_binding(emitter).values())
        what = "full_available_size" if seen.full is not None else "available_size"
        return Claim(_asserted(violation, f"allocator.{what}() == {(step.before.free - len(pages)) * size}"))
    return None


# -- relations -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """Up to which operation each run goes (places, from 0), and what of it is compared.

    record: an expression, or `slots` for those of all operations from `since` on.
    """

    left: int
    right: int
    record: str
    since: int = 0


def departs(
    left: Case, right: Case, one: Sequence[Observation], other: Sequence[Observation], violation: Violation
) -> Difference:
    """Where two runs differ, and in what."""
    from properties.relations import runs_of_file

    runs = runs_of_file(violation.symptom.removeprefix("relation "), left, right)
    start = len(left.operations) - runs.after, len(right.operations) - runs.after
    if runs.relation.middle == "extends" and violation.index == start[0] - 1:
        several = start[1] - start[0] + 1
        record = "lists()" if "free list" in violation.summary else "slots"
        return Difference(violation.index, start[1] - 1, record, start[1] - several)
    place = violation.index - start[0] + start[1]
    a, b = one[violation.index], other[place]
    if a.outcome != b.outcome:
        record = "answer is None"
    elif (a.available, a.full, a.window) != (b.available, b.full, b.window):
        record = "allocator.available_size()"
        if a.available == b.available:
            record = "(allocator.full_available_size(), allocator.swa_available_size())"
    else:
        record = "answer.tolist()"
    return Difference(violation.index, place, record)
