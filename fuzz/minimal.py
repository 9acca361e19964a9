"""Is a shrunk case minimal? A search of all shorter ones on its pool, within a budget of transitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fuzz.cut import names_in
from fuzz.explore import explore
from fuzz.walker import Question, leads
from impl.answers import ElsewhereError
from impl.session import SMALL_POOL, UNASKED_POOL
from impl.state import UnreadableError
from impl.subject import Subject
from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Case, Operation
from oracle.world import Step, World
from properties.alphabet import Alphabet
from properties.judged import HarnessError, judged
from properties.workload import NAMES

MOST_NAMES = 4
LIMIT = 6_000  # transitions that the search for a shorter case may make: a second or two
LIMIT_SLOW = 300  # the same, of subjects that take milliseconds an operation
RUNS = 2_000  # of cases, where no states can be kept
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shortest:
    """The shortest case that is known of a finding. least: operations that one has on this pool at least."""

    case: Case
    least: int

    @property
    def proven(self) -> bool:
        """Whether there is no shorter one."""
        return len(self.case.operations) <= self.least


def shortest(subject: Subject, case: Case, level: str, key: Key, limit: int | None = None) -> Shortest:
    """The shortest case with the finding of this `key` on the same pool, as far as `limit` transitions go.

    Shorter cases are looked for in the alphabet and the case's own operations, of as many requests as the case
    has, from two to four. Where states can't be kept (K and V, and pools in which not every state is looked at)
    they are run one by one.
    """
    if not case.operations:
        return Shortest(case, 0)
    nothing = replace(case, operations=())
    if _shows(subject, nothing, level, key):
        return Shortest(nothing, 0)
    names = _names(case.operations)
    length = len(case.operations)
    limit = limit or (LIMIT_SLOW if subject.space.small else LIMIT)
    room = min(case.config.pages, case.config.swa_pages or case.config.pages) * case.config.page_size
    choices = room**2 if case.config.extends else room  # of a batch: two requests, by every number that fits
    if length == 1 or choices > min(limit, LIMIT):
        return Shortest(case, 1)
    asked = NAMES[: min(max(2, len(names)), MOST_NAMES)]
    own = _own(case, asked)
    if _kept(case, key):
        question = Question(
            case.config, level, asked, snapshot=True, misuse=key[1] == "misuse", key=key, own=own
        )
        return _explored(subject, question, case, limit)
    return _run_one_by_one(subject, case, level, key, asked, own, min(limit, RUNS))


def _kept(case: Case, key: Key) -> bool:
    """Whether a search that merges equal states sees what a run of the case does."""
    copies = any(isinstance(o, ops.CopyOut | ops.CopyIn) for o in case.operations)
    # In large pools the state in front of misuse is looked at, and others are not.
    looks = case.config.pages < (UNASKED_POOL if key[1] == "misuse" else SMALL_POOL)
    return looks and not case.config.data and not copies


def _explored(subject: Subject, question: Question, case: Case, limit: int) -> Shortest:
    """One search for each length: of the last operation it asks only what can show the finding, which is little."""
    for length in range(1, len(case.operations)):
        try:
            result = explore(subject, question, length, limit)
        except (HarnessError, ElsewhereError, UnreadableError):
            return Shortest(case, length)
        if result.found:
            found = result.found[0].case
            return Shortest(found, len(found.operations))
        if result.cut:
            return Shortest(case, length)
    return Shortest(case, len(case.operations))


def _shows(subject: Subject, case: Case, level: str, key: Key) -> bool:
    violation = judged(subject, case, level).violation
    return violation is not None and violation.key == key


# -- one by one ----------------------------------------------------------------------------------------


def _run_one_by_one(
    subject: Subject,
    case: Case,
    level: str,
    key: Key,
    names: tuple[str, ...],
    own: tuple[Operation, ...],
    limit: int,
) -> Shortest:
    """All cases of one operation, then of two, each run by itself."""
    ledger = Ledger(case.config, subject.traits(case.config))
    alphabet = Alphabet(ledger, names, snapshot=True, misuse=key[1] == "misuse", own=own)
    reached: list[tuple[tuple[Operation, ...], World]] = [((), ledger.start())]
    runs = 0
    for length in range(1, len(case.operations)):
        behind: list[tuple[tuple[Operation, ...], World]] = []
        for operations, world in reached:
            for step in _steps(alphabet, world):
                if not leads(key, step, length == len(case.operations) - 1, ledger.takes):
                    continue
                runs += 1
                if runs > limit:
                    return Shortest(case, length)
                longer = replace(case, operations=(*operations, step.operation))
                if _shows(subject, longer, level, key):
                    return Shortest(longer, length)
                if step.status == "legal":
                    behind.append((longer.operations, step.after))
        reached = behind
    return Shortest(case, len(case.operations))


def _steps(alphabet: Alphabet, world: World) -> Iterator[Step]:
    """What can be asked in a world, copies of K and V with it."""
    yield from alphabet.steps(world)
    if alphabet.ledger.config.data:
        for name in alphabet.names:
            copies = (alphabet.ledger.step(world, o) for o in (ops.CopyOut(name), ops.CopyIn(name)))
            yield from (step for step in copies if step.status != "skip")


def _own(case: Case, names: tuple[str, ...]) -> tuple[Operation, ...]:
    """Operations of a case that may not be like one of the alphabet: allocations and frees, of the requests that there are.

    The alphabet has one for all that do not fit, and batches of two; to an allocator with a fault they are not alike.
    """
    kinds = ops.Alloc | ops.Extend | ops.Decode | ops.Cut | ops.Free | ops.FreeSwa
    return tuple(
        dict.fromkeys(
            o for o in case.operations if isinstance(o, kinds) and set(names).issuperset(names_in(o))
        )
    )


def _names(operations: tuple[Operation, ...]) -> set[str]:
    return {name for operation in operations for name in names_in(operation)}
