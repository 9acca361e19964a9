"""How long do our kernels and allocators take on a GPU, beside a release of SGLang, and how far are both from the floor?

Two clocks. `device`: the kernels of one operation, replayed from a CUDA graph (inputs in the cache, no host). `whole`:
an allocator's operation from the call until the device is done. Both engines take turns, and medians are compared.
The floor is an empty kernel's launch and the bytes that have to move, over the bandwidth of a large copy.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import triton

from bench import seed_design
from impl import sglang
from impl.paged import PagedAllocator
from impl.sglang_kernels import ReleaseEngine, kernels
from impl.torch_engine import TorchEngine
from impl.triton_engine import KERNELS, TritonEngine

ROUNDS, IN_GRAPH, CALLS = 31, 20, 300
SHORT = random.Random(0)
EXTENDS: dict[
    str, tuple[list[int], float]
] = {  # how much each request grows, and the least ratio that is wanted
    "1 x 64k": ([1 << 16], 0.95),
    "1 x 128k": ([1 << 17], 6),
    "1 x 1M": ([1 << 20], 30),
    "1 x 4M": ([1 << 22], 60),
    "4096 x 64": ([64] * 4096, 4),
    "512k among 255 short": ([1 << 19, *(SHORT.randrange(1, 200) for _ in range(255))], 6),
    "ragged 256": ([SHORT.randrange(1, 8192) for _ in range(256)], 1),
    "64 x 4k": ([4096] * 64, 0.95),
    "512 x 1k": ([1024] * 512, 0.95),
    "1024 x 1k": ([1024] * 1024, 0.95),
    "8 x 10": ([10] * 8, 0.95),
    "1 x 10": ([10], 0.95),
    "300 x 10": ([10] * 300, 0.95),
    "16384 x 64": ([64] * 16384, 0.95),
}
DECODES = {1: 0.95, 8: 0.95, 64: 0.95, 256: 0.95, 1024: 0.95, 4096: 2.5, 16384: 20}


def batch(grow: list[int], page_size: int, decode: bool = False) -> dict[str, Any]:
    """Random prefixes and pages for requests that grow so much; everything on the GPU, lengths on the CPU too."""
    rng = random.Random(repr(grow[:9]) + str(len(grow)))
    prefix = [rng.randrange(5000) if len(grow) > 1 else 0 for _ in grow]
    seq = [p + g for p, g in zip(prefix, grow, strict=True)]
    last = [(10 + i) * page_size + (p - 1) % page_size for i, p in enumerate(prefix)]
    need = sum(-(-s // page_size) + (-p // page_size) for p, s in zip(prefix, seq, strict=True))
    made = {name: torch.tensor(v) for name, v in (("prefix_cpu", prefix), ("seq_cpu", seq), ("last", last))}
    return {
        **made,
        "prefix": made["prefix_cpu"].cuda(), "seq": made["seq_cpu"].cuda(), "last": made["last"].cuda(),
        "free": torch.randperm(need + 1000, device="cuda") + 1, "need": need, "total": sum(grow),
        "out": torch.full((sum(grow),), -7, device="cuda"), "decode": decode,
    }  # fmt: skip


def call(engine: Any, b: dict[str, Any], page_size: int) -> Callable[[], None]:
    """One operation on a batch."""
    if b["decode"]:
        return lambda: engine.decode(b["seq"], b["last"], b["free"], b["out"], page_size)
    return lambda: engine.extend(b["prefix"], b["seq"], b["last"], b["free"], b["out"], page_size)


def check(engine: Any, b: dict[str, Any], page_size: int) -> None:
    """What is timed is right: the torch engine says the same."""
    b["out"].fill_(-7)
    call(engine, b, page_size)()
    got = b["out"].clone()
    call(TorchEngine(), b, page_size)()
    assert torch.equal(got, b["out"])


def graph(run: Callable[[], object]) -> Callable[[], float]:
    """What takes the time of one `run` in microseconds, from a graph of IN_GRAPH of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(IN_GRAPH):
            run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        torch.cuda.synchronize()
        captured.replay()  # behind other kernels, or idleness, the first replay begins up to 50 us late
        start.record()
        captured.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1000 / IN_GRAPH

    return once


def medians(*timers: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """The median of each, taking turns."""
    taken = [[timer() for timer in timers] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


@triton.jit
def empty_kernel(x):
    """Nothing."""


def copy_speed() -> float:
    """Bytes a microsecond, read and written, of a large copy."""
    a, b = torch.empty(2, 1 << 27, dtype=torch.int64, device="cuda").unbind()
    (copy,) = medians(graph(lambda: torch.neg(b, out=a)))
    return 2 * 8 * a.numel() / copy


def device_rows(theirs: Any, most: int) -> list[dict[str, Any]]:
    """Extend and decode, by graphs."""
    ours, seed, x = TritonEngine(), ReleaseEngine(seed_design.KERNELS), torch.zeros(1, device="cuda")
    (launch,) = medians(graph(lambda: empty_kernel[(1,)](x)))
    speed = copy_speed()
    rows = [{"what": "empty kernel", "ours": launch}, {"what": "copy, GB/s", "ours": speed / 1000}]
    for page_size in (16, 64):  # what is wanted of extend was said of pages of 16
        todo = [("extend " + name, grow, least, False) for name, (grow, least) in EXTENDS.items()]
        todo += [(f"decode {n}", [1] * n, least, True) for n, least in DECODES.items()]
        for name, grow, least, decode in todo:
            b = batch(grow, page_size, decode)
            floor = launch + 8 * (b["total"] + b["need"] + 3 * len(grow)) / speed
            row = {
                "what": name,
                "clock": "device",
                "page_size": page_size,
                "tokens": b["total"],
                "floor": floor,
            }
            timed = {"ours": ours}
            if b["total"] <= most:
                timed["theirs"] = theirs
            if b["total"] <= seed_design.MOST:
                timed["seed"] = seed
            for engine in timed.values():
                check(engine, b, page_size)
            taken = medians(*(graph(call(engine, b, page_size)) for engine in timed.values()))
            row |= zip(timed, taken, strict=True)
            if "theirs" in row:
                row |= {"ratio": row["theirs"] / row["ours"], "wanted": least}
            rows.append(row)
    return rows


def whole_rows(release: Any, pool: int) -> list[dict[str, Any]]:
    """Operations of both allocators, from the call until the device is done, on a pool a quarter of which is held.

    What is taken is freed and what is freed is taken, each on its own clock.
    """
    rows = []
    for page_size in (16, 64):
        both = (
            sglang.build(release, "paged", size=pool, page_size=page_size, device="cuda"),
            PagedAllocator(pool, page_size, torch.float16, "cuda", None, False, debug=False),
        )
        for who in both:
            who.alloc(pool // 4)

        def extend(grow: list[int], who: Any) -> Any:
            seq, zeros = torch.tensor(grow), torch.zeros(len(grow), dtype=torch.int64)
            five = (zeros.cuda(), zeros, seq.cuda(), seq, zeros.cuda() - 1)
            return lambda: who.alloc_extend(*five, sum(grow))

        def decode(n: int, who: Any) -> Any:
            ones = torch.ones(n, dtype=torch.int64)
            three = (ones.cuda(), ones, -ones.cuda())
            return lambda: who.alloc_decode(*three)

        def alloc(n: int, who: Any) -> Any:
            return lambda: who.alloc(n)

        def scattered(n: int, who: Any) -> Any:
            order = torch.randperm(n, device="cuda")
            return lambda: who.alloc(n)[order]

        todo: list[tuple[str, Any, float]] = [
            (f"free {n} slots", functools.partial(alloc, n), 4 if n == 4096 else 0.95)
            for n in (64, 4096, 65536, 262144)
        ]
        todo.append(("free 4096 slots, shuffled", functools.partial(scattered, 4096), 0.95))
        todo += [(f"alloc {n}", functools.partial(alloc, n), 0.95) for n in (page_size, 65536)]
        for name in ("8 x 10", "64 x 4k", "4096 x 64", "1 x 1M"):
            todo.append((f"extend {name}", functools.partial(extend, EXTENDS[name][0]), 0.95))
        todo += [(f"decode {n}", functools.partial(decode, n), 0.95) for n in (1, 64, 1024, 4096)]
        for name, taking, least in todo:
            timers = [
                Turns(who, taking(who), timed="free" if name.startswith("free") else "take") for who in both
            ]
            theirs, ours = medians(*timers, rounds=CALLS)
            rows.append(
                {"what": name, "clock": "whole", "page_size": page_size, "theirs": theirs, "ours": ours,
                 "ratio": theirs / ours, "wanted": least}
            )  # fmt: skip
    return rows


class Turns:
    """Takes slots and frees them again, and tells what one of the two took in microseconds."""

    def __init__(self, who: Any, take: Callable[[], Any], timed: str) -> None:
        self._who, self._take, self._frees = who, take, timed == "free"
        for _ in range(10):
            self()

    def __call__(self) -> float:
        """One of both; what is timed is what was asked for."""
        wait = (
            torch.cuda.current_stream().synchronize
        )  # all is on one stream; the device's own wait has more Python
        wait()
        started = time.perf_counter()
        slots = self._take()
        wait()
        taken = time.perf_counter()
        self._who.free(slots)
        wait()
        return ((time.perf_counter() - taken) if self._frees else (taken - started)) * 1e6


def compilations(shapes: int) -> dict[str, int]:
    """Kernels compiled for a day's worth of shapes with one page size, and for as many others after it."""

    def compiled() -> int:
        return sum(len(kernel.device_caches[0][0]) for kernel in KERNELS.values())

    counts, engine, page_size = [compiled()], TritonEngine(), 32
    for seed in (1, 2):
        rng = random.Random(seed)
        for _ in range(shapes):
            bs = round(2 ** rng.uniform(0, 12))
            grow = [round(2 ** rng.uniform(0, rng.choice((2, 8, 14)))) for _ in range(bs)]
            extended, decoded = batch(grow, page_size), batch([1] * bs, page_size, True)
            call(engine, extended, page_size)()
            call(engine, decoded, page_size)()
        counts.append(compiled())
    return {"shapes": shapes, "first day": counts[1] - counts[0], "second day": counts[2] - counts[1]}


def main() -> int:
    """Measure, print, and keep the numbers; 1 where a ratio is below what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", default="0.5.23", metavar="VERSION", help="of SGLang; default 0.5.23")
    parser.add_argument(
        "--most", type=int, default=1 << 23, help="no longer batch for the release, in tokens"
    )
    parser.add_argument("--device-only", action="store_true", help="no whole operations")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the numbers as JSON")
    arguments = parser.parse_args()
    release = sglang.load(sglang.fetch(arguments.release))
    found: dict[str, Any] = {
        "schema": 1,
        "device": torch.cuda.get_device_name(),
        "driver": subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        "python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__,
        "sglang": arguments.release,
        "rows": device_rows(ReleaseEngine(kernels(release)), arguments.most),
    }  # fmt: skip
    if not arguments.device_only:
        found["rows"] += whole_rows(release, 1 << 22)
        found["compilations"] = compilations(150)
    print(f"{found['device']}, driver {found['driver']}, torch {found['torch']}, Triton {found['triton']}")
    columns = ("page", "seed", "theirs", "ours", "ratio", "wanted", "floor")
    print(f"  {'us':30} " + " ".join(f"{name:>8}" for name in columns))
    missed = 0
    for row in found["rows"]:
        ratio, wanted = row.get("ratio", 0.0), row.get("wanted", 0)
        missed += ratio < wanted
        name = f"{row['what']}{' (whole)' if row.get('clock') == 'whole' else ''}"
        numbers = [row.get(c.replace("page", "page_size")) for c in columns]
        shown = [f"{'':8}" if n is None else f"{n:8}" if isinstance(n, int) else f"{n:8.2f}" for n in numbers]
        print(f"  {name:30} {' '.join(shown)}{'  missed' if ratio < wanted else ''}")
    if "compilations" in found:
        print("compilations:", found["compilations"])
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
