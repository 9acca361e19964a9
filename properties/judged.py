"""One case on one subject, judged: the run that every check, the shrinker and the gate go through."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from impl.subject import Subject
from oracle.judge import Judge
from oracle.ops import Case, config_sentence, sentence
from oracle.plan import plan, steps_of
from oracle.verdict import Observation, Violation
from oracle.world import Step
from properties.coverage import points


class HarnessError(Exception):
    """The suite itself broke: nothing is known about the subject."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case: the first violation, if any, and how many operations were judged before it.

    steps: those that were judged; unordered: the places among them that met a free list out of order.
    """

    case: Case
    violation: Violation | None
    operations: int
    answers: tuple[Observation, ...] = ()
    steps: tuple[Step, ...] = ()
    unordered: tuple[int, ...] = ()

    def points(self) -> Iterator[str]:
        """What of the space the judged steps have tried (`properties.coverage`)."""
        return points(self.steps, self.case.config, self.unordered)


def judged(
    subject: Subject, case: Case, level: str, keep: bool = False, steps: list[Step] | None = None
) -> Outcome:
    """Run a case and judge it. A violation that needs the caller to overwrite its tensors is an ALIAS.

    keep: keep the answers, for a case file. steps: the case's plan, where it is known already.
    """
    outcome = _once(subject, case, level, keep, steps)
    violation = outcome.violation
    if violation is None or not case.config.overwrite or violation.code == "ALIAS":
        return outcome
    left_alone = replace(case, config=replace(case.config, overwrite=False))
    other = _once(subject, left_alone, level, keep=False).violation
    return replace(outcome, violation=_blamed(violation, other))


def first_violation(subject: Subject, case: Case, level: str) -> Violation | None:
    """What `judged` says of a case, for cases of any length: neither steps nor answers are kept."""
    violation = _streamed(subject, case, level)
    if violation is None or not case.config.overwrite or violation.code == "ALIAS":
        return violation
    left_alone = replace(case, config=replace(case.config, overwrite=False))
    return _blamed(violation, _streamed(subject, left_alone, level))


def _blamed(violation: Violation, other: Violation | None) -> Violation:
    """A violation, or ALIAS where the same case breaks later or never (`other`) when no tensor is overwritten."""
    if other is not None and other.index <= violation.index:
        return violation
    summary = f"{violation.summary}. It does not happen when the caller leaves alone the tensors that it gave and was given"
    return replace(violation, code="ALIAS", summary=summary)


def _streamed(subject: Subject, case: Case, level: str) -> Violation | None:
    traits = subject.traits(case.config)
    judge = Judge(case.config, traits, level)
    driver = subject.open(case.config)
    violation = judge.begin(driver.begin())
    for step in steps_of(case, traits):
        violation = violation or judge.check(step, driver.apply(step))
        if violation is not None:
            return violation
    return judge.end()


def _once(subject: Subject, case: Case, level: str, keep: bool, steps: list[Step] | None = None) -> Outcome:
    traits = subject.traits(case.config)
    if steps is None:
        steps = plan(case, traits)
    judge = Judge(case.config, traits, level)
    answers: list[Observation] = []
    unordered: list[int] = []
    run = subject.run(case, steps)
    seen = next(run)
    violation = judge.begin(seen)
    asked = 0
    if violation is None:
        for step in steps:
            answer = next(run, None)
            if answer is None:
                raise HarnessError(
                    f"{subject.name} stopped answering at operation {judge.index + 1} for no reason"
                )
            seen = answer
            asked += step.call is not None
            if keep:
                answers.append(seen)
            violation = judge.check(step, seen)
            if seen.lists is not None and list(seen.lists[0]) != sorted(seen.lists[0]):
                unordered.append(judge.index)
            if violation is not None:
                break
        else:
            violation = judge.end()
    return Outcome(case, violation, asked, tuple(answers), tuple(steps[: judge.index]), tuple(unordered))


class Broken(AssertionError):
    """A subject broke a promise: what a property raises, with the case in it."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        violation = outcome.violation
        assert violation is not None
        lines = [f"{violation.code}: {violation.summary}", f"  on a {config_sentence(outcome.case.config)}"]
        lines += [f"  {at + 1}. {sentence(o)}" for at, o in enumerate(outcome.case.operations)]
        super().__init__("\n".join(lines))
