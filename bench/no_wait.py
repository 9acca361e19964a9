"""Does anything wait for the device? All pools on a GPU, while torch makes an error of whatever would.

Nothing is timed. `tests/test_pages.py` shows the same without a GPU, by the operators that run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from impl.ascend import AscendAllocator
from impl.paged import PagedAllocator
from impl.swa import SwaAllocator
from impl.token import TokenAllocator

POOLS: tuple[tuple[type[Any], int, bool], ...] = (
    (TokenAllocator, 1, False),
    (TokenAllocator, 1, True),
    (PagedAllocator, 16, False),
    (PagedAllocator, 16, True),
    (AscendAllocator, 16, False),
    (SwaAllocator, 16, False),
    (SwaAllocator, 1, False),
    (SwaAllocator, 1, True),
)
ROUNDS = 300
SIZE = 1 << 18


@contextmanager
def no_wait() -> Iterator[None]:
    """RuntimeError where an operator waits for the device."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def use(pool: Any, page_size: int, batches: list[tuple[torch.Tensor, ...]]) -> None:
    """Take and give back, alone and in a group, a few slots and very many."""
    held = [pool.alloc(4 * page_size), pool.alloc(SIZE // 16)]
    if isinstance(pool, SwaAllocator):
        pool.free_swa(held[1][: SIZE // 32])
    if page_size > 1:
        (zeros, zeros_cpu, seq, seq_cpu, last), (ones, ones_cpu, none) = batches
        held.append(pool.alloc_extend(zeros, zeros_cpu, seq, seq_cpu, last, 14))
        held.append(pool.alloc_decode(ones, ones_cpu, none))
    pool.free_group_begin()
    for slots in held[2:]:
        pool.free(slots)
    pool.free_group_end()
    for slots in held[:2]:
        pool.free(slots)


def notices_a_read(numbers: torch.Tensor) -> bool:
    """Whether it is an error here to read one element."""
    try:
        with no_wait():
            int(numbers[0])
    except RuntimeError:
        return True
    return False


def main() -> int:
    """All pools; the first round compiles, and is not watched."""
    lengths, ones = torch.tensor([9, 5]), torch.ones(2).long()
    zeros, none = ones - 1, ones - 2
    batches = [
        (zeros.cuda(), zeros, lengths.cuda(), lengths, none.cuda()),
        (ones.cuda(), ones, none.cuda()),
    ]
    assert notices_a_read(batches[1][0])
    for cls, page_size, need_sort in POOLS:
        sizes = {TokenAllocator: (SIZE,), SwaAllocator: (SIZE, SIZE, page_size)}.get(cls, (SIZE, page_size))
        pool = cls(*sizes, torch.float16, "cuda", None, need_sort, debug=False)
        total = pool.available_size()
        use(pool, page_size, batches)
        with no_wait():
            for _ in range(ROUNDS):
                use(pool, page_size, batches)
        assert pool.available_size() == total
        print(f"{cls.__name__}, page size {page_size}, need_sort {need_sort}: {ROUNDS} rounds without a wait")
    return 0


if __name__ == "__main__":
    sys.exit(main())
