"""Which slots do growing requests get, in Triton? Kernels of one launch, of which no tile grows with the batch.

A kernel is compiled once for the page size, for the dtypes of its tensors and for each width that
`impl.triton_engine` names: no other argument is specialised (that is what `do_not_specialize` is for).
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

# Of one extend: kernels sum up tokens and pages in 32 bits. `impl.proofs` says why this much; what is more goes to the
# torch engine.
MOST_TOKENS = (1 << 31) - (1 << 12)
__all__ = ("MOST_TOKENS", "decode_kernel", "extend_kernel", "shares_kernel", "sums_kernel")


@triton.jit
def _write(
    prefix,
    seq,
    last_loc,
    token_start,
    page_start,
    k0,
    least,
    free_ptr,
    out_ptr,
    PAGE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write a request's new tokens k0 .. k0 + CHUNK - 1, without those before `least`; it is known where they go.

    Lanes count in 32 bits, from the chunk's first token; all that may be larger is one number a program.
    """
    first = prefix + k0.to(tl.int64)  # the position of the chunk's first token
    held = (prefix + PAGE - 1) // PAGE
    begin = tl.maximum(least - k0, 0).to(tl.int32)  # 0 <= least - k0 <= CHUNK where there is something to do
    end = tl.minimum(seq - first, CHUNK).to(tl.int32)
    room = tl.minimum(tl.maximum(held * PAGE - first, 0), CHUNK).to(tl.int32)  # what goes on in the old page
    shift = (first % PAGE).to(tl.int32)
    pages_ptr = free_ptr + (page_start + first // PAGE - held)
    k = tl.arange(0, CHUNK)
    live = (k >= begin) & (k < end)
    offset = shift + k  # from the start of the page that the chunk starts in
    page = tl.load(pages_ptr + offset // PAGE, mask=live & (k >= room), other=0).to(tl.int64)
    slot = tl.where(k < room, last_loc + 1 + k0 + k, page * PAGE + offset % PAGE)
    tl.store(out_ptr + (token_start + k0) + k, slot, mask=live)  # narrows to the dtype of out


@triton.jit
def _growth(prefix_ptr, seq_ptr, i, bs, PAGE: tl.constexpr):
    """Prefixes, new tokens and new pages of requests `i`: none where there is no such request."""
    prefix = tl.load(prefix_ptr + i, mask=i < bs, other=0).to(tl.int64)
    seq = tl.load(seq_ptr + i, mask=i < bs, other=0).to(tl.int64)
    pages = (seq + PAGE - 1) // PAGE - (prefix + PAGE - 1) // PAGE
    return prefix, (seq - prefix).to(tl.int32), pages.to(tl.int32)


@triton.jit(do_not_specialize=list(range(6)))
def extend_kernel(
    prefix_ptr,
    seq_ptr,
    last_loc_ptr,
    free_ptr,
    out_ptr,
    bs,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    ALONE: tl.constexpr,
):
    """Extend at most LANES requests: each program sums up by itself what the requests before its own take.

    Program p < bs writes the first CHUNK tokens of request p. Program bs + n - 1 writes those of output tokens
    n * CHUNK .. (n + 1) * CHUNK - 1 that are left: none, or some of the one request that the first belongs to.
    There are none of these where the programs p < bs are ALONE.
    """
    p = tl.program_id(0)
    i = tl.arange(0, LANES)
    known = i < tl.minimum(p, bs)
    _, lens, pages = _growth(prefix_ptr, seq_ptr, i, tl.minimum(p, bs), PAGE)
    request = p
    if not ALONE:
        if p >= bs:
            ends = tl.cumsum(lens, 0)
            request = tl.sum((known & (ends <= (p - bs + 1) * CHUNK)).to(tl.int32), 0)
    prefix = tl.load(prefix_ptr + request).to(tl.int64)
    seq = tl.load(seq_ptr + request).to(tl.int64)
    last_loc = tl.load(last_loc_ptr + request).to(tl.int64)
    if not ALONE:
        if (p >= bs) & (seq - prefix <= CHUNK):
            return
    token_start = tl.sum(tl.where(i < request, lens, 0), 0)
    page_start = tl.sum(tl.where(i < request, pages, 0), 0)
    least = tl.where(p < bs, 0, CHUNK)
    k0 = tl.where(p < bs, 0, (p - bs + 1) * CHUNK - token_start)
    _write(prefix, seq, last_loc, token_start, page_start, k0, least, free_ptr, out_ptr, PAGE, CHUNK)


@triton.jit(do_not_specialize=list(range(5)))
def sums_kernel(
    prefix_ptr,
    seq_ptr,
    totals_ptr,
    bs,
    blocks,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Program p sums up requests p * LANES .. (p + 1) * LANES - 1: new tokens to totals[p], pages to totals[blocks + p]."""
    p = tl.program_id(0)
    _, lens, pages = _growth(prefix_ptr, seq_ptr, p * LANES + tl.arange(0, LANES), bs, PAGE)
    tl.store(totals_ptr + p, tl.sum(lens, 0))
    tl.store(totals_ptr + blocks + p, tl.sum(pages, 0))


@triton.jit(do_not_specialize=list(range(8)))
def shares_kernel(
    prefix_ptr,
    seq_ptr,
    last_loc_ptr,
    free_ptr,
    totals_ptr,
    out_ptr,
    bs,
    blocks,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    SHARE: tl.constexpr,
):
    """Extend any number of requests: program p writes output tokens p * SHARE .. (p + 1) * SHARE - 1.

    It finds its first block of LANES requests by the sums of all (`sums_kernel`; one block needs none), and its first
    request there, unless they are not more than ROWS. Then it goes on by ROWS requests and WIDE tokens of each. A
    request of many more tokens is written alone: all others beside it would wait for it.
    """
    low = tl.program_id(0) * SHARE
    # The first request that is not passed, and what those before it take: by whole blocks, then in its block.
    request, tokens, pages, seen = low * 0, low * 0, low * 0, low * 0
    for at in range(0, blocks - 1, SUMS):
        block = at + tl.arange(0, SUMS)
        held = tl.load(totals_ptr + block, mask=block < blocks - 1, other=0)
        taken = tl.load(totals_ptr + blocks + block, mask=block < blocks - 1, other=0)
        whole = (block < blocks - 1) & (seen + tl.cumsum(held, 0) <= low)
        request += tl.sum(whole.to(tl.int32), 0) * LANES
        tokens += tl.sum(tl.where(whole, held, 0), 0)
        pages += tl.sum(tl.where(whole, taken, 0), 0)
        seen += tl.sum(held, 0)
    if LANES > ROWS:
        _, lens, new = _growth(prefix_ptr, seq_ptr, request + tl.arange(0, LANES), bs, PAGE)
        passed = tokens + tl.cumsum(lens, 0) <= low
        request += tl.sum(passed.to(tl.int32), 0)
        tokens += tl.sum(tl.where(passed, lens, 0), 0)
        pages += tl.sum(tl.where(passed, new, 0), 0)

    while (tokens < low + SHARE) & (request < bs):
        row = tl.arange(0, ROWS)
        prefix, grow, opened = _growth(prefix_ptr, seq_ptr, request + row, bs, PAGE)
        last_loc = tl.load(last_loc_ptr + request + row, mask=request + row < bs, other=0).to(tl.int64)
        token_start = tokens + tl.cumsum(grow, 0) - grow
        page_start = pages + tl.cumsum(opened, 0) - opened
        begin = tl.maximum(low - token_start, 0)
        end = tl.minimum(grow, low + SHARE - token_start)
        many = tl.min(tl.where(end - begin > ROWS * WIDE // 4, row, ROWS), 0)
        if many > 0:
            end = tl.where(row < many, end, begin)
            for step in range(0, tl.max(end - begin, 0), WIDE):
                k0 = (begin + step)[:, None]
                _write(
                    prefix[:, None], (prefix + end)[:, None], last_loc[:, None], token_start[:, None],
                    page_start[:, None], k0, k0, free_ptr, out_ptr, PAGE, WIDE,
                )  # fmt: skip
        else:
            many = 1
            long_prefix = tl.load(prefix_ptr + request).to(tl.int64)
            long_last = tl.load(last_loc_ptr + request).to(tl.int64)
            first = tl.maximum(low - tokens, 0)
            stop = tl.sum(tl.where(row == 0, end, 0), 0)
            for step in range(0, stop - first, ROWS * WIDE):
                _write(
                    long_prefix, long_prefix + stop, long_last, tokens, pages, first + step, first + step,
                    free_ptr, out_ptr, PAGE, ROWS * WIDE,
                )  # fmt: skip
        tokens += tl.sum(tl.where(row < many, grow, 0), 0)
        pages += tl.sum(tl.where(row < many, opened, 0), 0)
        request += many


@triton.jit(do_not_specialize=list(range(5)))
def decode_kernel(
    seq_ptr,
    last_loc_ptr,
    free_ptr,
    out_ptr,
    bs,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    ALONE: tl.constexpr,
):
    """Slot of each request's next token: after its last one, or the first of a page of the free list.

    LANES requests a program; each sums up by itself how many requests before open a page, unless it is ALONE.
    """
    opened = tl.full((LANES,), 0, tl.int32)
    if not ALONE:
        for at in range(0, tl.program_id(0) * LANES, LANES):
            before = tl.load(seq_ptr + at + tl.arange(0, LANES)).to(tl.int64) - 1
            opened += (before % PAGE == 0).to(tl.int32)

    i = tl.program_id(0) * LANES + tl.arange(0, LANES)
    pos = tl.load(seq_ptr + i, mask=i < bs, other=0).to(tl.int64) - 1
    last_loc = tl.load(last_loc_ptr + i, mask=i < bs, other=0).to(tl.int64)
    opens = (i < bs) & (pos % PAGE == 0)
    index = tl.cumsum(opens.to(tl.int32), 0) - 1
    if not ALONE:
        index += tl.sum(opened, 0)
    page = tl.load(free_ptr + index, mask=opens, other=0).to(tl.int64)
    slot = tl.where(opens, page * PAGE, last_loc + 1)
    tl.store(out_ptr + i, slot, mask=i < bs)  # narrows to the dtype of out
