"""The parity level: every number is the reference's, in the subject's own dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from oracle.ops import Config
from oracle.reference import reference_for
from oracle.traits import Dialect
from oracle.verdict import Observation, Problem, Said, lists_in_words, short
from oracle.world import AllocCall, BatchCall, FreeCall, Run, Slot, StateCall, Step


class Parity:
    """A reference that runs in step with a subject."""

    def __init__(self, config: Config, dialect: Dialect, swa_now: bool = False) -> None:
        self._made_of = config, dialect, swa_now
        self.reference = reference_for(config, dialect, swa_now)
        self._states: dict[str, Any] = {}

    def copy(self) -> Parity:
        """The same, to go on by itself."""
        other: Parity = object.__new__(Parity)
        other._made_of, other._states = self._made_of, dict(self._states)
        other.reference = reference_for(*self._made_of)
        other.reference.restore(self.reference.backup())
        return other

    def state(self, snapshots: Iterable[str]) -> object:
        """All that decides what the reference will answer, as plain data. snapshots: those that still count."""
        states = (self.reference.backup(), *(self._states[name] for name in snapshots))
        return [[sorted(x.items()) if isinstance(x, dict) else x for x in state] for state in states]

    def compare(
        self,
        step: Step,
        seen: Observation,
        slot: Callable[[Slot], int],
        slots: Callable[[tuple[Run, ...]], list[int]],
    ) -> Problem:
        """ORDER, where an answer or a list differs. `slot` and `slots` give the numbers of symbolic slots."""
        answer: list[int] | None = None
        match step.call:
            case AllocCall(size):
                answer = self.reference.alloc(size)
            case BatchCall(prefix, seq, last, decode):
                answer = self.reference.extend(list(prefix), list(seq), [slot(s) for s in last], decode)
            case FreeCall(runs, swa):
                self.reference.free(slots(runs), *([True] if swa else []))
            case StateCall(method, name):
                self._change(method, name)
            case _:
                return None
        asked = Said(step.operation)
        if answer is not None and tuple(answer) != seen.slots:
            return "ORDER", f"{asked} got {short(seen.slots)}, and the reference gives {short(tuple(answer))}"
        lists = tuple(tuple(x) for x in self.reference.lists())
        if seen.lists is not None and seen.lists != lists:
            right = lists_in_words(lists)
            return "ORDER", f"after {asked}: {lists_in_words(seen.lists)}; the reference has {right}"
        return None

    def _change(self, method: str, name: str) -> None:
        match method:
            case "free_group_begin":
                self.reference.group_begin()
            case "free_group_end":
                self.reference.group_end()
            case "merge_and_sort_free":
                self.reference.merge()
            case "clear":
                self.reference.clear()
            case "backup_state":
                self._states[name] = self.reference.backup()
            case "restore_state":
                self.reference.restore(self._states[name])
