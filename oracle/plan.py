"""A case made whole: every operation classified, and what every case ends with."""

from __future__ import annotations

from collections.abc import Iterator

from oracle.ledger import Ledger
from oracle.ops import Alloc, Case, Extend, Free, GroupEnd, Grow, Operation, Part
from oracle.traits import Traits
from oracle.world import Step, World, room_in

PROBED_ONE_BY_ONE = 16


def plan(case: Case, traits: Traits) -> list[Step]:
    """The steps of a case, ready for a subject.

    A case ends with its first misuse; what follows it is left out. Behind it comes the `epilogue`.
    """
    return list(steps_of(case, traits))


def steps_of(case: Case, traits: Traits) -> Iterator[Step]:
    """The same one by one, for cases whose steps would fill the memory."""
    ledger = Ledger(case.config, traits)
    world = ledger.start()
    misused = False
    for operation in case.operations:
        step = ledger.step(world, operation)
        yield step
        if step.status == "misuse":
            misused = True
            break
        world = step.after
    yield from epilogue(ledger, world, misused)


def ended(ledger: Ledger, steps: list[Step]) -> list[Step]:
    """The steps of a case, from a new allocator on, with the `epilogue` behind them."""
    if not steps:
        return list(epilogue(ledger, ledger.start(), misused=False))
    last = steps[-1]
    misused = last.status == "misuse"
    return [*steps, *epilogue(ledger, last.before if misused else last.after, misused)]


def epilogue(ledger: Ledger, world: World, misused: bool) -> Iterator[Step]:
    """The steps behind a case that ended in `world`, marked `probe`.

    Every case ends by giving everything back and taking the whole pool, so that what was lost or doubled on
    the way shows. Behind misuse the free pages are taken, to see whether the pool still keeps its promises.
    """
    for operation in _closing(world):
        step = ledger.step(world, operation)
        world = step.after
        yield step._replace(probe=True)
    for operation in _ending(ledger, world, misused):
        step = ledger.step(world, operation)
        world = step.after
        yield step._replace(probe=True)


def _closing(world: World) -> list[Operation]:
    """What ends an open group: first the rest of every page that it gave up in part, so that it may end."""
    if world.group is None:
        return []
    torn = {uid for uid, mask in world.group.parts.items() if mask & (mask + 1)}
    owners = [name for name, request in world.requests.items() if torn.intersection(request.pages)]
    return [*([Free(tuple(Part(name) for name in owners))] if owners else []), GroupEnd()]


def _ending(ledger: Ledger, world: World, misused: bool) -> Iterator[Operation]:
    if misused:
        free = room_in(ledger.config, world)
        for _ in range(min(free, PROBED_ONE_BY_ONE)):
            yield _take(ledger, "probe", 1)
        if free > PROBED_ONE_BY_ONE:
            yield _take(ledger, "probe", free - PROBED_ONE_BY_ONE)
        return
    if world.requests:
        yield Free(tuple(Part(name) for name in world.requests))
    yield _take(ledger, "drain", min(ledger.config.pages, ledger.config.swa_pages or ledger.config.pages))


def _take(ledger: Ledger, name: str, pages: int) -> Operation:
    """Whole pages, by the operation that the subject has for it."""
    tokens = pages * ledger.config.page_size
    return Alloc(name, tokens) if ledger.takes == "alloc" else Extend((Grow(name, tokens),))
