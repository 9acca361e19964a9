"""Does what an allocator shows of itself fit the world: its numbers, its lists, its mapping?"""

from __future__ import annotations

from collections.abc import Mapping

from oracle.binding import Binding
from oracle.ops import Config
from oracle.verdict import Observation, Problem, short
from oracle.world import World, room_in


def wrong_numbers(config: Config, world: World, seen: Observation, context: str) -> Problem:
    """CONSERVE: what the subject says it has is what nobody holds. context: the code of what goes wrong here, if it has one."""
    size = config.page_size
    for what, got, right in (
        ("available_size", seen.available, room_in(config, world) * size),
        ("full_available_size", seen.full, world.free * size),
        ("swa_available_size", seen.window, world.swa_free * size),
    ):
        if got is not None and got != right:
            waiting = f", {_waiting(world)} waiting for the end of the group" if world.group else ""
            held = config.pages - world.free - _waiting(world)
            return context or "CONSERVE", (
                f"{what}() says {got} and {right} is right: of {config.pages} page(s) of {size}, {held} held{waiting}"
            )
    return None


def wrong_lists(
    config: Config,
    world: World,
    seen: Observation,
    context: str,
    bound: Binding,
    given: Mapping[int, tuple[int, str]],
) -> Problem:
    """The lists hold each page once, none that is held, and none outside the pool.

    given: operation and request of each uid.
    """
    if seen.lists is None:
        return None
    pools = [(seen.lists[0] + seen.lists[1], config.pages, world.free, bound.owner, "")]
    if config.swa_pages:
        held = {page: uid for uid, page in bound.window.items() if uid not in world.gone}
        pools.append((seen.lists[2] + seen.lists[3], config.swa_pages, world.swa_free, held, "window "))
    for pages, capacity, free, owner, which in pools:
        distinct = set(pages)
        if (
            len(pages) == free == len(distinct)
            and distinct.isdisjoint(owner)
            and (not distinct or (min(distinct) >= 1 and max(distinct) <= capacity))
        ):
            continue
        strict = context if context in ("GROUP", "RESTORE", "CLEAR") else ""
        for page in pages:
            if not 1 <= page <= capacity:
                return (
                    strict or "RANGE",
                    f"{which}page {page} is free, and the pool has pages 1 to {capacity}",
                )
            if pages.count(page) > 1:
                return (
                    strict or "UNIQUE",
                    f"{which}page {page} is in the free list {pages.count(page)} times",
                )
            if page in owner:
                operation, name = given[owner[page]]
                return (
                    strict or "UNIQUE",
                    f"{which}page {page} is in the free list, and operation {operation + 1} gave it to {name}",
                )
        return (
            context or "CONSERVE",
            f"the free list has {len(pages)} {which}page(s), and {free} is right",
        )
    return None


def wrong_mapping(config: Config, world: World, seen: Observation, bound: Binding) -> Problem:
    """MAP: live full slots have the window slots that came with them, or 0; no two the same."""
    if seen.mapping is None:
        return None
    if seen.mismapped:
        return "MAP", seen.mismapped
    size = config.page_size
    claimed: dict[int, str] = {}
    waiting = world.group.swa if world.group is not None else frozenset()
    partly = world.group.parts if world.group is not None else {}
    for name, request in world.requests.items():
        for index, uid in enumerate(request.pages):
            if not uid or uid in waiting or uid in partly:
                continue
            count = min(size, request.length - request.base - index * size)
            first = bound.page[uid] * size
            got = seen.mapping[first : first + count]
            if uid in world.gone:
                if any(got):
                    return (
                        "MAP",
                        f"{name}'s slot {first} maps to {short(got)}, and its window half was given up",
                    )
                continue
            window = bound.window.setdefault(uid, got[0] // size)
            right = tuple(range(window * size, window * size + count))
            if got != right or not 1 <= window <= config.swa_pages:
                return (
                    "MAP",
                    f"{name}'s slots from {first} map to {short(got)}, and {short(right)} is right",
                )
            if window in claimed:
                return "MAP", f"window page {window} serves {claimed[window]} and {name}"
            claimed[window] = name
    return None


def _waiting(world: World) -> int:
    return len(world.group.pages) + len(world.group.parts) if world.group is not None else 0
