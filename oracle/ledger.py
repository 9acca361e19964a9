"""What is legal and what fits: the rules of SPEC.md, "What callers may do", in one place.

Slot numbers never enter the ledger, so it runs ahead of any subject, and a case can be made whole before one
sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oracle import frees, ops
from oracle.ops import METHODS, Config, Grow, Operation
from oracle.traits import Traits
from oracle.world import (
    NOTHING,
    AllocCall,
    BatchCall,
    Call,
    CopyCall,
    Group,
    Request,
    Run,
    StateCall,
    Step,
    World,
    last_slot,
    misused,
    room_in,
    runs_of,
    skipped,
)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The rules for one pool and one subject's claims."""

    config: Config
    traits: Traits

    @property
    def takes(self) -> str:
        """The method that whole pages are taken by."""
        return "alloc" if "alloc" in self.traits.operations else "alloc_extend"

    def start(self) -> World:
        """The world of a new allocator."""
        return World(self.config.pages, self.config.swa_pages)

    def step(self, world: World, operation: Operation) -> Step:
        """Classify an operation in a world, and say what comes of it."""
        if METHODS[type(operation)] not in self.traits.operations and type(operation) is not ops.Cut:
            return skipped(world, operation)
        return _RULES[type(operation)](self, world, operation)


# -- allocations ---------------------------------------------------------------------------------------


def _alloc(ledger: Ledger, world: World, operation: ops.Alloc) -> Step:
    page_size, size = ledger.config.page_size, operation.size
    call = AllocCall(size, operation.flaw)
    held = world.requests.get(operation.request)
    if operation.flaw:
        room = room_in(ledger.config, world)
        fits = size >= 0 and size % page_size == 0 and size <= room * page_size
        return misused(world, operation, "whole", call, size) if fits else skipped(world, operation)
    if size < 0:
        return misused(world, operation, "negative", call, size)
    if size % page_size:
        return misused(world, operation, "unaligned", call, size)
    if held is not None and held.length % page_size:
        return skipped(world, operation)
    pages = size // page_size
    return _grant(ledger, world, operation, call, ((operation.request, held or Request((), 0), size, pages),))


def _extend(ledger: Ledger, world: World, operation: ops.Extend) -> Step:
    return _batch(ledger, world, operation, operation.batch, decode=False, flaw=operation.flaw)


def _decode(ledger: Ledger, world: World, operation: ops.Decode) -> Step:
    batch = tuple(Grow(name, 1) for name in operation.requests)
    return _batch(ledger, world, operation, batch, decode=True, flaw=operation.flaw)


def _batch(
    ledger: Ledger, world: World, operation: Operation, batch: tuple[Grow, ...], decode: bool, flaw: str
) -> Step:
    if not ledger.config.extends:
        return skipped(world, operation)
    page_size = ledger.config.page_size
    growth: list[tuple[str, Request, int, int]] = []
    names: set[str] = set()
    rule = ""
    for item in batch:
        request = world.requests.get(item.request) or _begin(world, item.prefix, page_size)
        prefix, seq = request.length, request.length + item.tokens
        if item.tokens < 0:
            return skipped(world, operation)
        if prefix % page_size and item.tokens:
            last = request.pages[-1]
            if world.group is not None and last in world.group.parts:
                return skipped(world, operation)
            if item.request in names:
                rule = "one owner"
            if last in world.gone or (world.group is not None and last in world.group.swa):
                rule = rule or "swa gone"
        elif item.request in names:
            return skipped(world, operation)
        if item.tokens:  # a row that does not grow owns nothing in this batch
            names.add(item.request)
        growth.append((item.request, request, item.tokens, -(-seq // page_size) - -(-prefix // page_size)))
    call = BatchCall(
        tuple([r.length for _, r, _, _ in growth]),
        tuple([r.length + tokens for _, r, tokens, _ in growth]),
        tuple([last_slot(r, page_size) for _, r, _, _ in growth]),
        decode,
        flaw,
    )
    if flaw:
        need = sum(pages for _, _, _, pages in growth)
        return _flawed_batch(ledger, world, operation, call, need)
    if rule:
        return misused(world, operation, rule, call, call.total)
    return _grant(ledger, world, operation, call, tuple(growth))


def _flawed_batch(ledger: Ledger, world: World, operation: Operation, call: BatchCall, need: int) -> Step:
    """A batch that would be legal and fit, but for its flaw: else something else is seen. Each flaw has to show."""
    page_size = ledger.config.page_size
    room = room_in(ledger.config, world)
    growing = [k for k, (p, s) in enumerate(zip(call.prefix, call.seq, strict=True)) if s > p]
    if not call.seq or need > room or (call.decode and call.flaw not in ops.DECODE_FLAWS):
        return skipped(world, operation)
    rule = ops.rule_of(call.flaw)
    if rule in ("mirror", "last_loc", "last page") and not growing:
        return skipped(world, operation)
    if rule == "last_loc" and page_size == 1:
        return skipped(world, operation)
    if rule == "last page":
        inside = [k for k in growing if call.prefix[k] % page_size]
        freed = [uid for runs in world.ghosts.values() for uid, _, _ in runs]
        if not inside or (call.flaw == "last page of the freed" and not freed):
            return skipped(world, operation)
        offset = (call.prefix[inside[0]] - 1) % page_size
        outside = (0, (ledger.config.pages + 1) * page_size + offset)
        wrong = {"padding": (0, offset), "no pool": outside}.get(call.flaw.removeprefix("last page of "))
        last = list(call.last)
        last[inside[0]] = wrong or (freed[0], offset)
        call = call._replace(last=tuple(last))
    return misused(world, operation, rule, call, call.total)


def _begin(world: World, prefix: str, page_size: int) -> Request:
    """A new request: empty, or behind the whole pages of another one."""
    donor = world.requests.get(prefix)
    if donor is None or donor.length < page_size:
        return Request((), 0)
    base = donor.length // page_size * page_size
    if base == donor.base:
        return Request((), base, base, donor.last)
    uid = donor.pages[(base - donor.base) // page_size - 1]
    return Request((), base, base, (uid, page_size - 1)) if uid else Request((), 0)


def _grant(
    ledger: Ledger,
    world: World,
    operation: Operation,
    call: Call,
    growth: tuple[tuple[str, Request, int, int], ...],
) -> Step:
    """An allocation: of each (name, request, new tokens, new pages), in order, or of none."""
    need = tokens = 0
    for _, _, count, pages in growth:
        need += pages
        tokens += count
    if need > world.free or (ledger.config.swa_pages and need > world.swa_free):
        return Step(operation, "legal", "", call, world, world, fits=False, tokens=tokens)
    page_size = ledger.config.page_size
    uid, place = world.next_uid, 0
    fresh: list[tuple[int, int, int]] = []
    grown: list[tuple[int, int, int, int]] = []
    requests = dict(world.requests)
    for name, request, count, pages in growth:
        if not count:
            continue
        inside = min(count, -request.length % page_size)
        if inside:
            grown.append((request.pages[-1], request.length % page_size, place, inside))
        uids = tuple(range(uid, uid + pages))
        for u, at in zip(uids, range(inside, count, page_size), strict=True):
            fresh.append((u, place + at, page_size if count - at > page_size else count - at))
        requests[name] = Request(request.pages + uids, request.length + count, request.base, request.last)
        uid += pages
        place += count
    # Written out: `_replace` takes longer than all of the above, and this is the commonest step.
    after = World(
        free=world.free - need,
        swa_free=world.swa_free - need if ledger.config.swa_pages else 0,
        requests=requests,
        group=world.group,
        gone=world.gone,
        ghosts=NOTHING if need else world.ghosts,
        snapshots=world.snapshots,
        copies=world.copies,
        next_uid=uid,
    )
    return Step(operation, "legal", "", call, world, after, True, tokens, tuple(fresh), tuple(grown))


# -- groups and state ----------------------------------------------------------------------------------


def _group_begin(_: Ledger, world: World, operation: ops.GroupBegin) -> Step:
    call = StateCall("free_group_begin")
    if world.group is not None:
        return misused(world, operation, "nested group", call)
    return Step(operation, "legal", "", call, world, world._replace(group=Group()))


def _merge(_: Ledger, world: World, operation: ops.Merge) -> Step:
    return Step(operation, "legal", "", StateCall("merge_and_sort_free"), world, world)


def _backup(_: Ledger, world: World, operation: ops.Backup) -> Step:
    snapshots = {**world.snapshots, operation.snapshot: world._replace(snapshots={}, copies={}, ghosts={})}
    call = StateCall("backup_state", operation.snapshot)
    return Step(operation, "legal", "", call, world, world._replace(snapshots=snapshots))


def _restore(_: Ledger, world: World, operation: ops.Restore) -> Step:
    if operation.flaw:
        return misused(world, operation, "snapshot", StateCall("restore_state", "", operation.flaw))
    snapshot = world.snapshots.get(operation.snapshot)
    if snapshot is None:
        return skipped(world, operation)
    after = snapshot._replace(snapshots=world.snapshots, copies=world.copies, next_uid=world.next_uid)
    return Step(operation, "legal", "", StateCall("restore_state", operation.snapshot), world, after)


def _clear(ledger: Ledger, world: World, operation: ops.Clear) -> Step:
    after = ledger.start()._replace(snapshots=world.snapshots, copies=world.copies, next_uid=world.next_uid)
    return Step(operation, "legal", "", StateCall("clear"), world, after)


def _copy_out(ledger: Ledger, world: World, operation: ops.CopyOut) -> Step:
    runs = _whole(ledger, world, operation.request)
    if not runs or not ledger.config.data:
        return skipped(world, operation)
    tokens = sum(high - low for _, low, high in runs)
    after = world._replace(copies={**world.copies, operation.request: tokens})
    return Step(operation, "legal", "", CopyCall(operation.request, runs, load=False), world, after)


def _copy_in(ledger: Ledger, world: World, operation: ops.CopyIn) -> Step:
    runs = _whole(ledger, world, operation.request)
    tokens = sum(high - low for _, low, high in runs)
    if not runs or world.copies.get(operation.request) != tokens:
        return skipped(world, operation)
    return Step(operation, "legal", "", CopyCall(operation.request, runs, load=True), world, world)


def _whole(ledger: Ledger, world: World, name: str) -> tuple[Run, ...]:
    request = world.requests.get(name)
    return runs_of(world, request, ledger.config.page_size) if request is not None else ()


_RULES: dict[type, Callable[[Ledger, World, Any], Step]] = {
    ops.Alloc: _alloc,
    ops.Extend: _extend,
    ops.Decode: _decode,
    ops.Cut: frees.cut,
    ops.Free: frees.free,
    ops.FreeSwa: frees.free_swa,
    ops.GroupBegin: _group_begin,
    ops.GroupEnd: frees.group_end,
    ops.Merge: _merge,
    ops.Backup: _backup,
    ops.Restore: _restore,
    ops.Clear: _clear,
    ops.CopyOut: _copy_out,
    ops.CopyIn: _copy_in,
}
