"""Does the gate find what nothing can miss? A defect that is looked for before each run, in a small budget."""

from __future__ import annotations

from dataclasses import dataclass

from impl.defects.catalogue import CANARY
from impl.engines import LocalEngine, local_engine
from impl.subject import LocalSubject
from properties.checks import Tally, Task, run_task
from properties.judged import Broken

CASES = 25


@dataclass(frozen=True, slots=True)
class Canary:
    """How it went. found: under a code that the defect names, before `operations` were over."""

    found: bool
    operations: int

    def __str__(self) -> str:
        if self.found:
            return f"found after {self.operations} operations"
        return f"not found in {self.operations} operations"


def look_for_canary(kernel_tier: bool, seed: int) -> Canary:
    """Run the check that a run begins with on the canary, until it is found or CASES are over."""
    name, check = f"defect:{CANARY.id}", "kernels" if kernel_tier else "sequences"
    subject: LocalSubject | LocalEngine = local_engine(name) if kernel_tier else CANARY.subject()
    tally = Tally()
    try:
        run_task(Task(name, check, 0, CASES), subject, CANARY.level, seed, tally)
    except Broken as broken:
        violation = broken.outcome.violation
        return Canary(violation is not None and violation.code in CANARY.codes, tally.operations)
    return Canary(False, tally.operations)
