"""Is a shrunk case minimal? A search of all shorter ones on its pool, within a budget of transitions."""

from __future__ import annotations

from fuzz.explore import explore
from fuzz.walker import Question
from impl.answers import ElsewhereError
from impl.child import ChildSubject, DiedError
from impl.state import UnreadableError
from impl.subject import Subject
from oracle import ops
from oracle.ops import Case, Operation
from properties.judged import HarnessError
from properties.workload import NAMES

LARGEST = 4  # pages, and slots of a page, of the pools on which a shorter case is looked for
MOST_NAMES = 3
LIMIT = 6_000  # transitions that the search for a shorter case may make: a second or two
LIMIT_SLOW = 300  # the same, of subjects that take milliseconds an operation


def shorter(
    subject: Subject, case: Case, level: str, key: tuple[str, ...], limit: int | None = None
) -> tuple[bool | None, Case]:
    """Whether no shorter case on the same pool has the finding of this `key`, and the shortest that is known.

    Shorter cases are looked for in the alphabet, with as many requests as the case has and two at least; True
    says that all of them were tried. None where that is out of reach: large pools, K and V, or more than
    `limit` transitions.
    """
    limit = limit or (LIMIT_SLOW if subject.space.small else LIMIT)
    question = _question_of(case, level)
    if question is None or not case.operations:
        return (None if question is None else True), case
    if isinstance(subject, ChildSubject):
        try:
            return subject.there(shorter, case, level, key, limit)
        except DiedError:
            return None, case
    try:
        result = explore(
            subject, question, len(case.operations) - 1, limit, wanted=lambda violation: violation.key == key
        )
    except (HarnessError, ElsewhereError, UnreadableError):
        return None, case
    if result.found:
        return True, result.found[0].case
    # Which of all that looks alike is an ALIAS, only its own run says, and not each was run.
    return (None if result.cut or key[0] == "ALIAS" else True), case


def _question_of(case: Case, level: str) -> Question | None:
    config = case.config
    small = max(config.pages, config.swa_pages, config.page_size) <= LARGEST
    names = _names(case.operations)
    copies = any(isinstance(o, ops.CopyOut | ops.CopyIn) for o in case.operations)
    if not small or config.data or copies or len(names) > MOST_NAMES:
        return None
    return Question(config, level, NAMES[: max(2, len(names))], snapshot=True)


def _names(operations: tuple[Operation, ...]) -> set[str]:
    found: set[str] = set()
    for o in operations:
        match o:
            case ops.Extend():
                found |= {name for g in o.batch for name in (g.request, g.prefix) if name}
            case ops.Decode():
                found |= set(o.requests)
            case ops.Free() | ops.FreeSwa():
                found |= {part.request for part in o.parts}
            case ops.Alloc() | ops.Cut():
                found.add(o.request)
    return found
