"""The readable front of the suite: a Hypothesis state machine for each kind of allocator.

A rule makes an operation and hands it to the judge; what is legal the ledger says. Rules are listed from the
harmless to the complex, since Hypothesis shrinks towards the first.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from impl.subject import Driver, Subject
from oracle import ops
from oracle.judge import Judge
from oracle.ledger import Ledger
from oracle.ops import Case, Config, Grow, Operation, Part
from oracle.plan import epilogue
from oracle.verdict import Violation
from oracle.world import Step, World, room_in
from properties.cases import HEAD, draw_config
from properties.judged import Broken, Outcome
from properties.shapes import shapes
from properties.sources import BytesSource

RIPE = 12  # operations before the first misuse, which ends an example
requests = st.sampled_from("ABCDE")
batches = st.lists(requests, max_size=6, unique=True)
snapshots = st.sampled_from("ST")
small = st.integers(0, 3)
length = st.integers(0, 40)


class AllocatorMachine(RuleBasedStateMachine):
    """What all kinds share: a subject, its ledger and the judge. Concrete machines set `subject` and `level`."""

    subject: ClassVar[Subject]
    level: ClassVar[str] = "contract"
    avoid: ClassVar[frozenset[str]] = frozenset()
    # Over all examples: operations asked of the subject, and the operations of the example at hand.
    asked: ClassVar[int] = 0

    config: Config
    world: World

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Operation] = []
        self.over = True
        self.driver: Driver | None = None

    @initialize(head=st.binary(min_size=HEAD, max_size=HEAD))
    def make(self, head: bytes) -> None:
        """A new allocator: it shows all its pages, each once, none of them the padding page."""
        self.config = draw_config(BytesSource(head), self.subject.space, self.level, self.avoid)
        traits = self.subject.traits(self.config)
        self.ledger, self.judge = Ledger(self.config, traits), Judge(self.config, traits, self.level)
        self.world, self.over = self.ledger.start(), False
        self.driver = self.subject.open(self.config)
        self._report(self.judge.begin(self.driver.begin()))

    def do(self, operation: Operation) -> None:
        """Ask for one operation and judge the answer; a case ends with its misuse, so that comes late."""
        if self.over:
            return
        step = self.ledger.step(self.world, operation)
        if step.status == "skip" or step.rule in self.ledger.traits.undefined:
            return
        if self.avoid and not self.avoid.isdisjoint(shapes(step, self.config)):
            return
        if step.status == "misuse" and len(self.done) < RIPE:
            return
        self.done.append(operation)
        self._ask(step)
        if step.status == "misuse":
            self._finish()

    def _ask(self, step: Step) -> None:
        assert self.driver is not None
        type(self).asked += 1
        self.world = step.before if step.status == "misuse" else step.after
        self._report(self.judge.check(step, self.driver.apply(step)))

    def _finish(self) -> None:
        self.over = True
        misused = bool(self.done) and self.ledger.step(self.world, self.done[-1]).status == "misuse"
        for step in epilogue(self.ledger, self.world, misused):
            self._ask(step)
        self._report(self.judge.end())

    def _report(self, violation: Violation | None) -> None:
        if violation is not None:
            self.over = True
            raise Broken(Outcome(Case(self.config, tuple(self.done)), violation, len(self.done)))

    def teardown(self) -> None:
        """Everything is given back, and the pool then gives its whole capacity (REUSE)."""
        if not self.over:
            self._finish()

    # -- rules for all kinds ---------------------------------------------------------------------------

    @rule()
    def merge(self) -> None:
        """A merge of staged pages changes nothing that can be counted."""
        self.do(ops.Merge())

    @rule(request=requests, pages=small, all_but=st.none() | st.integers(-1, 1))
    def alloc(self, request: str, pages: int, all_but: int | None) -> None:
        """Whole pages, up to, at and over what is free: new slots for what fits, None for what does not."""
        if not self.over:
            room = room_in(self.config, self.world)
            count = pages if all_but is None else max(0, room - all_but)
            self.do(ops.Alloc(request, count * self.config.page_size))

    @rule(names=batches)
    def finish(self, names: list[str]) -> None:
        """Requests finish in one free: their pages come back, each once."""
        self.do(ops.Free(tuple(Part(name) for name in names)))

    @rule(request=requests, tokens=length)
    def cut(self, request: str, tokens: int) -> None:
        """A request is cut back: pages that hold none of the rest come back, the others stay."""
        self.do(ops.Cut(request, tokens))

    @rule(request=requests, start=length)
    def free_part(self, request: str, start: int) -> None:
        """The tail of a request: whole pages of it, or inside a group what its end makes whole."""
        step = None if self.over else self.ledger.step(self.world, ops.Free((Part(request, start),)))
        if step is not None and (step.status == "legal" or self.world.group is None):
            self.do(step.operation)

    @rule()
    def group_begin(self) -> None:
        """From here on frees wait; a second begin is refused with nothing lost."""
        self.do(ops.GroupBegin())

    @rule()
    def group_end(self) -> None:
        """What waits comes back at once; an end without a group changes nothing."""
        if self.over:
            return
        group = self.world.group
        for uid, mask in dict(group.parts if group is not None else {}).items():
            if mask & (mask + 1):
                owner = next(name for name, r in self.world.requests.items() if uid in r.pages)
                self.do(ops.Free((Part(owner),)))
        self.do(ops.GroupEnd())

    @rule(snapshot=snapshots)
    def backup(self, snapshot: str) -> None:
        """A snapshot changes nothing."""
        self.do(ops.Backup(snapshot))

    @rule(snapshot=snapshots)
    def restore(self, snapshot: str) -> None:
        """The snapshot's world is back, an open group with it."""
        self.do(ops.Restore(snapshot))

    @precondition(lambda self: len(self.done) > 2)
    @rule()
    def clear(self) -> None:
        """The allocator is as new."""
        self.do(ops.Clear())

    @rule(flaw=st.sampled_from(("padding", "foreign", "negative")))
    def free_what_is_not_held(self, flaw: str) -> None:
        """A free of slots that nobody has is refused, or does no harm."""
        self.do(ops.Free((), flaw))

    @rule(request=requests)
    def free_with_floats(self, request: str) -> None:
        """A free whose indices are no integers is refused, or does no harm."""
        self.do(ops.Free((Part(request),), "dtype"))

    @rule(request=requests, start=small)
    def free_again(self, request: str, start: int) -> None:
        """A second free of the same slots is refused, or does no harm."""
        self.do(ops.Free((Part(request, start),), "again"))

    @rule(request=requests, size=st.integers(-3, -1))
    def alloc_a_negative_size(self, request: str, size: int) -> None:
        """A negative size is refused."""
        self.do(ops.Alloc(request, size))

    @invariant()
    def accounted_for(self) -> None:
        """What is held and what is free add up to the pool (the judge has compared the subject's numbers)."""
        if not self.over and self.world.group is None:
            held = sum(1 for r in self.world.requests.values() for uid in r.pages if uid)
            assert held + self.world.free == self.config.pages


class CopyRules:
    """CPU copies, for kinds with one KV pool."""

    do: Any

    @rule(request=requests)
    def copy_out(self, request: str) -> None:
        """K and V of a request, copied to the CPU."""
        self.do(ops.CopyOut(request))

    @rule(request=requests)
    def copy_in(self, request: str) -> None:
        """The copy, loaded into what the request holds now: K and V are what they were."""
        self.do(ops.CopyIn(request))


class GrowthRules:
    """Extend and decode, for kinds with pages."""

    do: Any

    @rule(
        batch=st.lists(st.tuples(requests, length), max_size=6, unique_by=lambda item: item[0]),
        prefix=st.none() | requests,
    )
    def extend(self, batch: list[tuple[str, int]], prefix: str | None) -> None:
        """Requests grow, or begin, some behind the prefix of another one: aligned, and nobody's slots but theirs."""
        self.do(ops.Extend(tuple(Grow(name, tokens, prefix or "") for name, tokens in batch)))

    @rule(names=batches)
    def decode(self, names: list[str]) -> None:
        """Every request of the batch gets one more token."""
        self.do(ops.Decode(tuple(names)))

    @rule(request=requests, flaw=st.sampled_from(ops.EXTEND_FLAWS))
    def extend_wrongly(self, request: str, flaw: str) -> None:
        """A batch that contradicts itself is refused, or does no harm."""
        self.do(ops.Extend((Grow(request, 1),), flaw))


class TokenMachine(CopyRules, AllocatorMachine):
    """Slots one by one."""


class PagedMachine(GrowthRules, CopyRules, AllocatorMachine):
    """Pages, with extend and decode."""


class SwaMachine(GrowthRules, AllocatorMachine):
    """Two pools in step."""

    @rule(request=requests, start=length, tokens=st.none() | length)
    def free_swa(self, request: str, start: int, tokens: int | None) -> None:
        """The window's half of pages is given up; doing it again changes nothing."""
        stop = None if tokens is None else start + tokens
        self.do(ops.FreeSwa((Part(request, start, stop),)))


MACHINES: dict[str, type[AllocatorMachine]] = {
    "token": TokenMachine,
    "paged": PagedMachine,
    "swa": SwaMachine,
}


def machine_for(subject: Subject, level: str, avoid: frozenset[str]) -> type[AllocatorMachine]:
    """The machine of a subject's kind, bound to it."""
    base = MACHINES[subject.space.kind]
    return type(
        base.__name__,
        (base,),
        {"subject": subject, "level": level, "avoid": avoid, "asked": 0, "__doc__": base.__doc__},
    )
