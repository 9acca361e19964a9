"""Defects of two pools that are to stay in step, and of the mapping between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from impl.base import Freed
from impl.defects.record import Defect
from impl.swa import SwaAllocator, SwaState


class AllocKeepsFullHalf(SwaAllocator):
    """An alloc takes the full pool's pages before the window's pool is asked, and keeps them."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        first = full.alloc(need_size)
        second = None if first is None else swa.alloc(need_size)
        return None if first is None or second is None else self._mapped(first, second)


class DecodeKeepsWindowHalf(SwaAllocator):
    """A decode that the full pool has no room for keeps the window's pages."""

    def alloc_decode(self, *batch: Any) -> torch.Tensor | None:
        out = super().alloc_decode(*batch)
        if out is None and self._paged is not None:
            full, swa = self._paged
            need = full._decode_need(*batch)
            swa._drop_head(need if swa._fits(need) else 0)
        return out


class AsksFullPoolAlone(SwaAllocator):
    """Whether something fits is asked of the full pool alone."""

    def _fits(self, pages: int) -> bool:
        return self.full_attn_allocator._fits(pages)


class CountsFullPoolAlone(SwaAllocator):
    """available_size is the full pool's, and not the smaller one's."""

    def available_size(self) -> int:
        return self.full_available_size()


class KeepsMapping(SwaAllocator):
    """What was freed stays mapped."""

    def _give_back(self, freed: list[Freed]) -> None:
        before = self.full_to_swa_index_mapping.clone()
        super()._give_back(freed)
        self.full_to_swa_index_mapping.copy_(before)


class UnmapsNamedSlots(SwaAllocator):
    """Freeing the window half of some slots of a page leaves the others mapped."""

    def _give_back(self, freed: list[Freed]) -> None:
        left = self.full_to_swa_index_mapping.clone()
        for entry in freed:
            left[entry.slots.long()] = 0
        super()._give_back(freed)
        self.full_to_swa_index_mapping.copy_(left)


class FreesMissingHalf(SwaAllocator):
    """A free after free_swa gives back a window half that is not there: the padding page."""

    def _give_back(self, freed: list[Freed]) -> None:
        slots = torch.cat([entry.slots.long() for entry in freed])
        window = self.full_to_swa_index_mapping[slots]
        super()._give_back(freed)
        if bool((window == 0).any()):
            pool = self.swa_attn_allocator
            if pool.need_sort:
                pool.release_pages = torch.cat((pool.release_pages.new_zeros(1), pool.release_pages))
            else:
                pool.free_pages = torch.cat((pool.free_pages.new_zeros(1), pool.free_pages))


class HalfTwiceInGroup(SwaAllocator):
    """A window half that two frees of one group name comes back twice."""

    def _give_back(self, freed: list[Freed]) -> None:
        halves = [self.full_to_swa_index_mapping[entry.slots.long()] // self.page_size for entry in freed]
        pages, counts = torch.unique(torch.cat([torch.unique(half) for half in halves]), return_counts=True)
        super()._give_back(freed)
        again = pages[(counts > 1) & (pages > 0)]
        if again.numel():
            self.swa_attn_allocator._put(again * self.page_size)


class HalfAtOnceInGroup(SwaAllocator):
    """free_swa inside a group does not wait for its end."""

    def _free(self, slots: torch.Tensor, *, full: bool) -> None:
        group = self._group
        if not full:
            self._group = None
        try:
            super()._free(slots, full=full)
        finally:
            self._group = group


class SnapshotMakesFreesWhole(SwaAllocator):
    """A snapshot of an open group forgets which of its frees were of the window half alone."""

    def backup_state(self) -> SwaState:
        state = super().backup_state()
        group = None if state.group is None else tuple(Freed(entry.slots) for entry in state.group)
        return replace(state, group=group)


class RestoreForgetsMapping(SwaAllocator):
    """The mapping is no part of a snapshot."""

    def restore_state(self, state: object) -> None:
        kept = self.full_to_swa_index_mapping.clone()
        super().restore_state(state)
        self.full_to_swa_index_mapping.copy_(kept)


class RestoreForgetsWindow(SwaAllocator):
    """The window's pool is no part of a snapshot."""

    def restore_state(self, state: object) -> None:
        kept = self.swa_attn_allocator.backup_state()
        super().restore_state(state)
        self.swa_attn_allocator.restore_state(kept)


class ClearForgetsWindow(SwaAllocator):
    """Clear forgets the window's pool."""

    def clear(self) -> None:
        kept = self.swa_attn_allocator.backup_state() if hasattr(self, "_group") else None
        super().clear()
        if kept is not None:
            self.swa_attn_allocator.restore_state(kept)


class MergesFullPoolAlone(SwaAllocator):
    """A merge leaves the window's pool as it is."""

    def merge_and_sort_free(self) -> None:
        self.full_attn_allocator.merge_and_sort_free()


class LastLocOfFullPool(SwaAllocator):
    """The window grows from the last location in the full pool."""

    def _swa_last_loc(self, prefix_lens: Any, seq_lens: Any, last_loc: torch.Tensor) -> torch.Tensor:
        return last_loc


class GrowsWithoutHalf(SwaAllocator):
    """Debug mode lets a request grow inside a page whose window half was given up."""

    def _check_window(self, inside: torch.Tensor) -> None:
        pass


class NoTokenMapsToPadding(SwaAllocator):
    """Where a request has no last token, it is translated to the padding slot."""

    def clear(self) -> None:
        super().clear()
        self.full_to_swa_index_mapping[-1] = 0


class RestoreMakesMapping(SwaAllocator):
    """A restore makes a new mapping, and the KV cache keeps the old one."""

    def restore_state(self, state: object) -> None:
        self.full_to_swa_index_mapping = self.full_to_swa_index_mapping.clone()
        super().restore_state(state)


class TranslatesToInt64(SwaAllocator):
    """Translated locations are int64, where int32 is promised."""

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        return super().translate_loc_from_full_to_swa(kv_indices).long()


DEFECTS = (
    Defect("F17", "swa", AllocKeepsFullHalf, "ATOMIC CONSERVE",
           seen="an allocation over two resources that keeps the first when the second fails", shortest=1),
    Defect("F17-decode", "swa", DecodeKeepsWindowHalf, "ATOMIC", seen="an allocation over two resources that keeps the second when the first fails", shortest=1),
    Defect("F22", "swa", KeepsMapping, "MAP UNIQUE CONSERVE GROUP RANGE", seen="a stale mapping that frees another's slot",
           shortest=2, page_sizes=(1,)),
    Defect("F23", "swa", UnmapsNamedSlots, "MAP UNIQUE CONSERVE GROUP",
           seen="freeing the SWA part of one token of a page leaves entries of the others", shortest=2),
    Defect("F40-mapping", "swa", RestoreForgetsMapping, "MAP CONSERVE UNIQUE",
           seen="a restore that forgets the mapping", shortest=4),
    Defect("F40-window", "swa", RestoreForgetsWindow, "RESTORE CONSERVE", seen="a restore that forgets a sub-pool",
           page_sizes=(1,), shortest=3),
    Defect("window-fit", "swa", AsksFullPoolAlone, "EXHAUST ATOMIC UNIQUE MAP CONSERVE", shortest=1),
    Defect("window-count", "swa", CountsFullPoolAlone, "CONSERVE CLEAR", shortest=0),
    Defect("window-padding", "swa", FreesMissingHalf, "RANGE CONSERVE GROUP", page_sizes=(1,), shortest=2),
    Defect("half-twice", "swa", HalfTwiceInGroup, "GROUP CONSERVE UNIQUE", shortest=4),
    Defect("half-at-once", "swa", HalfAtOnceInGroup, "GROUP", seen="free_swa that takes effect at once inside a group",
           shortest=3),
    Defect("half-in-snapshot", "swa", SnapshotMakesFreesWhole, "GROUP CONSERVE UNIQUE RESTORE", shortest=5),
    Defect("window-clear", "swa", ClearForgetsWindow, "CLEAR CONSERVE", shortest=2),
    Defect("window-merge", "swa", MergesFullPoolAlone, "ORDER", "parity", need_sort=(True,), shortest=3),
    Defect("window-last-loc", "swa", LastLocOfFullPool, "MAP EXHAUST CONSERVE", page_sizes=(2, 3, 4, 8, 16, 64), shortest=4),
    Defect("window-gone", "swa", GrowsWithoutHalf, "REJECT MAP CONSERVE UNIQUE", "hardened",
           page_sizes=(2, 3, 4, 8, 16, 64), shortest=3),
    Defect("no-token", "swa", NoTokenMapsToPadding, "MAP", shortest=0),
    Defect("translated-type", "swa", TranslatesToInt64, "MAP", shortest=0),
    Defect("other-mapping", "swa", RestoreMakesMapping, "MAP", shortest=2),
)  # fmt: skip
