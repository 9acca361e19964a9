"""From a file, a recorded trace or a case, to the smallest case with the same finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz.cut import cut, depends
from fuzz.minimal import shortest
from fuzz.shrink import Shrinker
from fuzz.trace_case import TraceCase, case_of
from impl.errors import SubjectError
from impl.names import resolve
from impl.subject import Subject
from oracle import casefile
from oracle.casefile import CaseError, CaseFile
from oracle.ops import Case
from oracle.rawcall import Trace, is_trace
from oracle.traits import ALWAYS, OPTIONAL, Traits
from oracle.verdict import Violation
from properties.judged import first_violation, judged

RUNS = 4_000  # of the shrinker: after the cut a run takes milliseconds

Say = Callable[[str], object]


class NothingToShrink(CaseError):
    """A file that holds no single run."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What became of a file. file: the case as it goes to disk, or None where nothing was wrong.

    recorded: what the answers in a trace show by themselves. came_from: operations before. runs: of the
    shrinker. minimal: whether no shorter case on its pool has the finding; None where nobody knows.
    """

    subject: str
    file: CaseFile | None
    recorded: Violation | None = None
    came_from: int = 0
    runs: int = 0
    minimal: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def violation(self) -> Violation | None:
        """What is wrong."""
        return self.file.finding if self.file is not None else None


def shrink_file(
    path: Path,
    impl: str = "",
    tree: str = "",
    device: str = "cpu",
    level: str = "",
    say: Say = lambda text: None,
) -> Shrunk:
    """Read, replay, cut and shrink. TraceError, CaseError, SubjectError or OSError say what is wrong with the input."""
    if not is_trace(path):
        return _shrink_case(path, impl, tree, device, level, say)
    name = impl or Trace(path).header.subject
    if not name:
        raise SubjectError(f"{path} does not say what was recorded: give --impl")
    subject = resolve(name, tree, device)
    try:
        # What was recorded is any allocator's: the subject's own claims come in when it is replayed.
        claims = subject.traits(Trace(path).header.pool)
        told = case_of(path, Traits(ALWAYS | OPTIONAL, swa_now=claims.swa_now), say)
        say(f"{told.calls:,} calls are {len(told.case.operations):,} operations")
        if told.recorded is not None:
            say(f"the recording itself shows {told.recorded.code}: {told.recorded.summary}")
        known = CaseFile(told.case, subject.name, level or "contract", note=f"from the trace {path.name}")
        shrunk = _shrink(subject, known, say)
        if shrunk.file is None and told.recorded is not None:
            shrunk = replace(shrunk, file=replace(known, finding=told.recorded))
    finally:
        subject.close()
    return replace(shrunk, recorded=told.recorded, notes=_notes(told))


def _notes(told: TraceCase) -> tuple[str, ...]:
    stopped = (f"the rest of the trace, from call {told.calls:,} on, is left out: {told.stopped}",)
    return (*told.notes, *(stopped if told.stopped else ()))


def _shrink_case(path: Path, impl: str, tree: str, device: str, level: str, say: Say) -> Shrunk:
    file = casefile.read(path)
    if file.relation or file.other is not None:
        raise NothingToShrink(
            f"{path}: compares two runs (relation {file.relation}), and was shrunk when it was found; shrink takes one run"
        )
    name = impl or file.subject
    if not name:
        raise SubjectError(f"{path} does not say what it is a case of: give --impl")
    subject = resolve(name, tree, device)
    try:
        return _shrink(subject, replace(file, subject=name, level=level or file.level or "contract"), say)
    finally:
        subject.close()


def _shrink(subject: Subject, file: CaseFile, say: Say) -> Shrunk:
    level, case = file.level, file.case
    violation = first_violation(subject, case, level)
    length = len(case.operations)
    if violation is None:
        return Shrunk(subject.name, None, came_from=length)
    say(f"{violation.code} at operation {violation.index + 1:,} of {length:,}: {violation.summary}")
    case, runs = smallest(subject, case, level, violation, say)
    known = shortest(subject, case, level, violation.key)
    case = known.case
    last = judged(subject, case, level, keep=True)
    assert last.violation is not None, "the shrinker left a case without its finding"
    claims = subject.traits(case.config)
    done = replace(file, case=case, finding=last.violation, claims=claims, answers=last.answers)
    return Shrunk(subject.name, done, None, length, runs, known.proven or None)


def smallest(
    subject: Subject, case: Case, level: str, violation: Violation, say: Say = lambda text: None
) -> tuple[Case, int]:
    """The smallest case with the same finding (`Violation.key`), and the runs that its shrinker took."""
    key = violation.key

    def holds(candidate: Case) -> bool:
        found = first_violation(subject, candidate, level)
        return found is not None and found.key == key

    traits = subject.traits(case.config)
    case = cut(case, traits, violation.index, holds, say)
    case = depends(case, subject, len(case.operations) - 1, holds, say)
    shrinker = Shrinker(holds, subject.space, limit=RUNS)
    case = shrinker.shrink(case)
    say(f"shrunk to {len(case.operations)} operation(s) in {shrinker.runs} runs")
    return case, shrinker.runs
