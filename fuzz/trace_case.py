"""A recorded trace as a case: the calls in the suite's own words, up to the first answer that was wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz.cut import rebuilt
from oracle.follow import Follower
from oracle.ledger import Ledger
from oracle.ops import Case, Operation
from oracle.rawcall import Trace, TraceError
from oracle.traits import Traits
from oracle.verdict import Violation

KEPT = 200_000  # operations; what lies further back is stood in for by what it left
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

    traits: what the recorded allocator claims. kept: the case has at most twice as many operations.
    """
    trace = Trace(path)
    header = trace.header
    pool, size = header.pool, header.pool.page_size
    free, window = (None if slots is None else slots // size for slots in (header.free, header.window))
    try:
        follower = Follower(pool, traits, free, window)
    except ValueError as error:
        raise TraceError(f"{trace.files[0]}: line 1: {error}") from None
    operations: list[Operation] = []
    notes: list[str] = []
    recorded: Violation | None = None
    begun_before = True
    for call in trace.calls():
        followed = follower.follow(call)
        if followed.translated is not None:
            operations += [*followed.translated.before, followed.translated.step.operation]
        recorded = followed.violation
        if recorded is not None or follower.over:
            break
        if len(operations) >= 2 * kept:
            if begun_before:
                operations[:0] = follower.translator.prologue()
                begun_before = False
            operations = _without_first(Case(pool, tuple(operations)), traits, kept)
            notes.append(f"{kept:,} operations are stood in for by what they left")
        if follower.calls % TOLD == 0:
            progress(f"{follower.calls:,} calls read")
    if not follower.calls:
        raise TraceError(f"{trace.files[-1]}: line 2: the trace has no whole call")
    if begun_before:
        operations[:0] = follower.translator.prologue()
    stopped = "" if recorded is not None else follower.over
    case = Case(pool, tuple(operations))
    return TraceCase(
        case, header.subject, follower.calls, recorded, stopped, (*trace.notes, *dict.fromkeys(notes))
    )


def _without_first(case: Case, traits: Traits, count: int) -> list[Operation]:
    """The operations of a case from `count` on, behind those that leave what the others left."""
    ledger = Ledger(case.config, traits)
    world = ledger.start()
    for operation in case.operations[:count]:
        world = ledger.step(world, operation).after
    return [*rebuilt(world, case.config), *case.operations[count:]]
