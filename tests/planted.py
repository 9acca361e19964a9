"""Small faults planted into the project's own allocators and engines, so that checks can be seen to catch them.

Each entry of `PLANTED` is a factory as `impl.factory` wants it, reachable as `tests.planted:name`; engines are
classes, reachable as `tests.planted:Name` in the kernel tier.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from impl.base import Freed, PoolAllocator, PoolState
from impl.factory import factory_subject
from impl.kvpool import SwaKVPool
from impl.paged import PagedAllocator
from impl.subject import LocalSubject, kv_pools, own
from impl.swa import SwaAllocator
from impl.token import TokenAllocator
from impl.torch_engine import TorchEngine
from oracle.ops import Config
from oracle.traits import Traits

BASES: dict[str, type] = {"token": TokenAllocator, "paged": PagedAllocator, "swa": SwaAllocator}


@dataclass(frozen=True)
class Planted:
    """A factory with one fault (or two). codes: what it breaks at `level`; shortest: operations that show it."""

    name: str
    kind: str
    make: Callable[[Config], Any]
    codes: frozenset[str]
    shortest: int
    level: str = "contract"
    page_sizes: tuple[int, ...] = (1, 2, 4)
    claims: Callable[[Config], Traits] | None = None

    @property
    def traits(self) -> Callable[[Config], Traits]:
        return self.claims or own(self.kind).claims

    def __call__(self, config: Config) -> Any:
        return self.make(config)

    @property
    def __name__(self) -> str:
        return self.name

    def subject(self) -> LocalSubject:
        return factory_subject(f"tests.planted:{self.name}", self, "cpu")


def build(kind: str, mixins: tuple[type, ...], config: Config) -> Any:
    """One of the project's own allocators with these classes in front of it."""
    allocator: type[Any] = type("Planted", (*mixins, BASES[kind]), {})
    full, window = kv_pools(config, "cpu")
    common: dict[str, Any] = {"dtype": torch.float32, "device": "cpu", "need_sort": config.need_sort}
    common["debug"] = config.debug
    if kind == "token":
        return allocator(config.size, kvcache=full, **common)
    if kind == "paged":
        return allocator(config.size, config.page_size, kvcache=full, **common)
    cache = SwaKVPool(full, window) if full is not None and window is not None else None
    return allocator(
        config.size, config.swa_pages * config.page_size, config.page_size, kvcache=cache, **common
    )


PLANTED: dict[str, Planted] = {}


def plant(kind: str, codes: str, shortest: int, *mixins: type, name: str = "", **more: Any) -> Planted:
    def make(config: Config) -> Any:
        return build(kind, mixins, config)

    planted = Planted(name, kind, make, frozenset(codes.split()), shortest, **more)
    PLANTED[name] = planted
    return planted


# -- the faults ----------------------------------------------------------------------------------------


class FreeTwice:
    """F12: the first page of a free of several comes back twice."""

    def _returned(self: Any, slots: torch.Tensor) -> torch.Tensor:
        pages = super()._returned(slots)
        return torch.cat((pages, pages[:1])) if pages.numel() > 1 else pages


class SecondEnd:
    """F37: the end of a group forgets to forget what it gave back."""

    def free_group_begin(self: Any) -> None:
        super().free_group_begin()
        self._given = None

    def free_group_end(self: Any) -> None:
        freed = self._group if self._group is not None else getattr(self, "_given", None)
        if freed:
            self._give_back(freed)
        self._given, self._group = freed, None


class KeepsTensor:
    """F35: a group keeps the caller's tensor, not a copy."""

    def _free(self: Any, slots: torch.Tensor, *, full: bool) -> None:
        if self._group is not None and slots.numel():
            self._group.append(Freed(slots, full))
        else:
            super()._free(slots, full=full)


class RestoreForgetsReleased:
    """F40: the release list is no part of a snapshot."""

    def restore_state(self: Any, state: PoolState) -> None:
        kept = self.release_pages
        super().restore_state(state)
        self.release_pages = kept


class RestoreForgetsGroup:
    """F40: the open group is no part of a snapshot."""

    def restore_state(self: Any, state: PoolState) -> None:
        kept = self._group
        super().restore_state(state)
        self._group = kept


class ClearKeepsGroup:
    """F39: clear leaves the group open, with what it holds."""

    def clear(self: Any) -> None:
        kept = getattr(self, "_group", None)
        super().clear()
        self._group = kept


class PageTooMany:
    """F15: an extend to a length divisible by the page size takes a page more, if there is one."""

    def alloc_extend(self: Any, prefix: Any, prefix_cpu: Any, seq: Any, *rest: Any) -> Any:
        out = super().alloc_extend(prefix, prefix_cpu, seq, *rest)
        if out is not None and bool(((seq % self.page_size == 0) & (seq > prefix)).any()):
            self._drop_head(1)
        return out


class ExhaustionRaises:
    """F26: an alloc that does not fit raises."""

    def alloc(self: Any, need_size: int) -> Any:
        out = super().alloc(need_size)
        if out is None:
            raise IndexError("index out of range")
        return out


class AnswerIsView:
    """F36: an answer is a view of the list, and a snapshot is that list."""

    def _take(self: Any, pages: int) -> torch.Tensor:
        taken: torch.Tensor = self.free_pages[:pages]
        self._drop_head(pages)
        return taken

    def backup_state(self: Any) -> PoolState:
        return PoolState(
            self.free_pages, self.release_pages, None if self._group is None else tuple(self._group)
        )


class NoneTakesPages:
    """F17: the full pool's pages are taken before the window's pool is asked."""

    def alloc(self: Any, need_size: int) -> Any:
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        first = full.alloc(need_size)
        second = None if first is None else swa.alloc(need_size)
        return None if second is None else self._mapped(first, second)


class StaleMapping:
    """F22: what was freed stays mapped."""

    def _give_back(self: Any, freed: list[Freed]) -> None:
        before = self.full_to_swa_index_mapping.clone()
        super()._give_back(freed)
        self.full_to_swa_index_mapping.copy_(before)


class CountsPending:
    """What waits for the end of a group counts as available."""

    def available_size(self: Any) -> int:
        waiting = sum(entry.slots.numel() for entry in self._group or ())
        return int(super().available_size()) + waiting


class Int32Answers:
    """F33: int32 where int64 is promised, from alloc alone."""

    def alloc(self: Any, need_size: int) -> Any:
        out = super().alloc(need_size)
        return None if out is None else out.to(torch.int32)


class CopiesOtherRows:
    """A CPU copy has the row before each slot."""

    def get_cpu_copy(self: Any, indices: torch.Tensor) -> Any:
        return super().get_cpu_copy(indices - 1)


class OtherOrder:
    """Freed pages go to the other end of the list: right, but not the order that is claimed."""

    def _join(self: Any, listed: torch.Tensor, returned: torch.Tensor) -> torch.Tensor:
        return super()._join(returned, listed)


class NoDebug:
    """F02: debug mode looks at nothing that is freed."""

    def _check_free(self: Any, slots: torch.Tensor, *, full: bool) -> None:
        pass

    def _check_cover(self: Any, freed: list[Freed]) -> None:
        pass


class HiddenTurn:
    """F40, where no count shows it: how much was ever taken decides where in the list pages come from."""

    turn = 0

    def _take(self: Any, pages: int) -> torch.Tensor:
        self.free_pages = self.free_pages.roll(self.turn)
        self.turn += 1
        return super()._take(pages)


class MergeDoesNotSort:
    """A merge appends what was released and leaves it as it is."""

    def merge_and_sort_free(self: PoolAllocator) -> None:
        self.free_pages = torch.cat((self.free_pages, self.release_pages))
        self.release_pages = self.free_pages.new_empty(0)


class GroupReverses:
    """The end of a group lists its pages in another order than a free does."""

    def _returned(self: Any, slots: torch.Tensor) -> torch.Tensor:
        pages: torch.Tensor = super()._returned(slots)
        return pages.flip(0) if self._group else pages


class BatchLosesPage:
    """F28: a batch of several loses a page when at least two of them open one."""

    def alloc_extend(self: Any, prefix: Any, prefix_cpu: Any, seq: Any, *rest: Any) -> Any:
        out = super().alloc_extend(prefix, prefix_cpu, seq, *rest)
        if out is not None and int((-(-seq // self.page_size) > -(-prefix // self.page_size)).sum()) > 1:
            self._drop_head(1)
        return out


class OrderOfBatch:
    """F25: a batch whose first request grows longest, while the others open pages, is refused."""

    def alloc_extend(self: Any, prefix: Any, prefix_cpu: Any, seq: Any, *rest: Any) -> Any:
        grow = seq - prefix
        if grow.numel() > 1 and int(grow[0]) > int(grow[1:].max()):
            return None
        return super().alloc_extend(prefix, prefix_cpu, seq, *rest)


class RollsForSeveral:
    """A batch of several takes its first page from the end of the free list. Nobody's contract forbids it."""

    def alloc_extend(self: Any, prefix: Any, prefix_cpu: Any, seq: Any, *rest: Any) -> Any:
        if seq.numel() > 1:
            self.free_pages = self.free_pages.roll(1)
        return super().alloc_extend(prefix, prefix_cpu, seq, *rest)


class RollsForLongFirst:
    """The same, where the first request of the batch grows longer than the last."""

    def alloc_extend(self: Any, prefix: Any, prefix_cpu: Any, seq: Any, *rest: Any) -> Any:
        grow = seq - prefix
        if grow.numel() > 1 and int(grow[0]) > int(grow[-1]):
            self.free_pages = self.free_pages.roll(1)
        return super().alloc_extend(prefix, prefix_cpu, seq, *rest)


class SharedPrefixSharesAll:
    """Two requests of a batch behind one last location, or behind none, get one set of slots."""

    def alloc_extend(self: Any, prefix: Any, prefix_cpu: Any, seq: Any, seq_cpu: Any, last: Any, *rest: Any):
        out = super().alloc_extend(prefix, prefix_cpu, seq, seq_cpu, last, *rest)
        grow = (seq - prefix).tolist()
        if out is not None and len(grow) == 2 and min(grow) and int(last[0]) == int(last[1]):
            count = min(grow)
            out[grow[0] : grow[0] + count] = out[:count].clone()
        return out


class FourthFree:
    """A deep one: the fourth free since the last clear loses a page."""

    frees = 0

    def clear(self: Any) -> None:
        self.frees = 0
        super().clear()

    def _put(self: Any, slots: torch.Tensor) -> None:
        self.frees += 1
        super()._put(slots)
        if self.frees == 4 and self.free_pages.numel():
            self._drop_head(1)


class Dies:
    """Its process dies when a whole pool is asked for at once, which only child processes survive."""

    def alloc(self: Any, need_size: int) -> Any:
        if need_size == self.num_pages * self.page_size > self.page_size:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().alloc(need_size)


def loses_order(kind: str) -> Callable[[Config], Traits]:
    """The claims of one of our own, without its exact order."""
    return lambda config: replace(own(kind).claims(config), dialect=None)


# name, kind, codes under which it may show, operations of the shortest case (known by hand), and the classes
# in front. What every case ends with (the group ends, all is freed, the pool is taken) is not counted.
frees_twice = plant("paged", "CONSERVE", 1, FreeTwice, name="frees_twice")
second_end = plant("token", "GROUP", 5, SecondEnd, name="second_end")
keeps_tensor = plant("token", "ALIAS", 3, KeepsTensor, name="keeps_tensor")
restore_forgets_released = plant(
    "token", "RESTORE", 4, RestoreForgetsReleased, name="restore_forgets_released"
)
restore_forgets_group = plant("token", "GROUP CONSERVE", 4, RestoreForgetsGroup, name="restore_forgets_group")
clear_keeps_group = plant("paged", "GROUP CONSERVE", 3, ClearKeepsGroup, name="clear_keeps_group")
page_too_many = plant("paged", "CONSERVE", 1, PageTooMany, name="page_too_many")
exhaustion_raises = plant("paged", "EXHAUST", 1, ExhaustionRaises, name="exhaustion_raises")
answer_is_view = plant("token", "ALIAS", 4, AnswerIsView, name="answer_is_view")
none_takes_pages = plant("swa", "ATOMIC", 1, NoneTakesPages, name="none_takes_pages")
stale_mapping = plant("swa", "MAP", 2, StaleMapping, name="stale_mapping")
counts_pending = plant("paged", "GROUP", 3, CountsPending, name="counts_pending")
int32_answers = plant("paged", "TYPE", 0, Int32Answers, name="int32_answers")
copies_other_rows = plant("paged", "DATA", 3, CopiesOtherRows, name="copies_other_rows")
other_order = plant("token", "ORDER", 1, OtherOrder, name="other_order", level="parity")
no_debug = plant("paged", "REJECT CONSERVE UNIQUE", 1, NoDebug, name="no_debug", level="hardened")

# Seen by the comparison of two runs alone: each run by itself keeps every promise of the contract.
hidden_turn = plant("token", "RESTORE CLEAR", 3, HiddenTurn, name="hidden_turn", claims=loses_order("token"))
merge_does_not_sort = plant("token", "REUSE", 3, MergeDoesNotSort, name="merge_does_not_sort")
group_reverses = plant("token", "GROUP", 4, GroupReverses, name="group_reverses")

# In batches.
batch_loses_page = plant("paged", "CONSERVE", 1, BatchLosesPage, name="batch_loses_page")
rolls_for_several = plant("paged", "CONSERVE UNIQUE", 1, RollsForSeveral, name="rolls_for_several")
rolls_for_long_first = plant("paged", "CONSERVE", 1, RollsForLongFirst, name="rolls_for_long_first")
order_of_batch = plant("paged", "EXHAUST REUSE", 1, OrderOfBatch, name="order_of_batch")
shared_prefix_shares_all = plant(
    "paged", "UNIQUE ALIGN", 1, SharedPrefixSharesAll, name="shared_prefix_shares_all"
)

# For campaigns and processes.
two_faults = plant("paged", "EXHAUST CONSERVE", 1, ExhaustionRaises, FourthFree, name="two_faults")
dies = plant("token", "GUARD", 0, Dies, name="dies", page_sizes=(1,))


def no_claims(config: Config) -> Any:
    """A sound token allocator, whose factory says nothing but its kind."""
    return build("token", (), config)


no_claims.kind = "token"


def raises(config: Config) -> Any:
    """A factory that raises."""
    raise RuntimeError("no pool today")


def no_allocator(config: Config) -> Any:
    """A factory of something else."""
    return object()


# -- engines -------------------------------------------------------------------------------------------


class OffByOne(TorchEngine):
    """One part of an extend (old page, full new pages, last new page) lies one slot too far."""

    part = ""

    def extend(self, prefix_lens, seq_lens, last_loc, free_pages, out, page_size):
        super().extend(prefix_lens, seq_lens, last_loc, free_pages, out, page_size)
        place = 0
        for prefix, seq in zip(prefix_lens.tolist(), seq_lens.tolist(), strict=True):
            for token in range(prefix, seq):
                old = token < -(-prefix // page_size) * page_size
                full = not old and token < seq // page_size * page_size
                if ("old" if old else "full" if full else "last") == self.part:
                    out[place] += 1
                place += 1


class OldPageOffByOne(OffByOne):
    """F01's neighbour: the old page's part lies one slot too far."""

    part = "old"


class FullPagesOffByOne(OffByOne):
    """The full new pages lie one slot too far."""

    part = "full"


class LastPageOffByOne(OffByOne):
    """The last new page lies one slot too far."""

    part = "last"


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


ENGINES: dict[type, str] = {
    OldPageOffByOne: "ALIGN",
    FullPagesOffByOne: "ALIGN",
    LastPageOffByOne: "ALIGN",
    ReadsPastFreeList: "GUARD",
    WritesBeforeOutput: "GUARD",
    LeavesLaneUnwritten: "GUARD",
}
