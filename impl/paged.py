"""How do requests grow by whole pages? Paged, over an index engine that computes the slot numbers."""

import importlib.util
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from impl.base import PoolAllocator, check_count, check_vector, refuse
from impl.pages import PageList
from impl.torch_engine import TorchEngine


class IndexEngine(Protocol):
    """Two functions that compute slot numbers on the device.

    All tensors are 1-D and on one device; lengths and locations have an integer dtype, one element a request.
    `out` is contiguous, int32 or int64, and may be a slice of a larger buffer, like every other argument: an
    engine neither reads nor writes an element outside. `free_pages` is long enough: the caller has counted.
    """

    def extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write the slots of tokens `prefix_len..seq_len-1` of all requests to `out`, one after the other.

        Tokens up to the end of `last_loc`'s page follow it; others take pages from the head of `free_pages`.
        """

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Extend from `seq_len - 1` to `seq_len` for every request: one slot each."""


def default_engine(device: str | torch.device) -> IndexEngine:
    """The Triton kernels on CUDA and HIP if Triton is installed, else the torch operators."""
    if torch.device(device).type in ("cuda", "hip") and importlib.util.find_spec("triton"):
        from impl.triton_engine import TritonEngine

        return TritonEngine()
    return TorchEngine()


class PagedAllocator(PoolAllocator):
    """Pages 1..num_pages of `page_size` slots, in int64; what one request is given is aligned to pages.

    `alloc` takes from the head of the free list; `free` puts the sorted distinct pages before the free list,
    or with `need_sort` before the release list. `engine=None` takes `default_engine(device)`.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: Any,
        need_sort: bool,
        *,
        engine: IndexEngine | None = None,
        debug: bool | None = None,
    ) -> None:
        super().__init__(size, page_size, dtype, device, kvcache, need_sort, debug=debug)
        self.engine = self._default_engine(device) if engine is None else engine
        self.clear()

    def _default_engine(self, device: str | torch.device) -> IndexEngine:
        return default_engine(device)

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Slots for tokens `prefix_len..seq_len-1` of each request, as one new tensor of `extend_num_tokens`.

        All tensors are 1-D with one integer a request; the `_cpu` ones mirror the lengths, so that nothing
        waits for the device. `last_loc` is the slot of token `prefix_len - 1`, or -1 modulo the page size.
        None if the new pages do not fit. TypeError or ValueError for wrong dtypes, shapes and devices, for a
        prefix longer than its request, and for counts that the mirrors do not give; in debug mode also for
        lengths that differ from the mirrors, and a `last_loc` that is misaligned or nobody's to go on from.
        """
        need = self._extend_need(
            prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, num_new_pages
        )
        if self.debug:
            pending = self._freed_slots(self._group)
            self._check_extend(last_loc, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, pending)
        self._merge_if_short(self.estimated_num_new_pages(prefix_lens.numel(), extend_num_tokens))
        if not self._fits(need):
            return None
        out = self._extend(prefix_lens, seq_lens, last_loc, extend_num_tokens, need)
        self._drop_head(need)
        return out

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """One slot a request, for token `seq_len - 1`: an extend from `seq_len - 1`, with the same errors."""
        need = self._decode_need(seq_lens, seq_lens_cpu, last_loc)
        if self.debug:
            self._check_decode(last_loc, seq_lens, seq_lens_cpu, self._freed_slots(self._group))
        self._merge_if_short(seq_lens.numel())
        if not self._fits(need):
            return None
        out = self._decode(seq_lens, last_loc, need)
        self._drop_head(need)
        return out

    def _extend_need(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None,
    ) -> int:
        """The new pages of an extend, from the CPU mirrors, after all checks that need no device value."""
        check_vector("prefix_lens", prefix_lens, self._device)
        bs = prefix_lens.numel()
        check_vector("seq_lens", seq_lens, self._device, bs)
        check_vector("last_loc", last_loc, self._device, bs)
        prefix = _mirror("prefix_lens_cpu", prefix_lens_cpu, bs)
        seq = _mirror("seq_lens_cpu", seq_lens_cpu, bs)
        total = check_count("extend_num_tokens", extend_num_tokens)
        grow = seq - prefix
        if np.count_nonzero((prefix | grow) < 0):  # the sign of either
            raise ValueError(
                f"A request needs 0 <= prefix_len <= seq_len, but {prefix} and {seq} were given."
            )
        growth = int(grow.sum())
        if growth != total:
            raise ValueError(f"extend_num_tokens is {total}, but the requests grow by {growth}.")
        need = self._new_pages(prefix, seq)
        if num_new_pages is not None and check_count("num_new_pages", num_new_pages) != need:
            raise ValueError(f"num_new_pages is {num_new_pages}, but the requests need {need}.")
        return need

    def _decode_need(self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor) -> int:
        """The same for a decode."""
        check_vector("seq_lens", seq_lens, self._device)
        bs = seq_lens.numel()
        check_vector("last_loc", last_loc, self._device, bs)
        seq = _mirror("seq_lens_cpu", seq_lens_cpu, bs)
        if np.count_nonzero(seq < 1):
            raise ValueError(f"Each request of a decode needs seq_len >= 1, but {seq} was given.")
        return int(np.count_nonzero(seq % self.page_size == 1 % self.page_size))

    def _new_pages(self, prefix: npt.NDArray[np.int64], seq: npt.NDArray[np.int64]) -> int:
        # -(-n // P) is n / P rounded up.
        return int((-(-seq // self.page_size) + (-prefix // self.page_size)).sum())

    def _extend(
        self, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, last_loc: torch.Tensor, total: int, need: int
    ) -> torch.Tensor:
        """The slots of an extend that fits; the free list stays as it is until `_drop_head`."""
        out = torch.empty(total, dtype=self.index_dtype, device=self._device)
        self.engine.extend(prefix_lens, seq_lens, last_loc, self._free_list.head(need), out, self.page_size)
        return out

    def _decode(self, seq_lens: torch.Tensor, last_loc: torch.Tensor, need: int) -> torch.Tensor:
        out = torch.empty(seq_lens.numel(), dtype=self.index_dtype, device=self._device)
        self.engine.decode(seq_lens, last_loc, self._free_list.head(need), out, self.page_size)
        return out

    def _check_extend(
        self,
        last_loc: torch.Tensor,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        pending: torch.Tensor,
    ) -> torch.Tensor:
        """Debug mode: the `last_loc` of requests that go on inside a page, after all checks of an extend."""
        self._check_mirror("prefix_lens", prefix_lens, prefix_lens_cpu)
        self._check_mirror("seq_lens", seq_lens, seq_lens_cpu)
        return self._check_growth(prefix_lens, seq_lens, last_loc, pending)

    def _check_decode(
        self,
        last_loc: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        pending: torch.Tensor,
    ) -> torch.Tensor:
        """The same for a decode."""
        self._check_mirror("seq_lens", seq_lens, seq_lens_cpu)
        return self._check_growth(seq_lens.long() - 1, seq_lens, last_loc, pending)

    def _check_mirror(self, name: str, lens: torch.Tensor, lens_cpu: torch.Tensor) -> None:
        """Debug mode: ValueError unless lengths on the device equal their mirror."""
        if not torch.equal(lens.cpu().long(), lens_cpu.long()):
            raise ValueError(
                f"{name} is {lens.tolist()} on the device, but {lens_cpu.tolist()} in its mirror."
            )

    def _check_growth(
        self, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, last_loc: torch.Tensor, pending: torch.Tensor
    ) -> torch.Tensor:
        """Debug mode: the `last_loc` of requests that go on inside a page.

        ValueError unless each `last_loc` sits where its prefix ends, and those pages are held and distinct.
        """
        last = last_loc.long()
        refuse((last + 1 - prefix_lens) % self.page_size != 0, last, "last_loc not where its prefix ends")
        inside = last[(prefix_lens % self.page_size != 0) & (seq_lens > prefix_lens)]
        pages = inside // self.page_size
        refuse((pages < 1) | (pages > self.num_pages), inside, "last_loc outside the pool")
        refuse(~self._held_pages(pending)[pages], inside, "last_loc in a page that is free or about to be")
        refuse(pages.bincount()[pages] > 1, inside, "last_loc in a page that two requests of the batch share")
        return inside

    def _list_again(self, slots: torch.Tensor, listed: PageList) -> None:
        # Engines need not have it: extend and decode are what they are for.
        put_before = getattr(self.engine, "put_before", _TORCH.put_before)
        put_before(slots, listed, self.page_size)


_TORCH = TorchEngine()


def _mirror(name: str, lens_cpu: torch.Tensor, length: int) -> npt.NDArray[np.int64]:
    """The lengths that a CPU tensor holds, after its checks."""
    check_vector(name, lens_cpu, torch.device("cpu"), length)
    lens: npt.NDArray[np.int64] = lens_cpu.numpy().astype(np.int64, copy=False)
    return lens
