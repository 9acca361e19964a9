"""One task of the plan, to its end: run, shrink what is found, steer round it, and go on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

from fuzz.findings import Finding
from fuzz.minimal import shortest
from fuzz.minimal_pair import shortest_pair
from fuzz.shrink import Shrinker, shrink_pair
from impl.engines import EngineSubject
from impl.subject import Subject
from oracle.ops import METHODS, Case
from oracle.plan import plan
from oracle.verdict import Violation
from properties.cases import generate
from properties.checks import Avoid, BatchBroken, RelationBroken, Tally, Task, run_task
from properties.judged import Broken, judged
from properties.kernels import check_batch, shrink_batch
from properties.relations import Pair, compare, compare_runs
from properties.shapes import config_shapes, shapes
from properties.sources import SeededSource
from properties.workload import NONE

ROUNDS = 24  # distinct faults that one task looks for
ALIKE = 5  # how often one task goes on behind faults that look alike
METHOD_NAMES = frozenset(METHODS.values())
SAMPLE = 60  # cases whose shapes say what is common


@dataclass(slots=True)
class TaskResult:
    """What came of a task.

    avoid: shapes that were left out at the end, those given to it included. stopped_at: the fault that could
    not be steered round, so that the task ended with it.
    """

    task: Task
    findings: list[Finding] = field(default_factory=list)
    cases: int = 0
    operations: int = 0
    seconds: float = 0.0
    points: Counter[str] = field(default_factory=Counter)
    avoid: Avoid = NONE
    stopped_at: str = ""


def campaign(
    task: Task, subject: Subject | EngineSubject, level: str, run_seed: int, avoid: Avoid = NONE
) -> TaskResult:
    """Do a task. After a fault the task is run again without the shape of step that triggers it."""
    started = time.perf_counter()
    result = TaskResult(task, avoid=avoid)

    def attempt(leaving_out: Avoid) -> Attempt:
        tally = Tally()
        broken = None
        try:
            run_task(task, subject, level, run_seed, tally, leaving_out)
        except Broken as error:
            broken = error
        result.cases += tally.cases
        result.operations += tally.operations
        result.points.update(tally.points)
        return Attempt(broken, tally.cases)

    last = attempt(avoid)
    rounds: Counter[tuple[str, ...]] = Counter()
    while last.broken is not None:
        finding = shrunk(task, subject, level, last.broken)
        rounds.update({finding.violation.key, last.key})
        shape = ""
        if finding.case is not None and len(result.findings) < ROUNDS:
            choices = _shapes_to_leave_out(finding, cast("Subject", subject), level)
            shape, last = _steer(choices, last, result.avoid, rounds, attempt)
        result.findings.append(replace(finding, steered=shape))
        if not shape:
            result.stopped_at = finding.violation.summary
            break
        result.avoid |= {shape}
    result.seconds = time.perf_counter() - started
    return result


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task: what broke, and after how many cases."""

    broken: Broken | None
    cases: int

    @property
    def key(self) -> tuple[str, ...]:
        """What broke, as `Violation.key`; empty where nothing did."""
        return _key(self.broken) if self.broken is not None else ()


def _steer(
    choices: list[str],
    last: Attempt,
    avoid: Avoid,
    rounds: Counter[tuple[str, ...]],
    attempt: Callable[[Avoid], Attempt],
) -> tuple[str, Attempt]:
    """The shape to leave out from here on, and the run without it; no shape where none gets any further.

    The best one takes the fault away. Two faults may look alike, though, and then each needs a shape of its
    own: so the next best is the one that gets furthest, before a whole method is left out.
    """
    furthest = "", last
    for shape in (shape for shape in choices if shape not in METHOD_NAMES):
        tried = attempt(avoid | {shape})
        if tried.key not in rounds:
            return shape, tried
        if tried.cases > furthest[1].cases:
            furthest = shape, tried
    if furthest[0] and rounds[last.key] < ALIKE:
        return furthest
    for shape in (shape for shape in choices if shape in METHOD_NAMES):
        tried = attempt(avoid | {shape})
        if tried.key not in rounds:
            return shape, tried
    return "", last


def _key(broken: Broken) -> tuple[str, ...]:
    violation = broken.outcome.violation
    assert violation is not None
    return violation.key


def _shapes_to_leave_out(finding: Finding, subject: Subject, level: str) -> list[str]:
    """Shapes of the shrunk case, the rarest first: leaving one out may be enough to get behind the fault."""
    assert finding.case is not None
    traits = subject.traits(finding.case.config)
    cases = [finding.case]
    if finding.other is not None:
        cases.append(replace(finding.case, operations=finding.other))
    common: Counter[str] = Counter()
    for example in range(SAMPLE):
        case = generate(SeededSource(f"sample/{example}"), subject.space, subject.traits, level)
        common.update(config_shapes(case.config))
        for step in plan(case, subject.traits(case.config)):
            common.update(shapes(step, case.config))
    found: set[str] = set()
    for case in cases:
        found.update(config_shapes(case.config))
        for step in plan(case, traits):
            if not step.probe:
                found.update(shapes(step, case.config))
    if finding.violation.code == "ALIAS":
        common["overwriting tensors"] = -1  # that this is needed is what the code says
    common["with undefined lanes"] = -1  # in a shrunk case only where it is needed
    return sorted(found, key=lambda shape: (common[shape], shape))


def shrunk(
    task: Task, subject: Subject | EngineSubject, level: str, broken: Broken, limit: int | None = None
) -> Finding:
    """The finding with the smallest case that has it. limit: of the search for a shorter one (`fuzz.minimal`)."""
    key = _key(broken)
    plain = Finding(task.subject, level, task.check, _violation(broken.outcome.violation))
    if isinstance(broken, BatchBroken):
        engine = cast("EngineSubject", subject)
        batch = shrink_batch(engine, broken.batch, broken.dtype, key)
        again = check_batch(engine, batch, broken.dtype)
        return replace(plain, violation=again or plain.violation, batch=batch, dtype=broken.dtype)
    allocator = cast("Subject", subject)
    if isinstance(broken, RelationBroken):
        return _shrunk_pair(plain, allocator, level, broken.pair, key)

    def holds(case: Case) -> bool:
        violation = judged(allocator, case, level).violation
        return violation is not None and violation.key == key

    case = Shrinker(holds, allocator.space).shrink(broken.outcome.case)
    known = shortest(allocator, case, level, key, limit)
    outcome = judged(allocator, known.case, level, keep=True)
    return replace(
        plain,
        violation=outcome.violation or plain.violation,
        case=known.case,
        minimal=known.proven or None,
        least=known.least,
        claims=allocator.traits(known.case.config),
        answers=outcome.answers,
    )


def _shrunk_pair(plain: Finding, subject: Subject, level: str, pair: Pair, key: tuple[str, ...]) -> Finding:
    def holds(candidate: Pair) -> bool:
        violation, _ = compare(subject, candidate, level)
        return violation is not None and violation.key == key

    pair, least = shortest_pair(subject, shrink_pair(pair, holds), holds)
    runs = pair.runs()
    violation, first, second = compare_runs(subject, runs, level)
    return replace(
        plain,
        violation=violation or plain.violation,
        case=runs.left,
        other=runs.right.operations,
        relation=pair.relation.name,
        minimal=len(runs.left.operations) <= least or None,
        least=least,
        claims=subject.traits(pair.config),
        answers=first.answers,
        other_answers=second.answers,
    )


def _violation(violation: Violation | None) -> Violation:
    assert violation is not None
    return violation
