"""How are single slots handed out? First in, first out."""

from typing import Any

import torch

from impl.base import PoolAllocator
from impl.pages import PageList
from impl.torch_engine import word_of


class TokenAllocator(PoolAllocator):
    """Slots 1..size one by one, in int64: `alloc` takes from the head of the free list, `free` appends.

    With `need_sort` freed slots wait at the end of the release list, and are merged and sorted into the free
    list when an allocation runs short of it.
    """

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: Any,
        need_sort: bool,
        *,
        debug: bool | None = None,
    ) -> None:
        super().__init__(size, 1, dtype, device, kvcache, need_sort, debug=debug)
        self.clear()

    def put_mapped(self, slots: torch.Tensor) -> None:
        """List those of `slots` that are not 0, each once, in the order in which they first occur. Waits for nothing."""
        listed = self._release_list if self.need_sort else self._free_list
        ordered = slots.sort(stable=True)
        first = torch.ones_like(slots, dtype=torch.bool)
        first[1:] = ordered.values[1:] != ordered.values[:-1]
        wanted = torch.empty_like(first).scatter_(0, ordered.indices, first)
        listed.append_some(slots, wanted & (slots > 0), word_of)

    def _list_again(self, slots: torch.Tensor, listed: PageList) -> None:
        listed.append(slots)
