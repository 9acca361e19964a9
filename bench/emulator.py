"""How much faster than Triton's interpreter does the emulator run a kernel, and do both say the same?"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["TRITON_INTERPRET"] = "1"

import torch

from impl.emulator.launch import Emulator
from impl.engines import LocalEngine
from impl.paged import IndexEngine
from oracle.verdict import Observation
from properties.kernels import draw_batch
from properties.sources import SeededSource

WIDEST = 300
SLICE = 50
ENGINES = ("interpreter", "emulator")


def engines(release: str, emulator: Emulator) -> tuple[IndexEngine, IndexEngine]:
    """Our kernels or a release's, twice, with programs of the same size: by Triton's interpreter and emulated."""
    if release:
        from impl import sglang
        from impl.sglang_kernels import ReleaseEngine, kernels

        loaded = sglang.load(sglang.fetch(release))
        return ReleaseEngine(kernels(loaded)), ReleaseEngine(kernels(loaded), emulator)
    from impl.triton_engine import KERNELS, TritonEngine

    emulated = {name: emulator.kernel(kernel) for name, kernel in KERNELS.items()}
    return TritonEngine(), TritonEngine(emulated)


class Timed:
    """An engine, and the processor time that was spent in it."""

    def __init__(self, engine: IndexEngine) -> None:
        self._engine, self.seconds = engine, 0.0

    def extend(self, *arguments: Any) -> None:
        """The engine's."""
        self._time(self._engine.extend, arguments)

    def decode(self, *arguments: Any) -> None:
        """The engine's."""
        self._time(self._engine.decode, arguments)

    def _time(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        started = time.process_time()
        try:
            call(*arguments)
        finally:
            self.seconds += time.process_time() - started


def same(a: Observation, b: Observation) -> bool:
    """Whether two answers are the same; of errors only that both are some."""
    return (a.outcome, a.slots, a.guard) == (b.outcome, b.slots, b.guard)


def main() -> int:
    """Run the batches on both, slice by slice; 1 where an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=10_000, help="default 10000")
    parser.add_argument("--release", default="", metavar="VERSION", help="the kernels of that SGLang")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    emulator = Emulator(undefined=not arguments.release)  # releases use lanes that nothing filled (F34)
    timed = [Timed(engine) for engine in engines(arguments.release, emulator)]
    subjects = LocalEngine(ENGINES[0], "", timed[0]), LocalEngine(ENGINES[1], "", timed[1], emulator=emulator)
    differing = 0
    for first in range(-SLICE, arguments.batches, SLICE):  # engines take turns; the first turn is a warm-up
        if first == 0:
            for engine in timed:
                engine.seconds = 0.0
        numbers = range(first, min(first + SLICE, arguments.batches))
        batches = [draw_batch(SeededSource(f"{arguments.seed}/{number}"), WIDEST) for number in numbers]
        dtypes = ["int64" if arguments.release or number % 2 else "int32" for number in numbers]
        answers = [[s.run_batch(*asked) for asked in zip(batches, dtypes, strict=True)] for s in subjects]
        for batch, a, b in zip(batches, *answers, strict=True):
            if not same(a, b):
                differing += 1
                print(f"{batch}\n  {a}\n  {b}", file=sys.stderr)
    rates = [arguments.batches / engine.seconds for engine in timed]
    if arguments.json:
        found = dict(zip(ENGINES, rates, strict=True))
        print(
            json.dumps({"schema": 1, "batches": arguments.batches, "a second": found, "differing": differing})
        )
    else:
        whose = f"SGLang {arguments.release}" if arguments.release else "our kernels"
        print(f"{arguments.batches:,} batches of {whose} on one core, of 0 to {WIDEST} requests")
        for name, rate in zip(ENGINES, rates, strict=True):
            print(f"  {name:12} {rate:10,.1f} batches a second")
        print(f"  the emulator is {rates[1] / rates[0]:.1f} times as fast; {differing} answer(s) differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
