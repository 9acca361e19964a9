"""Which pages does a free give back, and where do they go, in Triton? By one program, without a sort of the pool."""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

TOLD = tl.constexpr(48)  # bits of a place in a list, below the ticket
__all__ = ("TOLD", "free_kernel", "ones", "set_marks")


@triton.jit
def ones(word):
    """How many of the low 32 bits are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24) & 0xFF


@triton.jit
def turns(slots_ptr, at, count, most, PAGE: tl.constexpr, LANES: tl.constexpr):
    """The pages of slots at .. at + LANES - 1, those of the slots before them, and where a page is to be listed.

    That is where it is not the page before. Page 0 and pages above `most` are left out.
    """
    i = at + tl.arange(0, LANES)
    page = tl.load(slots_ptr + i, mask=i < count, other=0).to(tl.int64) // PAGE
    before = tl.load(slots_ptr + i - 1, mask=(i < count) & (i > 0), other=0).to(tl.int64) // PAGE
    return page, before, (i < count) & (page != before) & (page > 0) & (page <= most)


@triton.jit
def set_marks(
    slots_ptr,
    marks_ptr,
    sums_ptr,
    at,
    count,
    most,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Mark the pages of slots at .. at + LANES - 1, and count them; the pages, and which of them had no mark yet.

    `marks` has a bit a page, 32 in a word, and `sums` a number for each SPAN words.
    """
    page, _, turn = turns(slots_ptr, at, count, most, PAGE, LANES)
    page = tl.where(turn, page, 0)
    bit = tl.full((LANES,), 1, tl.int64) << (page % 32)
    marked = tl.atomic_or(marks_ptr + page // 32, bit, mask=turn, sem="relaxed")
    new = turn & ((tl.where(turn, marked, 0) & bit) == 0)
    tl.atomic_add(sums_ptr + page // (32 * SPAN), tl.full((LANES,), 1, tl.int32), mask=new, sem="relaxed")
    return page, new


@triton.jit(do_not_specialize=list(range(12)))
def free_kernel(
    slots_ptr,
    pages_ptr,
    base_ptr,
    marks_ptr,
    sums_ptr,
    found_ptr,
    news_ptr,
    count,
    most,
    offset,
    capacity,
    ticket,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    FEW: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Put the distinct pages of `count` slots, sorted, before the list that starts at base + offset; move base.

    `news` is memory of the host, and is told the new base together with the ticket of this free.

    One program: barriers order what its lanes write. Slots whose pages never fall are listed as they come. Others
    are marked: `marks` has a bit a page, 32 in a word, and `sums` a number for each SPAN words; both hold zeros
    before and after. A page is found by the lane that sets its bit. Pages for which there is no room are left out:
    there are none of these unless the caller frees what it does not hold.
    """
    start = tl.load(base_ptr) + offset
    found, falls = count * 0, count * 0
    for at in range(0, count, LANES):
        page, before, turn = turns(slots_ptr, at, count, most, PAGE, LANES)
        found += tl.sum(turn.to(tl.int32), 0)
        falls += tl.sum(((page < before) & (at + tl.arange(0, LANES) < count)).to(tl.int32), 0)
    if falls == 0:
        start -= found
        listed = count * 0
        for at in range(0, count, LANES):
            page, before, turn = turns(slots_ptr, at, count, most, PAGE, LANES)
            place = start + listed + tl.cumsum(turn.to(tl.int32), 0) - 1
            tl.store(pages_ptr + place, page, mask=turn & (place > 0) & (place < capacity))
            listed += tl.sum(turn.to(tl.int32), 0)
    else:
        start = _list_marked(
            slots_ptr,
            pages_ptr,
            marks_ptr,
            sums_ptr,
            found_ptr,
            start,
            count,
            most,
            capacity,
            PAGE,
            LANES,
            FEW,
            SPAN,
        )
    start = tl.maximum(start, 1)
    tl.store(base_ptr, start)
    tl.store(news_ptr, (ticket.to(tl.int64) << TOLD) + start)


@triton.jit
def _list_marked(
    slots_ptr,
    pages_ptr,
    marks_ptr,
    sums_ptr,
    found_ptr,
    start,
    count,
    most,
    capacity,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    FEW: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Put the distinct pages of `count` slots, sorted, before `start`, by marks; where they start now."""
    found = count * 0
    for at in range(0, count, LANES):
        page, new = set_marks(slots_ptr, marks_ptr, sums_ptr, at, count, most, PAGE, LANES, SPAN)
        tl.store(found_ptr + found + tl.cumsum(new.to(tl.int32), 0) - 1, page, mask=new)
        found += tl.sum(new.to(tl.int32), 0)
    tl.debug_barrier()

    total = count * 0
    for at in range(0, most // (32 * SPAN) + 1, LANES):
        j = at + tl.arange(0, LANES)
        inside = j <= most // (32 * SPAN)
        own = tl.load(sums_ptr + j, mask=inside, other=0)
        tl.store(sums_ptr + j, total + tl.cumsum(own, 0) - own, mask=inside)
        total += tl.sum(own, 0)
    tl.debug_barrier()

    start -= found
    for at in range(0, found, FEW):
        i = at + tl.arange(0, FEW)
        page = tl.load(found_ptr + i, mask=i < found, other=0)
        word = page // 32
        lower = (tl.full((FEW,), 1, tl.int64) << (page % 32)) - 1
        rank = tl.load(sums_ptr + word // SPAN, mask=i < found, other=0)
        for n in tl.static_range(SPAN):
            other = word // SPAN * SPAN + n
            mark = tl.load(marks_ptr + other, mask=(i < found) & (other <= word), other=0)
            rank += ones(tl.where(other == word, mark & lower, mark)).to(tl.int32)
        place = start + rank
        tl.store(pages_ptr + place, page, mask=(i < found) & (place > 0) & (place < capacity))
    tl.debug_barrier()

    for at in range(0, found, FEW):
        i = at + tl.arange(0, FEW)
        page = tl.load(found_ptr + i, mask=i < found, other=0)
        tl.atomic_and(marks_ptr + page // 32, tl.full((FEW,), 0, tl.int64), mask=i < found, sem="relaxed")
    for at in range(0, most // (32 * SPAN) + 1, LANES):
        j = at + tl.arange(0, LANES)
        tl.store(sums_ptr + j, tl.full((LANES,), 0, tl.int32), mask=j <= most // (32 * SPAN))
    return start
