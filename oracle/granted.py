"""Are slots sound that were handed out, to a call that breaks a rule too?"""

from __future__ import annotations

from collections.abc import Mapping

from oracle.binding import Binding
from oracle.ops import Config
from oracle.verdict import Observation, Problem, lists_in_words, short
from oracle.world import BatchCall, Step, room_in

# Misuse of a batch after which nobody can say how many slots were meant.
_UNCLEAR = frozenset({"lengths", "shrinks", "negative", "mirror", "shape", "tensor", "device"})


def stray(config: Config, got: tuple[int, ...]) -> Problem:
    """RANGE, where a slot lies in no page of the pool."""
    low, high = config.page_size, (config.pages + 1) * config.page_size
    for slot in got:
        if not low <= slot < high:
            what = "a padding slot" if 0 <= slot < low else "in no page of the pool"
            return (
                "RANGE",
                f"slot {slot} was handed out, which is {what} (pages 1 to {config.pages} of {config.page_size})",
            )
    return None


def wrong_gift(
    config: Config, step: Step, seen: Observation, bound: Binding, given: Mapping[int, tuple[int, str]]
) -> Problem:
    """What was handed out to a call that breaks a rule: sound slots, and no page less than they need."""
    size = config.page_size
    if seen.lists is not None:
        listed = seen.lists[0] + seen.lists[1]
        if len(set(listed)) < len(listed) or not bound.owner.keys().isdisjoint(listed):
            return (
                "UNIQUE",
                f"a page that is held, or one page twice, is free: {lists_in_words(seen.lists)}",
            )
    if step.rule in _UNCLEAR and isinstance(step.call, BatchCall):
        # How many slots were meant can't be said; capacity from nowhere can.
        room = room_in(config, step.before)
        if seen.available is not None and seen.available > room * size:
            return "CONSERVE", f"available_size() rose to {seen.available} from {room * size}"
        return None
    if len(seen.slots) != step.tokens:
        return "EXHAUST", f"it was granted {len(seen.slots)} slot(s) for {step.tokens}"
    problem = stray(config, seen.slots)
    if problem is not None:
        return problem
    if len(set(seen.slots)) < len(seen.slots):
        return "UNIQUE", "one slot was given twice in one answer"
    pages = {slot // size for slot in seen.slots}
    last = step.call.last if isinstance(step.call, BatchCall) else ()
    for page in pages - {bound.page[uid] for uid, _ in last if uid in bound.page}:
        if page in bound.owner:
            operation, name = given[bound.owner[page]]
            return "UNIQUE", f"page {page} was granted, and operation {operation + 1} gave it to {name}"
    new = pages - bound.owner.keys()
    free = step.before.free - len(new)
    if seen.full is not None and seen.full != free * size:
        return "CONSERVE", f"full_available_size() says {seen.full} and {free * size} is right"
    if seen.full is None and seen.available is not None and seen.available != free * size:
        return "CONSERVE", f"available_size() says {seen.available} and {free * size} is right"
    if seen.lists is not None and not new.isdisjoint(seen.lists[0] + seen.lists[1]):
        return "UNIQUE", "a page that it was granted is in the free list as well"
    window = [seen.mapping[slot] for slot in seen.slots] if seen.mapping is not None else []
    if any(0 < slot < size for slot in window):
        return "MAP", f"what it was granted maps to the window's padding page: {short(tuple(window))}"
    return None
