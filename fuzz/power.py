"""The suite against the known defects: caught or not, by which property, how fast, how short.

Every defect is hunted as the gate would hunt it, for several seeds; and once by each property alone, so that it
shows which properties no defect needs, and what the Hypothesis state machine takes where the seeded sequences
take so much.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from fuzz.campaign import shrunk
from fuzz.forked import spawned
from fuzz.run import start_worker
from impl.defects.catalogue import ALL, CATALOGUE, defect
from impl.defects.record import Defect
from impl.names import DEFECT, resolve
from impl.subject import Subject
from properties.checks import Tally, Task, plan_of, run_task
from properties.judged import Broken


@dataclass(frozen=True, slots=True)
class Catch:
    """The first finding of a defect. check: the property that gave it; seconds: of one core, without shrinking.

    length: operations of the shrunk case; proven: that no shorter case on its pool shows it (`fuzz.minimal`).
    """

    check: str
    code: str
    operations: int
    cases: int
    seconds: float
    length: int
    proven: bool = False


@dataclass(slots=True)
class Hunt:
    """What came of one defect. runs: by seed, None where it went through; alone: by each property, one seed."""

    defect: Defect
    runs: dict[int, Catch | None] = field(default_factory=dict)
    alone: dict[str, Catch | None] = field(default_factory=dict)

    @property
    def caught(self) -> list[Catch]:
        """The catches of all seeds."""
        return [catch for catch in self.runs.values() if catch is not None]

    @property
    def always(self) -> bool:
        """Whether every seed caught it."""
        return len(self.caught) == len(self.runs)

    def minimum(self, catch: Catch) -> int | None:
        """Operations of the shortest case of what was found: proven, or known by hand for the defect."""
        return catch.length if catch.proven else self.defect.shortest

    @property
    def excess(self) -> int | None:
        """Operations of a shrunk case above its minimum, at worst; None where no minimum is known."""
        known = [(catch.length, self.minimum(catch)) for catch in self.caught]
        return max((length - least for length, least in known if least is not None), default=None)


@dataclass(frozen=True, slots=True)
class Summary:
    """All defects in a few numbers."""

    hunts: tuple[Hunt, ...]

    @property
    def missed(self) -> list[str]:
        """Defects that a seed let through."""
        return [hunt.defect.id for hunt in self.hunts if not hunt.always]

    @property
    def median_seconds(self) -> float:
        """Of all first findings."""
        return statistics.median(self._seconds())

    @property
    def worst_seconds(self) -> float:
        """Of all first findings."""
        return max(self._seconds())

    def _seconds(self) -> list[float]:
        return [catch.seconds for hunt in self.hunts for catch in hunt.caught] or [0.0]

    def needed_by(self, check: str) -> list[str]:
        """Defects that this property catches, and no other."""
        return [
            hunt.defect.id
            for hunt in self.hunts
            if [name for name, catch in hunt.alone.items() if catch is not None] == [check]
        ]

    def caught_by(self, check: str) -> int:
        """How many defects this property catches by itself."""
        return sum(hunt.alone.get(check) is not None for hunt in self.hunts)

    @property
    def checks(self) -> list[str]:
        """All properties that were tried alone."""
        return list(dict.fromkeys(check for hunt in self.hunts for check in hunt.alone))


def hunt_all(
    ids: Iterable[str], seeds: int, budget: str, alone: bool, workers: int, progress: Callable[[Hunt], None]
) -> Summary:
    """Hunt the defects of these ids, all where none is named. SubjectError where one is not known."""
    wanted = [defect(name.removeprefix(DEFECT)) for name in ids] or list(ALL)
    with ProcessPoolExecutor(
        workers, mp_context=spawned(), initializer=start_worker, initargs=("cpu",)
    ) as pool:
        waiting = [pool.submit(hunt, each.id, seeds, budget, alone) for each in wanted]
        for done in as_completed(waiting):
            progress(done.result())
        return Summary(tuple(future.result() for future in waiting))


def hunt(defect_id: str, seeds: int, budget: str, alone: bool) -> Hunt:
    """One defect: all seeds as the gate would, then each property by itself with the first seed."""
    known = CATALOGUE[defect_id]
    subject = resolve(f"{DEFECT}{defect_id}")
    tasks = plan_of(subject, budget, known.level)
    found = Hunt(known)
    for seed in range(1, seeds + 1):
        found.runs[seed] = first_finding(subject, tasks, known.level, seed)
    if alone:
        for check in dict.fromkeys(task.check for task in tasks):
            own = [task for task in tasks if task.check == check]
            found.alone[check] = first_finding(subject, own, known.level, 1, shrink=False)
    subject.close()
    return found


def first_finding(
    subject: Subject, tasks: list[Task], level: str, seed: int, shrink: bool = True
) -> Catch | None:
    """What the tasks find first, one after the other on one core."""
    started = time.perf_counter()
    operations = cases = 0
    for task in tasks:
        tally = Tally()
        try:
            run_task(task, subject, level, seed, tally)
        except Broken as broken:
            seconds = time.perf_counter() - started
            violation = broken.outcome.violation
            assert violation is not None
            operations, cases = operations + tally.operations, cases + tally.cases
            length, proven = len(broken.outcome.case.operations), False
            if shrink:
                finding = shrunk(task, subject, level, broken)
                length, proven = finding.length, bool(finding.minimal)
            return Catch(task.check, violation.code, operations, cases, seconds, length, proven)
        operations, cases = operations + tally.operations, cases + tally.cases
    return None
