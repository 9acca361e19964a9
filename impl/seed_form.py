"""How is an allocator called by code that has lengths on the device only, as older releases do?"""

from typing import Any

import torch

from impl.base import BaseAllocator


class SeedForm:
    """The older call form of extend and decode over an allocator of ours; all else passes through.

    Each call copies the lengths to the CPU, and so waits for the device.
    """

    def __init__(self, allocator: BaseAllocator) -> None:
        self._allocator = allocator

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
    ) -> torch.Tensor | None:
        """As `PagedAllocator.alloc_extend`, with the mirrors made here."""
        return self._allocator.alloc_extend(
            prefix_lens, prefix_lens.cpu(), seq_lens, seq_lens.cpu(), last_loc, extend_num_tokens
        )

    def alloc_decode(self, seq_lens: torch.Tensor, last_loc: torch.Tensor) -> torch.Tensor | None:
        """As `PagedAllocator.alloc_decode`, with the mirror made here."""
        return self._allocator.alloc_decode(seq_lens, seq_lens.cpu(), last_loc)

    def __getattr__(self, name: str) -> Any:
        # Asked for by copy and pickle before __init__ ran: without this it would look for itself for ever.
        if name == "_allocator":
            raise AttributeError(name)
        return getattr(self._allocator, name)
