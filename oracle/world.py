"""What a caller knows of an allocator, as immutable data: who holds which page, and what was asked.

Slot numbers never enter a world. A page that is handed out gets the next *uid*; a slot is a pair
(uid, offset), and the pair (0, n) stands for the number n itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from oracle.ops import Config, Operation

NOTHING: Mapping[Any, Any] = MappingProxyType({})

Slot: TypeAlias = tuple[int, int]
Run: TypeAlias = tuple[int, int, int]  # uid, first offset, offset behind the last one

NO_TOKEN: Slot = (0, -1)


class Request(NamedTuple):
    """What a name holds: `length` tokens, of which the first `base` belong to somebody else's pages.

    `pages` has a uid for each page from `base` on, 0 where the page was given back; the last is never 0.
    `last` is the slot of token `base - 1`.
    """

    pages: tuple[int, ...]
    length: int
    base: int = 0
    last: Slot = NO_TOKEN


class Group(NamedTuple):
    """An open group: pages given up whole, live offsets given up so far of others (a bit mask), SWA halves."""

    pages: tuple[int, ...] = ()
    parts: Mapping[int, int] = NOTHING
    swa: frozenset[int] = frozenset()


class World(NamedTuple):
    """All that a caller knows. `free` and `swa_free` count pages that an allocation can have now."""

    free: int
    swa_free: int
    requests: Mapping[str, Request] = NOTHING
    group: Group | None = None
    gone: frozenset[int] = frozenset()
    ghosts: Mapping[str, tuple[Run, ...]] = NOTHING
    snapshots: Mapping[str, World] = NOTHING
    copies: Mapping[str, int] = NOTHING
    next_uid: int = 1


# In place of a world that nobody asks for. Plain dictionaries: it crosses to other processes.
NOWHERE = World(0, 0, {}, None, frozenset(), {}, {}, {})


class AllocCall(NamedTuple):
    """`alloc(size)`."""

    size: int
    flaw: str = ""


class BatchCall(NamedTuple):
    """`alloc_extend`, or `alloc_decode` (where every `prefix` is `seq - 1`)."""

    prefix: tuple[int, ...]
    seq: tuple[int, ...]
    last: tuple[Slot, ...]
    decode: bool
    flaw: str = ""

    @property
    def total(self) -> int:
        """Tokens that the batch grows by."""
        return sum(self.seq) - sum(self.prefix)


class FreeCall(NamedTuple):
    """`free(slots)` or `free_swa(slots)`; `gone` names the pages whose window half was given up before."""

    runs: tuple[Run, ...]
    swa: bool = False
    flaw: str = ""
    gone: frozenset[int] = frozenset()


class StateCall(NamedTuple):
    """A method without slots: group, merge, clear, and backup or restore under a name."""

    method: str
    name: str = ""
    flaw: str = ""


class CopyCall(NamedTuple):
    """`get_cpu_copy(slots)` kept under `name`, or `load_cpu_copy(copy, slots)`."""

    name: str
    runs: tuple[Run, ...]
    load: bool


Call: TypeAlias = AllocCall | BatchCall | FreeCall | StateCall | CopyCall


class Step(NamedTuple):
    """One operation, classified, with what the contract makes of it.

    status: `legal`, `misuse` (then `rule` names the entry of `oracle.traits.RULES`) or `skip`: it refers to
    what is not there. call: what the subject is asked, None where the caller acts alone. fits: whether an
    allocation can be granted. fresh: (uid, place in the answer, count of tokens) of each page that the answer begins;
    grown: (uid, offset, place, count) of tokens that go on in a page held before.
    after: the world behind a legal operation; behind misuse the same as before, or, where slots were named
    twice in one free, what naming them once would leave. back: uids whose pages the pool gets back with this operation; probe: see `oracle.judge.plan`.
    """

    operation: Operation
    status: str
    rule: str
    call: Call | None
    before: World
    after: World
    fits: bool = True
    tokens: int = 0
    fresh: tuple[tuple[int, int, int], ...] = ()
    grown: tuple[tuple[int, int, int, int], ...] = ()
    back: tuple[int, ...] = ()
    probe: bool = False


def room_in(config: Config, world: World) -> int:
    """Pages that an allocation can have now: what both pools have, where there are two."""
    return min(world.free, world.swa_free) if config.swa_pages else world.free


def skipped(world: World, operation: Operation) -> Step:
    """An operation that refers to what is not there."""
    return Step(operation, "skip", "", None, world, world)


def misused(world: World, operation: Operation, rule: str, call: Call, tokens: int = 0) -> Step:
    """An operation that breaks a rule: the world stays as it was."""
    return Step(operation, "misuse", rule, call, world, world, tokens=tokens)


def last_slot(request: Request, page_size: int) -> Slot:
    """The slot of a request's last token, -1 when it has none."""
    if not request.pages:
        return request.last
    return request.pages[-1], (request.length - 1) % page_size


def runs_of(
    world: World, request: Request, page_size: int, start: int = 0, stop: int | None = None
) -> tuple[Run, ...]:
    """The live own tokens `start` to `stop` of a request, as runs of slots."""
    own = request.length - request.base
    stop = own if stop is None else min(stop, own)
    parts = world.group.parts if world.group is not None else {}
    runs: list[Run] = []
    for index in range(max(start, 0) // page_size, len(request.pages)):
        uid, first = request.pages[index], index * page_size
        low, high = max(start - first, 0), min(stop - first, page_size)
        if high <= 0:
            break
        if not uid or low >= high:
            continue
        if uid not in parts:
            runs.append((uid, low, high))
        else:
            runs.extend((uid, k, k + 1) for k in range(low, high) if not parts[uid] >> k & 1)
    return tuple(runs)


def renumbered(world: World) -> tuple[World, dict[int, int]]:
    """The world with its uids numbered anew, as they appear in it, and the new uid of each old one.

    Worlds that differ only in what was held before, or in the order in which the same requests came, become equal.
    """
    uids = {0: 0}
    renamed = _renamed(world, uids)
    snapshots = {name: _renamed(saved, uids) for name, saved in world.snapshots.items()}
    return renamed._replace(snapshots=snapshots, next_uid=len(uids)), uids


def _renamed(world: World, uids: dict[int, int]) -> World:
    def new(uid: int) -> int:
        return uids.setdefault(uid, len(uids))

    def run(run: Run) -> Run:
        return new(run[0]), run[1], run[2]

    requests = {
        name: Request(tuple(map(new, r.pages)), r.length, r.base, (new(r.last[0]), r.last[1]))
        for name, r in sorted(world.requests.items())
    }
    group = world.group and Group(
        tuple(map(new, world.group.pages)),
        {new(uid): mask for uid, mask in world.group.parts.items()},
        frozenset(map(new, sorted(world.group.swa))),
    )
    ghosts = {name: tuple(map(run, runs)) for name, runs in world.ghosts.items()}
    gone = frozenset(map(new, sorted(world.gone)))
    return world._replace(requests=requests, group=group, gone=gone, ghosts=ghosts)
