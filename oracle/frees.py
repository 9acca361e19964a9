"""Frees: what may be given back, when it counts as given back, and what a group makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from oracle import ops
from oracle.ops import Operation
from oracle.world import (
    Call,
    FreeCall,
    Group,
    Request,
    Run,
    StateCall,
    Step,
    World,
    misused,
    runs_of,
    skipped,
)

if TYPE_CHECKING:
    from oracle.ledger import Ledger


def free(ledger: Ledger, world: World, operation: ops.Free) -> Step:
    """`free` of parts of requests, or of what is wrong on purpose."""
    if operation.flaw:
        return _flawed_free(world, operation, ledger.config.page_size)
    page_size = ledger.config.page_size
    runs: list[Run] = []
    for part in operation.parts:
        request = world.requests.get(part.request)
        if request is not None:
            runs.extend(runs_of(world, request, page_size, part.start, part.stop))
    if not runs and operation.parts:
        return skipped(world, operation)
    return _give_back(ledger, world, operation, tuple(runs))


def _flawed_free(world: World, operation: ops.Free, page_size: int) -> Step:
    """A free that is wrong on purpose: of a number that was never given, or of what was freed already."""
    if operation.flaw == "again":
        runs: list[Run] = []
        for part in operation.parts:
            flat = [
                (uid, k) for uid, low, high in world.ghosts.get(part.request, ()) for k in range(low, high)
            ]
            runs.extend((uid, k, k + 1) for uid, k in flat[part.start : part.stop])
        if not runs:
            return skipped(world, operation)
        return misused(world, operation, "twice", FreeCall(tuple(runs), flaw="again"))
    if operation.flaw in ("dtype", "shape", "tensor", "device"):
        named = (world.requests[part.request] for part in operation.parts if part.request in world.requests)
        live = tuple(run for request in named for run in runs_of(world, request, page_size))
        if not live:
            return skipped(world, operation)
        return misused(world, operation, operation.flaw, FreeCall(live, flaw=operation.flaw))
    rule = {"negative": "foreign"}.get(operation.flaw, operation.flaw)
    return misused(world, operation, rule, FreeCall((), flaw=operation.flaw))


def _give_back(ledger: Ledger, world: World, operation: Operation, runs: tuple[Run, ...]) -> Step:
    """A free of live slots, now or at the end of the open group."""
    gone = world.gone | world.group.swa if world.group is not None else world.gone
    call = FreeCall(runs, gone=frozenset(uid for uid, _, _ in runs if uid in gone) if gone else gone)
    page_size = ledger.config.page_size
    masks: dict[int, int] = {}
    for uid, low, high in runs:
        mask = (1 << high) - (1 << low)
        if masks.get(uid, 0) & mask:
            once = _give_back(ledger, world, operation, _distinct(runs))
            return misused(world, operation, "twice", call)._replace(after=once.after, back=once.back)
        masks[uid] = masks.get(uid, 0) | mask
    holders = {
        uid: (name, index)
        for name, request in world.requests.items()
        for index, uid in enumerate(request.pages)
        if uid in masks
    }
    if world.group is None:
        # An allocator can't tell the head of a page, freed alone, from the rest of a request that was cut
        # back: the tail counts as cut. What it can tell is a slot left live below a freed one.
        if any(mask & (mask + 1) for mask in masks.values()):
            return misused(world, operation, "part of a page", call)
        return _freed(ledger, world, operation, call, tuple(masks), holders)
    parts, whole = dict(world.group.parts), list(world.group.pages)
    for uid, mask in masks.items():
        name, index = holders[uid]
        request = world.requests[name]
        count = min(page_size, request.length - request.base - index * page_size)
        covered = parts.pop(uid, 0) | mask
        if covered == (1 << count) - 1:
            whole.append(uid)
        else:
            parts[uid] = covered
    after = world._replace(
        group=Group(tuple(whole), parts, world.group.swa),
        requests=_without(world.requests, holders, set(whole), page_size),
        ghosts=_ghosts(world, runs, holders, page_size),
    )
    return Step(operation, "legal", "", call, world, after)


def _distinct(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The same slots, each once."""
    slots = dict.fromkeys((uid, k) for uid, low, high in runs for k in range(low, high))
    return tuple((uid, k, k + 1) for uid, k in slots)


def _freed(
    ledger: Ledger,
    world: World,
    operation: Operation,
    call: Call | None,
    uids: tuple[int, ...],
    holders: dict[int, tuple[str, int]],
) -> Step:
    """Pages back in the pool, now. With them go their SWA halves, where they still have one."""
    page_size = ledger.config.page_size
    back = set(uids)
    after = world._replace(
        free=world.free + len(uids),
        swa_free=world.swa_free + len(back - world.gone) if ledger.config.swa_pages else 0,
        requests=_without(world.requests, holders, back, page_size),
        gone=world.gone - back if world.gone else world.gone,
        ghosts=_ghosts(world, call.runs, holders, page_size) if isinstance(call, FreeCall) else world.ghosts,
    )
    return Step(operation, "legal", "", call, world, after, back=uids)


def _ghosts(
    world: World, runs: tuple[Run, ...], holders: dict[int, tuple[str, int]], page_size: int
) -> dict[str, tuple[Run, ...]]:
    """What was freed since the last page was handed out, by the request that held it.

    A page that is back in the pool counts with all slots that were live, also those that no free named.
    """
    ghosts = dict(world.ghosts)
    if world.group is not None:
        for run in runs:
            name = holders[run[0]][0]
            ghosts[name] = (*ghosts.get(name, ()), run)
        return ghosts
    for uid in dict.fromkeys(uid for uid, _, _ in runs):
        name, index = holders[uid]
        request = world.requests[name]
        count = min(page_size, request.length - request.base - index * page_size)
        ghosts[name] = (*ghosts.get(name, ()), (uid, 0, count))
    return ghosts


def _without(
    requests: Mapping[str, Request], holders: dict[int, tuple[str, int]], back: set[int], page_size: int
) -> dict[str, Request]:
    """Requests without the pages that are given back; a request that holds nothing any more is gone."""
    left = dict(requests)
    for name in {holders[uid][0] for uid in back if uid in holders}:
        request = left[name]
        pages = [0 if uid in back else uid for uid in request.pages]
        length = request.length
        while pages and not pages[-1]:
            pages.pop()
            length = request.base + len(pages) * page_size
        if pages:
            left[name] = request._replace(pages=tuple(pages), length=length)
        else:
            del left[name]
    return left


def cut(ledger: Ledger, world: World, operation: ops.Cut) -> Step:
    """A request cut back: the pages that hold none of the rest are freed."""
    page_size = ledger.config.page_size
    request = world.requests.get(operation.request)
    if request is None or operation.tokens < 1 or (world.group is not None and world.group.parts):
        return skipped(world, operation)
    own = request.length - request.base
    keep = max(own - operation.tokens, 0)
    if not keep:
        return _give_back(ledger, world, operation, runs_of(world, request, page_size))
    kept = -(-keep // page_size)
    if not request.pages[kept - 1]:
        return skipped(world, operation)
    shorter = dict(world.requests)
    if kept < len(request.pages):
        runs = runs_of(world, request, page_size, kept * page_size)
        freed = _give_back(ledger, world, operation, runs)
        shorter = dict(freed.after.requests)
        shorter[operation.request] = Request(
            request.pages[:kept], request.base + keep, request.base, request.last
        )
        return freed._replace(after=freed.after._replace(requests=shorter))
    shorter[operation.request] = request._replace(length=request.base + keep)
    return Step(operation, "legal", "", None, world, world._replace(requests=shorter))


def free_swa(ledger: Ledger, world: World, operation: ops.FreeSwa) -> Step:
    """`free_swa`: the window halves of the pages that the parts touch."""
    page_size = ledger.config.page_size
    runs: list[Run] = []
    for part in operation.parts:
        request = world.requests.get(part.request)
        if request is not None:
            runs.extend(runs_of(world, request, page_size, part.start, part.stop))
    if not ledger.config.swa_pages or (operation.parts and not runs):
        return skipped(world, operation)
    call = FreeCall(tuple(runs), swa=True)
    touched = {uid for uid, _, _ in runs}
    if world.group is not None and not ledger.traits.swa_now:
        group = world.group._replace(swa=world.group.swa | (touched - world.gone))
        return Step(operation, "legal", "", call, world, world._replace(group=group))
    given = touched - world.gone
    after = world._replace(gone=world.gone | given, swa_free=world.swa_free + len(given))
    return Step(operation, "legal", "", call, world, after)


def group_end(ledger: Ledger, world: World, operation: ops.GroupEnd) -> Step:
    """The end of a group: all that was collected is given back at once."""
    call = StateCall("free_group_end")
    group = world.group
    if group is None:
        return Step(operation, "legal", "", call, world, world)
    if any(mask & (mask + 1) for mask in group.parts.values()):
        return misused(world, operation, "part of a page", call)
    uids = (*group.pages, *group.parts)
    holders = {
        uid: (name, index)
        for name, request in world.requests.items()
        for index, uid in enumerate(request.pages)
        if uid in group.parts
    }
    closed = world._replace(group=None)
    step = _freed(ledger, closed, operation, None, uids, holders)
    given = group.swa - set(uids)
    after = step.after._replace(gone=step.after.gone | given, swa_free=step.after.swa_free + len(given))
    return step._replace(call=call, before=world, after=after)
