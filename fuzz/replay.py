"""A case run again, on the subject that it names or on another one: is what was found still there?"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from fuzz.run import ALLOCATOR, KERNEL, Options, Target, subject_of
from impl.engines import EngineSubject
from impl.errors import SubjectError
from impl.subject import Subject
from oracle.casefile import BatchFile, CaseError, CaseFile, read_any
from oracle.ops import Case, sentence
from oracle.plan import plan
from oracle.verdict import Observation, Violation
from properties.judged import judged
from properties.kernels import check_batch
from properties.relations import comparable, compare_runs, runs_of_file

FIXED, FAILED, FLAKY, ERROR = "FIXED", "FAILED", "FLAKY", "ERROR"
EXIT_BAD_INPUT, EXIT_BROKE = 2, 3
TIMES = 2


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of one file.

    state: FIXED (every promise holds), FAILED, FLAKY (two replays part), ERROR (nothing is known). says: the
    sentence to it. expected: the code that the file names. code, kind, operation, index: of the finding now;
    same: whether it is the one of the file. exit: the exit code that this alone would give.
    """

    file: str
    subject: str
    state: str
    says: str = ""
    level: str = ""
    expected: str = ""
    code: str = ""
    kind: str = ""
    operation: str = ""
    index: int | None = None
    same: bool | None = None
    operations: int = 0
    exit: int = 0

    def document(self) -> dict[str, Any]:
        """The entry of `--json`."""
        return {key: value for key, value in asdict(self).items() if key != "exit"}


@dataclass(frozen=True, slots=True)
class Run:
    """One replay: what was wrong, and every answer, with the operation that it answers."""

    violation: Violation | None
    answers: tuple[tuple[Case, tuple[Observation, ...]], ...]
    operations: int


def exit_code(replayed: Sequence[Replayed]) -> int:
    """0 all are fixed; else the worst: 3 the harness broke, 2 bad input, 1 one failed or is flaky."""
    return max((entry.exit for entry in replayed), default=EXIT_BAD_INPUT)


def replay_path(path: Path, impl: str = "", level: str = "", tree: str = "", device: str = "cpu") -> Replayed:
    """Replay a file. impl: a subject instead of the one that it names; level: instead of its own; tree: `--path`."""
    try:
        file = read_any(path)
    except (CaseError, OSError) as error:
        says = str(error).removeprefix(f"{path}: ")
        return Replayed(str(path), impl, ERROR, says, exit=EXIT_BAD_INPUT)
    return replay(file, str(path), impl, level, tree, device)


def replay(
    file: CaseFile | BatchFile,
    name: str = "",
    impl: str = "",
    level: str = "",
    tree: str = "",
    device: str = "cpu",
) -> Replayed:
    """Replay what is in a file, twice, and compare the two."""
    batch = isinstance(file, BatchFile)
    own = file.engine if isinstance(file, BatchFile) else file.subject
    chosen = level or ("contract" if isinstance(file, BatchFile) else file.level or "contract")
    blank = Replayed(
        name, impl or own, ERROR, level=chosen, expected=file.finding.code if file.finding else ""
    )
    if not blank.subject:
        return replace(blank, says="it names no subject: give one with --impl", exit=EXIT_BAD_INPUT)
    target = Target(blank.subject, chosen, KERNEL if batch else ALLOCATOR)
    try:
        subject = subject_of(target, Options((target,), device=device, path=tree))
        runs = [run_once(file, subject, chosen) for _ in range(TIMES)]
    except (SubjectError, CaseError) as error:
        return replace(blank, says=str(error), exit=EXIT_BAD_INPUT)
    except Exception as error:  # nothing is known about the subject now: say so, and go on with the next file
        traceback.print_exc()
        return replace(blank, says=f"the harness broke: {type(error).__name__}: {error}", exit=EXIT_BROKE)
    return _verdict(replace(blank, operations=runs[0].operations), file.finding, runs)


def _verdict(blank: Replayed, expected: Violation | None, runs: list[Run]) -> Replayed:
    violation = next((run.violation for run in runs if run.violation is not None), None)
    entry = replace(blank, state=FIXED)
    if violation is not None:
        same = violation.key == expected.key if expected is not None else None
        entry = replace(
            blank, state=FAILED, says=violation.summary, code=violation.code, kind=violation.kind,
            operation=violation.operation, index=violation.index, same=same, exit=1,
        )  # fmt: skip
    parts = _part(*runs)
    return replace(entry, state=FLAKY, says=parts, exit=1) if parts else entry


def _part(first: Run, second: Run) -> str:
    """Where two replays part, as a sentence; empty where they are the same."""
    for number, ((case, left), (_, right)) in enumerate(zip(first.answers, second.answers, strict=True)):
        run = f" of run {number + 1}" if len(first.answers) > 1 else ""
        for index, (a, b) in enumerate(zip(left, right, strict=False)):
            a, b = _steady(a), _steady(b)
            if a != b:
                difference = next(
                    f"{field} {getattr(a, field)!r} and then {getattr(b, field)!r}"
                    for field in Observation._fields
                    if getattr(a, field) != getattr(b, field)
                )
                return f"two replays part at operation {index + 1}{run} ({_asked(case, index)}): {difference}"
        if len(left) != len(right):
            index = min(len(left), len(right))
            return (
                f"two replays part at operation {index + 1}{run} ({_asked(case, index)}): one ends before it"
            )
    if first.violation != second.violation:
        return f"two replays part: {_words(first.violation)} and then {_words(second.violation)}"
    return ""


def _steady(seen: Observation) -> Observation:
    """Without addresses, which differ from run to run and say nothing."""
    return seen._replace(error=re.sub(r"0x[0-9a-f]+", "0x…", seen.error)) if seen.error else seen


def _asked(case: Case, index: int) -> str:
    behind = "what every case ends with"
    return sentence(case.operations[index]) if index < len(case.operations) else behind


def _words(violation: Violation | None) -> str:
    return violation.summary if violation is not None else "nothing"


# -- one replay ----------------------------------------------------------------------------------------


def run_once(file: CaseFile | BatchFile, subject: Subject | EngineSubject, level: str) -> Run:
    """Run a case, both runs of a relation, or a batch. CaseError where this subject can't be asked that."""
    if isinstance(file, BatchFile):
        return _batch(file, cast("EngineSubject", subject))
    allocator = cast("Subject", subject)
    check(file, allocator, level)
    if file.other is not None:
        return _relation(file, allocator, level)
    outcome = judged(allocator, file.case, level, keep=True)
    return Run(outcome.violation, ((file.case, outcome.answers),), outcome.operations)


def check(file: CaseFile, subject: Subject, level: str) -> None:
    """CaseError where a subject can't be made for the case, or not be judged at the level."""
    config, space = file.case.config, subject.space
    if config.kind != space.kind:
        raise CaseError(f"the case has a {config.kind} pool, and {subject.name} is {space.kind}")
    sizes = (space.fixed["page_size"],) if "page_size" in space.fixed else space.page_sizes
    own_sizes = len(sizes) == 1 and config.page_size not in sizes
    if own_sizes:
        raise CaseError(
            f"the case has pages of {config.page_size}, and {subject.name} has pages of {sizes[0]}"
        )
    if config.need_sort not in space.need_sort:
        raise CaseError(f"{subject.name} can't be made with need_sort={config.need_sort}")
    traits = subject.traits(config)
    if level == "parity" and traits.dialect is None:
        raise CaseError(f"{subject.name} claims no exact order, so it has no parity level: give --level")
    asked = [step for step in plan(file.case, traits) if not step.probe and step.status != "skip"]
    if file.case.operations and not asked:
        raise CaseError(f"{subject.name} has none of the operations of the case")


def _relation(file: CaseFile, subject: Subject, level: str) -> Run:
    other = replace(file.case, operations=file.other or ())
    try:
        runs = runs_of_file(file.relation, file.case, other)
    except KeyError:
        raise CaseError(f"relation: there is no {file.relation!r} (see `kvassay list`)") from None
    if not comparable(subject, runs):
        raise CaseError(f"the two runs of relation {file.relation} can't be compared on {subject.name}")
    violation, first, second = compare_runs(subject, runs, level)
    answers = (runs.left, first.answers), (runs.right, second.answers)
    return Run(violation, answers, first.operations + second.operations)


def _batch(file: BatchFile, engine: EngineSubject) -> Run:
    return Run(check_batch(engine, file.batch, file.dtype), (), 1)
