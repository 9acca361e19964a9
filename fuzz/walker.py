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
    """What is searched: a pool at a level, with so many requests, and what the alphabet has besides.

    answers: whether answers count as state (`impl.branches`).
    """

    config: Config
    level: str
    names: tuple[str, ...] = NAMES
    snapshot: bool = False
    prefixes: bool = True
    misuse: bool = True
    answers: bool = False


@dataclass(slots=True)
class Reached:
    """A state, live: what the caller knows, what the judge knows, the subject itself, and how it came there."""

    world: World
    judge: Judge
    session: Session
    path: Path
    trail: tuple[Step, ...]
    state: State
    refusals_pass: bool = False  # a refused misuse that changed nothing was followed by its probes already


@dataclass(frozen=True, slots=True)
class Expanded:
    """What came of one state: of each operation that goes on its place and the state behind it; how many of
    the others ended well, and what was wrong."""

    places: tuple[int, ...]
    digests: tuple[bytes, ...]
    ended: int
    wrong: tuple[tuple[int, Violation], ...]

    @property
    def transitions(self) -> int:
        """Operations that were asked here."""
        return len(self.places) + self.ended + len(self.wrong)


class Walker:
    """Keeps the states of one level that this process has reached, and walks on from them."""

    def __init__(self, subject: LocalSubject, question: Question) -> None:
        self.question = question
        traits = subject.traits(question.config)
        self.ledger = Ledger(question.config, traits)
        self.alphabet = Alphabet(
            self.ledger, question.names, question.snapshot, question.prefixes, question.misuse
        )
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
        root = Reached(self.ledger.start(), judge, session, (), (), self.branches.state(session))
        key = self._digest(root)
        self._next[key] = root
        return key, violation

    def probe(self, states: list[tuple[bytes, Path]]) -> list[Violation | None]:
        """Judge what every case ends with, behind each of these states; they are the next ones walked from."""
        self._live, self._next = self._next, {}
        wanted = {key for key, _ in states}
        self._live = {key: reached for key, reached in self._live.items() if key in wanted}
        return [self._ended(self._at(key, path), misused=False) for key, path in states]

    def expand(self, states: list[tuple[bytes, Path]], but: frozenset[int] = frozenset()) -> list[Expanded]:
        """Try every operation of the alphabet in each of these states, but those in some places."""
        return [self._expand(self._at(key, path), but) for key, path in states]

    def choices(self, path: Path) -> int:
        """How many operations there are behind a path."""
        steps = self._steps(path)
        return len(self.alphabet.steps(steps[-1].after if steps else self.ledger.start()))

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
        # Another way to the same state may have the requests' names the other way round, and so other places.
        if reached is not None and reached.path == path and self._count % CHECKED_EVERY:
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
        return Reached(world, judge, session, path, trail, self.branches.state(session))

    def _branch(self, reached: Reached, spare: Session | None = None) -> tuple[Session, Judge]:
        if spare is not None:
            return self.branches.beside(reached.session, spare), reached.judge.copy()
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

    def _expand(self, reached: Reached, but: frozenset[int]) -> Expanded:
        places: list[int] = []
        digests: list[bytes] = []
        wrong: list[tuple[int, Violation]] = []
        ended = 0
        spare: Session | None = None  # one that an operation has left as it was
        for place, step in enumerate(self.alphabet.steps(reached.world)):
            if place in but:
                continue
            session, judge = self._branch(reached, spare)
            seen = session.apply(step)
            violation = judge.check(step, seen)
            if violation is not None:
                wrong.append((place, violation))
                spare = None
                continue
            state = self.branches.state(session)
            unchanged = state.value == reached.state.value and not self.question.answers
            spare = session if unchanged else None
            if self.alphabet.ends(step):
                # Behind all that was refused, with nothing changed, the same probes show the same.
                no_trace = unchanged and seen.outcome == "raised"
                if no_trace and reached.refusals_pass:
                    violation = judge.end()
                else:
                    spare = None
                    misused = step.status == "misuse"
                    world = reached.world if misused else step.after
                    violation = self._probed(world, session, judge, misused)
                    reached.refusals_pass |= no_trace and violation is None
                ended += violation is None
                if violation is not None:
                    wrong.append((place, violation))
                continue
            key = digest((judge.state(step.after, self._ghosts), state.value))
            places.append(place)
            digests.append(key)
            if key not in self._known:
                self._known.add(key)
                path, trail = (*reached.path, place), (*reached.trail, step)
                self._next[key] = Reached(step.after, judge, session, path, trail, state)
                spare = None
        return Expanded(tuple(places), tuple(digests), ended, tuple(wrong))


# -- in other processes --------------------------------------------------------------------------------

_LAST: list[tuple[LocalSubject, Question, Walker]] = []


def walker_of(subject: LocalSubject, question: Question, new: bool = False) -> Walker:
    """The walker of this process. It keeps one, for what it was asked last; a process that is new makes it anew."""
    if not new and _LAST and _LAST[0][0] is subject and _LAST[0][1] == question:
        return _LAST[0][2]
    _LAST[:] = [(subject, question, Walker(subject, question))]
    return _LAST[0][2]
