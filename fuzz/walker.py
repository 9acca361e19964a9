"""One process's part of a search: from a state that was reached, every operation of its alphabet, judged."""

from __future__ import annotations

from dataclasses import dataclass

from impl.branches import Branches
from impl.session import Session
from impl.state import State, digest
from impl.subject import LocalSubject
from oracle.judge import Judge
from oracle.ledger import Ledger
from oracle.ops import Config, Operation
from oracle.plan import epilogue
from oracle.verdict import Violation
from oracle.world import Step, World
from properties.alphabet import NAMES, Alphabet
from properties.judged import HarnessError

Path = tuple[int, ...]  # of each operation, its place in the alphabet of the world that it comes in
CHECKED_EVERY = 64  # of so many states one is made anew, to see that it is the same again


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched: a pool at a level, with so many requests, with a snapshot or without.

    answers: whether answers count as state (`impl.branches`).
    """

    config: Config
    level: str
    names: tuple[str, ...] = NAMES
    snapshot: bool = False
    answers: bool = False


@dataclass(slots=True)
class Reached:
    """A state, live: what the caller knows, what the judge knows, the subject itself, and how it came there."""

    world: World
    judge: Judge
    session: Session
    trail: tuple[Step, ...]
    state: State
    refusals_pass: bool = False  # a refused misuse that changed nothing was followed by its probes already


@dataclass(frozen=True, slots=True)
class Expanded:
    """What came of one state: of each legal operation its place and the state behind it; what was wrong."""

    places: tuple[int, ...]
    digests: tuple[bytes, ...]
    misuses: int
    wrong: tuple[tuple[int, Violation], ...]

    @property
    def transitions(self) -> int:
        """Operations that were asked here."""
        return len(self.places) + self.misuses + len(self.wrong)


class Walker:
    """Keeps the states of one level that this process has reached, and walks on from them."""

    def __init__(self, subject: LocalSubject, question: Question) -> None:
        self.question = question
        traits = subject.traits(question.config)
        self.ledger = Ledger(question.config, traits)
        self.alphabet = Alphabet(self.ledger, question.names, question.snapshot)
        self.branches = Branches(subject, question.config, question.answers)
        self._ghosts = "twice" not in traits.undefined
        self._judge = Judge(question.config, traits, question.level)
        self._live: dict[bytes, Reached] = {}
        self._next: dict[bytes, Reached] = {}
        self._known: set[bytes] = set()
        self._count = 0

    def begin(self) -> tuple[bytes, Violation | None]:
        """The state of a new allocator, and what is wrong with it."""
        judge = self._judge.copy()
        session = self.branches.root
        violation = judge.begin(session.begin())
        root = Reached(self.ledger.start(), judge, session, (), self.branches.state(session))
        key = self._digest(root)
        self._next[key] = root
        return key, violation

    def probe(self, states: list[tuple[bytes, Path]]) -> list[Violation | None]:
        """Judge what every case ends with, behind each of these states; they are the next ones walked from."""
        self._live, self._next = self._next, {}
        wanted = {key for key, _ in states}
        self._live = {key: reached for key, reached in self._live.items() if key in wanted}
        return [self._ended(self._at(key, path), misused=False) for key, path in states]

    def expand(self, states: list[tuple[bytes, Path]]) -> list[Expanded]:
        """Try every operation of the alphabet in each of these states."""
        return [self._expand(self._at(key, path)) for key, path in states]

    def operations(self, path: Path) -> tuple[Operation, ...]:
        """The operations of a path."""
        return tuple(step.operation for step in self._steps(path))

    # -- one state -------------------------------------------------------------------------------------

    def _digest(self, reached: Reached) -> bytes:
        return digest((reached.judge.state(reached.world, self._ghosts), reached.state.value))

    def _steps(self, path: Path) -> list[Step]:
        world, steps = self.ledger.start(), []
        for place in path:
            steps.append(self.alphabet.steps(world)[place])
            world = steps[-1].after
        return steps

    def _at(self, key: bytes, path: Path) -> Reached:
        """The state of a path: as it was kept, or made anew."""
        self._known.add(key)
        reached = self._live.get(key)
        self._count += 1
        if reached is not None and self._count % CHECKED_EVERY:
            return reached
        again = self._walked(path)
        if self._digest(again) != key:
            raise HarnessError(
                "the same operations led to another state the second time: something outside of the allocator"
                " (a module, a class, chance) takes part in what it does"
            )
        self._live[key] = again
        return again

    def _walked(self, path: Path) -> Reached:
        judge = self._judge.copy()
        session = self.branches.again(())
        judge.begin(session.begin())
        world, trail = self.ledger.start(), tuple(self._steps(path))
        for step in trail:
            judge.check(step, session.apply(step))
            world = step.after
        return Reached(world, judge, session, trail, self.branches.state(session))

    def _branch(self, reached: Reached) -> tuple[Session, Judge]:
        shares = bool(reached.state.shared)
        return self.branches.copy(reached.session, reached.trail, shares), reached.judge.copy()

    def _ended(self, reached: Reached, misused: bool) -> Violation | None:
        """What the probes behind a case show; the state itself is left alone."""
        session, judge = self._branch(reached)
        return self._probed(reached.world, session, judge, misused)

    def _probed(self, world: World, session: Session, judge: Judge, misused: bool) -> Violation | None:
        for step in epilogue(self.ledger, world, misused):
            violation = judge.check(step, session.apply(step))
            if violation is not None:
                return violation
        return judge.end()

    def _expand(self, reached: Reached) -> Expanded:
        places: list[int] = []
        digests: list[bytes] = []
        wrong: list[tuple[int, Violation]] = []
        misuses = 0
        for place, step in enumerate(self.alphabet.steps(reached.world)):
            session, judge = self._branch(reached)
            seen = session.apply(step)
            violation = judge.check(step, seen)
            if violation is None and step.status == "misuse":
                violation = self._misused(reached, session, judge, seen.outcome == "raised")
                misuses += violation is None
            elif violation is None:
                after = Reached(step.after, judge, session, (*reached.trail, step), self.branches.state(session))
                key = self._digest(after)
                places.append(place)
                digests.append(key)
                if key not in self._known:
                    self._known.add(key)
                    self._next[key] = after
            if violation is not None:
                wrong.append((place, violation))
        return Expanded(tuple(places), tuple(digests), misuses, tuple(wrong))

    def _misused(self, reached: Reached, session: Session, judge: Judge, refused: bool) -> Violation | None:
        """What comes behind misuse. Behind all that was refused, with nothing changed, it is the same."""
        unchanged = refused and self.branches.state(session).value == reached.state.value
        if unchanged and reached.refusals_pass:
            return judge.end()
        violation = self._probed(reached.world, session, judge, misused=True)
        reached.refusals_pass |= unchanged and violation is None
        return violation


# -- in other processes --------------------------------------------------------------------------------

_WALKERS: dict[Question, Walker] = {}


def walker_of(subject: LocalSubject, question: Question) -> Walker:
    """The walker of this process; it keeps one, of the question that it was asked last."""
    if question not in _WALKERS:
        _WALKERS.clear()
        _WALKERS[question] = Walker(subject, question)
    return _WALKERS[question]
