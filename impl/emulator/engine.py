"""The project's own kernels on the emulator, as an index engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from impl.emulator.fresh import mark_fresh
from impl.emulator.language import next_power_of_2
from impl.emulator.launch import Emulator
from impl.triton_engine import KERNELS, TritonEngine

PROGRAMS = 3
BLOCKS = 4  # of requests: more sums than one look takes
FEW = 8  # requests


class EmulatedEngine(TritonEngine):
    """`TritonEngine` on an emulator. That an engine fills all of its output is a promise, and looked at here.

    Programs are narrow, so that many launches have several, but never many more than PROGRAMS of them; and few
    requests and slots are many already, so that small batches and frees take all ways.
    """

    most_freed = 24

    def __init__(self, emulator: Emulator, kernels: Mapping[str, Any] = KERNELS) -> None:
        super().__init__({name: emulator.kernel(kernel) for name, kernel in kernels.items()})
        self.emulator = emulator

    def at_once(self, bs: int, total: int) -> bool:
        """Whether an extend is one launch: few requests have both ways, and the tokens say which."""
        return bs <= FEW and total // 2 % 2 == 0

    def lanes(self, bs: int) -> int:
        """Requests that one program of an extend by one launch sums up."""
        return next_power_of_2(bs)

    def share(self, bs: int, total: int) -> tuple[int, int, int, int, int]:
        """How an extend of many requests is shared among programs."""
        share = _narrow(total, 4)
        return _narrow(bs, 2, BLOCKS), 1, 2, max(4, share // 4), share

    def summed(self, blocks: int) -> int:
        """Sums of blocks that a program of an extend looks at in one go."""
        return 2

    def steps(self, bs: int) -> tuple[int, int]:
        """Requests for which one program of a decode answers."""
        return _narrow(bs, 2), 1

    def chunk(self, bs: int, total: int) -> int:
        """Tokens of one request that one program of an extend writes."""
        return _narrow(total, 4)

    def freed(self, count: int) -> tuple[int, int, int]:
        """Slots that the program of a free looks at in one go, and pages that it ranks in one go."""
        return 8, 4, 1

    def marked(self, count: int) -> tuple[int, int]:
        """Slots that a program of a large free marks, and counts of marks that one looks at in one go."""
        return _narrow(count, 4), 2

    def spans(self, most: int) -> tuple[int, int]:
        """Words of marks that a free counts together: a pool has many counts, or some of several words."""
        return 1 + most % 2, 2 - most % 2

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


def _narrow(lanes: int, least: int, programs: int = PROGRAMS) -> int:
    """Lanes of a program where so many of them have `lanes`, or more."""
    return max(least, next_power_of_2(-(-lanes // programs)))
