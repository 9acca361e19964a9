"""A long case cut down to what its finding hangs on, in few runs: before the shrinker, which takes many.

The end of the case is run alone, then behind operations that give its requests what they held there, then
behind all that was held; ever longer ends are tried until the finding is back. What is left is cut by who gave
which page: requests that never had a page of those in question go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from impl.subject import Subject
from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Case, Free, FreeSwa, Operation
from oracle.plan import steps_of
from oracle.rebuilt import rebuilt
from oracle.traits import Traits
from oracle.world import World

Holds = Callable[[Case], bool]
SHORT = 24  # operations that the shrinker can have as they are
DEPTHS = (0, 1, 2)


def cut(case: Case, traits: Traits, at: int, holds: Holds, say: Callable[[str], object]) -> Case:
    """A shorter case with the same finding, or the case. at: the operation that shows it, from 0."""
    whole = replace(case, operations=case.operations[: at + 1])
    # The whole takes as long as all of the shorter ends together: it is asked last.
    for length, candidate in _ends(whole, traits):
        if holds(candidate):
            say(f"cut to the last {length:,} of {len(whole.operations):,} operations")
            return candidate
    return whole if holds(whole) else case


def _ends(case: Case, traits: Traits) -> Iterator[tuple[int, Case]]:
    """Ends of a case, of 1, 2, 4, … operations, each behind nothing, behind its own requests, behind all."""
    operations = case.operations
    lengths = []
    length = 1
    while length < len(operations):
        lengths.append(length)
        length *= 2
    worlds = _worlds(case, traits, {len(operations) - length for length in lengths})
    for length in lengths:
        end, world = operations[-length:], worlds.get(len(operations) - length)
        if world is None:
            continue
        named = {name for operation in end for name in names_in(operation)}
        opened = (ops.GroupBegin(),) if world.group is not None else ()
        mine = world._replace(requests={k: v for k, v in world.requests.items() if k in named})
        tried: set[tuple[Operation, ...]] = set()
        for before in ((), rebuilt(mine, case.config), rebuilt(world, case.config)):
            candidate = (*before, *opened, *end)
            if candidate not in tried and len(candidate) < len(operations):
                tried.add(candidate)
                yield length, replace(case, operations=candidate)


def _worlds(case: Case, traits: Traits, places: set[int]) -> dict[int, World]:
    """The worlds in front of some operations."""
    ledger = Ledger(case.config, traits)
    world = ledger.start()
    worlds: dict[int, World] = {}
    for place, operation in enumerate(case.operations):
        if place in places:
            worlds[place] = world
        step = ledger.step(world, operation)
        if step.status == "misuse":
            break
        world = step.after
    return worlds


def names_in(operation: Operation) -> tuple[str, ...]:
    """The requests that an operation names."""
    match operation:
        case ops.Extend(batch):
            return tuple(name for item in batch for name in (item.request, item.prefix) if name)
        case ops.Decode(requests):
            return requests
        case Free(parts) | FreeSwa(parts):
            return tuple(part.request for part in parts)
        case ops.Alloc(name) | ops.Cut(name) | ops.CopyOut(name) | ops.CopyIn(name):
            return (name,)
    return ()


# -- who gave which page -------------------------------------------------------------------------------


def depends(case: Case, subject: Subject, at: int, holds: Holds, say: Callable[[str], object]) -> Case:
    """The case without requests that have nothing to do with the pages of operation `at`, where that is enough."""
    if len(case.operations) <= SHORT:
        return case
    had = _pages_had(case, subject)
    place = min(at, len(case.operations) - 1)
    wanted = set(names_in(case.operations[place]))
    for _ in DEPTHS:
        smaller = replace(case, operations=tuple(_only(case.operations, wanted)))
        if len(smaller.operations) < len(case.operations) and holds(smaller):
            say(f"cut to {len(smaller.operations):,} operations that share pages with the finding's")
            return smaller
        pages = {page for name in wanted for page in had.get(name, ())}
        wanted |= {name for name, own in had.items() if not own.isdisjoint(pages)}
    return case


def _pages_had(case: Case, subject: Subject) -> dict[str, set[int]]:
    """The pages, by number, that each request had at some time."""
    had: dict[str, set[int]] = {}
    driver = subject.open(case.config)
    driver.begin()
    for step in steps_of(case, subject.traits(case.config)):
        if step.probe:
            break
        seen = driver.apply(step)
        if seen.outcome == "crashed":
            break
        given = {
            uid: seen.slots[place] // case.config.page_size
            for uid, place, _ in step.fresh
            if place < len(seen.slots)
        }
        for name in names_in(step.operation) if given else ():
            request = step.after.requests.get(name)
            if request is not None:
                had.setdefault(name, set()).update(given[uid] for uid in request.pages if uid in given)
    return had


def _only(operations: tuple[Operation, ...], wanted: set[str]) -> Iterator[Operation]:
    """Operations without what they say of other requests; without those that speak of others alone."""
    for operation in operations:
        names = names_in(operation)
        if not names:
            yield operation
            continue
        if wanted.isdisjoint(names):
            continue
        match operation:
            case ops.Extend(batch, flaw):
                yield ops.Extend(tuple(item for item in batch if item.request in wanted), flaw)
            case ops.Decode(requests, flaw):
                yield ops.Decode(tuple(name for name in requests if name in wanted), flaw)
            case Free(parts, flaw):
                yield Free(tuple(part for part in parts if part.request in wanted), flaw)
            case FreeSwa(parts):
                yield FreeSwa(tuple(part for part in parts if part.request in wanted))
            case _:
                yield operation
