"""A recorded trace as a case: the calls in the suite's own words, up to the first answer that was wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz.cut import names_in
from oracle.follow import Follower
from oracle.ledger import Ledger
from oracle.ops import Case, Operation
from oracle.rawcall import Trace, TraceError
from oracle.rebuilt import rebuilt
from oracle.traits import Traits
from oracle.verdict import Violation

KEPT = 400_000  # operations; what lies further back is stood in for by what it left
BATCH = 4  # so many names in an operation count as another one
TOLD = 10_000  # calls between two words of progress


@dataclass(frozen=True, slots=True)
class TraceCase:
    """What a trace says.

    calls: how many were read; recorded: what is wrong with the answers in it, if anything; stopped: why the rest
    was not translated; notes: what was passed over.
    """

    case: Case
    subject: str
    calls: int
    recorded: Violation | None
    stopped: str
    notes: tuple[str, ...]


def case_of(
    path: Path, traits: Traits, progress: Callable[[str], object] = lambda text: None, kept: int = KEPT
) -> TraceCase:
    """Read a trace and translate it. TraceError, with file and line, where it is broken.

    traits: what the recorded allocator claims. kept: the case has at most about twice as many operations, fewer if
    they are of large batches.
    """
    trace = Trace(path)
    pool = trace.header.pool
    try:
        follower = Follower(pool, traits, trace.header.start)
    except ValueError as error:
        raise TraceError(f"{trace.files[0]}: line 1: {error}") from None
    operations: list[Operation] = []
    weight = left_out = replaced = told = 0
    recorded: Violation | None = None
    begun_before = True
    for call in trace.calls():
        followed = follower.follow(call)
        if followed.anew:
            operations.clear()
            weight, replaced, left_out, begun_before = 0, 0, follower.calls, True
        if followed.translated is not None:
            new = [*followed.translated.before]
            # Where a case has more free pages than there were, what got nothing would get what nobody frees.
            would_fit = call.outcome == "none" and followed.violation is None and follower.translator.ahead()
            if not would_fit:
                new.append(followed.translated.step.operation)
            operations += new
            weight += sum(map(_weight, new))
        recorded = followed.violation
        if recorded is not None or follower.over:
            break
        if weight >= 2 * kept:
            if begun_before:
                operations[:0] = follower.translator.prologue()
                begun_before = False
            before = len(operations)
            operations = _without_first(Case(pool, tuple(operations)), traits, weight - kept)
            weight = sum(map(_weight, operations))
            replaced += before - len(operations)
        percent = 100 * trace.read // trace.size
        if percent > told and follower.calls % TOLD == 0:
            told = percent
            progress(f"{follower.calls:,} calls read, {percent} % of the trace")
    if not operations and recorded is None:
        why = follower.over or (
            "no call in it is outside of a group" if follower.calls else "it has no whole call"
        )
        raise TraceError(f"{trace.files[-1]}: nothing in the trace can be judged: {why}")
    if begun_before:
        operations[:0] = follower.translator.prologue()
    notes = list(trace.notes)
    if left_out:
        notes.append(
            f"the first {left_out:,} calls are left out: they hang on a group or a snapshot from before them"
        )
    if replaced:
        notes.append(f"the first {replaced:,} operations are stood in for by what they left")
    stopped = "" if recorded is not None else follower.over
    return TraceCase(
        Case(pool, tuple(operations)), trace.header.subject, follower.calls, recorded, stopped, tuple(notes)
    )


def _weight(operation: Operation) -> int:
    """What an operation takes of memory, in operations without a batch."""
    return 1 + len(names_in(operation)) // BATCH


def _without_first(case: Case, traits: Traits, weight: int) -> list[Operation]:
    """The operations of a case behind those that weigh so much, and before them what leaves what those left.

    Where a group is open there, those from its begin on stay.
    """
    ledger = Ledger(case.config, traits)
    world = left = ledger.start()
    count = 0
    for place, operation in enumerate(case.operations):
        if world.group is None:
            count, left = place, world
            if weight <= 0:
                break
        weight -= _weight(operation)
        world = ledger.step(world, operation).after
    return [*rebuilt(left, case.config), *case.operations[count:]]
