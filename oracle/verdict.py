"""What is seen of a subject, and what can be wrong with it; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from oracle.ops import Operation, sentence


class Observation(NamedTuple):
    """What was seen of the subject at one operation; plain data, no tensor.

    outcome: `slots` (an answer), `none`, `done` (a method without answer), `raised`, `crashed` (its process
    died), `odd` (something that is no tensor). error: what it raised or how it died.
    tensor: in what the answer's tensor differs from the promise (dtype, shape, device, contiguity).
    available, full, window: slots that the subject says it has, in all and by SWA pool.
    lists: free and release list (SWA: of both pools), in order; mapping: SWA slot of every full slot.
    disturbed, damaged, guard: sentences, empty when all is well: a tensor given earlier changed; K or V of
    live slots changed; a kernel did what it must not (its sentence begins with the category, where there are several).
    forecast: `estimated_num_new_pages` for this batch.
    mismapped: in what the mapping differs from the promise (`Traits.translates`), a sentence or empty.
    misbuilt: which other pool the constructor answers wrongly (`Traits.checks_pools`), likewise.
    """

    outcome: str
    slots: tuple[int, ...] = ()
    error: str = ""
    tensor: str = ""
    available: int | None = None
    full: int | None = None
    window: int | None = None
    lists: tuple[tuple[int, ...], ...] | None = None
    mapping: tuple[int, ...] | None = None
    disturbed: str = ""
    damaged: str = ""
    guard: str = ""
    forecast: int | None = None
    mismapped: str = ""
    misbuilt: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise.

    code: see `oracle.codes`. kind: `fault` (on legal input) or `misuse`. index: place of the operation that
    shows it in the plan, from 0. operation: the method that it calls. summary: the sentence.
    symptom: how the answer looked, such as `raised IndexError`; rule: the rule that misuse broke.
    """

    code: str
    kind: str
    index: int
    operation: str
    summary: str
    symptom: str = ""
    rule: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What makes two violations the same finding while a case is shrunk.

        How harm shows after misuse is chance: there the rule says enough.
        """
        code = self.code if self.kind == "fault" or self.code == "REJECT" else ""
        return code, self.kind, self.operation, self.symptom, self.rule


Problem: TypeAlias = tuple[str, str] | None  # code and sentence


def short(slots: tuple[int, ...]) -> str:
    """Slots for a sentence: all of a few, the ends of many."""
    if len(slots) <= 8:
        return str(list(slots))
    return f"[{', '.join(map(str, slots[:4]))}, … {slots[-1]}] ({len(slots)})"


def lists_in_words(lists: tuple[tuple[int, ...], ...]) -> str:
    """Free and release lists for a sentence."""
    names = ("free list", "release list", "window's free list", "window's release list")
    return ", ".join(f"{name} {short(x)}" for name, x in zip(names, lists, strict=False))


class Said:
    """An operation that becomes its sentence where it is written down: most judgements need none."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation) -> None:
        self.operation = operation

    def __str__(self) -> str:
        return sentence(self.operation)


def symptom_of(seen: Observation) -> str:
    """How an answer looked, without its numbers; what a kernel did, where that was seen."""
    category, colon, _ = seen.guard.partition(": ")
    if colon:
        return category
    if seen.outcome == "raised":
        return f"raised {seen.error.partition(':')[0]}"
    return seen.outcome
