"""The design of the seed's kernels, to be timed beside ours: a program a request, and a tile as wide as the whole batch.

Each program sums up all requests up to its own, in one tile, and writes its request in three stores: what is left of
the old page, whole pages, and the beginning of the last page. The tiles for whole pages are as wide as all new tokens
together, rounded up to a power of two, and a kernel is compiled for each such width: a minute and more where it is a
million. The last program also leaves the sums. (`../shared/seeds/003_05b76ef0fde3b11d.txt`; its allocator's `alloc` and
`free` are what releases of SGLang have, and so are the kernels' arguments: `impl.sglang_kernels` launches both.)
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wide_extend_kernel(
    pre_lens_ptr, seq_lens_ptr, last_loc_ptr, free_page_ptr, out_indices, ret_values,
    bs_upper: tl.constexpr, page_size: tl.constexpr, max_num_extend_tokens: tl.constexpr,
):  # fmt: skip
    """Program p writes request p, whatever its length."""
    p = tl.program_id(0)
    i = tl.arange(0, bs_upper)
    prefixes = tl.load(pre_lens_ptr + i, mask=i <= p, other=0)
    seqs = tl.load(seq_lens_ptr + i, mask=i <= p, other=0)
    prefix, seq = tl.load(pre_lens_ptr + p), tl.load(seq_lens_ptr + p)
    held, whole, after = (
        (prefix + page_size - 1) // page_size,
        seq // page_size,
        (seq + page_size - 1) // page_size,
    )
    tokens = tl.sum(seqs - prefixes)
    pages = tl.sum((seqs + page_size - 1) // page_size - (prefixes + page_size - 1) // page_size)
    if p == tl.num_programs(0) - 1:
        tl.store(ret_values, (pages.to(tl.int64) << 32) | tokens.to(tl.int64))
    row, pages_ptr = out_indices + tokens - (seq - prefix), free_page_ptr + pages - (after - held)

    k = tl.arange(0, page_size)
    old = tl.minimum(seq, held * page_size) - prefix
    tl.store(row + k, tl.load(last_loc_ptr + p) + 1 + k, mask=k < old)
    if prefix + old < seq:
        middle = whole * page_size - held * page_size
        n = tl.arange(0, max_num_extend_tokens)
        page = tl.load(pages_ptr + n // page_size, mask=n < middle, other=0)
        tl.store(row + old + n, page * page_size + n % page_size, mask=n < middle)
        if whole < after:
            last = tl.load(pages_ptr + after - held - 1)
            tl.store(row + old + middle + k, last * page_size + k, mask=k < seq - whole * page_size)


@triton.jit
def wide_decode_kernel(
    seq_lens_ptr,
    last_loc_ptr,
    free_page_ptr,
    out_indices,
    ret_values,
    bs_upper: tl.constexpr,
    page_size: tl.constexpr,
):
    """Program p answers for request p."""
    p = tl.program_id(0)
    i = tl.arange(0, bs_upper)
    seqs = tl.load(seq_lens_ptr + i, mask=i <= p, other=0)
    opened = tl.sum(((i <= p) & ((seqs - 1) % page_size == 0)).to(tl.int32))
    if p == tl.num_programs(0) - 1:
        tl.store(ret_values, opened.to(tl.int64))
    if (tl.load(seq_lens_ptr + p) - 1) % page_size == 0:
        tl.store(out_indices + p, tl.load(free_page_ptr + opened - 1) * page_size)
    else:
        tl.store(out_indices + p, tl.load(last_loc_ptr + p) + 1)


KERNELS = {"alloc_extend_kernel": wide_extend_kernel, "alloc_decode_kernel": wide_decode_kernel}
MOST = 1 << 16  # tokens of an extend whose tile compiles in seconds
