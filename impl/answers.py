"""What an allocator answers in each of its states, asked once: a table that grows with the questions.

What the caller knows is no part of an allocator's state, so many states of a search share one of these. Equal ones
answer alike, which is all that merging rests on: a second allocator in the same state need not be asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from impl.branches import Branches, Trail
from impl.session import IDLE, Session
from oracle.verdict import Observation
from oracle.world import NOWHERE, BatchCall, Call, FreeCall, Step

PageOf = Callable[[int], int]  # the number of the page that a uid stands for; 0 of 0


class ElsewhereError(Exception):
    """An allocator's state is not all that decides what it does."""

    def __init__(self) -> None:
        super().__init__(
            "the same operations led to another state the second time: something outside of the allocator"
            " (a module, a class, chance) takes part in what it does"
        )


@dataclass(slots=True, eq=False)
class Node:
    """A state of the allocator and its snapshots. trail: how it was first reached; shares: whether tensors overlap.

    session: an allocator in this state that is never asked; spare: a copy that was, and is in this state still.
    bare: the same without snapshots, where that was wanted. used: since the last rest.
    """

    digest: bytes
    trail: Trail
    shares: bool
    session: Session | None
    spare: Session | None = None
    used: bool = True
    bare: Node | None = None
    answers: dict[Call | None, tuple[Observation, Node]] = field(default_factory=dict)


class Answers:
    """The nodes that were met, and what was answered there."""

    def __init__(self, branches: Branches) -> None:
        self.branches = branches
        self.first = branches.root.begin()  # what a new allocator shows
        self.calls = 0  # that an allocator answered
        self._nodes: dict[bytes, Node] = {}
        self._same: dict[Any, Any] = {}  # one object of many that are equal
        self.root = self.node(branches.root, ())

    def ask(self, node: Node, step: Step, page: PageOf) -> tuple[Observation, Node]:
        """The answer to a step in this state, and the state behind it."""
        if step.call is None and not self.branches.turns:
            return IDLE, node
        call = None if step.call is None else _by_page(step.call, page)
        known = node.answers.get(call)
        if known is None:
            self.calls += 1
            session, node.spare = node.spare or self._copy(node), None
            asked = by_page(step, page)
            seen = self.branches.apply(session, asked)
            behind = self.node(session, (*node.trail, asked))
            if behind is node:
                node.spare = session
            known = self._same.setdefault(seen, seen), behind
            node.answers[self._same.setdefault(call, call)] = known
        return known

    def forget(self, node: Node) -> Node:
        """This state without its snapshots."""
        if node.bare is None:
            session = self._session(node)
            state = self.branches.state(session, snapshots=False)
            known = self._nodes.get(state.digest)
            if known is None:
                session = self._copy(node)
                session.forget()
                known = self.node(session, (*node.trail, None))
            node.bare = known
        return node.bare

    def node(self, session: Session, trail: Trail) -> Node:
        """The node of a session's state; a new one keeps the session, which must not be asked any more."""
        state = self.branches.state(session)
        key = state.digest
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(key, trail, bool(state.shared), session)
        elif node.session is None:
            node.session, node.used = session, True
        return node

    def rest(self) -> None:
        """Drop the sessions that nobody asked for since the last rest: where one is wanted, it is made anew."""
        for node in self._nodes.values():
            if not node.used:
                node.session = node.spare = None
            node.used = False

    def _session(self, node: Node) -> Session:
        node.used = True
        if node.session is None:
            node.session = self.branches.again(node.trail)
            if self.branches.state(node.session).digest != node.digest:
                raise ElsewhereError
        return node.session

    def _copy(self, node: Node) -> Session:
        return self.branches.copy(self._session(node), node.trail, node.shares)


def by_page(step: Step, page: PageOf) -> Step:
    """A step for a session that knows pages by their numbers (`Session.number_pages`), bare of all else.

    As a probe, so that in a large pool too all that there is to see is looked at: who asks next may need it.
    """
    call = _by_page(step.call, page) if step.call is not None else None
    return Step(step.operation, step.status, step.rule, call, NOWHERE, NOWHERE, probe=True)


def _by_page(call: Call, page: PageOf) -> Call:
    if isinstance(call, BatchCall):
        return call._replace(last=tuple((page(uid), offset) for uid, offset in call.last))
    if isinstance(call, FreeCall):
        runs = tuple((page(uid), low, high) for uid, low, high in call.runs)
        return call._replace(runs=runs, gone=frozenset(map(page, call.gone)))
    return call
