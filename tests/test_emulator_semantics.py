"""Does the emulator compute what Triton's interpreter computes? Kernels of our own, and batches on real ones."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")
import triton
import triton.language as tl

from impl.emulator.engine import EmulatedEngine
from impl.emulator.launch import Emulator
from impl.engines import LocalEngine, local_engine
from properties.kernels import draw_batch
from properties.sources import SeededSource

pytestmark = pytest.mark.skipif(os.environ["TRITON_INTERPRET"] != "1", reason="needs the interpreter")
BENCH = Path(__file__).resolve().parents[1] / "bench" / "emulator.py"
DTYPES = (torch.int32, torch.int64)


@triton.jit
def arithmetic(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + N + i, x - y)
    tl.store(out_ptr + 2 * N + i, x * y)
    tl.store(out_ptr + 3 * N + i, x // y)
    tl.store(out_ptr + 4 * N + i, x % y)
    tl.store(out_ptr + 5 * N + i, -x)
    tl.store(out_ptr + 6 * N + i, tl.abs(x))
    tl.store(out_ptr + 7 * N + i, tl.minimum(x, y))
    tl.store(out_ptr + 8 * N + i, tl.maximum(x, 3))
    tl.store(out_ptr + 9 * N + i, 7 - x)
    tl.store(out_ptr + 10 * N + i, x & y | 5 ^ x)
    tl.store(out_ptr + 11 * N + i, ~x)
    tl.store(out_ptr + 12 * N + i, (x < y).to(tl.int32) + (x == 3) * 2)
    tl.store(out_ptr + 13 * N + i, tl.where((x > 0) & ~(y > 0), x, y))
    tl.store(out_ptr + 14 * N + i, (x << 2) + (x >> 1))
    tl.store(out_ptr + 15 * N + i, tl.cdiv(tl.abs(x), 4))


@triton.jit
def scalars(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    x, y = tl.load(x_ptr), tl.load(y_ptr)
    tl.store(out_ptr, x + y * n)
    tl.store(out_ptr + 1, x // y)
    tl.store(out_ptr + 2, x % y)
    tl.store(out_ptr + 3, min(x, n) - max(y, n))
    if x > y:
        tl.store(out_ptr + 4, 1)
    elif x == n and y != n:
        tl.store(out_ptr + 4, 2)
    left = n
    while left > 1:
        left = left // 2
    for step in range(n):
        left += step * step
    for step in tl.static_range(3):
        left += step
    tl.store(out_ptr + 5, left)
    tl.store(out_ptr + 6, (x.to(tl.int64) << 32 | 7) + tl.num_programs(0))


@triton.jit
def reductions(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr, tl.sum(x))
    tl.store(out_ptr + 1, tl.max(x, axis=0))
    tl.store(out_ptr + 2, tl.min(y, axis=0))
    tl.store(out_ptr + 3, tl.sum((x > y).to(tl.int32), axis=0))
    tl.store(out_ptr + 4, tl.argmax(x, axis=0))
    tl.store(out_ptr + 5, tl.xor_sum(x))
    tl.store(out_ptr + N + i, tl.cumsum(x, axis=0))
    tl.store(out_ptr + 2 * N + i, tl.cumsum(x, axis=0, reverse=True))
    two = x[:, None] * 2 + y[None, :]
    j = tl.arange(0, N)
    tl.store(out_ptr + 3 * N + i, tl.sum(two, axis=1))
    tl.store(out_ptr + 4 * N + i, tl.sum(two, axis=0))
    places = 5 * N + i[:, None] * N + j[None, :]
    tl.store(out_ptr + places, two, mask=(i[:, None] < n) & (j[None, :] < 2))
    tl.store(out_ptr + (5 + N) * N + i, tl.full((N,), 3, tl.int64) + tl.zeros((N,), tl.int32))


@triton.jit
def atomics(x_ptr, y_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    old = tl.atomic_add(out_ptr + i // 2, x, mask=i < n)
    tl.store(out_ptr + N + tl.program_id(0) * N + i, old, mask=i < n)
    tl.atomic_max(out_ptr + 3 * N, tl.load(y_ptr + tl.program_id(0)))
    tl.atomic_cas(out_ptr + 3 * N + 1, tl.load(out_ptr + 3 * N + 1), tl.load(y_ptr))


def both(kernel, x, y, dtype, *rest, grid=(1,), n=8, undefined=False):
    outs = []
    for runner in (kernel, Emulator(undefined).kernel(kernel)):
        out = torch.zeros(512, dtype=dtype)
        with np.errstate(all="ignore"):
            runner[grid](x.clone(), y.clone(), out, *rest, N=n)
        outs.append(out.tolist())
    assert outs[1] == outs[0]


def vectors(seed, dtype, largest):
    draw = random.Random(f"{seed}/{dtype}")
    x = [draw.randint(-largest, largest) for _ in range(8)]
    y = [draw.choice((-1, 1)) * draw.randint(1, min(largest, 40)) for _ in range(8)]
    return torch.tensor(x, dtype=dtype), torch.tensor(y, dtype=dtype)


@pytest.mark.parametrize("largest", [3, 50, 2**31 - 1])
@pytest.mark.parametrize("y_dtype", DTYPES)
@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_arithmetic(seed, x_dtype, y_dtype, largest):
    x, y = vectors(seed, x_dtype, largest)[0], vectors(seed + 100, y_dtype, largest)[1]
    both(arithmetic, x, y, torch.int64)
    both(arithmetic, x, y, torch.int32)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
def test_narrow_types(dtype):
    x, y = vectors(1, dtype, 127)
    both(arithmetic, x, y, torch.int64)
    both(reductions, x, y, torch.int64, 5)


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_scalars_branches_and_loops(seed, dtype, n):
    both(scalars, *vectors(seed, dtype, 60), torch.int64, n)


@pytest.mark.parametrize("n", [0, 1, 5, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(3))
def test_masks_reductions_and_shapes(seed, dtype, n):
    both(reductions, *vectors(seed, dtype, 1000), torch.int64, n)


@pytest.mark.parametrize("n", [0, 5, 8])
def test_atomics(n):
    both(atomics, *vectors(1, torch.int64, 1000), torch.int64, n, grid=(2,))


# -- batches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_our_kernels_say_the_same_on_both(dtype):
    emulator = Emulator()
    emulated = EmulatedEngine(emulator)
    left, right = local_engine("triton"), LocalEngine("emulator", "", emulated, emulator=emulator)
    for number in range(150):
        batch = draw_batch(SeededSource(f"semantics/{number}"), 40)
        assert right.run_batch(batch, dtype) == left.run_batch(batch, dtype), batch


def test_several_programs_are_common_on_the_engine_as_it_is_shipped(monkeypatch):
    launched = []
    emulator = Emulator()
    engine = EmulatedEngine(emulator)
    for name in ("_extend", "_shares", "_decode"):
        launch = getattr(engine, name)
        monkeypatch.setattr(
            engine,
            name,
            lambda programs, *rest, launch=launch: launched.append(programs) or launch(programs, *rest),
        )
    subject = LocalEngine("emulator", "", engine, emulator=emulator)
    for number in range(200):
        subject.run_batch(draw_batch(SeededSource(number), 40), "int64")
    assert sum(programs > 1 for programs in launched) > len(launched) / 3
    assert max(launched) <= 40 + 4  # one a request, and four for what is left


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.4.10.post2", "0.5.2", "0.5.23"])
def test_the_kernels_of_a_release_say_the_same_on_both(release):
    command = [sys.executable, BENCH, "--release", release, "--batches", "60", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"differing": 0' in done.stdout
