"""A run of the gate: which subjects at which levels, spread over worker processes, and what came of it.

What a task does depends on its seed alone, never on the number of workers or on how fast they are: the first
shard of sequences goes ahead and finds the shallow faults, the other shards go round those, and all other
properties go round what any shard has found.
"""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import cast

from fuzz.campaign import TaskResult, campaign
from fuzz.findings import Accepted, Finding, accept, distinct
from fuzz.forked import spawned
from impl.child import ChildEngine
from impl.engines import OWN_ENGINES, EngineSubject, local_engine
from impl.errors import SubjectError
from impl.names import DEFECT, OWN, known_defect, parse, resolve
from impl.subject import Space, Subject
from oracle.codes import CODES
from oracle.traits import RULES, Traits
from properties.cases import typical_config
from properties.checks import Avoid, Task, plan_of, plan_of_engine
from properties.coverage import Coverage, floor_for, reachable
from properties.workload import NONE

OWN_LEVELS = ("parity", "hardened")
# Our kernels, on a CPU: emulated in full, and sampled in Triton's interpreter, which is slow.
ON_CPU = ("paged[engine=emulator]", "swa[engine=emulator]", "paged[engine=triton]", "swa[engine=triton]")
KERNEL, ALLOCATOR = "kernel", "allocator"


@dataclass(frozen=True, slots=True)
class Target:
    """One run of the report: a subject of a tier at a level."""

    name: str
    level: str
    tier: str = ALLOCATOR


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was asked to do; with the seed and the version it decides what is found."""

    targets: tuple[Target, ...]
    budget: str = "ci"
    seed: int = 0
    workers: int = 1
    device: str = "cpu"
    path: str = ""
    accepted: tuple[Accepted, ...] = ()


@dataclass(slots=True)
class RunReport:
    """What came of one target. verdict: pass, fail, incomplete (too little was checked) or error."""

    target: Target
    about: str = ""
    findings: list[Finding] = field(default_factory=list)
    results: list[TaskResult] = field(default_factory=list)
    not_claimed: list[str] = field(default_factory=list)
    space: Space | None = None
    traits: Traits | None = None
    planned: int = 0
    error: str = ""

    @property
    def seconds(self) -> float:
        """Seconds that workers spent on it, added up."""
        return sum(result.seconds for result in self.results)

    @property
    def operations(self) -> int:
        """Operations that a subject was asked and the judge has judged."""
        return sum(result.operations for result in self.results)

    @property
    def cases(self) -> int:
        """Cases that were run."""
        return sum(result.cases for result in self.results)

    @property
    def coverage(self) -> Coverage:
        """What of the space the seeded sequences tried. No floor where steering left shapes out."""
        tried: Counter[str] = Counter()
        for result in self.results:
            tried.update(result.points)
        avoid = NONE.union(*(result.avoid for result in self.results))
        sequences = [result.task.count for result in self.results if result.task.check == "sequences"]
        if self.space is None or self.traits is None or not sequences:
            return Coverage()
        floor = None if avoid else floor_for(sum(sequences), self.space)
        return Coverage(tried, reachable(self.space, self.traits, avoid), floor)

    @property
    def verdict(self) -> str:
        """`error` before `fail`: a run that broke has not said its last word."""
        if self.error:
            return "error"
        if any(not finding.accepted for finding in self.findings):
            return "fail"
        whole = self.operations and len(self.results) == self.planned and self.coverage.enough
        return "pass" if whole else "incomplete"


Progress = Callable[[RunReport, TaskResult | None], None]


def targets_for(names: tuple[str, ...], level: str, tier: str, device: str = "cpu") -> tuple[Target, ...]:
    """What a gate runs: without names the project's own; without a level what each kind of subject is held to."""
    engines = tuple(name for name in OWN_ENGINES if device == "cpu" or name != "emulator")
    if tier == KERNEL:
        return tuple(Target(name, "contract", KERNEL) for name in names or engines)
    chosen: list[Target] = []
    for name in names or (*OWN, *(ON_CPU if device == "cpu" else ())):
        chosen += [Target(name, each) for each in ((level,) if level else levels_of(name))]
    if not names:
        chosen += [Target(name, "contract", KERNEL) for name in engines]
    return tuple(chosen)


def levels_of(name: str) -> tuple[str, ...]:
    """What a subject is held to where nobody says: defects to the level that shows them."""
    base = parse(name).base
    if base.startswith(DEFECT):
        return (known_defect(base).level,)
    return OWN_LEVELS if base in OWN else ("contract",)


def run(options: Options, progress: Progress) -> Iterator[RunReport]:
    """Run all targets; each report comes as soon as its target is done. SubjectError where one can't be had."""
    with ProcessPoolExecutor(
        options.workers, mp_context=spawned(), initializer=start_worker, initargs=(options.device,)
    ) as pool:
        schedules = [_Schedule(target, options) for target in options.targets]
        running: dict[Future[object], _Schedule] = {}
        try:
            for schedule in schedules:
                for future in schedule.begin(pool):
                    running[future] = schedule
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    schedule = running.pop(future)
                    for more in schedule.take(future, pool, progress):
                        running[more] = schedule
                    if schedule.over:
                        yield schedule.report
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class _Schedule:
    """The tasks of one target, in their order."""

    def __init__(self, target: Target, options: Options) -> None:
        self.options, self.report = options, RunReport(target)
        self._waiting: list[list[Task]] = []
        self._out = 0
        self._avoid: Avoid = NONE
        self.over = False

    def begin(self, pool: ProcessPoolExecutor) -> list[Future[object]]:
        """First of all a worker says what there is to do."""
        self._out = 1
        return [pool.submit(_describe, self.report.target, self.options)]

    def take(
        self, future: Future[object], pool: ProcessPoolExecutor, progress: Progress
    ) -> list[Future[object]]:
        """What one task came to; the next ones to do, when their turn has come."""
        self._out -= 1
        report = self.report
        try:
            value = future.result()
        except SubjectError:
            raise
        except BrokenProcessPool as error:
            report.error = f"a worker process died: {error}"
            self._waiting.clear()
        except Exception as error:
            report.error = report.error or f"{type(error).__name__}: {error}"
            self._waiting.clear()
        else:
            if isinstance(value, TaskResult):
                report.results.append(value)
                progress(report, value)
            elif isinstance(value, _Description):
                report.about, report.not_claimed = value.about, value.not_claimed
                report.space, report.traits = value.space, value.traits
                report.planned = len(value.tasks)
                self._waiting = _phases(value.tasks)
                progress(report, None)
        if self._out:
            return []
        self._avoid = NONE.union(*(result.avoid for result in report.results))
        if not self._waiting:
            self._finish()
            return []
        tasks = self._waiting.pop(0)
        self._out = len(tasks)
        target, options = report.target, self.options
        try:
            return [pool.submit(_work, task, target, options, self._avoid) for task in tasks]
        except BrokenProcessPool as error:
            report.error = f"a worker process died: {error}"
            self._finish()
            return []

    def _finish(self) -> None:
        report = self.report
        # In the plan's order, whichever was done first.
        report.results.sort(key=lambda result: (_rank(result.task), result.task.shard))
        found = distinct([finding for result in report.results for finding in result.findings])
        report.findings = accept(found, list(self.options.accepted), datetime.date.today())
        self.over = True


def _rank(task: Task) -> tuple[bool, str]:
    return task.check != "sequences", task.check


def _phases(tasks: list[Task]) -> list[list[Task]]:
    first = [task for task in tasks if task.check == "sequences" and task.shard == 0]
    more = [task for task in tasks if task.check == "sequences" and task.shard]
    rest = [task for task in tasks if task.check != "sequences"]
    return [phase for phase in (first, more, rest) if phase]


# -- in the workers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Description:
    about: str
    tasks: list[Task]
    not_claimed: list[str] = field(default_factory=list)
    space: Space | None = None
    traits: Traits | None = None


_SUBJECTS: dict[tuple[str, str, str, str], Subject | EngineSubject] = {}


def start_worker(device: str) -> None:
    """What a worker does first: everything after it may import Triton and torch."""
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    import torch

    torch.set_num_threads(1)


def subject_of(target: Target, options: Options) -> Subject | EngineSubject:
    """The subject of a target, made once a process. SubjectError where it can't be had."""
    key = target.tier, target.name, options.path, options.device
    if key not in _SUBJECTS:
        _SUBJECTS[key] = _made(target, options)
    return _SUBJECTS[key]


def _made(target: Target, options: Options) -> Subject | EngineSubject:
    if target.tier == KERNEL:
        own = target.name in OWN_ENGINES
        return local_engine(target.name, options.device) if own else ChildEngine(target.name, options.device)
    return resolve(target.name, options.path, options.device)


def plan_for(target: Target, options: Options) -> list[Task]:
    """All tasks of a target, in order."""
    subject = subject_of(target, options)
    if target.tier == KERNEL:
        return plan_of_engine(cast("EngineSubject", subject), options.budget)
    return plan_of(cast("Subject", subject), options.budget, target.level)


def _describe(target: Target, options: Options) -> _Description:
    subject = subject_of(target, options)
    tasks = plan_for(target, options)
    if target.tier == KERNEL:
        return _Description(subject.about, tasks)
    subject = cast("Subject", subject)
    traits = subject.traits(typical_config(subject.space, target.level))
    return _Description(
        subject.about, tasks, not_claimed(subject, traits, target.level), subject.space, traits
    )


def not_claimed(subject: Subject, traits: Traits, level: str) -> list[str]:
    """Promises that a run at this level does not ask of the subject, and misuse that it leaves open."""
    left = set()
    if "backup_state" not in traits.operations:
        left.add("RESTORE")
    if subject.space.kind != "swa":
        left.add("MAP")
    if level != "parity":
        left.add("ORDER")
    if level != "hardened":
        left.add("REJECT")
    if "get_cpu_copy" not in traits.operations and not subject.space.data:
        left.add("DATA")
    return [code for code in CODES if code in left] + [
        f"misuse: {rule}" for rule in RULES if rule in traits.undefined
    ]


def _work(task: Task, target: Target, options: Options, avoid: Avoid) -> TaskResult:
    return campaign(task, subject_of(target, options), target.level, options.seed, avoid)


def default_workers() -> int:
    """As many as there are cores for this process."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
