"""How do two pools stay in step, when layers with a sliding window need their slots for a shorter time?"""

from dataclasses import dataclass
from typing import Any

import torch

from impl.base import BaseAllocator, Freed, PoolAllocator, PoolState, copy_group, refuse
from impl.paged import IndexEngine, PagedAllocator
from impl.token import TokenAllocator


@dataclass(frozen=True)
class SwaState:
    """A snapshot of both pools, the mapping and the group."""

    full: PoolState
    swa: PoolState
    mapping: torch.Tensor
    group: tuple[Freed, ...] | None


class SwaAllocator(BaseAllocator):
    """A full pool and a sliding-window pool: every full slot given out has an SWA slot, until `free_swa`.

    Callers see full slots, in int64. `full_to_swa_index_mapping` (int64, also set on the KV cache) has a row
    for each of them, 0 where there is no SWA slot, and a last row of -1, so that -1 stays -1. Page size 1:
    two Token pools; larger: two Paged pools with extend and decode, whose held pages correspond one to one.
    """

    full_attn_allocator: PoolAllocator
    swa_attn_allocator: PoolAllocator

    def __init__(
        self,
        size: int,
        size_swa: int,
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
        self._paged: tuple[PagedAllocator, PagedAllocator] | None = None
        full_kv = getattr(kvcache, "full_kv_pool", None)
        swa_kv = getattr(kvcache, "swa_kv_pool", None)
        # The pools' own debug checks stay off: they know neither the group nor the mapping.
        if self.page_size == 1:
            self.full_attn_allocator = TokenAllocator(size, dtype, device, full_kv, need_sort, debug=False)
            self.swa_attn_allocator = TokenAllocator(size_swa, dtype, device, swa_kv, need_sort, debug=False)
        else:
            full, swa = self._paged = (
                PagedAllocator(
                    size, page_size, dtype, device, full_kv, need_sort, engine=engine, debug=False
                ),
                PagedAllocator(
                    size_swa, page_size, dtype, device, swa_kv, need_sort, engine=engine, debug=False
                ),
            )
            self.full_attn_allocator, self.swa_attn_allocator = full, swa
        self.size_full = self.size
        self.size_swa = self.swa_attn_allocator.size
        if (self.swa_attn_allocator.num_pages + 1) * self.page_size > torch.iinfo(torch.int32).max:
            raise ValueError(f"{size_swa} SWA slots are more than translated locations, int32, can number.")
        rows = (self.num_pages + 1) * self.page_size + 1
        self.full_to_swa_index_mapping = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self.clear()
        if kvcache is not None:
            kvcache.full_to_swa_index_mapping = self.full_to_swa_index_mapping

    def clear(self) -> None:
        """Both pools as new, no slot mapped, no group open."""
        self.full_attn_allocator.clear()
        self.swa_attn_allocator.clear()
        self.full_to_swa_index_mapping.zero_()[-1] = -1
        self._group = None

    def available_size(self) -> int:
        """Slots that `alloc` could give: the smaller of the two pools'."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """Free and released slots of the full pool."""
        return self.full_attn_allocator.available_size()

    def swa_available_size(self) -> int:
        """Free and released slots of the SWA pool."""
        return self.swa_attn_allocator.available_size()

    def debug_print(self) -> str:
        """What both pools have left, for logs."""
        return (
            f"#full-attn-available-size: {self.full_available_size()}, "
            f"#swa-available-size: {self.swa_available_size()}, "
        )

    def translate_loc_from_full_to_swa(self, kv_indices: torch.Tensor) -> torch.Tensor:
        """The SWA slots (int32, new, same shape) of full slots; 0 where there is none, -1 for -1."""
        return self.full_to_swa_index_mapping[kv_indices].to(torch.int32)

    def merge_and_sort_free(self) -> None:
        """Merge the release list of each pool into its free list."""
        self.full_attn_allocator.merge_and_sort_free()
        self.swa_attn_allocator.merge_and_sort_free()

    def backup_state(self) -> SwaState:
        """Copies of both pools' lists, the mapping and an open group."""
        return SwaState(
            self.full_attn_allocator.backup_state(),
            self.swa_attn_allocator.backup_state(),
            self.full_to_swa_index_mapping.clone(),
            copy_group(self._group),
        )

    def restore_state(self, state: object) -> None:
        """Go back to a snapshot, any number of times. TypeError if it is none of an SWA allocator."""
        if not isinstance(state, SwaState):
            raise TypeError(f"restore_state takes what backup_state gave, not {type(state).__name__}.")
        self.full_attn_allocator.restore_state(state.full)
        self.swa_attn_allocator.restore_state(state.swa)
        self.full_to_swa_index_mapping.copy_(state.mapping)  # in place: the KV cache has this tensor too
        self._group = None if state.group is None else list(state.group)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` full slots, each with an SWA slot behind it.

        None if either pool is short; then neither changes, not even by a merge.
        """
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        pages = full._pages_of(need_size)
        if not self._fits(pages):
            return None
        full._merge_if_short(pages)
        swa._merge_if_short(pages)
        return self._mapped(full._take(pages), swa._take(pages))

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
        """As `PagedAllocator.alloc_extend`, in both pools; full slots go in and out.

        NotImplementedError for page size 1. In debug mode ValueError also for a request that would go on in a
        page whose SWA part is gone.
        """
        full, swa = self._paged_pools("alloc_extend")
        need = full._extend_need(
            prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens, num_new_pages
        )
        if self.debug:
            pending = self._freed_slots(self._group)
            self._check_window(
                full._check_extend(last_loc, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, pending)
            )
        if not self._fits(need):
            return None
        swa_last_loc = self._swa_last_loc(prefix_lens, seq_lens, last_loc)
        demand = self.estimated_num_new_pages(prefix_lens.numel(), extend_num_tokens)
        full._merge_if_short(demand)
        swa._merge_if_short(demand)
        full_slots = full._extend(prefix_lens, seq_lens, last_loc, extend_num_tokens, need)
        swa_slots = swa._extend(prefix_lens, seq_lens, swa_last_loc, extend_num_tokens, need)
        full._drop_head(need)
        swa._drop_head(need)
        return self._mapped(full_slots, swa_slots)

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """As `PagedAllocator.alloc_decode`, in both pools, with the errors of `alloc_extend`."""
        full, swa = self._paged_pools("alloc_decode")
        need = full._decode_need(seq_lens, seq_lens_cpu, last_loc)
        if self.debug:
            pending = self._freed_slots(self._group)
            self._check_window(full._check_decode(last_loc, seq_lens, seq_lens_cpu, pending))
        if not self._fits(need):
            return None
        swa_last_loc = self._swa_last_loc(seq_lens.long() - 1, seq_lens, last_loc)
        full._merge_if_short(seq_lens.numel())
        swa._merge_if_short(seq_lens.numel())
        full_slots = full._decode(seq_lens, last_loc, need)
        swa_slots = swa._decode(seq_lens, swa_last_loc, need)
        full._drop_head(need)
        swa._drop_head(need)
        return self._mapped(full_slots, swa_slots)

    def free_swa(self, free_index: torch.Tensor) -> None:
        """Give up the SWA part of the full slots `free_index` (1-D, integers); inside a group at its end.

        Any token of a page gives up its whole SWA page; what is given up already, and an empty tensor, is a
        no-op. ValueError in debug mode for slots that are not held.
        """
        self._free(free_index, full=False)

    def _paged_pools(self, operation: str) -> tuple[PagedAllocator, PagedAllocator]:
        if self._paged is None:
            raise NotImplementedError(f"{operation} needs a page size above 1: use alloc.")
        return self._paged

    def _fits(self, pages: int) -> bool:
        return self.full_attn_allocator._fits(pages) and self.swa_attn_allocator._fits(pages)

    def _mapped(self, full_slots: torch.Tensor, swa_slots: torch.Tensor) -> torch.Tensor:
        self.full_to_swa_index_mapping[full_slots] = swa_slots
        return full_slots

    def _swa_last_loc(
        self, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor:
        """Where requests go on inside an SWA page; -1 for the others, whose `last_loc` may be dead."""
        inside = (prefix_lens % self.page_size != 0) & (seq_lens > prefix_lens)
        return self.full_to_swa_index_mapping[last_loc.long().masked_fill(~inside, -1)]

    def _give_back(self, freed: list[Freed]) -> None:
        slots = torch.cat([entry.slots.long() for entry in freed])
        swa_slots = self.full_to_swa_index_mapping[slots]
        full_slots = self._freed_slots(freed)
        if full_slots.numel():
            self.full_attn_allocator._put(full_slots)
        window = self.swa_attn_allocator
        # Both leave out 0, which is where the SWA part is gone already.
        if isinstance(window, TokenAllocator):
            window.put_mapped(swa_slots)
        else:
            window._put(swa_slots)
        # Whole pages: a request that was cut back leaves entries of tokens that no free names.
        self.full_to_swa_index_mapping[:-1].view(-1, self.page_size).index_fill_(
            0, slots // self.page_size, 0
        )

    def _check_free(self, slots: torch.Tensor, *, full: bool) -> None:
        self.full_attn_allocator._check_held(slots)
        if full:
            self.full_attn_allocator._check_once(slots, self._freed_slots(self._group))

    def _check_window(self, inside: torch.Tensor) -> None:
        """Debug mode: ValueError where requests go on `inside` a page whose SWA part is gone, or goes."""
        gone = self.full_to_swa_index_mapping[inside] == 0
        refuse(gone, inside, "last_loc in a page whose SWA part is gone")
        if self._group:
            leaving = torch.cat([entry.slots for entry in self._group]) // self.page_size
            refuse(
                torch.isin(inside // self.page_size, leaving),
                inside,
                "last_loc in a page whose SWA part goes with the end of the group",
            )
