"""Defects of groups: frees that wait for an end, and what may happen meanwhile."""

from __future__ import annotations

import torch

from impl.base import Freed, PoolAllocator
from impl.defects.record import Defect
from impl.token import TokenAllocator


class ForgetsWaiting(PoolAllocator):
    """Debug mode does not see that a slot waits for the end of the group already."""

    def _check_once(self, slots: torch.Tensor, pending: torch.Tensor) -> None:
        super()._check_once(slots, pending[:0])


class KeepsTensor(PoolAllocator):
    """A group keeps the caller's tensor, and no copy."""

    def _free(self, slots: torch.Tensor, *, full: bool) -> None:
        if self._group is not None and slots.numel():
            self._group.append(Freed(slots, full))
        else:
            super()._free(slots, full=full)


class EndsAgain(PoolAllocator):
    """The end of a group does not forget what it gave back, and a second end gives it back again."""

    given: list[Freed] | None = None

    def free_group_begin(self) -> None:
        super().free_group_begin()
        self.given = None

    def free_group_end(self) -> None:
        freed = self._group if self._group is not None else self.given
        if freed:
            self._give_back(freed)
        self.given, self._group = freed, None


class BeginsAnew(PoolAllocator):
    """A begin inside a group throws away what was collected."""

    def free_group_begin(self) -> None:
        self._group = []


class ClearKeepsGroup(PoolAllocator):
    """Clear leaves the group open, with what it holds."""

    def clear(self) -> None:
        kept = getattr(self, "_group", None)
        super().clear()
        self._group = kept


class ClearKeepsEmptyGroup(PoolAllocator):
    """Clear leaves a group open that holds nothing yet."""

    def clear(self) -> None:
        kept = getattr(self, "_group", None)
        super().clear()
        self._group = None if kept else kept


class NeverEndsEmpty(PoolAllocator):
    """A group that nothing was freed in does not end."""

    def free_group_end(self) -> None:
        if self._group:
            super().free_group_end()


class CountsWaiting(PoolAllocator):
    """What waits for the end of a group counts as available."""

    def available_size(self) -> int:
        return super().available_size() + sum(entry.slots.numel() for entry in self._group or ())


class MergeEndsWaiting(PoolAllocator):
    """A merge takes what waits for the end of the group with it."""

    def merge_and_sort_free(self) -> None:
        if self._group:
            self._give_back(self._group)
            self._group = []
        super().merge_and_sort_free()


class CollectsBeforeLooking(PoolAllocator):
    """In a group debug mode refuses a free, and has collected it all the same."""

    def _free(self, slots: torch.Tensor, *, full: bool) -> None:
        try:
            super()._free(slots, full=full)
        except ValueError:
            if self._group is not None:
                self._group.append(Freed(slots.long(), full))
            raise


class HoldsFour(PoolAllocator):
    """A group holds four frees: a fifth pushes the first one out."""

    def _free(self, slots: torch.Tensor, *, full: bool) -> None:
        super()._free(slots, full=full)
        if self._group is not None and len(self._group) > 4:
            self._group.pop(0)


class EndReverses(TokenAllocator):
    """The end of a group lists its pages in another order than a free does."""

    def _put(self, slots: torch.Tensor) -> None:
        super()._put(slots.flip(0) if self._group else slots)


DEFECTS = (
    Defect("F07", "token", ForgetsWaiting, "REJECT UNIQUE CONSERVE GROUP", "hardened",
           "a queue of free blocks that takes a block which is in it", 4),
    Defect("F35", "token", KeepsTensor, "ALIAS", seen="a caller's tensor kept by reference until the group ends",
           shortest=3),
    Defect("F37", "token", EndsAgain, "GROUP", seen="ending a group twice frees again", shortest=5),
    Defect("F38", "paged", BeginsAnew, "GROUP CONSERVE REUSE REJECT",
           seen="a nested begin throws away what was collected", shortest=4),
    Defect("F39", "paged", ClearKeepsGroup, "GROUP CONSERVE", seen="clear inside a group leaves the group open",
           shortest=3),
    Defect("F39-empty", "token", ClearKeepsEmptyGroup, "GROUP CONSERVE", seen="clear inside a group that nothing was freed in",
           shortest=3),
    Defect("F41", "token", CollectsBeforeLooking, "ATOMIC UNIQUE CONSERVE GROUP RANGE", "hardened",
           "an error inside a group that leaves something in it", shortest=2),
    Defect("empty-group", "paged", NeverEndsEmpty, "GROUP CONSERVE REUSE EXHAUST", shortest=2),
    Defect("counts-waiting", "paged", CountsWaiting, "GROUP", shortest=3),
    Defect("merge-in-group", "token", MergeEndsWaiting, "GROUP CONSERVE UNIQUE EXHAUST", shortest=4),
    Defect("four-frees", "token", HoldsFour, "GROUP CONSERVE", shortest=7),
    Defect("group-reverses", "token", EndReverses, "GROUP", shortest=4, check="relation group"),
)  # fmt: skip
