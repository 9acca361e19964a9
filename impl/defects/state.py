"""Defects of what outlives an operation: snapshots, clear, answers that share memory, dtypes, CPU copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from impl.base import Freed, PoolAllocator, PoolState
from impl.defects.record import Defect
from impl.paged import PagedAllocator
from impl.pages import PageList


class RestoreForgetsReleased(PoolAllocator):
    """The release list is no part of a snapshot."""

    def restore_state(self, state: object) -> None:
        kept = self.release_pages
        super().restore_state(state)
        self.release_pages = kept


class RestoreForgetsGroup(PoolAllocator):
    """The open group is no part of a snapshot."""

    def restore_state(self, state: object) -> None:
        kept = self._group
        super().restore_state(state)
        self._group = kept


class SnapshotSharesGroup(PoolAllocator):
    """A snapshot of an open group goes on collecting with it."""

    def backup_state(self) -> PoolState:
        return replace(super().backup_state(), group=cast("tuple[Freed, ...] | None", self._group))


class RestoreSharesGroup(PoolAllocator):
    """After a restore the snapshot's group goes on collecting, which the next restore shows."""

    def backup_state(self) -> PoolState:
        kept: Any = None if self._group is None else list(self._group)
        return replace(super().backup_state(), group=kept)

    def restore_state(self, state: object) -> None:
        super().restore_state(state)
        self._group = cast("Any", state).group


class OneSnapshot(PoolAllocator):
    """There is one place for snapshots: a restore goes back to the last one."""

    last: PoolState | None = None

    def backup_state(self) -> PoolState:
        self.last = super().backup_state()
        return self.last

    def restore_state(self, state: object) -> None:
        super().restore_state(self.last)


class ClearWritesSnapshot(PoolAllocator):
    """Clear numbers the memory of the free list anew, and a snapshot taken just before is that memory."""

    def clear(self) -> None:
        listed = getattr(self, "free_pages", None)
        super().clear()
        if listed is not None:
            listed.copy_(self.free_pages[: listed.numel()])

    def backup_state(self) -> PoolState:
        return replace(super().backup_state(), free_pages=self.free_pages)


class RestoreInGroupAfterMerge(PoolAllocator):
    """A restore inside a group loses a page, if the lists were merged since the snapshot."""

    merged = False

    def merge_and_sort_free(self) -> None:
        self.merged |= bool(self.release_pages.numel())
        super().merge_and_sort_free()

    def backup_state(self) -> PoolState:
        self.merged = False
        return super().backup_state()

    def restore_state(self, state: object) -> None:
        lost = int(self.merged and self._group is not None)
        super().restore_state(state)
        self._drop_head(min(lost, len(self._free_list)))


class RestoreLosesNewest(PoolAllocator):
    """A restore after a clear inside a group loses what was released when the snapshot was taken."""

    cleared = False

    def clear(self) -> None:
        self.cleared = getattr(self, "_group", None) is not None
        super().clear()

    def restore_state(self, state: object) -> None:
        super().restore_state(state)
        if self.cleared:
            self.release_pages = self.release_pages[:0]


class HiddenTurn(PoolAllocator):
    """How much was ever taken decides where in the list pages come from, which no count shows."""

    turn = 0

    def _take(self, pages: int) -> torch.Tensor:
        self.free_pages = self.free_pages.roll(self.turn)
        self.turn += 1
        return super()._take(pages)


class AnswerIsView(PoolAllocator):
    """An answer is a view of the list, and a snapshot is that list."""

    def _take(self, pages: int) -> torch.Tensor:
        taken: torch.Tensor = self.free_pages[:pages]
        self._drop_head(pages)
        return taken

    def backup_state(self) -> PoolState:
        shared = super().backup_state()
        return replace(shared, free_pages=self.free_pages, release_pages=self.release_pages)


class FreeSharesMemory(PoolAllocator):
    """A free into an empty list keeps the caller's tensor as the list."""

    def _put(self, slots: torch.Tensor) -> None:
        if not self.need_sort and not self.free_pages.numel():
            self._free_list = PageList(slots, 0, slots.numel(), self.num_pages)
        else:
            super()._put(slots)


class Int32Answers(PoolAllocator):
    """Alloc answers in int32 where int64 is promised."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        out = super().alloc(need_size)
        return None if out is None else out.to(torch.int32)


class FreeWidensList(PagedAllocator):
    """A free of int64 slots turns the list of an int32 allocator int64."""

    def _put(self, slots: torch.Tensor) -> None:
        if self.need_sort:
            self.release_pages = self.release_pages.to(slots.dtype)
        else:
            self.free_pages = self.free_pages.to(slots.dtype)
        super()._put(slots)


class AnswersColumn(PagedAllocator):
    """A decode of one answers with a row of its own, in two dimensions."""

    def alloc_decode(self, *batch: Any) -> torch.Tensor | None:
        out = super().alloc_decode(*batch)
        return out[None] if out is not None and out.numel() == 1 else out


class CopiesOtherRows(PoolAllocator):
    """A CPU copy has the row before each slot."""

    def get_cpu_copy(self, indices: torch.Tensor) -> Any:
        return super().get_cpu_copy(indices - 1)


class CopiesOneLayer(PoolAllocator):
    """A copy is loaded with the first layer in the place of all."""

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: torch.Tensor) -> None:
        super().load_cpu_copy([kv_cache_cpu[0]] * len(kv_cache_cpu), indices)


class CopySorts(PoolAllocator):
    """A CPU copy has its rows in the order of their slots, whatever order they were asked for in."""

    def get_cpu_copy(self, indices: torch.Tensor) -> Any:
        return super().get_cpu_copy(indices.sort().values)


DEFECTS = (
    Defect("F36", "token", AnswerIsView, "ALIAS", seen="a returned view that shares memory with the free list", shortest=4),
    Defect("F40-released", "token", RestoreForgetsReleased, "RESTORE CONSERVE UNIQUE",
           seen="a restore that forgets a list", shortest=4, need_sort=(True,)),
    Defect("F40-group", "token", RestoreForgetsGroup, "GROUP CONSERVE RESTORE",
           seen="a restore that forgets the open group", shortest=4),
    Defect("group-in-snapshot", "token", SnapshotSharesGroup, "GROUP CONSERVE UNIQUE RESTORE", shortest=5),
    Defect("group-of-snapshot", "token", RestoreSharesGroup, "GROUP CONSERVE UNIQUE RESTORE", shortest=6),
    Defect("one-snapshot", "paged", OneSnapshot, "CONSERVE RESTORE GROUP UNIQUE", shortest=4),
    Defect("clear-after-backup", "paged", ClearWritesSnapshot, "RESTORE UNIQUE CONSERVE", shortest=4),
    Defect("restore-in-group", "token", RestoreInGroupAfterMerge, "RESTORE CONSERVE", shortest=6, need_sort=(True,)),
    Defect("restore-after-clear", "paged", RestoreLosesNewest, "RESTORE CONSERVE", shortest=6, need_sort=(True,)),
    Defect("hidden-turn", "token", HiddenTurn, "RESTORE CLEAR", shortest=3, check="relation restore", ordered=False),
    Defect("adopted-list", "token", FreeSharesMemory, "ALIAS", shortest=1),
    Defect("F33", "paged", Int32Answers, "TYPE", seen="int32 slot numbers where int64 is promised", shortest=0),
    Defect("F33-list", "ascend", FreeWidensList, "TYPE", seen="one int64 free that turns the list int64", shortest=1),
    Defect("two-dimensions", "paged", AnswersColumn, "TYPE", shortest=1),
    Defect("copy-other-rows", "paged", CopiesOtherRows, "DATA", shortest=3),
    Defect("copy-one-layer", "token", CopiesOneLayer, "DATA", shortest=3),
    Defect("copy-sorts", "token", CopySorts, "DATA", shortest=5),
)  # fmt: skip
