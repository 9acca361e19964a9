"""Claims about what an allocator says that it has: counts, lists, and the mapping of an SWA pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuzz.claim import Claim, Late, Lines, asserted, says
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall, World, room_in

if TYPE_CHECKING:
    from fuzz.emitter import Emitter


def available(emitter: Emitter, world: World) -> int:
    """What `available_size()` has to say in a world."""
    config = emitter.config
    return room_in(config, world) * config.page_size


def binding_of(emitter: Emitter) -> dict[int, int]:
    """The page of each uid, by the answers up to the last."""
    pages: dict[int, int] = {}
    for step, seen in zip(emitter.steps, emitter.answers, strict=True):
        for uid, place, _ in step.fresh:
            if step.status == "legal" and place < len(seen.slots):
                pages[uid] = seen.slots[place] // emitter.config.page_size
    return pages


def state_claim(emitter: Emitter, world: World, seen: Observation, violation: Violation) -> Claim | None:
    """What is wrong with what the allocator says that it has: counts, lists, mapping."""
    condition = _counts(emitter, world, seen)
    if condition:
        return Claim(asserted(violation, condition))
    lines = _lists(emitter, world, seen, violation)
    if lines is not None:
        return Claim(lines)
    return _mapping(emitter, world, seen, violation)


def _counts(emitter: Emitter, world: World, seen: Observation) -> str:
    size = emitter.config.page_size
    for what, got, right in (
        ("available_size", seen.available, available(emitter, world)),
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
    config, binding = emitter.config, binding_of(emitter)
    held = {binding[uid] for uid in _held_in(world) if uid in binding}
    pools = [(0, config.pages, world.free, held)]
    if config.swa_pages:
        pools.append((2, config.swa_pages, world.swa_free, set()))
    for at, capacity, free, owned in pools:
        pages = seen.lists[at] + seen.lists[at + 1]
        first = f"free = lists()[{at}] + lists()[{at + 1}]"
        if any(not 1 <= page <= capacity for page in pages):
            return listed(first, f"all(1 <= page <= {capacity} for page in free)", violation)
        if len(set(pages)) < len(pages):
            return listed(first, "len(free) == len(set(free))", violation)
        if owned.intersection(pages):
            return lambda late, first=first: free_and_held(late, first, world, violation)  # type: ignore[misc]
        if len(pages) != free:
            return listed(first, f"len(free) == {free}", violation)
    return None


def listed(first: str, condition: str, violation: Violation) -> Late:
    """An assertion with a line in front of it."""
    return lambda _: [first, says(condition, violation)]


def free_and_held(emitter: Emitter, first: str, world: World, violation: Violation) -> Lines:
    """The requests' slots as they are after the operation; of an answer, those that it brought."""
    size = emitter.config.page_size
    held = emitter.slots((uid, 0, emitter.count[uid]) for uid in _held_in(world) if uid in emitter.place)
    lines = [first, f"held = set(({held} // {size}).tolist())" if held != "ints()" else "held = set()"]
    step = emitter.steps[-1]
    if isinstance(step.call, AllocCall | BatchCall) and step.fresh and step.fits:
        lines.append(f"held |= set((answer // {size}).tolist())")
    return [*lines, says("not held.intersection(free)", violation)]


TRANSLATE = "allocator.translate_loc_from_full_to_swa"


def mismapped(text: str, dtype: str) -> str:
    """What the mapping has to be, where `Observation.mismapped` says what it is."""
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
        return Claim(asserted(violation, mismapped(seen.mismapped, emitter.claims.translates)))
    config, size, binding = emitter.config, emitter.config.page_size, binding_of(emitter)
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
