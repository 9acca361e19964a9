"""What recording and checking a live allocator cost: bare, recorded and checked, in turns, in one run.

The loop is a scheduler's: requests are prefilled, decode together, finish. Time is processor time of this thread; wall time on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from impl.live import check, record
from impl.paged import PagedAllocator
from impl.token import TokenAllocator
from impl.torch_engine import TorchEngine

WAYS = ("bare", "recorded", "checked", "both")
SLICES = 6
POOLS = {  # page size, pages, running requests, tokens of a prompt
    "small": (4, 64, 4, 12),
    "medium": (16, 2048, 16, 300),
    "large": (64, 16384, 64, 2000),
    "token": (1, 65536, 16, 300),
}


class Loop:
    """One allocator in a loop, one way of listening to it."""

    def __init__(self, way: str, pool: str, folder: Path, device: str) -> None:
        self.size, pages, self.requests, self.prompt = POOLS[pool]
        self.device = device
        common: dict[str, Any] = {
            "dtype": torch.float32,
            "device": device,
            "kvcache": None,
            "need_sort": False,
        }
        allocator: Any = (
            TokenAllocator(pages, **common, debug=False)
            if self.size == 1
            else PagedAllocator(pages * self.size, self.size, **common, engine=TorchEngine(), debug=False)
        )
        if way in ("recorded", "both"):
            allocator = record(allocator, folder / f"{pool}-{way}.trace", mirrors=True, keep=2)
        if way in ("checked", "both"):
            allocator = check(allocator, raises=True, mirrors=True)
        self.allocator = allocator
        self.operations, self.seconds = 0, 0.0
        self.running: list[torch.Tensor] = []
        self.turn = 0

    def run(self, seconds: float) -> None:
        """Rounds of the loop for so many seconds."""
        clock = time.thread_time if self.device == "cpu" else time.perf_counter  # a GPU is waited for
        started, until = clock(), time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._round()
        self.seconds += clock() - started

    def _round(self) -> None:
        """The oldest request finishes, a new one is prefilled, and all decode eight tokens."""
        allocator = self.allocator
        if len(self.running) == self.requests:
            allocator.free(self.running.pop(0))
            self.operations += 1
        self.turn += 1
        self.running.append(self._prefill(self.prompt + self.turn % self.size))
        for _ in range(8):
            slots = self._decode()
            self.running = [torch.cat((r, s[None])) for r, s in zip(self.running, slots, strict=True)]
        self.operations += 9

    def _prefill(self, tokens: int) -> torch.Tensor:
        if self.size == 1:
            return self.allocator.alloc(tokens)
        return self.allocator.alloc_extend(*self._both([0]), *self._both([tokens]), self._there([-1]), tokens)

    def _decode(self) -> torch.Tensor:
        if self.size == 1:
            return self.allocator.alloc(len(self.running))
        lengths = [r.numel() + 1 for r in self.running]
        return self.allocator.alloc_decode(*self._both(lengths), torch.stack([r[-1] for r in self.running]))

    def _there(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=self.device)

    def _both(self, values: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self._there(values), torch.tensor(values)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="for each way on each pool (default 3)")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"µs an operation, the loop around it included; {arguments.device}, torch {torch.__version__}")
    print(f"{'pool':8} {'page':>5} {'pages':>6} {'batch':>6} " + " ".join(f"{way:>9}" for way in WAYS))
    with tempfile.TemporaryDirectory() as folder:
        for pool, (size, pages, requests, _) in POOLS.items():
            loops = [Loop(way, pool, Path(folder), arguments.device) for way in WAYS]
            for loop in loops:
                loop.run(0.2)
                loop.operations, loop.seconds = 0, 0.0
            for _ in range(SLICES):  # in turns, so that a slow moment of the machine slows them all
                for loop in loops:
                    loop.run(arguments.seconds / SLICES)
            each = " ".join(f"{1e6 * loop.seconds / loop.operations:9.1f}" for loop in loops)
            print(f"{pool:8} {size:5} {pages:6} {requests:6} {each}")


if __name__ == "__main__":
    main()
