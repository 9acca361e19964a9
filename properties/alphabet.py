"""Every operation that makes a difference in a world: what the explorer tries there.

The alphabet has two requests or more by name, of which those that hold nothing are alike, and one snapshot.
Of infinitely many operations it has those below; every other one that generator or shrinker can make on such
a pool is like one of them (`representative`):

- alloc of 0 to all free pages, and of one more; -1 for all negative sizes; one slot, and one slot more than a
  page, for all sizes that are not aligned. Who asks makes no difference where nothing is given.
- extend of one request, or of two in both orders, each by every number of tokens that fits, from 0 on; of what
  does not fit, the smallest. A new request may begin behind the whole pages of one that has no prefix itself:
  prefixes behind prefixes have no end.
- decode of nobody, of one or of two requests in both orders, held or new.
- a flawed extend or decode of one request, or of two in one order, with seq_lens for any argument that is spoilt;
  each grows by one token, or by none where
  that does not fit. Growth in a page whose window half is gone, by one token; one request twice in a batch, by
  one token and one, or none and one.
- free of a request, of two in both orders, of nothing; of a request's first or last tokens, cut anywhere; of
  both parts in both orders, cut behind its first token or at a page's end; of a request named twice; again of
  what was freed before, or of all of that but its first slot.
- cut by every number of tokens; free_swa of a request, and of every run of its pages, named by all tokens, or
  by the last of its first page to the first of its last one.
- both ends of a group, merge, clear; backup while there is no snapshot, and restore.

Of two frees that name the same slots in the same order one is asked: they are one call, and come to one world. So a
cut that ends at a page's end is a free of what lies behind; parts of a request that a group has in part already are
often the same part.

Some things have no end by themselves, and are bounded. No request gets longer than the pool, what it gave back
counted: one that gives back its first pages could grow for ever. A free_swa in a group that names again what was
given up already is judged, with what every case ends with, and the sequence ends there: the allocator's list of
what it collected could grow for ever. There is one snapshot at a time.

Others have an end that is far away, and the search says whether they are there: misuse, prefixes, what a group
collects behind its first free, which pages free_swa gives up, and how long a snapshot is kept
(`fuzz.walker.Question`).

CPU copies, and K and V, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Alloc, Cut, Decode, Extend, Free, FreeSwa, Grow, Operation, Part
from oracle.world import Call, FreeCall, Group, Request, Step, World, room_in

NAMES = ("A", "B")
SNAPSHOT = "S"
GROUP_FREES = ("one", "whole", "any")
WINDOW_FREES = ("first", "any")


def like(flaw: str) -> str:
    """The flaw that stands for another one: whichever argument is spoilt, it is like seq_lens spoilt that way."""
    rule, _, argument = flaw.partition(" of ")
    if rule in ("lengths", "dtype"):
        return rule
    return f"{rule} of seq_lens" if argument in ops.ARGUMENTS and rule != "mirror" else flaw


EXTEND_FLAWS = tuple(dict.fromkeys(map(like, ops.EXTEND_FLAWS)))
DECODE_FLAWS = tuple(dict.fromkeys(map(like, ops.DECODE_FLAWS)))


class Alphabet:
    """The operations of a pool's worlds.

    names: the requests that there may be at a time. snapshot: whether there are backup and restore; prefixes:
    whether requests begin behind the pages of others. Each of the two makes the world several times as large.
    group_frees: what a group collects (`GROUP_FREES`): one free; behind the first, frees of whole requests; any.
    window_frees: of which pages of a request `free_swa` is called (`WINDOW_FREES`): its first ones, as behind a
    window that moves on; or every run of them.
    misuse: whether there are calls that break a rule; they end a sequence, and are half of all that there is to ask.
    own: operations that are asked besides, wherever they mean something; of `names` and `SNAPSHOT`.
    """

    def __init__(
        self, ledger: Ledger, names: tuple[str, ...] = NAMES, snapshot: bool = False, prefixes: bool = True,
        misuse: bool = True, group_frees: str = "any", window_frees: str = "any",
        own: tuple[Operation, ...] = (),
    ) -> None:  # fmt: skip
        self.ledger, self.names, self.snapshot, self.prefixes = ledger, names, snapshot, prefixes
        self.misuse, self.group_frees, self.window_frees = misuse, group_frees, window_frees
        self.own = own
        self._classified: dict[Operation, Step] = {}

    def steps(self, world: World) -> list[Step]:
        """All that can be asked in a world, classified: legal and misuse, nothing twice."""
        self._classified.clear()
        steps = [self._step(world, operation) for operation in dict.fromkeys(self._operations(world))]
        undefined = self.ledger.traits.undefined
        left_out = ("skip",) if self.misuse else ("skip", "misuse")
        asked: set[Call] = set()
        made = []
        for step in steps:
            if step.status in left_out or step.rule in undefined or self._endless(step):
                continue
            if isinstance(step.operation, Free | FreeSwa) and step.call is not None:
                if step.call in asked:
                    continue
                asked.add(step.call)
            made.append(step)
        return made

    def restore(self, world: World) -> list[Step]:
        """The restore of the world's snapshot alone."""
        return [self.ledger.step(world, ops.Restore(SNAPSHOT))]

    @staticmethod
    def ends(step: Step) -> bool:
        """Whether a sequence ends with this operation: misuse, and giving up in a group what was given up."""
        call, group = step.call, step.before.group
        if not isinstance(call, FreeCall) or not call.swa or group is None:
            return step.status == "misuse"
        return any(uid in group.swa or uid in step.before.gone for uid, _, _ in call.runs)

    def _step(self, world: World, operation: Operation) -> Step:
        step = self._classified.get(operation)
        if step is None:
            step = self._classified[operation] = self.ledger.step(world, operation)
        return step

    def _endless(self, step: Step) -> bool:
        """Whether a request gets longer than the pool: one that gives back its head could grow for ever."""
        longest = self.ledger.config.pages * self.ledger.config.page_size
        return bool(step.tokens) and any(r.length > longest for r in step.after.requests.values())

    def _operations(self, world: World) -> Iterator[Operation]:
        yield from self._allocs(world)
        if self.ledger.config.extends:
            yield from self._batches(world)
        yield from self._frees(world)
        yield from (ops.GroupBegin(), ops.GroupEnd(), ops.Merge(), ops.Clear())
        yield ops.Restore("", "snapshot")
        if self.snapshot:
            yield ops.Restore(SNAPSHOT) if world.snapshots else ops.Backup(SNAPSHOT)
        yield from self.own

    # -- what a world has ------------------------------------------------------------------------------

    def _room(self, world: World) -> int:
        return room_in(self.ledger.config, world)

    def _known(self, world: World) -> list[str]:
        """The requests that can be told apart: all that hold something, and the first of the others."""
        held = [name for name in self.names if name in world.requests]
        return [*held, *[name for name in self.names if name not in world.requests][:1]]

    def _pairs(self, world: World) -> Iterator[tuple[str, str]]:
        """Two requests in both orders; of two new ones in one order."""
        free = [name for name in self.names if name not in world.requests][:2]
        names = [*(name for name in self.names if name in world.requests), *free]
        for first, second in permutations(names, 2):
            if second in world.requests or free.index(second) == (1 if first in free else 0):
                yield first, second

    # -- allocations -----------------------------------------------------------------------------------

    def _allocs(self, world: World) -> Iterator[Operation]:
        size, room = self.ledger.config.page_size, self._room(world)
        yield Alloc(self.names[0], -1)
        if size > 1:
            yield Alloc(self.names[0], 1)
            yield Alloc(self.names[0], size + 1)
        able = [
            name for name in self._known(world)
            if name not in world.requests or not world.requests[name].length % size
        ]  # fmt: skip
        for name in able:
            for pages in range(1, room + 1):
                yield Alloc(name, pages * size)
        for name in able[:1]:
            yield Alloc(name, 0)
            yield Alloc(name, size if room else 0, "whole")
            yield Alloc(name, (room + 1) * size)

    def _growths(self, world: World, request: Request | None) -> range:
        """Tokens that a request can grow by, and the first number that does not fit."""
        size, room = self.ledger.config.page_size, self._room(world)
        inside = -request.length % size if request is not None else 0
        return range(inside + room * size + 2)

    def _prefixes(self, world: World, name: str) -> list[str]:
        if name in world.requests or not self.prefixes:
            return [""]
        size = self.ledger.config.page_size
        donors = [n for n in self.names if n in world.requests]
        return ["", *(n for n in donors if not world.requests[n].base and world.requests[n].length >= size)]

    def _batches(self, world: World) -> Iterator[Operation]:
        yield Extend(())
        yield Decode(())
        singles = [(name,) for name in self._known(world)]
        pairs = list(self._pairs(world))
        for group in (*singles, *pairs):
            yield from self._extends(world, group)
            yield Decode(group)
        for group in (*singles, *pairs[:1]) if self.misuse else ():
            yield from self._flawed(world, group)
        for (name,) in singles:
            yield Extend((Grow(name, 1), Grow(name, 1)))
            yield Extend((Grow(name, 0), Grow(name, 1)))

    def _extends(
        self, world: World, names: tuple[str, ...], begun: tuple[Grow, ...] = ()
    ) -> Iterator[Extend]:
        """Batches that grow these requests: all that fit, and the smallest that do not."""
        name, *rest = names
        for prefix in self._prefixes(world, name):
            for tokens in self._growths(world, world.requests.get(name)):
                batch = (*begun, Grow(name, tokens, prefix))
                step = self._step(world, Extend(batch))
                granted = step.status == "legal" and step.fits
                if not rest:
                    yield Extend(batch)
                elif granted:
                    yield from self._extends(world, tuple(rest), batch)
                else:
                    # What comes of the first alone, nobody behind it changes.
                    yield Extend((*batch, *(Grow(other, 1) for other in rest)))
                if not granted:
                    break

    def _flawed(self, world: World, names: tuple[str, ...]) -> Iterator[Operation]:
        for flaw in EXTEND_FLAWS:
            yield from self._first_misuse(world, [Extend(b, flaw) for b in _by_one(names)])
        for flaw in DECODE_FLAWS:
            yield Decode(names, flaw)

    def _first_misuse(self, world: World, choices: list[Extend]) -> Iterator[Operation]:
        for operation in choices:
            if self._step(world, operation).status == "misuse":
                yield operation
                return

    # -- frees -----------------------------------------------------------------------------------------

    def _frees(self, world: World) -> Iterator[Operation]:
        held = [name for name in self.names if name in world.requests]
        collected = world.group is not None and world.group != Group()
        yield Free(())
        if self.ledger.config.swa_pages:
            yield FreeSwa(())
        if collected and self.group_frees == "one":
            held = []
        whole = collected and self.group_frees == "whole"
        for names in permutations(held, 2) if not whole else ():
            yield Free(tuple(Part(name) for name in names))
        for name in held:
            yield Free((Part(name),))
            yield Free((Part(name), Part(name)))
            yield from (Free((Part(name),), flaw) for flaw in ("dtype", "shape", "tensor", "device"))
            if self.ledger.config.swa_pages:
                yield FreeSwa((Part(name),))
            if not whole:
                request = world.requests[name]
                yield from self._parts(name, request.length - request.base)
        for flaw in ("padding", "foreign", "negative"):
            yield Free((), flaw)
        for name in self.names:
            if name in world.ghosts:
                yield Free((Part(name),), "again")
                yield Free((Part(name, 1),), "again")

    def _parts(self, name: str, own: int) -> Iterator[Operation]:
        """Frees of a part of a request, or of its parts, and cuts that no free comes to."""
        size = self.ledger.config.page_size
        for at in range(1, own):
            head, tail = Part(name, 0, at), Part(name, at)
            yield Free((tail,))
            yield Free((head,))
            if at == 1 or not at % size:
                yield Free((tail, head))
                yield Free((head, tail))
            if at % size:
                yield Cut(name, own - at)
        if self.ledger.config.swa_pages:
            firsts = range(-(-own // size)) if self.window_frees == "any" else (0,)
            for first in firsts:
                yield from _window_frees(name, own, size, first, self.window_frees == "any")


def _by_one(names: tuple[str, ...]) -> list[tuple[Grow, ...]]:
    """Batches in which each grows by one token or by none, the most first."""
    if not names:
        return [()]
    rest = _by_one(names[1:])
    return [(Grow(names[0], tokens), *others) for tokens in (1, 0) for others in rest]


def _window_frees(name: str, own: int, size: int, first: int, borders: bool) -> Iterator[Operation]:
    """Runs of pages from `first` on, named by all tokens, and by those at their borders."""
    at = min((first + 1) * size, own) - 1
    for last in range(first, -(-own // size)):
        yield FreeSwa((Part(name, first * size, min((last + 1) * size, own)),))
        if borders:
            yield FreeSwa((Part(name, at, max(at, last * size) + 1),))
