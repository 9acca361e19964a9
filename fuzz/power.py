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

LIMIT = (
    60_000  # transitions of the search for a case that is shorter than the shrunk one: ten times the gate's
)


@dataclass(frozen=True, slots=True)
class Catch:
    """The first finding of a defect. check: the property that gave it; seconds: of one core, without shrinking.

    key: what makes it the finding that it is. length: operations of the shrunk case; least: that a case of the
    same finding on the same pool has at least, as far as that is proven (`fuzz.minimal`).
    """

    check: str
    code: str
    operations: int
    cases: int
    seconds: float
    length: int
    least: int = 0
    key: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether no shorter case shows it."""
        return self.length <= self.least


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

    def least(self, catch: Catch) -> int:
        """Operations that a case of what was found has at least: proven, or known by hand for any finding."""
        return min(catch.length, max(catch.least, self.defect.shortest or 0))

    def over(self, catch: Catch) -> int:
        """Operations of the shrunk case over those that it has at least."""
        return catch.length - self.least(catch)

    def shown_shorter(self, catch: Catch) -> int:
        """Operations of the shrunk case over the shortest that a seed has left of the same finding."""
        return catch.length - min(other.length for other in self.caught if other.key == catch.key)

    @property
    def worst(self) -> Catch | None:
        """The catch whose shrunk case is the most over what it has at least; of several, the longest."""
        return max(self.caught, key=lambda catch: (self.over(catch), catch.length), default=None)


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

    @property
    def catches(self) -> list[tuple[Hunt, Catch]]:
        """All catches with their hunts."""
        return [(hunt, catch) for hunt in self.hunts for catch in hunt.caught]

    def shrunk(self) -> dict[str, list[tuple[Hunt, Catch]]]:
        """All catches by how far their shrunk cases are over the minimum of their findings.

        `more`: another seed left one of the same finding that is shorter by two operations or more; `unknown`:
        none did, and that there is none is not proven.
        """
        kinds: dict[str, list[tuple[Hunt, Catch]]] = {
            "proven": [],
            "by hand": [],
            "one": [],
            "more": [],
            "unknown": [],
        }
        for hunt, catch in self.catches:
            if catch.proven:
                kind = "proven"
            elif not hunt.over(catch):
                kind = "by hand"
            elif hunt.shown_shorter(catch) > 1:
                kind = "more"
            else:
                kind = "one" if hunt.over(catch) == 1 else "unknown"
            kinds[kind].append((hunt, catch))
        return kinds

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
            length, least = len(broken.outcome.case.operations), 0
            if shrink:
                finding = shrunk(task, subject, level, broken, LIMIT)
                length, least = finding.length, finding.least
            return Catch(task.check, violation.code, operations, cases, seconds, length, least, violation.key)
        operations, cases = operations + tally.operations, cases + tally.cases
    return None
