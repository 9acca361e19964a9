"""What a check says of a subject, for tests of finding power."""

from properties.checks import Tally, plan_of, run_task
from properties.judged import Broken


def broken_by(check, subject, level, budget, seed):
    """The first violation that the tasks of one check give, or None."""
    for task in plan_of(subject, budget, level):
        if task.check == check:
            try:
                run_task(task, subject, level, seed, Tally())
            except Broken as broken:
                return broken.outcome.violation
    return None
