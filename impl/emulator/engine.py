"""The project's own kernels on the emulator, as an index engine."""

from __future__ import annotations

from typing import Any

import torch

from impl.emulator.fresh import mark_fresh
from impl.emulator.launch import Emulator
from impl.kernels import TritonEngine, decode_kernel, extend_kernel

LEAST, PROGRAMS = 8, 4


def _tile(lanes: int) -> int:
    """Lanes of a program: few, so that many launches have several programs, but never more than PROGRAMS of them."""
    tile = LEAST
    while tile * PROGRAMS < lanes:
        tile *= 2
    return tile


class EmulatedEngine(TritonEngine):
    """`TritonEngine` on an emulator. That an engine fills all of its output is a promise, and looked at here."""

    def __init__(self, emulator: Emulator, extend: Any = extend_kernel, decode: Any = decode_kernel) -> None:
        super().__init__(emulator.kernel(extend), emulator.kernel(decode), _tile)
        self.emulator = emulator

    def extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write the new slots of all requests to `out`, request after request, token after token."""
        super().extend(prefix_lens, seq_lens, last_loc, free_pages, mark_fresh(out), page_size)
        self.emulator.look_at(out)

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write each request's slot for token `seq_len - 1` to `out`."""
        super().decode(seq_lens, last_loc, free_pages, mark_fresh(out), page_size)
        self.emulator.look_at(out)
