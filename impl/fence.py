"""A page of memory that nobody may touch, right behind a tensor: reading past the end ends the process.

Triton's interpreter reads where a pointer says. Behind a short free list lies whatever the heap has there, so
that a read past its end may go unnoticed. With the list at the end of a mapping whose last page is closed, it
can't: the process dies, and that is the finding. CPU only, so in a child process only.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch

PROT_NONE = 0


class Fence:
    """Moves the free lists of an SGLang-shaped allocator to the edge of a closed page."""

    def __init__(self, capacity: int) -> None:
        """Room for lists of up to `capacity` entries of 8 bytes."""
        page = mmap.PAGESIZE
        self._room = -(-capacity * 8 // page) * page
        self._libc = ctypes.CDLL(None, use_errno=True)

    def surround(self, allocator: Any) -> None:
        """Put the allocator's free list (of both pools of an SWA allocator) against its fence."""
        for name, pool in (
            ("", allocator),
            *((n, getattr(allocator, n, None)) for n in ("full_attn_allocator", "swa_attn_allocator")),
        ):
            listed = getattr(pool, "free_pages", None)
            if isinstance(listed, torch.Tensor) and listed.device.type == "cpu":
                pool.free_pages = self._at_edge(name, listed)

    def _at_edge(self, name: str, listed: torch.Tensor) -> torch.Tensor:
        size = listed.numel() * listed.element_size()
        if size > self._room:
            return listed
        # A tensor that the allocator gave out may still be a view of the last area: never reuse it.
        area = mmap.mmap(-1, self._room + mmap.PAGESIZE)
        anchor = ctypes.c_char.from_buffer(area)
        edge = ctypes.addressof(anchor) + self._room
        if self._libc.mprotect(ctypes.c_void_p(edge), ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect refused to close the fence's page")
        whole = torch.frombuffer(memoryview(area)[: self._room], dtype=listed.dtype)
        moved = whole[whole.numel() - listed.numel() :]
        moved.copy_(listed)
        return moved
