"""One process's part of a search: from a state that was reached, every operation of its alphabet, judged."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from impl.answers import Answers, ElsewhereError, Node, by_page
from impl.branches import Branches
from impl.state import digest
from impl.subject import LocalSubject
from oracle.judge import Judge
from oracle.ledger import Ledger
from oracle.ops import Backup, Config, Operation, Restore, name_of
from oracle.plan import epilogue
from oracle.verdict import Violation
from oracle.world import NOTHING, Step, World, renumbered
from properties.alphabet import NAMES, Alphabet

# Of each operation its place in the alphabet of the world that it comes in; ~place where the snapshot is
# forgotten behind it.
Path = tuple[int, ...]
REMEMBERED = 2048  # worlds whose alphabet is kept
CHECKED_EVERY = 64  # of so many states one is made anew, to see that it is the same again


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched: a pool at a level, with so many requests, and what the alphabet has besides.

    age: operations that may lie between a snapshot, or its last restore, and its next restore; None: any number.
    answers: whether answers count as state (`impl.branches`). key: of the finding that alone counts; what can't
    come to it is not asked (`leads`). own: operations that are asked beside the alphabet's.
    """

    config: Config
    level: str
    names: tuple[str, ...] = NAMES
    snapshot: bool = False
    age: int | None = None
    prefixes: bool = True
    misuse: bool = True
    group_frees: str = "any"
    window_frees: str = "any"
    answers: bool = False
    key: tuple[str, ...] = ()
    own: tuple[Operation, ...] = ()


def leads(key: tuple[str, ...], step: Step, last: bool, takes: str) -> bool:
    """Whether an operation may show the finding of this key, or stand in front of one that does.

    last: nothing comes behind it but what every case ends with (`oracle.plan.epilogue`): frees, the end of an
    open group, and allocations that fit, by the method `takes`.
    """
    _, kind, method, symptom, rule = key
    shows = name_of(step.operation) == method
    if step.status == "misuse":
        return kind == "misuse" and shows and step.rule == rule
    if kind == "misuse" or not last:
        return not last
    if shows and step.fits != symptom.endswith(", no fit"):
        return True
    if symptom.endswith((", no fit", ", no group")):
        return False
    if method == "free_group_end":
        return step.after.group is not None
    return method == takes or (method == "free" and bool(step.after.requests))


@dataclass(slots=True)
class Reached:
    """A state: what the caller knows, what the judge knows, the subject's own, and how it was reached.

    age: operations since the snapshot was taken or restored, where that is bounded.
    """

    world: World
    judge: Judge
    node: Node
    path: Path
    age: int = 0
    refusals_pass: bool = False  # a refused misuse that changed nothing was followed by its probes already


@dataclass(frozen=True, slots=True)
class Expanded:
    """What came of one state: of each operation that goes on its place and the state behind it, two where a
    snapshot gets too old; how many of the others ended well, and what was wrong.

    calls: those that the allocator answered since the last state, and the processor's seconds since then.
    last_chance: a restore was all that was asked.
    """

    places: tuple[int, ...]
    digests: tuple[bytes, ...]
    ended: int
    wrong: tuple[tuple[int, Violation], ...]
    calls: int
    seconds: float
    last_chance: bool

    @property
    def judged(self) -> int:
        """Operations that were asked here and allowed."""
        return sum(place >= 0 for place in self.places) + self.ended

    @property
    def transitions(self) -> int:
        """Operations that were asked here."""
        return self.judged + len(self.wrong)


class Walker:
    """Keeps the states of one level that this process has reached, and walks on from them."""

    def __init__(self, subject: LocalSubject, question: Question) -> None:
        self.question = question
        traits = subject.traits(question.config)
        self.ledger = Ledger(question.config, traits)
        self.alphabet = Alphabet(
            self.ledger,
            question.names,
            question.snapshot,
            question.prefixes,
            question.misuse,
            question.group_frees,
            question.window_frees,
            question.own,
        )
        self.answers = Answers(
            Branches(subject, question.config, question.answers, not question.misuse, bool(question.key))
        )
        self._ghosts = question.misuse and "twice" not in traits.undefined
        self._judge = Judge(question.config, traits, question.level)
        self._live: dict[bytes, Reached] = {}
        self._next: dict[bytes, Reached] = {}
        self._known: set[bytes] = set()
        self._asked: dict[Any, list[Step]] = {}
        self._count = self._calls = 0
        self._seconds = time.process_time()

    def begin(self) -> tuple[bytes, Violation | None]:
        """The state of a new allocator, and what is wrong with it."""
        judge = self._judge.copy()
        violation = judge.begin(self.answers.first)
        root = Reached(self.ledger.start(), judge, self.answers.root, ())
        key = self._digest(root)
        self._next[key] = root
        return key, violation

    def probe(self, states: list[tuple[bytes, Path]]) -> list[Violation | None]:
        """Judge what every case ends with, behind each of these states; they are the next ones walked from."""
        self._live, self._next = self._next, {}
        wanted = {key for key, _ in states}
        self._live = {key: reached for key, reached in self._live.items() if key in wanted}
        self.answers.rest()
        return [self._ended(self._at(key, path)) for key, path in states]

    def expand(
        self, states: list[tuple[bytes, Path]], but: frozenset[int] = frozenset(), last: bool = False
    ) -> list[Expanded]:
        """Try every operation of the alphabet in each of these states, but those in some places.

        last: nobody walks on behind them.
        """
        return [self._expand(self._at(key, path), but, last) for key, path in states]

    def choices(self, path: Path) -> int:
        """How many operations there are behind a path."""
        world, age = self.ledger.start(), 0
        for step, forgets in self._along(path):
            world, age = self._behind(step, age, forgets)
        return len(self._steps(world, age))

    def operations(self, path: Path) -> tuple[Operation, ...]:
        """The operations of a path."""
        return tuple(step.operation for step, _ in self._along(path))

    # -- one state -------------------------------------------------------------------------------------

    def _digest(self, reached: Reached) -> bytes:
        known = reached.judge.state(reached.world, self._ghosts)
        return digest((known, reached.node.digest, reached.age))

    def _steps(self, world: World, age: int) -> list[Step]:
        """What is asked in a world. A snapshot at the end of its life is restored, or forgotten before all else."""
        if self._last_chance(world, age):
            return self.alphabet.restore(world)
        key = _key(world)
        steps = self._asked.get(key)
        if steps is None:
            if len(self._asked) >= REMEMBERED:
                self._asked.clear()
            steps = self._asked[key] = self.alphabet.steps(world)
        return steps

    def _last_chance(self, world: World, age: int) -> bool:
        return bool(world.snapshots) and age == self.question.age

    def _behind(self, step: Step, age: int, forgets: bool) -> tuple[World, int]:
        """The world behind a legal step, and the age of its snapshot."""
        if forgets:
            return step.after._replace(snapshots=NOTHING), 0
        new = isinstance(step.operation, Backup | Restore) or not step.after.snapshots
        return step.after, 0 if new or self.question.age is None else age + 1

    def _along(self, path: Path) -> Iterator[tuple[Step, bool]]:
        """The steps of a path, and whether the snapshot is forgotten behind each."""
        world, age = self.ledger.start(), 0
        for place in path:
            forgets = place < 0
            step = self._steps(world, age)[~place if forgets else place]
            yield step, forgets
            world, age = self._behind(step, age, forgets)

    def _lasting(self, reached: Reached) -> Reached:
        """A state to be kept, with nothing in it of what was held before: many then have one world."""
        world = reached.world if self.question.misuse else reached.world._replace(ghosts=NOTHING)
        reached.world, uids = renumbered(world)
        reached.judge = reached.judge.renumbered(reached.world, uids)
        return reached

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
            raise ElsewhereError
        self._live[key] = again
        return again

    def _walked(self, path: Path) -> Reached:
        """The state of a path, by a new allocator that makes all of its steps."""
        judge, session = self._judge.copy(), self.answers.branches.again(())
        judge.begin(self.answers.first)
        world, age = self.ledger.start(), 0
        trail: list[Step | None] = []
        for step, forgets in self._along(path):
            asked = by_page(step, judge.page)
            trail.append(asked)
            judge.check(step, self.answers.branches.apply(session, asked))
            if forgets:
                trail.append(None)
                session.forget()
            world, age = self._behind(step, age, forgets)
        return self._lasting(Reached(world, judge, self.answers.node(session, tuple(trail)), path, age))

    def _ended(self, reached: Reached) -> Violation | None:
        """What the probes behind a case show; the state itself is left alone."""
        if self._last_chance(reached.world, reached.age):
            return None  # they are made where the snapshot is forgotten
        return self._probed(reached.world, reached.node, reached.judge.copy(), misused=False)

    def _probed(self, world: World, node: Node, judge: Judge, misused: bool) -> Violation | None:
        for step in epilogue(self.ledger, world, misused):
            seen, node = self.answers.ask(node, step, judge.page)
            violation = judge.check(step, seen)
            if violation is not None:
                return violation
        return judge.end()

    def _expand(self, reached: Reached, but: frozenset[int], last: bool) -> Expanded:
        places: list[int] = []
        digests: list[bytes] = []
        wrong: list[tuple[int, Violation]] = []
        ended = 0
        key, takes = self.question.key, self.ledger.takes
        for place, step in enumerate(self._steps(reached.world, reached.age)):
            if place in but or (key and not leads(key, step, last, takes)):
                continue
            judge = reached.judge.copy()
            seen, node = self.answers.ask(reached.node, step, judge.page)
            violation = judge.check(step, seen)
            if violation is not None:
                wrong.append((place, violation))
                continue
            if self.alphabet.ends(step):
                # Behind all that was refused, with nothing changed, the same probes show the same.
                no_trace = node is reached.node and seen.outcome == "raised"
                if no_trace and reached.refusals_pass:
                    violation = judge.end()
                else:
                    misused = step.status == "misuse"
                    violation = self._probed(reached.world if misused else step.after, node, judge, misused)
                    reached.refusals_pass |= no_trace and violation is None
                ended += violation is None
                if violation is not None:
                    wrong.append((place, violation))
                continue
            for found in self._faces(reached, place, step, node, judge):
                state = self._digest(found)
                places.append(found.path[-1])
                digests.append(state)
                if state not in self._known:
                    self._known.add(state)
                    self._next[state] = self._lasting(found)
        calls, self._calls = self.answers.calls - self._calls, self.answers.calls
        now = time.process_time()
        seconds, self._seconds = now - self._seconds, now
        last_chance = self._last_chance(reached.world, reached.age)
        return Expanded(tuple(places), tuple(digests), ended, tuple(wrong), calls, seconds, last_chance)

    def _faces(self, reached: Reached, place: int, step: Step, node: Node, judge: Judge) -> Iterator[Reached]:
        """The state behind an operation; beside it, where a snapshot is in its last chance, the one without it."""
        world, age = self._behind(step, reached.age, forgets=False)
        yield Reached(world, judge, node, (*reached.path, place), age)
        if self._last_chance(world, age):
            world, age = self._behind(step, reached.age, forgets=True)
            yield Reached(world, judge, self.answers.forget(node), (*reached.path, ~place), age)


def _key(world: World) -> Any:
    group = world.group and (world.group.pages, tuple(world.group.parts.items()), world.group.swa)
    held, ghosts = tuple(world.requests.items()), tuple(world.ghosts.items())
    snapshots = tuple(map(_key, world.snapshots.values()))
    return held, world.free, world.swa_free, group, world.gone, ghosts, snapshots, world.next_uid


# -- in other processes --------------------------------------------------------------------------------

_LAST: list[tuple[LocalSubject, Question, Walker]] = []


def walker_of(subject: LocalSubject, question: Question, new: bool = False) -> Walker:
    """The walker of this process. It keeps one, for what it was asked last; a process that is new makes it anew."""
    if not new and _LAST and _LAST[0][0] is subject and _LAST[0][1] == question:
        return _LAST[0][2]
    _LAST[:] = [(subject, question, Walker(subject, question))]
    return _LAST[0][2]
