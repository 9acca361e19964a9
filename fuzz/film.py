"""A case as a film: what the subject and the reference have after each operation, as data to draw.

A frame holds what changed. Pages are told apart by uid (`oracle.world`); which page a uid is, each side says once,
when it hands the page out. The same data are behind the page (`fuzz.show`) and the text in the terminal.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracle.ops import Alloc, Case, Config, Decode, Extend, Operation
from oracle.plan import plan
from oracle.reference import reference_for
from oracle.traits import SEED_PAGED, SEED_TOKEN, Traits
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall, FreeCall, Run, Slot, StateCall, Step, World

SIDES = ("subject", "reference")


@dataclass(frozen=True, slots=True)
class Held:
    """A page that is held or waits: `live` tokens from its start; `wait` are offsets whose free waits, or all.

    window: whether the window's half is there, `waits` for the end of a group, or is `gone`.
    """

    owner: str
    live: int
    wait: tuple[int, ...] | str = ()
    window: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one side answered. pages, windows: of the fresh uids, in order; freed: slots that it was given."""

    seen: Observation
    pages: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """One operation. changes: uids that are held differently after it, None where they are free again."""

    step: Step
    subject: Answer
    reference: Answer
    changes: dict[int, Held | None]
    group: bool


@dataclass(frozen=True, slots=True)
class Marks:
    """What a violation speaks of, on the subject's side: pages, window pages and slots; lost and doubled pages."""

    pages: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Film:
    """One run of a case, frame by frame, up to the violation where there is one."""

    case: Case
    frames: tuple[Frame, ...]
    violation: Violation | None = None
    marks: Marks = field(default_factory=Marks)
    name: str = ""


def film(
    case: Case,
    traits: Traits,
    answers: Sequence[Observation],
    violation: Violation | None = None,
    name: str = "",
) -> Film:
    """The film of a run, from the answers to its steps. Where there is a violation, it ends with it."""
    config = case.config
    if violation is not None:
        answers = answers[: violation.index + 1]
    maker = _Maker(config)
    subject, reference = _Side(config), _Side(config)
    calls = _Reference(config, traits, reference)
    frames = []
    for step, seen in zip(plan(case, traits), answers, strict=False):
        here = subject.answer(step, seen)
        frames.append(
            Frame(
                step,
                here,
                reference.answer(step, calls.ask(step)),
                maker.changes(step),
                step.after.group is not None,
            )
        )
    marks = Marks()
    if violation is not None and frames:
        marks = _marks(config, violation, frames, maker.held, subject.page)
    return Film(case, tuple(frames), violation, marks, name)


class _Maker:
    """What is held after each step, by uid."""

    def __init__(self, config: Config) -> None:
        self.size = config.page_size
        self.held: dict[int, Held] = {}
        self._owner: dict[int, str] = {}
        self._live: dict[int, int] = {}

    def changes(self, step: Step) -> dict[int, Held | None]:
        before, after = step.before, step.after if step.status == "legal" else step.before
        for name in _names(step.operation):
            for uid in after.requests[name].pages if name in after.requests else ():
                self._owner.setdefault(uid, name)
        made: dict[int, Held | None] = {}
        for uid in self._touched(before, after):
            now = self._entry(uid, after)
            if now != self.held.get(uid):
                made[uid] = now
                if now is None:
                    del self.held[uid]
                else:
                    self.held[uid] = now
        return made

    def _touched(self, before: World, after: World) -> list[int]:
        uids: set[int] = set()
        for name in before.requests.keys() | after.requests.keys():
            old, new = before.requests.get(name), after.requests.get(name)
            if old is new:
                continue
            for request in (old, new):
                if request is not None:
                    uids.update(request.pages)
            for index, uid in enumerate(new.pages if new is not None else ()):
                self._live[uid] = (
                    0 if new is None else min(self.size, new.length - new.base - index * self.size)
                )
        for world in (before, after):
            if world.group is not None and before.group is not after.group:
                uids.update((*world.group.pages, *world.group.parts, *world.group.swa))
        return sorted((uids | (before.gone ^ after.gone)) - {0})

    def _entry(self, uid: int, world: World) -> Held | None:
        group = world.group
        owner, live = self._owner.get(uid, "?"), self._live.get(uid, self.size)
        window = "gone" if uid in world.gone else "waits" if group and uid in group.swa else ""
        if group is not None and uid in group.pages:
            return Held(owner, live, "all", window)
        if group is not None and uid in group.parts:
            mask = group.parts[uid]
            return Held(owner, live, tuple(k for k in range(self.size) if mask >> k & 1), window)
        here = any(uid in request.pages for request in world.requests.values())
        return Held(owner, live, (), window) if here else None


def _names(operation: Operation) -> Iterable[str]:
    match operation:
        case Alloc(request):
            return (request,)
        case Extend(batch):
            return [item.request for item in batch]
        case Decode(requests):
            return requests
    return ()


class _Side:
    """Which page each uid is, as one side chose."""

    def __init__(self, config: Config) -> None:
        self.size = config.page_size
        self.page: dict[int, int] = {}

    def answer(self, step: Step, seen: Observation) -> Answer:
        pages: list[int] = []
        windows: list[int] = []
        freed = self.slots(step.call.runs) if isinstance(step.call, FreeCall) else ()
        if step.status == "legal":
            for uid, place, _ in step.fresh:
                if place >= len(seen.slots):
                    break
                slot = seen.slots[place]
                self.page[uid] = slot // self.size
                pages.append(slot // self.size)
                if seen.mapping is not None:
                    known = 0 <= slot < len(seen.mapping)
                    windows.append(seen.mapping[slot] // self.size if known else 0)
        return Answer(seen, tuple(pages), tuple(windows), freed)

    def slot(self, slot: Slot) -> int:
        uid, offset = slot
        return self.page.get(uid, 0) * self.size + offset if uid else offset

    def slots(self, runs: Iterable[Run]) -> tuple[int, ...]:
        return tuple(
            self.page[uid] * self.size + k
            for uid, low, high in runs
            if uid in self.page
            for k in range(low, high)
        )


class _Reference:
    """Asks the reference what the subject is asked; misuse it would refuse, so it is not asked that."""

    def __init__(self, config: Config, traits: Traits, side: _Side) -> None:
        plain = SEED_TOKEN if config.page_size == 1 and config.kind != "paged" else SEED_PAGED
        self.reference = reference_for(config, traits.dialect or plain, traits.swa_now)
        self.config, self.side = config, side
        self._states: dict[str, Any] = {}

    def ask(self, step: Step) -> Observation:
        outcome, slots = "done", None
        if step.status == "misuse":
            outcome = "raised"
        elif step.call is not None and step.status == "legal":
            slots = self._call(step)
            if isinstance(step.call, AllocCall | BatchCall):
                outcome = "none" if slots is None else "slots"
        reference: Any = self.reference
        mapping, full, window = None, None, None
        if self.config.kind == "swa":
            rows = (self.config.pages + 1) * self.config.page_size
            mapping = tuple(reference.mapping.get(slot, 0) for slot in range(rows))
            full, window = reference.full.available, reference.swa.available
        lists = tuple(tuple(entries) for entries in reference.lists())
        error = "refused" if outcome == "raised" else ""
        return Observation(
            outcome, tuple(slots or ()), error, available=reference.available(), full=full, window=window,
            lists=lists, mapping=mapping,
        )  # fmt: skip

    def _call(self, step: Step) -> list[int] | None:
        reference, side = self.reference, self.side
        match step.call:
            case AllocCall(size):
                return reference.alloc(size)
            case BatchCall(prefix, seq, last, decode):
                return reference.extend(list(prefix), list(seq), [side.slot(s) for s in last], decode)
            case FreeCall(runs, swa):
                reference.free(list(side.slots(runs)), *([True] if swa else []))
            case StateCall("free_group_begin"):
                reference.group_begin()
            case StateCall("free_group_end"):
                reference.group_end()
            case StateCall("merge_and_sort_free"):
                reference.merge()
            case StateCall("clear"):
                reference.clear()
            case StateCall("backup_state", name):
                self._states[name] = reference.backup()
            case StateCall("restore_state", name):
                reference.restore(self._states[name])
        return None


# -- what a violation speaks of ------------------------------------------------------------------------


def _marks(
    config: Config,
    violation: Violation,
    frames: list[Frame],
    held: dict[int, Held],
    page_of: dict[int, int],
) -> Marks:
    text, last = violation.summary, frames[-1]
    pages = {int(n) for n in re.findall(r"(?<!window )\bpage (\d+)\b", text)}
    windows = {int(n) for n in re.findall(r"\bwindow page (\d+)\b", text)}
    slots = {int(n) for n in re.findall(r"\bslots? (?:from )?(\d+)\b", text)}
    seen, right = last.subject.seen, last.reference.seen
    if (
        not pages | windows | slots
    ):  # then it speaks of the answer: where that departs from the reference, or all of it
        departs = [a for a, b in zip(seen.slots, right.slots, strict=False) if a != b]
        slots.update(departs or seen.slots)
    lost: tuple[int, ...] = ()
    doubled: tuple[int, ...] = ()
    if seen.lists is not None and last.step.status == "legal" and violation.code != "ORDER":
        everything = Counter(seen.lists[0] + seen.lists[1])
        everything.update(page_of[uid] for uid in held if uid in page_of)
        lost = tuple(page for page in range(1, config.pages + 1) if page not in everything)
        doubled = tuple(sorted(page for page, count in everything.items() if count > 1))
    return Marks(tuple(sorted(pages)), tuple(sorted(windows)), tuple(sorted(slots)), lost, doubled)


def owners_of(films: Sequence[Film]) -> list[str]:
    """All names that hold something, in the order in which they come."""
    found: dict[str, None] = {}
    for each in films:
        for frame in each.frames:
            for held in frame.changes.values():
                if held is not None:
                    found.setdefault(held.owner)
    return list(found)
