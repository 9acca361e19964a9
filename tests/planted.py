"""What strangers bring: factories of allocators, sound, faulty and broken, and engines that leave their arguments.

For tests of what takes these in (names, processes, campaigns, reports); known faults are in `impl.defects`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from impl.base import PoolAllocator
from impl.defects.catalogue import CATALOGUE
from impl.defects.groups import EndsAgain
from impl.defects.lists import Dies, RaisesWhenShort, RepeatsFirstPage
from impl.defects.state import CopiesOtherRows, Int32Answers
from impl.subject import own
from impl.torch_engine import TorchEngine
from oracle.ops import Config


class FourthFree(PoolAllocator):
    """A deep one: the fourth free since the last clear loses a page."""

    frees = 0

    def clear(self) -> None:
        self.frees = 0
        super().clear()

    def _put(self, slots: torch.Tensor) -> None:
        self.frees += 1
        super()._put(slots)
        if self.frees == 4 and self.free_pages.numel():
            self._drop_head(1)


def factory(part: str, *before: type) -> Callable[[Config], Any]:
    """A factory, as `impl.factory` wants it, of one of our own with these classes in front."""
    subject = own(part, before=before)

    def make(config: Config) -> Any:
        return subject.make(config).allocator

    make.kind, make.traits = subject.space.kind, subject.claims
    make.__doc__ = before[0].__doc__
    return make


second_end = factory("token", EndsAgain)
frees_twice = factory("paged", RepeatsFirstPage)
exhaustion_raises = factory("paged", RaisesWhenShort)
int32_answers = factory("paged", Int32Answers)
copies_other_rows = factory("paged", CopiesOtherRows)
two_faults = factory("paged", RaisesWhenShort, FourthFree)
dies = factory("token", Dies)


def no_claims(config: Config) -> Any:
    """A sound token allocator, whose factory says nothing but its kind."""
    return own("token").make(config).allocator


no_claims.kind = "token"


def raises(config: Config) -> Any:
    """A factory that raises."""
    raise RuntimeError("no pool today")


def no_allocator(config: Config) -> Any:
    """A factory of something else."""
    return object()


# -- engines -------------------------------------------------------------------------------------------


class ReadsPastFreeList(TorchEngine):
    """F24: where the batch takes all of the free list, its last slot is computed from the row behind."""

    def extend(self, prefix_lens, seq_lens, last_loc, free_pages, out, page_size):
        super().extend(prefix_lens, seq_lens, last_loc, free_pages, out, page_size)
        count = free_pages.numel()
        need = int((-(-seq_lens // page_size) + (-prefix_lens // page_size)).sum())
        if need == count and out.numel():
            behind = torch.as_strided(free_pages, (count + 1,), (1,), free_pages.storage_offset())
            out[-1] = behind[count] * page_size


class WritesBeforeOutput(TorchEngine):
    """F01: one lane is written before the output."""

    def extend(self, prefix_lens, seq_lens, last_loc, free_pages, out, page_size):
        super().extend(prefix_lens, seq_lens, last_loc, free_pages, out, page_size)
        if out.numel():
            torch.as_strided(out, (1,), (1,), out.storage_offset() - 1)[0] = 0


class LeavesLaneUnwritten(TorchEngine):
    """F32: the longest output of a decode is one lane short."""

    def decode(self, seq_lens, last_loc, free_pages, out, page_size):
        whole = out.clone()
        super().decode(seq_lens, last_loc, free_pages, whole, page_size)
        out[:-1] = whole[:-1]


# By name: what makes an engine, and the code that it breaks. An allocator alone sees no zones round arguments.
ENGINES: dict[str, tuple[Callable[[], Any], str]] = {
    **{name: (CATALOGUE[name].fault.engine, "ALIGN") for name in ("old-page", "full-pages", "last-page")},
    **{
        engine.__name__: (engine, "GUARD")
        for engine in (ReadsPastFreeList, WritesBeforeOutput, LeavesLaneUnwritten)
    },
}
