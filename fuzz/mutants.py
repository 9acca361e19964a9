"""Mutation of the code that is judged: is every small change to it noticed by the gate?

A mutant is killed by a finding that the unchanged subject does not give, by a crash, or by a hang. What is never
driven and what is proven equal to the original is listed and left out of the score.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from fuzz.campaign import campaign
from fuzz.explained import Explained
from fuzz.forked import in_fork, spawned
from fuzz.mutator import Mutant, Source
from fuzz.run import start_worker
from impl.names import local
from impl.subject import LocalSubject
from oracle.verdict import Violation
from properties.cases import generate_misuse, generate_planned, typical_config
from properties.checks import Avoid, Tally, Task, plan_of, run_task
from properties.judged import Broken, HarnessError, judged
from properties.sources import SeededSource
from properties.workload import NONE

TIMEOUT = 60.0  # seconds of its own time; without a change it takes some ten
HARNESS = "impl.emulator"  # runs kernels of ours, and is none of what is judged
KILLED = ("finding", "broke", "died", "hung")
LIVES = "survived", ""


class End(NamedTuple):
    """What breaks: the violation's key, and at which operation. says: the sentence, for people."""

    key: tuple[str, ...]
    at: int
    says: str

    @classmethod
    def of(cls, violation: Violation | None) -> End | None:
        """None where nothing breaks."""
        if violation is None:
            return None
        return cls(violation.key, violation.index, f"{violation.code}: {violation.summary}")

    @staticmethod
    def same(one: End | None, other: End | None) -> bool:
        """Whether two end alike. Sentences may tell of memory that nobody wrote."""
        return (one[:2] if one else None) == (other[:2] if other else None)


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant.

    fate: `finding`; `broke` (it can't be made, or raises where the gate asks nothing of it); `died`, `hung`;
    `survived`; `equivalent` (proven); or `same` (the same bytecode).
    """

    mutant: Mutant
    fate: str
    by: str = ""
    subject: str = ""
    seconds: float = 0.0
    reason: str = ""

    @property
    def killed(self) -> bool:
        """Whether somebody noticed."""
        return self.fate in KILLED


@dataclass(frozen=True, slots=True)
class Base:
    """What is known of the unchanged subject at one level.

    avoid: shapes of its own faults. tasks: how the plan's tasks end without them. cases: how the first cases
    end with them; none where it has no faults.
    """

    level: str
    avoid: Avoid
    tasks: tuple[End | None, ...]
    cases: tuple[End | None, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A subject, the mutants of what it drives, and the functions that it never drives, by module."""

    subject: str
    bases: tuple[Base, ...]
    mutants: tuple[Mutant, ...]
    undriven: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Score:
    """All mutants of a run."""

    fates: list[Fate] = field(default_factory=list)
    undriven: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def counted(self) -> list[Fate]:
        """The denominator: mutants that change what is executed, and that nobody proved to be equivalent."""
        return [fate for fate in self.fates if fate.fate not in ("same", "equivalent")]

    @property
    def share(self) -> float:
        """Killed mutants, of those that count."""
        return sum(fate.killed for fate in self.counted) / len(self.counted) if self.counted else 0.0


def levels_of(subject: LocalSubject) -> tuple[str, ...]:
    """Both sides of a subject: as it runs, at parity where it claims an order, and with its debug mode on."""
    ordered = subject.traits(typical_config(subject.space, "contract")).dialect is not None
    return ("parity" if ordered else "contract", "hardened")


def mutate(subjects: Sequence[str], budget: str, seed: int, workers: int, progress: Any) -> Score:
    """Run all mutants of what the subjects drive, each against the subjects that drive it, until one kills it."""
    started = time.perf_counter()
    score = Score()
    fates: dict[Mutant, Fate] = {}
    driven: set[str] = set()
    undriven: set[str] = set()
    for name in subjects:
        with ProcessPoolExecutor(
            workers, mp_context=spawned(), initializer=start_worker, initargs=("cpu",)
        ) as pool:
            prepared = pool.submit(prepare, name, budget, seed).result()
            todo = [m for m in prepared.mutants if m not in fates or not fates[m].killed]
            progress(f"{name}: {len(todo)} mutants, unchanged in {prepared.seconds:.1f} s")
            waiting = [
                pool.submit(fates_of, prepared, todo[at :: PORTIONS * workers], budget, seed)
                for at in range(PORTIONS * workers)
            ]
            for done in as_completed(waiting):
                fates.update((fate.mutant, fate) for fate in done.result())
                progress(f"{name}: {sum(f.killed for f in fates.values())} of {len(fates)} killed")
        driven.update(f"{m.module}:{m.function}" for m in prepared.mutants)
        undriven.update(prepared.undriven)
    score.fates = sorted(fates.values(), key=lambda f: (f.mutant.module, f.mutant.place))
    score.undriven = sorted(undriven - driven)
    score.seconds = time.perf_counter() - started
    return score


PORTIONS = 8  # portions of the mutants for each worker: they take turns, and a slow one holds up little


# -- in the workers ------------------------------------------------------------------------------------


def prepare(name: str, budget: str, seed: int) -> Prepared:
    """Judge the unchanged subject, and see which of its functions are called."""
    started = time.perf_counter()
    _settle()
    subject = local(name)
    sources = sources_of(subject)
    called: set[tuple[str, str]] = set()
    bases: list[Base] = []
    for level in levels_of(subject):
        ended = in_fork(partial(_unchanged, subject, level, budget, seed), 10 * TIMEOUT)
        if ended.value is None:
            raise HarnessError(
                f"{name} unchanged {ended.fate}: {ended.why}; drive it in a form that keeps its process"
            )
        base, names = ended.value
        bases.append(base)
        called.update(names)
    again = in_fork(partial(_noticed, subject, bases, _plans(subject, bases, budget), seed), 10 * TIMEOUT)
    if again.value != LIVES:
        raise HarnessError(f"{name} unchanged is told from itself, so nothing is known of changes: {again}")
    driven = {s.module: frozenset(q for q in s.functions if (s.path, q) in called) for s in sources}
    mutants = [mutant for source in sources for mutant in source.mutants(driven[source.module])]
    undriven = [f"{s.module}:{q}" for s in sources for q in s.functions if q not in driven[s.module]]
    return Prepared(name, tuple(bases), tuple(mutants), tuple(undriven), time.perf_counter() - started)


def _settle() -> None:
    """Memory that nobody wrote holds the same numbers in every run: what comes of misuse would be chance else."""
    torch.use_deterministic_algorithms(True, warn_only=True)


def sources_of(subject: LocalSubject) -> list[Source]:
    """The modules that hold the allocator's classes, those of what it is made of, and of functions that it holds: kernels."""
    seen: dict[str, types.ModuleType] = {}
    objects, known = [subject.make(typical_config(subject.space, "contract")).allocator], set()
    package = type(objects[0]).__module__.partition(".")[0]
    while objects:
        thing = objects.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        for cls in type(thing).__mro__:
            if cls.__module__.partition(".")[0] == package and not cls.__module__.startswith(HARNESS):
                seen.setdefault(cls.__module__, sys.modules[cls.__module__])
        for value in getattr(thing, "__dict__", {}).values():
            if type(value).__module__.partition(".")[0] == package:
                objects.append(value)
            elif isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] == package:
                seen.setdefault(value.__module__, sys.modules[value.__module__])
    return [Source.of(module) for _, module in sorted(seen.items())]


def _unchanged(
    subject: LocalSubject, level: str, budget: str, seed: int
) -> tuple[Base, set[tuple[str, str]]]:
    """The base of a level, and the functions (file and qualified name) that its run calls."""
    called: set[tuple[str, str]] = set()
    seen: set[types.CodeType] = set()

    def watch(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code not in seen:
            seen.add(frame.f_code)
            called.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    avoid: Avoid = NONE
    faults = False
    tasks = plan_of(subject, budget, level)
    sys.setprofile(watch)
    for task in tasks:
        result = campaign(task, subject, level, seed, avoid)
        avoid |= result.avoid
        faults = faults or bool(result.findings)
    ends = tuple(_end_of_task(task, subject, level, seed, avoid) for task in tasks)
    cases = tuple(_end_of_case(subject, level, seed, number) for number in range(OWN_CASES if faults else 0))
    sys.setprofile(None)
    return Base(level, avoid, ends, cases), called


OWN_CASES = 600  # cases judged without steering, where the unchanged subject has faults of its own


def _end_of_task(task: Task, subject: LocalSubject, level: str, seed: int, avoid: Avoid) -> End | None:
    try:
        run_task(task, subject, level, seed, Tally(), avoid)
    except Broken as broken:
        return End.of(broken.outcome.violation)
    return None


def _end_of_case(subject: LocalSubject, level: str, seed: int, number: int) -> End | None:
    """Of a case that leaves nothing out: of those with odd numbers misuse is the end."""
    source = SeededSource(f"{seed}/own/{number}")
    if number % 2:
        case, steps = generate_misuse(number // 2, source, subject.space, subject.traits, level)
    else:
        case, steps = generate_planned(source, subject.space, subject.traits, level)
    return End.of(judged(subject, case, level, steps=steps).violation)


def _plans(subject: LocalSubject, bases: Sequence[Base], budget: str) -> dict[str, list[Task]]:
    return {base.level: plan_of(subject, budget, base.level) for base in bases}


def fates_of(prepared: Prepared, mutants: list[Mutant], budget: str, seed: int) -> list[Fate]:
    """Each mutant in a fork of its own."""
    _settle()
    subject = local(prepared.subject)
    sources = {source.module: source for source in sources_of(subject)}
    tasks = _plans(subject, prepared.bases, budget)
    found = []
    for mutant in mutants:
        started = time.perf_counter()

        work = partial(_try, sources[mutant.module], mutant, subject, prepared.bases, tasks, seed)
        try:
            ended = in_fork(work, TIMEOUT)
        except Exception as error:
            fate, by = "broke", f"{type(error).__name__}: {error}"
        else:
            fate, by = ended.value if ended.value is not None else (ended.fate, ended.why)
        found.append(Fate(mutant, fate, by, prepared.subject, time.perf_counter() - started))
    return found


def _try(
    source: Source,
    mutant: Mutant,
    subject: LocalSubject,
    bases: Sequence[Base],
    tasks: dict[str, list[Task]],
    seed: int,
) -> tuple[str, str]:
    """Its fate, and what gave it away."""
    return _noticed(subject, bases, tasks, seed) if source.apply(mutant) else ("same", "")


def _noticed(
    subject: LocalSubject, bases: Sequence[Base], tasks: dict[str, list[Task]], seed: int
) -> tuple[str, str]:
    """The first finding that the unchanged subject does not give, with the sentence of it; LIVES if there is none."""
    for base in bases:
        for task, known in zip(tasks[base.level], base.tasks, strict=True):
            end = _end_of_task(task, subject, base.level, seed, base.avoid)
            if not End.same(end, known):
                return (
                    "finding",
                    f"{task.check} at {base.level}: {end.says if end else 'what was wrong is right'}",
                )
        for number, known in enumerate(base.cases):
            end = _end_of_case(subject, base.level, seed, number)
            if not End.same(end, known):
                return (
                    "finding",
                    f"case {number} at {base.level}: {end.says if end else 'what was wrong is right'}",
                )
    return LIVES


# -- what is known of those that live --------------------------------------------------------------------


def explain(score: Score, known: Sequence[Explained], whole: bool = False) -> tuple[Score, list[Explained]]:
    """The score with reasons on its survivors, proven equivalents left out; and the entries that fit no mutant.

    whole: every entry has to fit; else only those of the subjects and modules that were changed.
    """
    entries: dict[tuple[str | int, ...], Explained] = {entry.key: entry for entry in known}
    modules = {fate.mutant.module for fate in score.fates}
    subjects = {"", *(_release(fate) for fate in score.fates)}
    used: set[Explained] = set()
    fates = []
    for fate in score.fates:
        mutant = fate.mutant
        function = f"{mutant.module}:{mutant.function}"
        read = function, mutant.text, mutant.before, mutant.after
        keys = (*read, mutant.which), (*read, 0), (_release(fate), function, mutant.spot)
        entry = next((entries[key] for key in keys if key in entries), None)
        if entry is not None:
            used.add(entry)
            if fate.fate == "survived":
                fate = replace(fate, reason=entry.reason, fate="equivalent" if entry.proven else "survived")
        fates.append(fate)
    asked = [
        entry
        for entry in known
        if whole
        or (
            entry.subject in subjects
            and entry.function.partition(":")[0] in modules
            and entry.function not in score.undriven
        )
    ]
    return Score(fates, score.undriven, score.seconds), [entry for entry in asked if entry not in used]


def _release(fate: Fate) -> str:
    """`sglang@0.5.2` of `sglang@0.5.2:paged`."""
    return fate.subject.partition(":")[0]


def survivors(score: Score) -> Iterator[Fate]:
    """Mutants that nobody noticed."""
    return (fate for fate in score.fates if fate.fate == "survived")
