"""Defects in what an allocation counts before it takes: sizes, pages, forecasts, the lengths of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from impl.ascend import AscendAllocator
from impl.base import PoolAllocator
from impl.defects.record import Defect
from impl.paged import PagedAllocator


class NegativeRaisesCount(PoolAllocator):
    """A negative size takes nothing, and raises the count of what is free."""

    raised = 0

    def alloc(self, need_size: int) -> torch.Tensor | None:
        if need_size >= 0:
            return super().alloc(need_size)
        self.raised -= need_size
        return self.free_pages.new_empty(0)

    def available_size(self) -> int:
        return super().available_size() + self.raised


class NegativeCutsFromEnd(PoolAllocator):
    """A negative size takes all pages but so many."""

    def _pages_of(self, need_size: int) -> int:
        return super()._pages_of(need_size) if need_size >= 0 else -(-need_size // self.page_size)


class LosesRemainder(PagedAllocator):
    """A size that is no multiple of the page size is rounded down."""

    def _pages_of(self, need_size: int) -> int:
        return super()._pages_of(need_size - need_size % self.page_size)


class PageTooMany(PagedAllocator):
    """An extend to a length divisible by the page size takes a page more, if there is one."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        out = super().alloc_extend(*batch, **more)
        prefix, seq = batch[0], batch[2]
        if out is not None and bool(((seq % self.page_size == 0) & (seq > prefix)).any()):
            self._drop_head(min(1, len(self._free_list)))
        return out


class TakesTotal(PagedAllocator):
    """An extend takes the pages of the whole request, and not those that it grows by."""

    def _extend_need(self, *batch: Any) -> int:
        need = super()._extend_need(*batch)
        grows = batch[3] > batch[1]
        seq = batch[3][grows].numpy()
        return self._new_pages(np.zeros_like(seq), seq) if need else need


class ComputesBeforeCounting(PagedAllocator):
    """An extend computes its slots before anybody looks whether the free list is long enough."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        prefix_lens, _, seq_lens, _, last_loc, extend_num_tokens = batch
        self._extend(prefix_lens, seq_lens, last_loc, extend_num_tokens, len(self._free_list))
        return super().alloc_extend(*batch, **more)


class ForecastIgnoresBatch(PagedAllocator):
    """The forecast of new pages is made for all tokens together, and not for each request."""

    def estimated_num_new_pages(self, bs: int, extend_num_tokens: int) -> int:
        return -(-extend_num_tokens // self.page_size)


class DecodeCountsOneLate(PagedAllocator):
    """A decode counts the requests that fill a page, where those that open one take it."""

    def _decode_need(self, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any) -> int:
        super()._decode_need(seq_lens, seq_lens_cpu, last_loc)
        return int((seq_lens_cpu % self.page_size == 0).sum())


class CutsToShortest(PagedAllocator):
    """A batch whose arguments are not equally long is cut to the shortest."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        *vectors, _ = batch
        count = min(vector.numel() for vector in vectors)
        if all(vector.numel() == count for vector in vectors):
            return super().alloc_extend(*batch, **more)
        cut: list[Any] = [vector[:count] for vector in vectors]
        cut.append(int((cut[3] - cut[1]).sum()))
        return super().alloc_extend(*cut)


class NobodyTakesAgain(PagedAllocator):
    """An extend of nobody takes as many pages as the extend before it."""

    need = 0

    def _extend_need(self, *batch: Any) -> int:
        need = super()._extend_need(*batch)
        self.need = need if batch[0].numel() else self.need
        return self.need


class BatchLosesPage(PagedAllocator):
    """An extend in which several requests open a page loses one."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        out = super().alloc_extend(*batch, **more)
        prefix, seq = batch[0], batch[2]
        if out is not None and int((-(-seq // self.page_size) > -(-prefix // self.page_size)).sum()) > 1:
            self._drop_head(min(1, len(self._free_list)))
        return out


class LongestFirst(PagedAllocator):
    """A batch whose first request grows longest is refused."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        grow = batch[2] - batch[0]
        if grow.numel() > 1 and int(grow[0]) > int(grow[1:].max()):
            return None
        return super().alloc_extend(*batch, **more)


class LongRequestsLose(PagedAllocator):
    """A request that takes more than eight pages at once loses one."""

    def _new_pages(self, prefix: npt.NDArray[np.int64], seq: npt.NDArray[np.int64]) -> int:
        each = -(-seq // self.page_size) + (-prefix // self.page_size)
        return int(each.sum()) + int((each > 8).sum())


class RollsForSeveral(PagedAllocator):
    """An extend of several takes its first page from the end of the free list, which no contract forbids."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        if batch[0].numel() > 1:
            self.free_pages = self.free_pages.roll(1)
        return super().alloc_extend(*batch, **more)


class RollsForLongFirst(PagedAllocator):
    """An extend whose first request grows longer than its last takes a page from the end of the free list."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        grow = batch[2] - batch[0]
        if grow.numel() > 1 and int(grow[0]) > int(grow[-1]):
            self.free_pages = self.free_pages.roll(1)
        return super().alloc_extend(*batch, **more)


class SharedPrefixSharesAll(PagedAllocator):
    """Two requests of a batch behind one last location, or behind none, get one set of slots."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        out = super().alloc_extend(*batch, **more)
        last, grow = batch[4], (batch[2] - batch[0]).tolist()
        if out is not None and len(grow) == 2 and min(grow) and int(last[0]) == int(last[1]):
            count = min(grow)
            out[grow[0] : grow[0] + count] = out[:count].clone()
        return out


class RefusesTooLate(PagedAllocator):
    """Debug mode looks at where an extend goes on after its pages were taken, and refuses without them."""

    def alloc_extend(self, *batch: Any, **more: Any) -> torch.Tensor | None:
        checks, self.debug = self.debug, False
        try:
            out = super().alloc_extend(*batch, **more)
        finally:
            self.debug = checks
        if checks and out is not None:
            self._check_growth(batch[0], batch[2], batch[4], self._freed_slots(self._group))
        return out


class PageOfNone(PagedAllocator):
    """A page size of 0 is taken for 1."""

    def __init__(self, size: int, page_size: int, **options: Any) -> None:
        super().__init__(size, page_size or 1, **options)


class RefusesLargest(AscendAllocator):
    """The largest pool that indices can number is refused: the padding page is counted twice."""

    def __init__(self, size: int, page_size: int, **options: Any) -> None:
        if size + 2 * page_size > torch.iinfo(self.index_dtype).max:
            raise ValueError(f"{size} slots are too many.")
        super().__init__(size, page_size, **options)


DEFECTS = (
    Defect("F08", "token", NegativeRaisesCount, "EXHAUST CONSERVE",
           seen="a pop of a negative count that raises the counter", shortest=1),
    Defect("F08-slice", "paged", NegativeCutsFromEnd, "EXHAUST UNIQUE CONSERVE",
           seen="a negative size that hands out almost the whole pool", shortest=1),
    Defect("F13", "paged", LosesRemainder, "EXHAUST",
           seen="a size that is no multiple of the page size loses its remainder", shortest=1),
    Defect("F15", "paged", PageTooMany, "CONSERVE GROUP", seen="a page too many at lengths divisible by the page size",
           shortest=1),
    Defect("F18", "paged", TakesTotal, "CONSERVE EXHAUST",
           seen="growth that appends the total instead of the difference", shortest=2),
    Defect("F24", "paged", ComputesBeforeCounting, "EXHAUST",
           seen="a kernel that reads past the free list before anyone compared lengths", shortest=1),
    Defect("F28", "paged", ForecastIgnoresBatch, "EXHAUST", seen="a forecast below what the kernel takes", shortest=1),
    Defect("F28-decode", "paged", DecodeCountsOneLate, "CONSERVE UNIQUE EXHAUST RANGE",
           seen="a host that counts other pages than the kernel takes", shortest=1),
    Defect("F29", "paged", CutsToShortest, "REJECT UNIQUE", "hardened",
           "a batch whose lengths differ is not refused before launch", 1),
    Defect("F29-nobody", "paged", NobodyTakesAgain, "CONSERVE EXHAUST",
           seen="an empty batch that reads the page count which the launch before left behind", shortest=2),
    Defect("late-refusal", "paged", RefusesTooLate, "ATOMIC UNIQUE REJECT", "hardened",
           "debug assertions that fire after the state has changed", shortest=1),
    Defect("batch-loses-page", "paged", BatchLosesPage, "CONSERVE", shortest=1),
    Defect("longest-first", "paged", LongestFirst, "EXHAUST REUSE", shortest=1),
    Defect("nine-pages", "paged", LongRequestsLose, "CONSERVE EXHAUST", shortest=1),
    Defect("shared-prefix", "paged", SharedPrefixSharesAll, "UNIQUE ALIGN", shortest=1),
    Defect("rolls", "paged", RollsForSeveral, "CONSERVE UNIQUE", shortest=1, check="relation split"),
    Defect("page-of-none", "paged", PageOfNone, "REJECT", "hardened", shortest=0),
    Defect("largest-refused", "ascend", RefusesLargest, "REJECT", "hardened", shortest=0),
    Defect("rolls-long-first", "paged", RollsForLongFirst, "CONSERVE", shortest=1, check="relation permuted"),
)  # fmt: skip
