"""Which slots do growing requests get, in Triton? One kernel each for extend and decode, a lane a new token.

No tile grows with the batch, and no argument but TILE is specialised on its value or alignment (that is what
`do_not_specialize` is for), so a kernel is compiled once for the dtypes of its tensors.
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl

TILE = 512


@triton.jit(do_not_specialize=list(range(9)))
def extend_kernel(
    prefix_ptr,
    last_loc_ptr,
    token_start_ptr,
    page_start_ptr,
    free_ptr,
    out_ptr,
    bs,
    total,
    page_size,
    TILE: tl.constexpr,
):
    """Slot of output token t: inside its request's last page, or in a page of the free list."""
    t = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    live = t < total

    # Request i is the last one whose tokens start at or before t; it is one of i .. i + n - 1.
    i = tl.full((TILE,), 0, tl.int64)
    n = bs
    while n > 1:
        half = n // 2
        start = tl.load(token_start_ptr + i + half, mask=live, other=0)
        i = tl.where(start <= t, i + half, i)
        n = n - half

    prefix = tl.load(prefix_ptr + i, mask=live, other=0).to(tl.int64)
    k = t - tl.load(token_start_ptr + i, mask=live, other=0)
    pos = prefix + k
    held = (prefix + page_size - 1) // page_size
    inside = pos < held * page_size

    last_loc = tl.load(last_loc_ptr + i, mask=live & inside, other=0).to(tl.int64)
    page_start = tl.load(page_start_ptr + i, mask=live, other=0)
    index = page_start + pos // page_size - held
    page = tl.load(free_ptr + index, mask=live & ~inside, other=0).to(tl.int64)
    slot = tl.where(inside, last_loc + 1 + k, page * page_size + pos % page_size)
    tl.store(out_ptr + t, slot, mask=live)  # narrows to the dtype of out


@triton.jit(do_not_specialize=list(range(7)))
def decode_kernel(
    seq_ptr,
    last_loc_ptr,
    page_start_ptr,
    free_ptr,
    out_ptr,
    bs,
    page_size,
    TILE: tl.constexpr,
):
    """Slot of request i's next token: after its last one, or the first of a page of the free list."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    live = i < bs
    pos = tl.load(seq_ptr + i, mask=live, other=1).to(tl.int64) - 1
    inside = pos % page_size != 0

    last_loc = tl.load(last_loc_ptr + i, mask=live & inside, other=0).to(tl.int64)
    index = tl.load(page_start_ptr + i, mask=live, other=0)
    page = tl.load(free_ptr + index, mask=live & ~inside, other=0).to(tl.int64)
    slot = tl.where(inside, last_loc + 1, page * page_size)
    tl.store(out_ptr + i, slot, mask=live)  # narrows to the dtype of out


class TritonEngine:
    """The index engine (`impl.paged.IndexEngine`) on the GPU, or anywhere under TRITON_INTERPRET=1.

    Programs can't wait for one another: torch sums up beforehand where each request's tokens and pages start.
    extend, decode: the kernels to launch; tile: lanes of a program, given those of the launch.
    """

    def __init__(
        self,
        extend: Any = extend_kernel,
        decode: Any = decode_kernel,
        tile: Callable[[int], int] = lambda lanes: TILE,
    ) -> None:
        self._extend, self._decode, self._tile = extend, decode, tile

    def extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write the new slots of all requests to `out`, request after request, token after token."""
        total = out.numel()
        if total == 0:
            return
        prefix, seq = prefix_lens.long(), seq_lens.long()
        lens = seq - prefix
        new_pages = (seq + (page_size - 1)) // page_size - (prefix + (page_size - 1)) // page_size
        tile = self._tile(total)
        with _current(out.device):
            self._extend[(triton.cdiv(total, tile),)](
                prefix.contiguous(),
                last_loc.contiguous(),
                _starts(lens),
                _starts(new_pages),
                free_pages.contiguous(),
                out,
                prefix.numel(),
                total,
                page_size,
                TILE=tile,
            )

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write each request's slot for token `seq_len - 1` to `out`."""
        bs = out.numel()
        if bs == 0:
            return
        new_page = (seq_lens.long() - 1) % page_size == 0
        tile = self._tile(bs)
        with _current(out.device):
            self._decode[(triton.cdiv(bs, tile),)](
                seq_lens.contiguous(),
                last_loc.contiguous(),
                _starts(new_page.long()),
                free_pages.contiguous(),
                out,
                bs,
                page_size,
                TILE=tile,
            )


def _starts(counts: torch.Tensor) -> torch.Tensor:
    """Exclusive prefix sums, contiguous."""
    return torch.cumsum(counts, 0) - counts


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
