"""The design of the seed's kernels, to be timed beside ours: a program a request, and a tile as wide as the whole batch.

Each program sums up all requests up to its own, in one tile, and writes its request in three stores: what is left of
the old page, whole pages, and the beginning of the last page. The tiles for whole pages are as wide as all new tokens
together, rounded up to a power of two, and a kernel is compiled for each such width: a minute and more where it is a
million. The last program also leaves the sums. (`../shared/seeds/003_05b76ef0fde3b11d.txt`; its allocator's `alloc` and
`free` are what releases of SGLang have.)
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def wide_extend_kernel(
    prefix_ptr, seq_ptr, last_loc_ptr, free_ptr, out_ptr, sums_ptr,
    REQUESTS: tl.constexpr, PAGE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Program p writes request p, whatever its length."""
    p = tl.program_id(0)
    i = tl.arange(0, REQUESTS)
    prefixes = tl.load(prefix_ptr + i, mask=i <= p, other=0)
    seqs = tl.load(seq_ptr + i, mask=i <= p, other=0)
    prefix, seq = tl.load(prefix_ptr + p), tl.load(seq_ptr + p)
    held, whole, after = (prefix + PAGE - 1) // PAGE, seq // PAGE, (seq + PAGE - 1) // PAGE
    tokens = tl.sum(seqs - prefixes)
    pages = tl.sum((seqs + PAGE - 1) // PAGE - (prefixes + PAGE - 1) // PAGE)
    if p == tl.num_programs(0) - 1:
        tl.store(sums_ptr, (pages.to(tl.int64) << 32) | tokens.to(tl.int64))
    row, pages_ptr = out_ptr + tokens - (seq - prefix), free_ptr + pages - (after - held)

    k = tl.arange(0, PAGE)
    old = tl.minimum(seq, held * PAGE) - prefix
    tl.store(row + k, tl.load(last_loc_ptr + p) + 1 + k, mask=k < old)
    if prefix + old < seq:
        middle = whole * PAGE - held * PAGE
        n = tl.arange(0, TOKENS)
        page = tl.load(pages_ptr + n // PAGE, mask=n < middle, other=0)
        tl.store(row + old + n, page * PAGE + n % PAGE, mask=n < middle)
        if whole < after:
            last = tl.load(pages_ptr + after - held - 1)
            tl.store(row + old + middle + k, last * PAGE + k, mask=k < seq - whole * PAGE)


@triton.jit
def wide_decode_kernel(
    seq_ptr, last_loc_ptr, free_ptr, out_ptr, sums_ptr, REQUESTS: tl.constexpr, PAGE: tl.constexpr
):
    """Program p answers for request p."""
    p = tl.program_id(0)
    i = tl.arange(0, REQUESTS)
    seqs = tl.load(seq_ptr + i, mask=i <= p, other=2)
    opened = tl.sum(((seqs - 1) % PAGE == 0).to(tl.int32))
    if p == tl.num_programs(0) - 1:
        tl.store(sums_ptr, opened.to(tl.int64))
    if (tl.load(seq_ptr + p) - 1) % PAGE == 0:
        tl.store(out_ptr + p, tl.load(free_ptr + opened - 1) * PAGE)
    else:
        tl.store(out_ptr + p, tl.load(last_loc_ptr + p) + 1)


class SeedDesign:
    """An index engine (`impl.paged.IndexEngine`) of that design, for batches whose tile compiles in seconds."""

    most = 1 << 16  # tokens of one batch

    def __init__(self) -> None:
        self._sums = torch.zeros(1, dtype=torch.int64, device="cuda")

    def extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """A program a request."""
        tokens, bs = triton.next_power_of_2(out.numel()), last_loc.numel()
        tensors = (prefix_lens, seq_lens, last_loc, free_pages, out, self._sums)
        wide_extend_kernel[(bs,)](*tensors, triton.next_power_of_2(bs), page_size, tokens)

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """A program a request."""
        bs = last_loc.numel()
        tensors = (seq_lens, last_loc, free_pages, out, self._sums)
        wide_decode_kernel[(bs,)](*tensors, triton.next_power_of_2(bs), page_size)
