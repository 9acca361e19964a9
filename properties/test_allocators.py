"""The properties of the allocator tier. What is judged is chosen with `--impl`; see `conftest.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., None])
Holds = Callable[[object], None]  # the fixture of conftest.py: does a task, fails with what it found


def of(check: str) -> Callable[[Test], Test]:
    """Marks which check of the plan (`properties.checks.CHECKS`) a test stands for."""

    def mark(test: Test) -> Test:
        test.check = lambda task: task.check == check  # type: ignore[attr-defined]
        return test

    return mark


@of("sequences")
def test_generated_sequences(task: object, holds: Holds) -> None:
    """Every answer to generated sequences of operations keeps all promises of the level: no slot has two owners,
    pages are aligned, nothing is lost, what fits is granted and what does not is None, and so on for every code
    of `kvassay list`. A slot with two owners is a request that reads another one's context."""
    holds(task)


@of("state machine")
def test_state_machine(task: object, holds: Holds) -> None:
    """The rules of the Hypothesis state machine of the subject's kind (`properties/machines.py`) hold in any
    order: requests begin, grow, decode, are cut back and finish, one by one and in batches, inside free groups
    and across snapshots."""
    holds(task)


@of("fixed slots")
def test_fixed_slots(task: object, holds: Holds) -> None:
    """The same promises over cases that Hypothesis draws as fixed slots of one operation each, which shrink best."""
    holds(task)


@of("relation restore")
def test_backup_anything_restore_is_nothing(task: object, holds: Holds) -> None:
    """Backup, anything, restore: everything after it is answered, number by number, as without them. A snapshot
    that forgets a part (the release list, the mapping, an open group) shows operations later."""
    holds(task)


@of("relation clear")
def test_clear_is_new(task: object, holds: Holds) -> None:
    """After clear, everything is answered as by a new allocator, also when it came inside a group."""
    holds(task)


@of("relation refill")
def test_drained_and_refilled_is_new(task: object, holds: Holds) -> None:
    """A pool that was used, drained and merged answers as a new one, so nothing that was freed is lost."""
    holds(task)


@of("relation group")
def test_group_is_the_frees_at_once(task: object, holds: Holds) -> None:
    """A group of frees leaves what the same frees in one call leave."""
    holds(task)


@of("relation split")
def test_split_batch_is_the_whole_batch(task: object, holds: Holds) -> None:
    """A batch that fits leaves as much as its requests, one after the other: no page is counted for nobody."""
    holds(task)


@of("relation permuted")
def test_permuted_batch_is_the_batch(task: object, holds: Holds) -> None:
    """The order of requests in a batch changes neither whether it fits nor what is left."""
    holds(task)


@of("relation shared prefix")
def test_shared_prefix_gives_each_its_own(task: object, holds: Holds) -> None:
    """Two requests that start behind one shared prefix get slots of their own, together or apart."""
    holds(task)
