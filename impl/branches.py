"""Runs of one allocator that part: a session copied in the cheapest way that its allocator allows."""

from __future__ import annotations

from typing import Any

from impl.session import Session
from impl.state import State, copied, deep_copied, lies_over
from impl.subject import LocalSubject
from oracle.ops import Config
from oracle.verdict import Observation
from oracle.world import Step

Trail = tuple[Step | None, ...]  # steps that name pages by their numbers; None: all snapshots are forgotten
WAYS = {
    "copied": "copied attribute by attribute",
    "deepcopied": "copied by copy.deepcopy",
    "replayed": "made anew by running its operations again",
}


class SharesMemoryError(Exception):
    """An answer shares memory with the allocator, and answers are not counted as state."""


class Branches:
    """Makes, copies and tells apart the sessions of a subject.

    answers: whether the answers that a session watches are part of its state. They have to be where an answer
    may share memory with the allocator, which is rare; the first one is a SharesMemoryError. goes_on: every
    step is followed by a legal one (`Session.apply`). turns: what a caller does at every third call only counts
    as state: then every state is met as early in a sequence as it would be alone.
    """

    def __init__(
        self,
        subject: LocalSubject,
        config: Config,
        answers: bool = False,
        goes_on: bool = False,
        turns: bool = False,
    ) -> None:
        self.subject, self.config, self.answers = subject, config, answers
        self.goes_on, self.turns = goes_on, turns
        self.root = subject.open(config)
        self.root.number_pages()
        bench = self.root.bench
        self._shared = tuple(kv for kv in (bench.kv, bench.kv_window) if kv is not None)
        self._left_out = frozenset(map(id, self._shared))
        self.way = self._way()

    def _way(self) -> str:
        """The first way that gives a copy which can't be told from the original."""
        state = self._read(self.root.parts(False))
        self._shared += tuple(state.caches)
        for way, copy in (("copied", self._plain_copy), ("deepcopied", self._deep_copy)):
            try:
                parts = copy(self.root.parts(False))
            except Exception:  # whatever a foreign class raises, it can't be copied so
                continue
            if self._read(parts).value == state.value and parts[0] is not self.root.allocator:
                return way
        return "replayed"

    def copy(self, session: Session, trail: Trail, shares: bool) -> Session:
        """A session like this one. trail: the steps that led to it; shares: whether tensors in it overlap."""
        if self.way == "replayed":
            return self.again(trail)
        parts = session.parts(self.answers)
        plainly = self.way == "copied" and not shares
        return session.copy(self._plain_copy(parts) if plainly else self._deep_copy(parts))

    def again(self, trail: Trail) -> Session:
        """A new session that has gone through these steps."""
        session = self.subject.open(self.config)
        session.number_pages()
        session.begin()
        for step in trail:
            if step is None:
                session.forget()
            else:
                self.apply(session, step)
        return session

    def apply(self, session: Session, step: Step) -> Observation:
        """What a session answers to a step."""
        return session.apply(step, step if self.goes_on else None)

    def state(self, session: Session, snapshots: bool = True) -> State:
        """The state of a session: its allocator, snapshots, and the answers that lie over them.

        snapshots: False reads it as if it had forgotten all snapshots.
        """
        turn = [session.index % 3] if self.turns and session.bench.counts_pages else []
        state = self._read([*session.parts(False, snapshots), *turn])
        if not self.answers:
            answer = session.last_answer
            if answer is not None and lies_over(answer, state.spans):
                raise SharesMemoryError
            return state
        *parts, answers = session.parts(True, snapshots)
        over = [answer if lies_over(answer, state.spans) else None for answer in answers]
        return self._read([*parts, over, session.index % 2, *turn])

    def _plain_copy(self, parts: list[Any]) -> list[Any]:
        made: list[Any] = copied(parts, {}, self._left_out)
        return made

    def _deep_copy(self, parts: list[Any]) -> list[Any]:
        made: list[Any] = deep_copied(parts, self._shared)
        return made

    def _read(self, parts: list[Any]) -> State:
        return State(tuple(parts), self._left_out)
