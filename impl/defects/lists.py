"""Defects of the two lists of one pool: what goes in, what comes out, and what is counted."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from impl.base import Freed, PoolAllocator
from impl.defects.record import Defect
from impl.paged import PagedAllocator
from impl.token import TokenAllocator


class PlainPages(PagedAllocator):
    """Lists as plain tensors: which pages a free gives back is one method."""

    def _put(self, slots: torch.Tensor) -> None:
        pages = self._returned(slots.long()).to(self.index_dtype)
        if self.need_sort:
            self.release_pages = torch.cat((pages, self.release_pages))
        else:
            self.free_pages = torch.cat((pages, self.free_pages))

    def _returned(self, slots: torch.Tensor) -> torch.Tensor:
        pages: torch.Tensor = torch.unique(slots // self.page_size)
        return pages


class RepeatsFirstPage(PlainPages):
    """The first page of a free of several comes back twice."""

    def _returned(self, slots: torch.Tensor) -> torch.Tensor:
        pages = super()._returned(slots)
        return torch.cat((pages, pages[:1])) if pages.numel() > 1 else pages


class LooksAtFreeListAlone(PoolAllocator):
    """Debug mode looks for what is freed again in the free list, and not in the release list."""

    def _held_pages(self, pending: torch.Tensor) -> torch.Tensor:
        held = super()._held_pages(pending)
        held[self.release_pages.long()] = True
        return held


class MergeRemovesRepeats(LooksAtFreeListAlone):
    """What is freed twice waits twice in the release list, until a merge removes repeats."""

    def merge_and_sort_free(self) -> None:
        super().merge_and_sort_free()
        self.free_pages = torch.unique(self.free_pages)


class LooksAtNothing(PoolAllocator):
    """Debug mode looks at nothing that is freed: padding, foreign slots and repeats all go into the list."""

    def _check_free(self, slots: torch.Tensor, *, full: bool) -> None:
        pass

    def _check_cover(self, freed: list[Freed]) -> None:
        pass


class TakesPartOfPage(PagedAllocator):
    """Debug mode lets a page be freed whose first slots are live."""

    def _check_cover(self, freed: list[Freed]) -> None:
        pass


class RepeatsInOneCall(PoolAllocator):
    """Debug mode does not see that one call names a slot twice."""

    def _check_once(self, slots: torch.Tensor, pending: torch.Tensor) -> None:
        super()._check_once(torch.unique(slots), pending)


class DropsTail(PoolAllocator):
    """Pages are taken from the head of the free list and dropped from its tail."""

    def _drop_head(self, pages: int) -> None:
        self.free_pages = self.free_pages[: max(self.free_pages.numel() - pages, 0)]


class FreesCallByCall(PagedAllocator):
    """A group frees call by call, so that a page which two calls share comes back twice."""

    def _give_back(self, freed: list[Freed]) -> None:
        for entry in freed:
            super()._give_back([entry])


class MergesNeighboursAlone(PlainPages):
    """Of one free, slots of a page count as one only where they lie side by side."""

    def _returned(self, slots: torch.Tensor) -> torch.Tensor:
        pages: torch.Tensor = torch.unique_consecutive(slots // self.page_size)
        return pages


class CountsSlots(PoolAllocator):
    """A counter beside the lists counts freed slots, and not the pages that they touch."""

    count = 0

    def clear(self) -> None:
        super().clear()
        self.count = self.num_pages

    def restore_state(self, state: object) -> None:
        super().restore_state(state)
        self.count = super().available_size() // self.page_size

    def _drop_head(self, pages: int) -> None:
        super()._drop_head(pages)
        self.count -= pages

    def _put(self, slots: torch.Tensor) -> None:
        super()._put(slots)
        self.count += -(-slots.numel() // self.page_size)

    def available_size(self) -> int:
        return self.count * self.page_size


class RefusesExactFit(PoolAllocator):
    """What takes all that is free does not fit."""

    def _fits(self, pages: int) -> bool:
        return super()._fits(pages + bool(pages))


class RaisesWhenShort(PoolAllocator):
    """An alloc that does not fit raises."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        out = super().alloc(need_size)
        if out is None:
            raise IndexError("index out of range")
        return out


class AsksHead(PoolAllocator):
    """available_size looks at the head of the free list, which an empty one does not have."""

    def available_size(self) -> int:
        self.free_pages[0].item()
        return super().available_size()


class SkipsMergeIntoNothing(PoolAllocator):
    """What was released does not come back while the free list is empty."""

    def merge_and_sort_free(self) -> None:
        if self.free_pages.numel():
            super().merge_and_sort_free()


class MergesOnePageLate(PoolAllocator):
    """An allocation that is one page short of the free list does not merge."""

    def _merge_if_short(self, demand: int) -> None:
        super()._merge_if_short(demand - 1)


class MergeDoesNotSort(PoolAllocator):
    """A merge appends what was released and leaves it as it is."""

    def merge_and_sort_free(self) -> None:
        self.free_pages = torch.cat((self.free_pages, self.release_pages))
        self.release_pages = self.free_pages.new_empty(0)


class OtherEnd(TokenAllocator):
    """Freed pages go to the other end of the list: sound, but not the order that is claimed."""

    def _put(self, slots: torch.Tensor) -> None:
        if self.need_sort:
            self.release_pages = torch.cat((slots, self.release_pages))
        else:
            self.free_pages = torch.cat((slots, self.free_pages))


class ShortTable(PoolAllocator):
    """Debug mode's table of held pages has no row for the highest page."""

    def _held_pages(self, pending: torch.Tensor) -> torch.Tensor:
        return super()._held_pages(pending)[:-1]


class FreeTakesRest(PlainPages):
    """A free while nothing at all is free gives back one page less, if it has two."""

    def _returned(self, slots: torch.Tensor) -> torch.Tensor:
        pages = super()._returned(slots)
        empty = not self.free_pages.numel() + self.release_pages.numel()
        return pages[1:] if empty and pages.numel() == 2 else pages


class Dies(PoolAllocator):
    """Its process dies when a whole pool of several pages is asked for at once."""

    def alloc(self, need_size: int) -> Any:
        if need_size == self.num_pages * self.page_size > self.page_size:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().alloc(need_size)


DEFECTS = (
    Defect("F02", "token", LooksAtFreeListAlone, "REJECT UNIQUE CONSERVE", "hardened",
           "a debug check for double frees that looks at one of two lists", 3, need_sort=(True,)),
    Defect("F03", "paged", LooksAtNothing, "REJECT CONSERVE UNIQUE RANGE", "hardened",
           "free accepts slot 0, repeats and numbers outside the pool", 1),
    Defect("F04", "paged", MergeRemovesRepeats, "REJECT UNIQUE CONSERVE", "hardened",
           "a double free that removing duplicates at a merge hides, in one mode only", 3, need_sort=(True,)),
    Defect("F05", "token", RepeatsInOneCall, "REJECT UNIQUE CONSERVE", "hardened",
           "one slot named twice inside one free is returned twice", 2),
    Defect("F09", "paged", DropsTail, "UNIQUE", seen="counts that balance while one page has two owners", shortest=1),
    Defect("F11", "paged", TakesPartOfPage, "REJECT CONSERVE UNIQUE", "hardened",
           "freeing part of a page gives back all of it, unnoticed", 2),
    Defect("F12", "paged", FreesCallByCall, "GROUP UNIQUE CONSERVE",
           seen="the parts of one page freed in two calls", shortest=3),
    Defect("F16", "paged", MergesNeighboursAlone, "GROUP UNIQUE CONSERVE",
           seen="two frees of one request that meet inside a page", shortest=3),
    Defect("F21", "paged", CountsSlots, "CONSERVE GROUP", seen="a counter beside the list that drifts from it", shortest=1),
    Defect("F24-exact", "paged", RefusesExactFit, "EXHAUST REUSE", seen="an exact fit that is refused", shortest=0),
    Defect("F26", "paged", RaisesWhenShort, "EXHAUST", seen="exhaustion that raises", shortest=1),
    Defect("F27", "token", AsksHead, "EXHAUST CONSERVE", seen="available_size that can't be called under pressure",
           shortest=0),
    Defect("F30", "paged", ShortTable, "CONSERVE GROUP EXHAUST", "hardened",
           "a table sized for another pool than it is indexed for", shortest=1),
    Defect("repeats-page", "paged", RepeatsFirstPage, "CONSERVE UNIQUE GROUP", shortest=1),
    Defect("empty-merge", "token", SkipsMergeIntoNothing, "EXHAUST REUSE", need_sort=(True,), shortest=1),
    Defect("late-merge", "paged", MergesOnePageLate, "EXHAUST REUSE RANGE", need_sort=(True,), shortest=1),
    Defect("last-pages", "paged", FreeTakesRest, "CONSERVE GROUP REUSE", shortest=1),
    Defect("unsorted-merge", "token", MergeDoesNotSort, "REUSE", shortest=3, check="relation refill"),
    Defect("other-end", "token", OtherEnd, "ORDER", "parity", shortest=1),
    Defect("dies", "token", Dies, "GUARD", shortest=0, deadly=True),
)  # fmt: skip
