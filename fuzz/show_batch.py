"""A batch of the kernel tier in the terminal: a line for each request, with what is right for it and what it got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from rich.text import Text

from fuzz.run import KERNEL, Options, Target, start_worker, subject_of
from fuzz.show_text import verdict
from oracle.batch import Batch, answer
from oracle.casefile import BatchFile, CaseError
from oracle.numbers import packed
from oracle.verdict import Observation
from properties.kernels import check_answer

if TYPE_CHECKING:
    from impl.engines import EngineSubject

SHOWN = 40  # requests; of larger batches those whose answer is right are left out


def lines(file: BatchFile, impl: str = "", tree: str = "", device: str = "cpu") -> Iterator[Text]:
    """Run the batch, on its engine or another one, and say what came. CaseError, SubjectError where that can't be."""
    name, batch = impl or file.engine, file.batch
    if not name:
        raise CaseError("it names no engine: give one with --impl")
    start_worker(device)
    target = Target(name, "contract", KERNEL)
    subject = cast("EngineSubject", subject_of(target, Options((target,), device=device, path=tree)))
    seen = subject.run_batch(batch, file.dtype)
    subject.close()
    kind = "decode" if batch.decode else "extend"
    yield Text(
        f"{name}: {kind} of {len(batch.seq)} request(s) on pages of {batch.page_size}, {file.dtype}", "bold"
    )
    yield Text(f"free list, in pages: {packed(batch.free) or 'empty'}")
    yield from _requests(batch, seen)
    yield from verdict(check_answer(batch, file.dtype, seen))


def _requests(batch: Batch, seen: Observation) -> Iterator[Text]:
    rows = [("", "from", "to", "last_loc", "right", "got")]
    wrong = [False]
    right, place = tuple(answer(batch)), 0
    for index, (p, s, last) in enumerate(zip(batch.prefix, batch.seq, batch.last, strict=True)):
        its, got = (slots[place : place + s - p] for slots in (right, seen.slots))
        place += s - p
        if len(batch.seq) <= SHOWN or its != got:
            told = packed(got) or ("nothing" if its else "")
            rows.append((f"request {index}", str(p), str(s), str(last) if p else "", packed(its), told))
            wrong.append(its != got)
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for (name, *numbers, its_, told), bad in zip(rows, wrong, strict=True):
        words = [name.ljust(wide[0]), *map(str.rjust, numbers, wide[1:4]), its_.ljust(wide[4]), told]
        yield Text("  ".join(words).rstrip(), "bold red" if bad else "")
    left_out = len(batch.seq) + 1 - len(rows)
    if left_out:
        yield Text(f"{left_out} more request(s) got what is right", "dim")
