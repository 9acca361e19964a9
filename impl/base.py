"""What do all allocators share? Argument checks, groups of frees, and the two lists of one pool."""

import abc
import os
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch

from impl.pages import PageList

# Slots of a page: kernels count from the start of a page in 32 bits. `impl.proofs` says why this much.
MOST_PAGE = (1 << 31) - (1 << 12)
_INTEGER_DTYPES = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


def check_count(name: str, value: object) -> int:
    """`value` as an int. TypeError unless it is a whole number (bool is none), ValueError if negative."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}.")
    if value < 0:
        raise ValueError(f"{name} must not be negative, but is {value}.")
    return int(value)


def check_vector(name: str, value: object, device: torch.device, length: int | None = None) -> None:
    """TypeError unless `value` is an integer tensor; ValueError unless it is 1-D, on `device`, `length` long.

    Looks at no element, so it never waits for the device.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(value).__name__}.")
    if value.dtype not in _INTEGER_DTYPES:
        raise TypeError(f"{name} must have an integer dtype, not {value.dtype}.")
    if value.dim() != 1:
        raise ValueError(f"{name} must have one dimension, but has shape {tuple(value.shape)}.")
    if value.device != device:
        raise ValueError(f"{name} must be on {device}, but is on {value.device}.")
    if length is not None and value.numel() != length:
        raise ValueError(f"{name} must have {length} elements, one a request, but has {value.numel()}.")


def refuse(bad: torch.Tensor, values: torch.Tensor, why: str) -> None:
    """ValueError that names the `values` where `bad` holds. For debug mode alone: it waits for the device."""
    if bool(bad.any()):
        shown = torch.unique(values[bad])[:8].tolist()
        raise ValueError(f"{why}: {', '.join(map(str, shown))}.")


def debug_from_environment() -> bool:
    """Whether KVASSAY_DEBUG asks for debug mode."""
    return os.environ.get("KVASSAY_DEBUG", "").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True)
class Freed:
    """The slots of one call of `free`, or with `full=False` of `free_swa`."""

    slots: torch.Tensor
    full: bool = True


class BaseAllocator(abc.ABC):
    """The interface that callers see, and groups of frees.

    `size` is in slots and `dtype` is that of the KV cache; indices are int64 unless a class says otherwise.
    `kvcache` is any object with `get_cpu_copy` and `load_cpu_copy`, or None. `debug` turns on the checks that
    look at device values; None takes it from the environment variable KVASSAY_DEBUG. Every error leaves the
    allocator as it was.
    """

    index_dtype = torch.int64

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str | torch.device,
        kvcache: Any,
        need_sort: bool,
        *,
        debug: bool | None = None,
    ) -> None:
        self.size = check_count("size", size)
        self.page_size = check_count("page_size", page_size)
        if not 1 <= self.page_size <= min(self.size, MOST_PAGE):
            raise ValueError(
                f"page_size must lie in 1..size and be {MOST_PAGE} at most, but is {page_size} with size {size}."
            )
        if not isinstance(need_sort, bool):
            raise TypeError(f"need_sort must be a bool, not {type(need_sort).__name__}.")
        self.num_pages = self.size // self.page_size
        if (self.num_pages + 1) * self.page_size > torch.iinfo(self.index_dtype).max:
            raise ValueError(f"{size} slots are more than {self.index_dtype} can number.")
        self.dtype = dtype
        self.device = device
        self.need_sort = need_sort
        self.debug = debug_from_environment() if debug is None else debug
        # "cuda" means the current GPU: tensors know its number, and arguments are compared with that.
        self._device = torch.empty(0, device=device).device
        self._kvcache = kvcache
        self._group: list[Freed] | None = None

    @abc.abstractmethod
    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` slots (a multiple of page_size) as a new 1-D tensor, or None if they do not fit.

        TypeError or ValueError if the size is not an int, negative, or unaligned.
        """

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
        """Only allocators of pages grow requests: NotImplementedError."""
        raise NotImplementedError(f"{type(self).__name__} has no alloc_extend: use alloc.")

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """Only allocators of pages grow requests: NotImplementedError."""
        raise NotImplementedError(f"{type(self).__name__} has no alloc_decode: use alloc.")

    def free(self, free_index: torch.Tensor) -> None:
        """Take back the slots of `free_index` (1-D, any integer dtype); inside a group at its end.

        An empty tensor is a no-op. With pages every touched page comes back whole, so the call (or the group)
        must name all live slots of it. ValueError in debug mode for slots that are not held, are named twice,
        or leave the head of a page behind.
        """
        self._free(free_index, full=True)

    def free_group_begin(self) -> None:
        """Collect frees from here on. RuntimeError if a group is open: what it holds would be lost."""
        if self._group is not None:
            raise RuntimeError("A group of frees is open already; end it before the next begins.")
        self._group = []

    def free_group_end(self) -> None:
        """Let all collected frees take effect as one. Nothing happens if no group is open.

        ValueError in debug mode if the group leaves the head of a page behind; the group then stays open.
        """
        if self._group is None:
            return
        if self._group:
            if self.debug:
                self._check_cover(self._group)
            self._give_back(self._group)
        self._group = None

    @abc.abstractmethod
    def merge_and_sort_free(self) -> None:
        """Move the release list into the free list and sort it; an empty release list changes nothing."""

    @abc.abstractmethod
    def backup_state(self) -> object:
        """A snapshot, opaque to the caller, of everything, an open group included."""

    @abc.abstractmethod
    def restore_state(self, state: object) -> None:
        """Go back to a snapshot of this allocator, any number of times. TypeError for anything else."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Answer as a new allocator from here on; an open group is dropped. Snapshots stay valid."""

    @abc.abstractmethod
    def available_size(self) -> int:
        """Slots that are free or released. Those in an open group are neither."""

    def estimated_num_new_pages(self, bs: int, extend_num_tokens: int) -> int:
        """An upper bound of the pages that `bs` requests take to grow by `extend_num_tokens` in all."""
        return bs * -(-extend_num_tokens // self.page_size)

    def get_kvcache(self) -> Any:
        """The KV cache that the constructor was given."""
        return self._kvcache

    def get_cpu_copy(self, indices: torch.Tensor) -> Any:
        """K and V of `indices` on the CPU, in the KV cache's form. NotImplementedError over two caches."""
        raise NotImplementedError(f"{type(self).__name__} has no CPU copies.")

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: torch.Tensor) -> None:
        """Write what `get_cpu_copy` gave to the slots `indices`. NotImplementedError over two caches."""
        raise NotImplementedError(f"{type(self).__name__} has no CPU copies.")

    def debug_print(self) -> str:
        """A short text for logs."""
        return f"#available-size: {self.available_size()}, "

    def _free(self, slots: torch.Tensor, *, full: bool) -> None:
        if isinstance(slots, torch.Tensor) and slots.numel() == 0:
            return
        check_vector("free_index", slots, self._device)
        if self.debug:
            self._check_free(slots, full=full)
        if self._group is not None:
            # A copy: the caller may change its tensor before the group ends.
            self._group.append(Freed(slots.to(torch.int64, copy=True), full))
        else:
            freed = [Freed(slots, full)]
            if self.debug:
                self._check_cover(freed)
            self._give_back(freed)

    @abc.abstractmethod
    def _check_free(self, slots: torch.Tensor, *, full: bool) -> None:
        """Debug mode: ValueError unless all `slots` may be freed now."""

    @abc.abstractmethod
    def _give_back(self, freed: list[Freed]) -> None:
        """Let these frees take effect, as one. Never empty."""

    def _check_cover(self, freed: list[Freed]) -> None:
        """Debug mode: ValueError unless these frees name the first slots of their pages, with no hole.

        How far a page is used can't be known: a request that was cut back frees less than it was given.
        """
        slots = self._freed_slots(freed)
        inner = slots[slots % self.page_size != 0]
        left = ~torch.isin(inner - 1, slots)
        refuse(left, inner - 1, "A free names later slots of a page, but not these")

    def _freed_slots(self, freed: list[Freed] | None) -> torch.Tensor:
        """The slots of all full frees among `freed`, in order; None stands for no group."""
        parts = [entry.slots.to(torch.int64) for entry in freed or () if entry.full]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=self._device)


@dataclass(frozen=True)
class PoolState:
    """A snapshot of one pool."""

    free_pages: torch.Tensor
    release_pages: torch.Tensor
    group: tuple[Freed, ...] | None


def copy_group(group: list[Freed] | None) -> tuple[Freed, ...] | None:
    """A frozen copy of a group. The tensors in it are its own and never change, so they are shared."""
    return None if group is None else tuple(group)


class PoolAllocator(BaseAllocator):
    """One pool: a free list and a release list of pages, from which `alloc` takes whole pages.

    Token is the case of page size 1. Subclasses say in which order frees come back (`_list_again`).
    """

    _free_list: PageList
    _release_list: PageList

    @property
    def free_pages(self) -> torch.Tensor:
        """The free list, in order: a view that the next operation may change. Waits for a free on the device."""
        return self._free_list.listed

    @free_pages.setter
    def free_pages(self, pages: torch.Tensor) -> None:
        self._free_list = PageList.of(pages, self.num_pages)

    @property
    def release_pages(self) -> torch.Tensor:
        """The release list, likewise."""
        return self._release_list.listed

    @release_pages.setter
    def release_pages(self, pages: torch.Tensor) -> None:
        self._release_list = PageList.of(pages, self.num_pages if self.need_sort else 0)

    def clear(self) -> None:
        """List pages 1..num_pages as free, in order; no group is open."""
        # Page 0 is not listed: attention writes the outputs of padded tokens there.
        self.free_pages = torch.arange(1, self.num_pages + 1, dtype=self.index_dtype, device=self._device)
        self.release_pages = self.free_pages.new_empty(0)
        self._offsets = torch.arange(self.page_size, dtype=self.index_dtype, device=self._device)
        self._group = None

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Slots of the first free pages; with `need_sort` the lists merge first if the free one is short."""
        pages = self._pages_of(need_size)
        self._merge_if_short(pages)
        return self._take(pages) if self._fits(pages) else None

    def available_size(self) -> int:
        """Slots of the pages in both lists."""
        return (len(self._free_list) + len(self._release_list)) * self.page_size

    def merge_and_sort_free(self) -> None:
        """Move the release list into the free list and sort it; an empty one changes nothing."""
        if len(self._release_list):
            self.free_pages = torch.cat((self.free_pages, self.release_pages)).sort().values
            self.release_pages = self.free_pages.new_empty(0)

    def backup_state(self) -> PoolState:
        """Copies of both lists and of an open group."""
        return PoolState(self.free_pages.clone(), self.release_pages.clone(), copy_group(self._group))

    def restore_state(self, state: object) -> None:
        """Go back to a snapshot, any number of times. TypeError if it is none of a pool."""
        if not isinstance(state, PoolState):
            raise TypeError(f"restore_state takes what backup_state gave, not {type(state).__name__}.")
        self.free_pages, self.release_pages = state.free_pages, state.release_pages  # copied
        self._group = None if state.group is None else list(state.group)

    def get_cpu_copy(self, indices: torch.Tensor) -> Any:
        """K and V of `indices` on the CPU, in the KV cache's form."""
        return self._kvcache.get_cpu_copy(indices)

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: torch.Tensor) -> None:
        """Write what `get_cpu_copy` gave to the slots `indices`."""
        self._kvcache.load_cpu_copy(kv_cache_cpu, indices)

    def _pages_of(self, need_size: int) -> int:
        size = check_count("need_size", need_size)
        if size % self.page_size:
            raise ValueError(f"need_size must be a multiple of page_size {self.page_size}, but is {size}.")
        return size // self.page_size

    def _merge_if_short(self, demand: int) -> None:
        if self.need_sort and demand > self._free_list.least and demand > len(self._free_list):
            self.merge_and_sort_free()

    def _fits(self, pages: int) -> bool:
        # The release list counts: a demand that exceeds the free list merges the two before it is met. What the
        # device alone knows is asked for only if it matters.
        return pages <= self._free_list.least or pages <= len(self._free_list) + len(self._release_list)

    def _take(self, pages: int) -> torch.Tensor:
        """The slots of the first `pages` free pages, in memory of their own."""
        taken = self._free_list.head(pages)
        self._drop_head(pages)
        if self.page_size == 1:
            return taken.clone()
        return torch.add(self._offsets, taken[:, None], alpha=self.page_size).reshape(-1)

    def _drop_head(self, pages: int) -> None:
        self._free_list.drop(pages)

    def _give_back(self, freed: list[Freed]) -> None:
        slots = freed[0].slots if len(freed) == 1 else torch.cat([entry.slots for entry in freed])
        self._put(slots)

    def _put(self, slots: torch.Tensor) -> None:
        """List the pages of `slots` again."""
        self._list_again(slots, self._release_list if self.need_sort else self._free_list)

    @abc.abstractmethod
    def _list_again(self, slots: torch.Tensor, listed: PageList) -> None:
        """Put the pages that a free of `slots` gives back where they belong in a list."""

    def _held_pages(self, pending: torch.Tensor) -> torch.Tensor:
        """Debug mode: a bool for each page, true where a caller holds it and no slot of it is `pending`."""
        held = torch.ones(self.num_pages + 1, dtype=torch.bool, device=self._device)
        held[0] = False
        held[self.free_pages.long()] = False
        held[self.release_pages.long()] = False
        held[pending // self.page_size] = False
        return held

    def _check_free(self, slots: torch.Tensor, *, full: bool) -> None:
        self._check_held(slots)
        self._check_once(slots, self._freed_slots(self._group))

    def _check_held(self, slots: torch.Tensor) -> None:
        """ValueError unless all `slots` lie in pages of the pool that are neither free nor released."""
        pages = slots.long() // self.page_size
        refuse((pages < 1) | (pages > self.num_pages), slots, "Slots outside the pool")
        held = self._held_pages(pages.new_empty(0))
        refuse(~held[pages], slots, "Slots that are free already")

    def _check_once(self, slots: torch.Tensor, pending: torch.Tensor) -> None:
        """ValueError if one of `slots` is named twice, or is among `pending`."""
        distinct, counts = torch.unique(slots, return_counts=True)
        refuse(counts > 1, distinct, "Slots named twice in one free")
        refuse(torch.isin(distinct, pending), distinct, "Slots freed before in this group")
