"""Every sequence of operations on a small pool: breadth first, equal states merged, each transition judged.

To the end where the pool's world closes, and then sequences of any length were checked; else to a depth. A level
is searched whole before the next begins, so the case of each finding is the shortest that there is. The search
ends at the first level with a fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fuzz.walker import Expanded, Path, Question, walker_of
from impl.branches import SharesMemoryError
from impl.child import ChildSubject, DiedError
from impl.subject import LocalSubject, Subject
from oracle.ops import Case, Operation
from oracle.verdict import Violation
from properties.judged import HarnessError, judged

T = TypeVar("T")
States = list[tuple[bytes, Path]]
BASE = 1 << 24
CHUNK = 32  # states that a worker walks on from at a time
Progress = Callable[["Explored"], None]


@dataclass(slots=True)
class Found:
    """One distinct finding: its shortest case, and what is wrong with it."""

    case: Case
    violation: Violation


@dataclass(slots=True)
class Explored:
    """What came of a search.

    closed: every state that there is was walked on from. depth: operations of the longest sequences of which
    all were judged. sequences: distinct ones up to that depth. alphabet: operations in a state, of all states.
    way: how the subject was copied (`impl.branches.WAYS`). cut: the limit of transitions ended it.
    """

    question: Question
    way: str = ""
    states: int = 0
    transitions: int = 0
    depth: int = 0
    closed: bool = False
    cut: bool = False
    found: list[Found] = field(default_factory=list)
    alphabet: list[int] = field(default_factory=list)
    last_chances: int = 0
    calls: int = 0
    sequences: int = 0
    seconds: float = 0.0
    processor: float = 0.0


class Workers:
    """Where the walking is done: in this process, or in child processes, which may die."""

    def __init__(self, subjects: list[Subject]) -> None:
        self._subjects = subjects
        self._threads = ThreadPoolExecutor(len(subjects)) if len(subjects) > 1 else None

    def __len__(self) -> int:
        return len(self._subjects)

    def ask(self, worker: int, function: Callable[..., T], *arguments: Any) -> T:
        """The function's answer, given the subject and the arguments, from where the worker is."""
        subject = self._subjects[worker]
        if isinstance(subject, ChildSubject):
            return subject.there(function, *arguments)
        return function(subject, *arguments)

    def each(self, shares: list[States], work: Callable[[int, States], list[T]]) -> list[list[T]]:
        """`work` on each worker's share, at the same time."""
        if self._threads is None:
            return [work(worker, share) for worker, share in enumerate(shares)]
        futures = [self._threads.submit(work, worker, share) for worker, share in enumerate(shares)]
        wait(futures)  # all of them, also where one fails: a worker answers one question at a time
        return [future.result() for future in futures]


# What workers are asked, by name, since it crosses to their processes.


def _begin(subject: LocalSubject, question: Question) -> tuple[bytes, Violation | None, str]:
    walker = walker_of(subject, question, new=True)
    return *walker.begin(), walker.answers.branches.way


def _probe(subject: LocalSubject, question: Question, states: States) -> list[Violation | None]:
    return walker_of(subject, question).probe(states)


def _expand(
    subject: LocalSubject, question: Question, states: States, last: bool, but: frozenset[int] = frozenset()
) -> list[Expanded]:
    return walker_of(subject, question).expand(states, but, last)


def _operations(subject: LocalSubject, question: Question, path: Path) -> tuple[Operation, ...]:
    return walker_of(subject, question).operations(path)


def _choices(subject: LocalSubject, question: Question, path: Path) -> int:
    return walker_of(subject, question).choices(path)


def explore(
    subject: Subject,
    question: Question,
    depth: int | None = None,
    limit: int | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Explored:
    """Search until the world closes, a fault is there, `depth` is reached, or `limit` transitions are made.

    Misuse that harms is found on the way, and does not end the search. Where one finding alone counts
    (`Question.key`), it is the only one that is named, and ends it.
    HarnessError where a finding is not there again when its case is run by itself, ElsewhereError where a state is
    not the same again.
    """
    workers = workers or Workers([subject])
    try:
        return _Search(subject, question, workers).run(depth, limit, progress)
    except SharesMemoryError:
        return _Search(subject, replace(question, answers=True), workers).run(depth, limit, progress)


class _Search:
    def __init__(self, subject: Subject, question: Question, workers: Workers) -> None:
        self.subject, self.question, self.workers = subject, question, workers
        self.settled: set[tuple[str, ...]] = set()
        self.result = Explored(question)
        self.numbers: dict[bytes, int] = {}
        # A state, the states behind it, and how many operations were allowed there.
        self.edges: list[tuple[int, list[int], int]] = []

    def run(self, depth: int | None, limit: int | None, progress: Progress | None) -> Explored:
        started, result = time.perf_counter(), self.result
        first = [self.workers.ask(worker, _begin, self.question) for worker in range(len(self.workers))]
        root, violation, result.way = first[0]
        self.numbers[root] = 0
        result.states = 1
        frontier: list[tuple[bytes, Path, int]] = [(root, (), 0)]
        wrong: list[tuple[Path, Violation]] = [((), violation)] if violation is not None else []
        while True:
            shares = self._shares(frontier)
            wrong += self._probe_all(frontier, shares)
            self._name(wrong)
            result.seconds = time.perf_counter() - started
            if progress is not None:
                progress(result)
            if self._ends() or not frontier or result.depth == depth:
                break
            # Where another finding shows at a case's end, the one that counts may show before that in a longer case.
            failed = set() if self.question.key else {path for path, _ in wrong}
            shares = [[s for s in share if s[1] not in failed] for share in shares]
            frontier, wrong = self._expand_all(shares, limit, last=result.depth + 1 == depth)
            if result.cut:
                break
            result.depth += 1
        result.closed = not frontier and not self._ends() and not result.cut
        result.sequences = self._sequences(result.depth)
        result.seconds = time.perf_counter() - started
        return result

    def _shares(self, frontier: list[tuple[bytes, Path, int]]) -> list[States]:
        """The states by worker: each walks on from what it reached itself, as long as that is fair."""
        count = len(self.workers)
        most = -(-len(frontier) // count) + CHUNK
        shares: list[States] = [[] for _ in range(count)]
        for key, path, worker in frontier:
            if len(shares[worker]) >= most:
                worker = min(range(count), key=lambda w: len(shares[w]))
            shares[worker].append((key, path))
        return shares

    def _probe_all(
        self, frontier: list[tuple[bytes, Path, int]], shares: list[States]
    ) -> list[tuple[Path, Violation]]:
        def work(worker: int, states: States) -> list[Violation | None]:
            try:
                return self.workers.ask(worker, _probe, self.question, states)
            except DiedError:
                return [self._alone(worker, path) for _, path in states]

        seen = {
            path: violation
            for share, answers in zip(shares, self.workers.each(shares, work), strict=True)
            for (_, path), violation in zip(share, answers, strict=True)
        }
        pairs = ((path, seen[path]) for _, path, _ in frontier)
        return [(path, violation) for path, violation in pairs if violation is not None]

    def _expand_all(
        self, shares: list[States], limit: int | None, last: bool
    ) -> tuple[list[tuple[bytes, Path, int]], list[tuple[Path, Violation]]]:
        """One level: the states behind it that are new, in an order that no number of workers changes."""

        def work(worker: int, states: States) -> list[tuple[Path, Expanded, int]]:
            done: list[tuple[Path, Expanded, int]] = []
            made = self.result.transitions
            for at in range(0, len(states), CHUNK):
                chunk = states[at : at + CHUNK]
                try:
                    answers = self.workers.ask(worker, _expand, self.question, chunk, last)
                except DiedError:
                    answers = [self._survived(worker, state, last) for state in chunk]
                done += [(path, answer, worker) for (_, path), answer in zip(chunk, answers, strict=True)]
                made += sum(answer.transitions for answer in answers)
                if limit is not None and made > limit:
                    self.result.cut = True
                    break
            return done

        parts = self.workers.each(shares, work)
        expanded = sorted((entry for part in parts for entry in part), key=lambda entry: entry[0])
        fresh: list[tuple[bytes, Path, int]] = []
        wrong: list[tuple[Path, Violation]] = []
        keys = {path: key for share in shares for key, path in share}
        for path, answer, worker in expanded:
            self.result.transitions += answer.transitions
            self.result.calls += answer.calls
            self.result.processor += answer.seconds
            if answer.last_chance:
                self.result.last_chances += 1
            else:
                self.result.alphabet.append(answer.transitions)
            wrong += [((*path, place), violation) for place, violation in answer.wrong]
            behind = []
            for place, key in zip(answer.places, answer.digests, strict=True):
                number = self.numbers.setdefault(key, len(self.numbers))
                behind.append(number)
                if number == self.result.states:
                    self.result.states += 1
                    fresh.append((key, (*path, place), worker))
            self.edges.append((self.numbers[keys[path]], behind, answer.judged))
        return fresh, wrong

    def _alone(self, worker: int, path: Path) -> Violation | None:
        """What is wrong with a path when it is run as a case, in the process of the subject."""
        operations = self.workers.ask(worker, _operations, self.question, path)
        return judged(self.subject, Case(self.question.config, operations), self.question.level).violation

    def _survived(self, worker: int, state: tuple[bytes, Path], last: bool) -> Expanded:
        """A state from which some operation ends the process: each is tried alone, then those that do not."""
        _, path = state
        try:
            return self.workers.ask(worker, _expand, self.question, [state], last)[0]
        except DiedError:
            count = self.workers.ask(worker, _choices, self.question, path)
        alone = ((place, self._alone(worker, (*path, place))) for place in range(count))
        deaths = [(place, wrong) for place, wrong in alone if wrong is not None and wrong.code == "GUARD"]
        if not deaths:
            raise HarnessError("a worker process died, and no operation by itself ends one")
        # Some die only of what every case ends with: those are walked on from.
        at_once = [(place, wrong) for place, wrong in deaths if wrong.index == len(path)]
        try:
            answer = self._expand_but(worker, state, last, at_once)
        except DiedError:
            answer = self._expand_but(worker, state, last, deaths)
        return answer

    def _expand_but(
        self, worker: int, state: tuple[bytes, Path], last: bool, deaths: list[tuple[int, Violation]]
    ) -> Expanded:
        but = frozenset(place for place, _ in deaths)
        answer = self.workers.ask(worker, _expand, self.question, [state], last, but)[0]
        return replace(answer, wrong=tuple(sorted((*answer.wrong, *deaths), key=lambda wrong: wrong[0])))

    def _ends(self) -> bool:
        """Whether what was found ends the search: misuse ends its own sequence only, and others go on."""
        return any(self.question.key or found.violation.kind == "fault" for found in self.result.found)

    def _name(self, wrong: list[tuple[Path, Violation]]) -> None:
        """Each fault once, with the first of its cases, run again by itself: that decides what it is called.

        Which of all that looks alike is an ALIAS only its own run says: where one is looked for, each is run.
        """
        key = self.question.key
        alias = key[:1] == ("ALIAS",)
        for path, violation in wrong:
            looks_alike = not key or violation.key[1:] == key[1:]
            if self._ends() and key:
                return
            if not looks_alike or (violation.key in self.settled and not alias):
                continue
            operations = self.workers.ask(0, _operations, self.question, path)
            case = Case(self.question.config, operations)
            again = judged(self.subject, case, self.question.level).violation
            if again is None:
                raise HarnessError(f"a finding is not there when its case is run by itself: {case}")
            if again.key == violation.key:  # else it is an ALIAS, and the next that looks like it may be none
                self.settled.add(violation.key)
            known = {found.violation.key for found in self.result.found}
            if again.key not in known and (not key or again.key == key):
                self.result.found.append(Found(case, again))

    def _sequences(self, depth: int) -> int:
        """How many distinct sequences of up to `depth` operations the states and their operations stand for."""
        source = np.repeat(
            np.array([state for state, _, _ in self.edges], dtype=np.int64),
            [len(behind) for _, behind, _ in self.edges],
        )
        target = np.array([number for _, behind, _ in self.edges for number in behind], dtype=np.int64)
        judged = np.zeros(self.result.states)
        for state, _, count in self.edges:
            judged[state] = count
        counts = [np.zeros(self.result.states)]  # digits of base BASE, the lowest first: exact in doubles
        counts[0][0] = 1
        total = 1
        for _ in range(depth):
            total += sum(int(digit @ judged) * BASE**place for place, digit in enumerate(counts))
            reached = [np.bincount(target, digit[source], self.result.states) for digit in counts]
            counts = _carried([digits.astype(np.float64) for digits in reached])
        return total


def _carried(digits: list[npt.NDArray[np.float64]]) -> list[npt.NDArray[np.float64]]:
    done = []
    carry = np.zeros_like(digits[0])
    for digit in digits:
        carry, rest = np.divmod(digit + carry, BASE)
        done.append(rest)
    while carry.any():
        carry, rest = np.divmod(carry, BASE)
        done.append(rest)
    return done
