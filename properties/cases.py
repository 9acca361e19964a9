"""Whole cases: a pool that is drawn, and a workload on it. A case is there before anybody runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from impl.subject import KV_SLOTS, Space
from oracle.ops import Case, Config
from oracle.plan import ended
from oracle.traits import Traits
from oracle.world import Step
from properties.sources import BytesSource, SeededSource, Source, chance, pick, weighted
from properties.workload import KINDS_OF_MISUSE, NONE, Workload

LONGEST_BEFORE_MISUSE = 32
HEAD, SLOT = 64, 33  # bytes of `decode_slots`


def draw_config(source: Source, space: Space, level: str, avoid: frozenset[str] = NONE) -> Config:
    """A pool of the space: small ones mostly, some with many pages, since each is blind to other faults."""
    least = space.fixed.get("spare", 0)
    sizes = [size for size in space.page_sizes if size > least]
    page_size = pick(source, [size for size in sizes if _allowed(size, avoid)] or sizes)
    pages = (1 + source.below(4), 5 + source.below(8), 20 + source.below(60), 100 + source.below(200))[
        weighted(source, (10, 6) if space.small else (10, 6, 2, 1))
    ]
    swa_pages = max(1, pages - source.below(1 + pages // 2)) if space.kind == "swa" else 0
    if swa_pages and chance(source, 4):
        pages, swa_pages = swa_pages, pages
    config = Config(
        kind=space.kind,
        pages=pages,
        page_size=page_size,
        swa_pages=swa_pages,
        need_sort=pick(source, space.need_sort) and "with need_sort" not in avoid,
        debug=level == "hardened" and not (space.always_checks and chance(source, 4)),
        spare=source.below(page_size) if chance(source, 4) and "with slots to spare" not in avoid else 0,
        overwrite=not chance(source, 4) and "overwriting tensors" not in avoid,
        data=space.data
        and pages * page_size <= KV_SLOTS
        and chance(source, 3)
        and "with K and V" not in avoid,
        undefined=space.undefined and not chance(source, 4) and "with undefined lanes" not in avoid,
    )
    # What the name fixes and what was drawn have to go together.
    spare = min(config.spare, space.fixed.get("page_size", page_size) - 1)
    config = replace(config, **{"spare": spare, **space.fixed})
    return replace(config, data=config.data and config.size <= KV_SLOTS)


def typical_config(space: Space, level: str) -> Config:
    """A pool of the space, for asking what is claimed of a subject at a level."""
    return replace(draw_config(SeededSource(0), space, level), debug=level == "hardened")


def _allowed(page_size: int, avoid: frozenset[str]) -> bool:
    if page_size == 1 and "with page size 1" in avoid:
        return False
    return not (page_size & (page_size - 1) and "with a page size that is no power of two" in avoid)


def generate_misuse(
    number: int,
    source: Source,
    space: Space,
    claims: Callable[[Config], Traits],
    level: str,
    avoid: frozenset[str] = NONE,
) -> tuple[Case, list[Step]]:
    """A short case on a small pool that ends with misuse of a kind, and its plan: the kinds in turn, by number.

    Where the kind makes no sense in any world that the case comes to, there is no misuse at its end.
    """
    config = draw_config(source, replace(space, small=True), level, avoid)
    workload = Workload(config, claims(config), source, avoid, misuse=False)
    kinds = [
        kind for kind in KINDS_OF_MISUSE if config.extends or kind[0].split()[0] not in ("extend", "decode")
    ]
    group, flaw = kinds[number % len(kinds)]
    for at in range(LONGEST_BEFORE_MISUSE):
        if at >= 2 and chance(source, 2):
            if group == "end of a torn group":
                workload.free_in_group(source, 1)  # the head of its first page then has to follow
            elif group == "free again" and chance(source, 2):
                workload.free_in_group(source, 0)
            if workload.misuse(source, group, flaw):
                break
        workload.next(source)
    case = Case(config, tuple(step.operation for step in workload.steps))
    return case, ended(workload.ledger, workload.steps)


def generate(
    source: Source,
    space: Space,
    claims: Callable[[Config], Traits],
    level: str,
    avoid: frozenset[str] = NONE,
    length: int | None = None,
    misuse: bool = True,
) -> Case:
    """A whole case. length: operations at most; None draws it."""
    return generate_planned(source, space, claims, level, avoid, length, misuse)[0]


def generate_planned(
    source: Source,
    space: Space,
    claims: Callable[[Config], Traits],
    level: str,
    avoid: frozenset[str] = NONE,
    length: int | None = None,
    misuse: bool = True,
) -> tuple[Case, list[Step]]:
    """A whole case and its plan, which is what the generator learnt from the ledger on the way."""
    config = draw_config(source, space, level, avoid)
    workload = Workload(config, claims(config), source, avoid, misuse)
    count = (
        (4 + source.below(12), 12 + source.below(40))[weighted(source, (2, 1))] if length is None else length
    )
    for _ in range(count):
        workload.next(source)
        if workload.over:
            break
    workload.last(source)
    case = Case(config, tuple(step.operation for step in workload.steps))
    return case, ended(workload.ledger, workload.steps)


def decode_slots(
    data: bytes,
    space: Space,
    claims: Callable[[Config], Traits],
    level: str,
    avoid: frozenset[str] = NONE,
    misuse: bool = True,
) -> Case:
    """A case from bytes: a head for the pool, then fixed slots of one operation each; a slot of zeros is none.

    Fixed slots let a shrinker drop an operation without moving the choices of those behind it.
    """
    head = BytesSource(data[:HEAD])
    config = draw_config(head, space, level, avoid)
    workload = Workload(config, claims(config), head, avoid, misuse)
    for at in range(HEAD, len(data), SLOT):
        if workload.over:
            break
        if data[at]:
            workload.next(BytesSource(data[at + 1 : at + SLOT]))
    return Case(config, tuple(step.operation for step in workload.steps))
