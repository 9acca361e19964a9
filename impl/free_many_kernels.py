"""Which pages does a free of very many slots give back, and where do they go, in Triton? By many programs, in two launches."""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from impl.free_kernel import TOLD, ones, set_marks

__all__ = ("list_kernel", "mark_kernel")


@triton.jit(do_not_specialize=list(range(5)))
def mark_kernel(
    slots_ptr,
    marks_ptr,
    counts_ptr,
    count,
    most,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Mark the pages of `count` slots, LANES a program, and count them: `set_marks`."""
    set_marks(slots_ptr, marks_ptr, counts_ptr, tl.program_id(0) * LANES, count, most, PAGE, LANES, SPAN)


@triton.jit(do_not_specialize=list(range(10)))
def list_kernel(
    pages_ptr,
    base_ptr,
    marks_ptr,
    counts_ptr,
    moved_ptr,
    news_ptr,
    offset,
    capacity,
    blocks,
    ticket,
    LANES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Put the marked pages before the list that starts at base + offset, and take the marks away.

    Each program does SPAN words of marks; there are as many as `counts` has numbers, `blocks`. `moved` is given the
    new base, and `news`, memory of the host, too, with the ticket of this free. Pages for which there is no room are
    left out: there are none of these unless the caller frees what it does not hold.
    """
    own = tl.program_id(0)
    found, before = blocks * 0, blocks * 0
    for at in range(0, blocks, LANES):
        j = at + tl.arange(0, LANES)
        counts = tl.load(counts_ptr + j, mask=j < blocks, other=0)
        found += tl.sum(counts, 0)
        before += tl.sum(tl.where(j < own, counts, 0), 0)
    start = tl.load(base_ptr) + offset - found
    if own == 0:
        tl.store(moved_ptr, tl.maximum(start, 1))
        tl.store(news_ptr, (ticket.to(tl.int64) << TOLD) + tl.maximum(start, 1))

    word = own * SPAN + tl.arange(0, SPAN)
    marks = tl.load(marks_ptr + word)
    listed = ones(marks).to(tl.int32)
    bit = tl.arange(0, 32)[None, :]
    lower = (tl.full((1, 32), 1, tl.int64) << bit) - 1
    rank = (tl.cumsum(listed, 0) - listed)[:, None] + ones(marks[:, None] & lower).to(tl.int32)
    place = start + before + rank
    wanted = ((marks[:, None] >> bit) & 1 == 1) & (place > 0) & (place < capacity)
    tl.store(pages_ptr + place, word[:, None] * 32 + bit, mask=wanted)
    tl.store(marks_ptr + word, tl.full((SPAN,), 0, tl.int64), mask=marks != 0)
