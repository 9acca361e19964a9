"""The properties as functions that pytest and the gate both call, and the plan of how much of each there is.

Each check runs a subject for a number of examples from a seed, and returns what it judged. It raises `Broken`
at the first violation. The docstring says what is asserted.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from impl.engines import EngineSubject
from impl.subject import Subject
from oracle.batch import Batch
from oracle.ops import Case, Config
from oracle.verdict import Violation
from oracle.world import Step
from properties.cases import HEAD, SLOT, decode_slots, generate_misuse, generate_planned, typical_config
from properties.judged import Broken, HarnessError, Outcome, judged
from properties.kernels import check_batch, draw_batch
from properties.machines import machine_for
from properties.relations import RELATIONS, Pair, Relation, applies, compare, draw_pair
from properties.sources import SeededSource
from properties.workload import NONE

Avoid: TypeAlias = frozenset[str]
Check: TypeAlias = Callable[..., None]
NO_CASE = Case(Config("token", 1), ())
MACHINE_STEPS = 30
SLOTS = 24
WIDEST, WIDEST_SLOW = 300, 40


@dataclass(slots=True)
class Tally:
    """What a check has judged so far."""

    cases: int = 0
    operations: int = 0
    points: Counter[str] = field(default_factory=Counter)

    def add(self, operations: int, cases: int = 1) -> None:
        """Count a case."""
        self.cases += cases
        self.operations += operations


class BatchBroken(Broken):
    """An engine answered a batch wrongly."""

    def __init__(self, violation: Violation, batch: Batch, dtype: str) -> None:
        AssertionError.__init__(self, f"{violation.code}: {violation.summary}\n  {batch}")
        self.outcome = Outcome(NO_CASE, violation, 1)
        self.batch, self.dtype = batch, dtype


class RelationBroken(Broken):
    """Two runs differ that must not."""

    def __init__(self, outcome: Outcome, pair: Pair) -> None:
        super().__init__(outcome)
        self.pair = pair


def quiet(examples: int, steps: int = MACHINE_STEPS) -> settings:
    """Hypothesis settings: the seed decides, nothing is kept, and time decides nothing.

    There is no shrink phase: cases are plain data, and our own shrinker makes them smaller with fewer runs.
    `derandomize` is given although False is its default: Hypothesis turns it on by itself where CI is set.
    """
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=False,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )


def number(*words: object) -> int:
    """A seed from words, the same on every machine."""
    return zlib.crc32("/".join(map(str, words)).encode())


def sequences(
    subject: Subject, level: str, run_seed: str, count: int, tally: Tally, avoid: Avoid = NONE
) -> None:
    """Every answer to generated sequences of operations keeps all promises of the level."""
    for example in range(count):
        source = SeededSource(f"{run_seed}/{example}")
        made = generate_planned(source, subject.space, subject.traits, level, avoid)
        _hold(subject, level, made, tally)


def misuse(
    subject: Subject, level: str, run_seed: str, count: int, tally: Tally, avoid: Avoid = NONE
) -> None:
    """Every kind of bad call, in turn, does no harm where it is not refused; at hardened level it is refused."""
    for example in range(count):
        source = SeededSource(f"{run_seed}/{example}")
        made = generate_misuse(example, source, subject.space, subject.traits, level, avoid)
        _hold(subject, level, made, tally)


def _hold(subject: Subject, level: str, made: tuple[Case, list[Step]], tally: Tally) -> None:
    """One case with its plan, judged and counted, points included."""
    case, steps = made
    outcome = judged(subject, case, level, steps=steps)
    tally.add(outcome.operations)
    tally.points.update(outcome.points())
    if outcome.violation is not None:
        raise Broken(outcome)


def state_machine(
    subject: Subject, level: str, run_seed: str, count: int, tally: Tally, avoid: Avoid = NONE
) -> None:
    """The rules of the Hypothesis state machine of the subject's kind hold in any order."""
    machine = seed(number(run_seed))(machine_for(subject, level, avoid))
    try:
        run_state_machine_as_test(machine, settings=quiet(count))
    except (Broken, Flaky) as error:
        raise Broken(_again(subject, _broken_in(error), level)) from None
    finally:
        tally.add(machine.asked, count)


def fixed_slots(
    subject: Subject, level: str, run_seed: str, count: int, tally: Tally, avoid: Avoid = NONE
) -> None:
    """The same promises, over cases that Hypothesis draws as bytes: fixed slots of one operation each."""

    @seed(number(run_seed))
    @quiet(count)
    @given(st.binary(min_size=HEAD + SLOTS * SLOT, max_size=HEAD + SLOTS * SLOT))
    def holds(data: bytes) -> None:
        outcome = judged(subject, decode_slots(data, subject.space, subject.traits, level, avoid), level)
        tally.add(outcome.operations)
        if outcome.violation is not None:
            raise Broken(outcome)

    try:
        holds()
    except Flaky as error:
        raise _broken_in(error) from None


def _broken_in(error: BaseException) -> Broken:
    """The violation in what Hypothesis raised. A subject that answers rubbish may answer other rubbish the
    next time, which Hypothesis calls flaky; it is broken all the same."""
    if isinstance(error, Broken):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            return _broken_in(inner)
    for linked in (error.__cause__, error.__context__):
        if linked is not None:
            return _broken_in(linked)
    raise HarnessError(f"Hypothesis gave up: {error}") from error


def relation(which: Relation) -> Check:
    """The check of one relation between runs."""

    def check(
        subject: Subject, level: str, run_seed: str, count: int, tally: Tally, avoid: Avoid = NONE
    ) -> None:
        for example in range(count):
            pair = draw_pair(which, SeededSource(f"{run_seed}/{example}"), subject, level, avoid)
            violation, operations = compare(subject, pair, level, avoid)
            tally.add(operations)
            if violation is not None:
                raise RelationBroken(Outcome(pair.cases()[0], violation, operations), pair)

    check.__doc__ = which.says
    return check


def kernels(
    engine: EngineSubject, level: str, run_seed: str, count: int, tally: Tally, avoid: Avoid = NONE
) -> None:
    """An engine gives every batch the reference's slots, and touches nothing outside its arguments."""
    for example in range(count):
        batch = draw_batch(
            SeededSource(f"{run_seed}/{example}"), WIDEST if engine.share == 1 else WIDEST_SLOW
        )
        for dtype in ("int64", "int32"):
            violation = check_batch(engine, batch, dtype)
            tally.add(1)
            if violation is not None:
                raise BatchBroken(violation, batch, dtype)


def _again(subject: Subject, broken: Broken, level: str) -> Outcome:
    """The same case, judged whole: step by step nobody asks whether overwriting tensors is to blame."""
    outcome = judged(subject, broken.outcome.case, level)
    return outcome if outcome.violation is not None else broken.outcome


# -- the plan ------------------------------------------------------------------------------------------

CHECKS: dict[str, Check] = {
    "sequences": sequences,
    "misuse": misuse,
    "state machine": state_machine,
    "fixed slots": fixed_slots,
    **{f"relation {r.name}": relation(r) for r in RELATIONS},
    "kernels": kernels,
}

BUDGETS = ("quick", "ci", "nightly")
# Examples of each check by budget; counts, never seconds. Sequences go in shards, which workers share.
_COUNTS = {"quick": 1, "ci": 8, "nightly": 100}
_EXAMPLES = {
    "sequences": 100,
    "misuse": 160,
    "state machine": 12,
    "fixed slots": 30,
    "relation": 8,
    "kernels": 60,
}
SHARDS = 4


@dataclass(frozen=True, slots=True)
class Task:
    """One check on one subject: the unit that a worker does, with everything that decides what it does."""

    subject: str
    check: str
    shard: int
    count: int

    def seed(self, run_seed: int) -> str:
        """The seed of this task in a run."""
        return f"{run_seed}/{self.subject}/{self.check}/{self.shard}"

    def __str__(self) -> str:
        return f"{self.subject} {self.check} {self.shard}"


def plan_of(subject: Subject, budget: str, level: str) -> list[Task]:
    """All tasks of a subject."""
    times = _COUNTS[budget] * subject.share
    tasks = [
        Task(subject.name, "sequences", shard, max(1, round(_EXAMPLES["sequences"] * times / SHARDS)))
        for shard in range(SHARDS)
    ]
    for check in ("misuse", "state machine", "fixed slots"):
        tasks.append(Task(subject.name, check, 0, max(1, round(_EXAMPLES[check] * times))))
    traits = subject.traits(typical_config(subject.space, level))
    for r in RELATIONS:
        if applies(r, subject.space, traits):
            tasks.append(
                Task(subject.name, f"relation {r.name}", 0, max(1, round(_EXAMPLES["relation"] * times)))
            )
    return tasks


def plan_of_engine(engine: EngineSubject, budget: str) -> list[Task]:
    """All tasks of the kernel tier."""
    count = max(4, round(_EXAMPLES["kernels"] * _COUNTS[budget] * engine.share))
    return [Task(engine.name, "kernels", 0, count)]


def run_task(
    task: Task,
    subject: Subject | EngineSubject,
    level: str,
    run_seed: int,
    tally: Tally,
    avoid: Avoid = NONE,
) -> None:
    """Do a task; raises `Broken` at a violation. avoid: shapes of known faults (`properties.shapes`)."""
    CHECKS[task.check](subject, level, task.seed(run_seed), task.count, tally, avoid)
