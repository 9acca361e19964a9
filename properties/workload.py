"""Sensible workloads: operations that make sense where they come, with the corners where allocators break.

One description with any `Source` of choices behind it. It asks the ledger, never a subject.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Config, Grow, Operation, Part
from oracle.traits import Traits
from oracle.world import Request, Step, room_in
from properties.shapes import LONG, shapes
from properties.sources import Source, chance, pick, weighted

NAMES = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + tuple(
    f"{a}{b}" for a in "ABC" for b in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
Maker = Callable[["Workload", Source], Operation]
SNAPSHOTS = ("S", "T")
TRIES = 4
ABOUT: dict[str, tuple[str, ...]] = {
    "": (),
    "groups": ("free_group_begin", "free"),
    "state": ("backup_state", "clear"),
    "copies": ("get_cpu_copy",),
}
THEMES = ("", "", "groups", "state", "copies")
HABITS = (1, 1, 2, 4, 0)  # how much of its usual weight an operation has in one case
NONE: frozenset[str] = frozenset()


class Workload:
    """Makes operations, one after the other, in a world that it runs ahead with.

    avoid: shapes (`properties.shapes`) that are not made: they trigger faults that are known already.
    misuse: whether the case may end with a call that breaks a rule.
    """

    def __init__(
        self,
        config: Config,
        traits: Traits,
        source: Source,
        avoid: frozenset[str] = NONE,
        misuse: bool = True,
    ) -> None:
        self.config, self.avoid = config, avoid
        self.ledger = Ledger(config, traits)
        self.world = self.ledger.start()
        large = config.pages >= 20
        self._names = NAMES[: 40 if large else 2 + source.below(5)]
        self._widest = (1, 3, 6, 24)[source.below(4)] if large else 1 + source.below(3)
        self.steps: list[Step] = []
        self.over = False
        self._makers, self._weights = self._habits(source, misuse)

    def _habits(self, source: Source, misuse: bool) -> tuple[list[Maker], list[int]]:
        """Which operations this case likes, and how much: wild weights find more than equal ones."""
        alloc = 3 if self.config.extends else 12
        # Functions: what holds its own methods waits for the garbage collector, with all its steps.
        makers: list[tuple[Maker, str, int]] = [
            (Workload.extend, "alloc_extend", 6), (Workload._decode, "alloc_decode", 4), (Workload._alloc, "alloc", alloc),
            (Workload._free, "free", 6), (Workload._cut, "free", 2), (Workload._free_swa, "free_swa", 3),
            (Workload._group, "free_group_begin", 4), (Workload._merge, "merge_and_sort_free", 1),
            (Workload._state, "backup_state", 2), (Workload._clear, "clear", 1),
            # Without K and V there is nothing to copy; with them, a copy is what they are there for.
            (Workload._copy, "get_cpu_copy", 4 if self.config.data else 0),
        ]  # fmt: skip
        have = self.ledger.traits.operations
        # Some cases are about one thing: many frees in a group, or snapshots and what comes between.
        theme = pick(source, THEMES)
        self._groups_are_long = theme == "groups"
        chosen = [
            (maker, weight * pick(source, HABITS) * (4 if method in ABOUT[theme] else 1))
            for maker, method, weight in makers
            if method in have
        ]
        if not any(
            weight
            for maker, weight in chosen
            if maker in (Workload.extend, Workload._decode, Workload._alloc)
        ):
            chosen = [(maker, weight or 3) for maker, weight in chosen]
        self.misuses = misuse and chance(source, 2)
        if self.misuses:
            chosen.append((Workload._misuse, 1))
        return [maker for maker, _ in chosen], [weight for _, weight in chosen]

    def next(self, source: Source) -> Operation | None:
        """The next operation, or None where nothing that was drawn makes sense here. Moves the world on."""
        for _ in range(TRIES):
            operation = self._makers[weighted(source, self._weights)](self, source)
            step = self.ledger.step(self.world, operation)
            if self._sensible(step):
                return self._made(step)
        return None

    def last(self, source: Source) -> Operation | None:
        """The misuse that a case of its kind ends with; None where it has one, or none makes sense here."""
        if self.over or not self.misuses:
            return None
        for _ in range(2 * TRIES):
            nested = self.world.group is not None and chance(source, 4)
            operation: Operation = ops.GroupBegin() if nested else self._misuse(source)
            step = self.ledger.step(self.world, operation)
            if step.status == "misuse" and self._sensible(step):
                return self._made(step)
        return None

    def _made(self, step: Step) -> Operation:
        self.steps.append(step)
        self.world, self.over = step.after, step.status == "misuse"
        return step.operation

    def _sensible(self, step: Step) -> bool:
        if step.status == "skip" or step.rule in self.ledger.traits.undefined:
            return False
        return not self.avoid or self.avoid.isdisjoint(shapes(step, self.config))

    # -- allocations -----------------------------------------------------------------------------------

    def _room(self) -> int:
        return room_in(self.config, self.world)

    def _name(self, source: Source) -> str:
        return pick(source, self._names)

    def _batch(self, source: Source) -> list[str]:
        names = dict.fromkeys(self._name(source) for _ in range(1 + source.below(self._widest)))
        return list(names) if not chance(source, 40) else []

    def _growth(self, source: Source, request: Request | None, room: int) -> int:
        """New tokens of a request: few, or up to, next to and across a page's end, or all that is left."""
        size = self.config.page_size
        inside = -(request.length if request else 0) % size or size
        match source.below(10):
            case 0 | 1:
                return 1 + source.below(size)
            case 2:
                return inside
            case 3:
                return inside + 1
            case 4:
                return max(inside - 1, 0)
            case 5:
                return inside + size * (1 + source.below(2)) + source.below(3) - 1
            case 6:
                return inside + room * size
            case 7:
                return inside + room * size + 1
            case 8:
                return source.below(1 + inside + room * size)
            case 9 if chance(source, 4):
                return size * (LONG + source.below(4)) + 1 + source.below(size)
        return 0 if chance(source, 3) else 1 + source.below(3 * size)

    def extend(self, source: Source) -> ops.Extend:
        """A batch that grows, legal or not: the world is not moved on."""
        room = self._room()
        batch = []
        share = max(1, self._widest)
        for name in self._batch(source):
            request = self.world.requests.get(name)
            prefix = ""
            if request is None and self.world.requests and chance(source, 4):
                prefix = pick(source, sorted(self.world.requests))
            tokens = self._growth(source, request, room if chance(source, 3) else room // share)
            if request is not None and self._pending(request):
                tokens = 0  # it may stay as it is, and not grow
            batch.append(Grow(name, tokens, prefix))
        return ops.Extend(tuple(batch))

    def _pending(self, request: Request) -> bool:
        """Whether a free of part of its last page waits for the end of a group."""
        group = self.world.group
        return group is not None and bool(request.pages) and request.pages[-1] in group.parts

    def _decode(self, source: Source) -> ops.Decode:
        running = sorted(self.world.requests)
        if running and not chance(source, 5):
            first = source.below(len(running))
            return ops.Decode(tuple(running[first : first + 1 + source.below(self._widest)]))
        return ops.Decode(tuple(self._batch(source)))

    def _alloc(self, source: Source) -> Operation:
        size, room = self.config.page_size, self._room()
        pages = (1, room, room + 1, 0, 1 + source.below(1 + room))[weighted(source, (8, 2, 2, 1, 4))]
        return ops.Alloc(self._name(source), pages * size)

    # -- frees -----------------------------------------------------------------------------------------

    def _held(self, source: Source) -> str:
        """Somebody who holds something, so that frees are not wasted."""
        return pick(source, sorted(self.world.requests)) if self.world.requests else self._name(source)

    def _free(self, source: Source) -> Operation:
        if chance(source, 10 if not self.world.requests else 40):
            return ops.Free(())
        names = dict.fromkeys(self._held(source) for _ in range(1 + source.below(self._widest + 1)))
        parts = [Part(name) for name in names]
        if chance(source, 3):
            parts = self._pieces(source, parts[0])
        return ops.Free(tuple(parts))

    def _pieces(self, source: Source, part: Part) -> list[Part]:
        """Part of a request: whole pages of it, or, inside a group, what the group's end makes whole."""
        request = self.world.requests.get(part.request)
        if request is None:
            return [part]
        size, own = self.config.page_size, request.length - request.base
        at = source.below(1 + own // size) * size
        if self.world.group is not None and chance(source, 2):
            at = source.below(1 + own)
        head, tail = Part(part.request, 0, at), Part(part.request, at)
        return list(pick(source, ((tail,), (head,), (tail, head), (head, tail))))

    def _cut(self, source: Source) -> Operation:
        name = self._held(source)
        request = self.world.requests.get(name)
        own = request.length - request.base if request else 1
        return ops.Cut(name, 1 + source.below(own))

    def _free_swa(self, source: Source) -> Operation:
        if chance(source, 20):
            return ops.FreeSwa(())
        name = self._held(source)
        request = self.world.requests.get(name)
        own = request.length - request.base if request else 1
        if chance(source, 2):
            return ops.FreeSwa((Part(name),))
        first = source.below(own)
        return ops.FreeSwa((Part(name, first, first + 1 + source.below(own - first)),))

    def _group(self, source: Source) -> Operation:
        group = self.world.group
        if group is None:
            return ops.GroupEnd() if chance(source, 8) else ops.GroupBegin()
        if self._groups_are_long and not chance(source, 4):
            return self._free(source)
        open_pages = [uid for uid, mask in group.parts.items() if mask & (mask + 1)]
        if open_pages:
            owner = next(name for name, r in self.world.requests.items() if open_pages[0] in r.pages)
            return ops.Free((Part(owner),))
        return ops.GroupEnd()

    # -- state -----------------------------------------------------------------------------------------

    def _merge(self, source: Source) -> Operation:
        return ops.Merge()

    def _clear(self, source: Source) -> Operation:
        return ops.Clear() if chance(source, 2) else ops.Merge()

    def _state(self, source: Source) -> Operation:
        if self.world.snapshots and not chance(source, 3):
            return ops.Restore(pick(source, sorted(self.world.snapshots)))
        return ops.Backup(pick(source, SNAPSHOTS))

    def _copy(self, source: Source) -> Operation:
        """A copy; or its load, where the request holds as much as was copied, or after it was made anew."""
        world, requests = self.world, self.world.requests
        fitting = [
            n for n, c in world.copies.items() if n in requests and requests[n].length - requests[n].base == c
        ]
        if fitting and not chance(source, 3):
            return ops.CopyIn(pick(source, sorted(fitting)))
        lost = sorted(name for name in world.copies if name not in requests)
        if lost and not chance(source, 3):
            name = pick(source, lost)
            tokens = world.copies[name]
            return ops.Extend((Grow(name, tokens),)) if self.config.extends else ops.Alloc(name, tokens)
        return ops.CopyOut(self._held(source))

    # -- misuse ----------------------------------------------------------------------------------------

    def _misuse(self, source: Source) -> Operation:
        """A call that breaks a rule; the case ends with it."""
        group = pick(source, tuple(WRONG))
        return self._wrong(source, group, pick(source, WRONG[group]))

    def misuse(self, source: Source, group: str, flaw: str) -> bool:
        """End the case with misuse of one kind, if that makes sense here."""
        for _ in range(3 * TRIES):
            step = self.ledger.step(self.world, self._wrong(source, group, flaw))
            if step.status == "misuse" and self._sensible(step):
                self._made(step)
                return True
        return False

    def free_in_group(self, source: Source, start: int) -> None:
        """Open a group where none is, and free a request in it from token `start` on."""
        for operation in (ops.GroupBegin(), ops.Free((Part(self._held(source), start),))):
            step = self.ledger.step(self.world, operation)
            if step.status == "legal" and self._sensible(step):
                self._made(step)

    def _wrong(self, source: Source, group: str, flaw: str) -> Operation:
        size = self.config.page_size
        match group:
            case "alloc of a negative size":
                return ops.Alloc(self._name(source), -1 - source.below(size))
            case "unaligned alloc":
                return ops.Alloc(self._name(source), source.below(2 * size) + 1)
            case "alloc":
                return ops.Alloc(self._name(source), size * source.below(1 + self._room()), flaw)
            case "free of what nobody has":
                return ops.Free((), flaw)
            case "free":
                return ops.Free((Part(self._held(source)),), flaw)
            case "free of a part":
                return ops.Free((Part(self._held(source), 1 + source.below(size)),))
            case "free of one twice":
                name = self._held(source)
                return ops.Free((Part(name), Part(name)))
            case "free again":
                freed = sorted(self.world.ghosts)
                name = pick(source, freed) if freed else self._name(source)
                return ops.Free((Part(name, source.below(2)),), "again")
            case "end of a torn group":
                return ops.GroupEnd()
            case "restore":
                return ops.Restore("", flaw)
            case "extend":
                return replace(self.extend(source), flaw=flaw)
            case "decode":
                return replace(self._decode(source), flaw=flaw)
            case "extend twice in a page":
                name = self._held(source)
                return ops.Extend((Grow(name, 1), Grow(name, 1)))
            case "extend without its window":
                lost = self.world.gone | (self.world.group.swa if self.world.group is not None else NONE)
                gone = [name for name, r in self.world.requests.items() if r.pages[-1] in lost]
                return ops.Extend((Grow(pick(source, gone) if gone else self._name(source), 1),))
        return ops.GroupBegin()


# Every kind of misuse: what is called, and with which flaw of `oracle.ops`.
WRONG: dict[str, tuple[str, ...]] = {
    "alloc of a negative size": ("",),
    "unaligned alloc": ("",),
    "alloc": ("whole",),
    "free of what nobody has": ("padding", "foreign", "negative"),
    "free": ("dtype", "shape", "tensor", "device"),
    "free of a part": ("",),
    "free of one twice": ("",),
    "free again": ("again",),
    "nested group": ("",),
    "end of a torn group": ("",),
    "restore": ("snapshot",),
    "extend": ops.EXTEND_FLAWS,
    "decode": ops.DECODE_FLAWS,
    "extend twice in a page": ("",),
    "extend without its window": ("",),
}
KINDS_OF_MISUSE = tuple((group, flaw) for group, flaws in WRONG.items() for flaw in flaws)
