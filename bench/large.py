"""Sizes that plain Python can't judge: pools of 2^31 slots and more, 16,384 requests, prompts of 4M, a million operations.

Nothing here is timed. What an allocator gives is compared with torch operators, or with a table on the device of who
holds which page; a wrong answer ends the run with an AssertionError.
"""

from __future__ import annotations

import argparse
import functools
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from impl.paged import PagedAllocator
from impl.pages import PageList
from impl.torch_engine import TorchEngine
from impl.triton_engine import TritonEngine


def engines_agree(grow: list[int], page_size: int, highest: int, device: str) -> None:
    """Both engines on one batch, with pages up to `highest`; and a decode of as many requests."""
    rng = random.Random(len(grow))
    prefix = torch.tensor([rng.randrange(9000) for _ in grow])
    seq = prefix + torch.tensor(grow)
    need = int((-(-seq // page_size) + (-prefix // page_size)).sum())
    last = (torch.arange(len(grow)) + highest // 2) * page_size + (prefix - 1) % page_size
    free = torch.randint(1, highest + 1, (need,), device=device)
    for decode in (False, True):
        answers = []
        for engine in (TritonEngine(), TorchEngine()):
            out = torch.full((len(grow) if decode else sum(grow),), -7, device=device)
            lengths = [x.to(device) for x in ((prefix + 1,) if decode else (prefix, seq))]
            (engine.decode if decode else engine.extend)(*lengths, last.to(device), free, out, page_size)
            answers.append(out)
        assert torch.equal(*answers), (len(grow), page_size, decode)


def frees_agree(slots: int, page_size: int, most: int, shuffled: bool, device: str) -> None:
    """Both engines give back the pages of so many slots, twice, to a list of pages up to `most`."""
    pages = torch.randperm(most, device=device)[: -(-slots // page_size)] + 1
    pages = pages if shuffled else pages.sort().values
    freed = (pages[:, None] * page_size + torch.arange(page_size, device=device)).reshape(-1)
    if shuffled:
        freed = freed[torch.randperm(freed.numel(), device=device)]
    others = torch.arange(1, most + 1, device=device)
    others = others[~torch.isin(others, pages)]
    lists = [PageList.of(others, most) for _ in range(2)]
    for _ in range(2):
        for engine, listed in zip((TritonEngine(), TorchEngine()), lists, strict=True):
            engine.put_before(freed, listed, page_size)
        assert torch.equal(*(listed.listed for listed in lists)), (slots, page_size, most)
        assert len(lists[0]) == most
        for listed in lists:
            listed.drop(pages.numel())


class Judge:
    """Who holds which slot, as a table on the device. What is wrong is added up there, and looked at now and then."""

    def __init__(self, allocator: PagedAllocator) -> None:
        self.pool = allocator
        self.held = torch.zeros(
            (allocator.num_pages + 1) * allocator.page_size, dtype=torch.bool, device=allocator.device
        )
        self.wrong = torch.zeros((), dtype=torch.int64, device=allocator.device)

    def given(self, slots: torch.Tensor, first_offset: torch.Tensor) -> None:
        """These are nobody's, in the pool and where their pages have them; from now on they are somebody's."""
        size = self.pool.page_size
        self.wrong += (self.held[slots] | (slots < size) | (slots % size != first_offset % size)).sum()
        self.held[slots] = True

    def freed(self, slots: torch.Tensor) -> None:
        """These were somebody's."""
        self.wrong += (~self.held[slots]).sum()
        self.held[slots] = False

    def look(self, pages_held: int) -> None:
        """Nothing was wrong so far; all lists and all that is held make up the pool, and no page is listed twice."""
        pool = self.pool
        assert int(self.wrong) == 0
        assert pool.available_size() == (pool.num_pages - pages_held) * pool.page_size
        listed = torch.cat((pool.free_pages, pool.release_pages))
        assert torch.unique(listed).numel() == listed.numel()
        assert not bool(self.held.view(-1, pool.page_size)[listed].any())


@functools.cache
def grown(bs: int, length: int, device: str) -> tuple[torch.Tensor, ...]:
    """So many new requests of that length: prefix, length and last location, on both sides, and their offsets."""
    sides = [torch.zeros(bs).long(), torch.full((bs,), length), torch.full((bs,), -1)]
    zeros, seq, last = (x.to(device) for x in sides)
    return zeros, sides[0], seq, sides[1], last, torch.arange(length, device=device).repeat(bs)


def many(operations: int, page_size: int, need_sort: bool, device: str) -> None:
    """So many extends, decodes and frees in one pool, each judged."""
    rng = random.Random(page_size)
    allocator = PagedAllocator(1 << 20, page_size, torch.float16, device, None, need_sort, debug=False)
    judge, live, pages = Judge(allocator), [], 0
    for number in range(1, operations + 1):
        if len(live) > 40 or (live and rng.random() < 0.35):
            slots, taken = live.pop(rng.randrange(len(live)))
            judge.freed(slots)
            allocator.free(slots)
            pages -= taken
        else:
            bs, length = rng.choice((1, 1, 4, 32)), rng.choice((1, page_size, 100, 3000))
            *batch, offsets = grown(bs, length, device)
            need = bs * -(-length // page_size)
            if length == 1:
                got = allocator.alloc_decode(*batch[2:])
            else:
                got = allocator.alloc_extend(*batch, bs * length)
            assert (got is None) == (need > allocator.num_pages - pages)
            if got is not None:
                judge.given(got, offsets)
                live.append((got, need))
                pages += need
        if number % 50_000 == 0:
            judge.look(pages)
            print(f"           {number:,}: right so far", flush=True)
    judge.look(pages)


def huge(page_size: int, device: str) -> None:
    """A pool of more than 2^31 slots, used at its far end."""
    size = (1 << 31) + (1 << 20)
    allocator = PagedAllocator(size, page_size, torch.float16, device, None, False, debug=False)
    allocator._free_list.drop(allocator.num_pages - 5000)  # instead of an answer of 17 GB
    assert allocator.available_size() == 5000 * page_size
    seq = torch.tensor([3 * page_size, 1, 1000, 7])
    zeros, last = torch.zeros(4).long(), torch.full((4,), -1)
    on = [x.to(device) for x in (zeros, seq, last)]
    first = allocator.num_pages - 5000 + 1
    got = allocator.alloc_extend(on[0], zeros, on[1], seq, on[2], int(seq.sum()))
    expected = torch.cat(
        [
            (first + before) * page_size + torch.arange(int(n))
            for before, n in zip((-(-seq // page_size)).cumsum(0) - -(-seq // page_size), seq, strict=True)
        ]
    )
    assert torch.equal(got.cpu(), expected)
    assert int(got.max()) > 1 << 31
    allocator.free(got)
    assert allocator.available_size() == 5000 * page_size
    assert allocator.free_pages[:3].tolist() == [first, first + 1, first + 2]


def main() -> int:
    """Everything, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000, help="default a million")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    started = time.time()

    def say(what: str) -> None:
        print(f"{time.time() - started:7.1f} s  {what}", flush=True)

    for page_size in (1, 16, 24, 64):
        for grow in (
            [1 << 22],
            [64] * 16384,
            [random.Random(i).randrange(300) for i in range(16384)],
            [1 << 19] + [5] * 4000,
        ):
            engines_agree(grow, page_size, (1 << 33) // page_size, arguments.device)
    say("prompts of 4M and batches of 16,384 requests, slots up to 2^33: both engines agree")
    for slots, page_size, most in (
        (70_000, 1, 1 << 22),
        (1 << 18, 16, 1 << 18),
        (20_000, 16, 3000),
        (300_000, 64, 1 << 16),
        (1 << 18, 24, 100_000),
        (1 << 20, 16, 1 << 23),
    ):
        for shuffled in (False, True):
            frees_agree(slots, page_size, most, shuffled, arguments.device)
    say("frees of up to a million slots at once, in lists of up to 8 million pages: both engines agree")
    for page_size in (1, 16, 64):
        huge(page_size, arguments.device)
        say(f"a pool of more than 2^31 slots, page size {page_size}: right at its far end")
    for page_size, need_sort, share in ((16, False, 0.5), (64, True, 0.25), (24, False, 0.25)):
        many(round(arguments.operations * share), page_size, need_sort, arguments.device)
        say(
            f"{round(arguments.operations * share):,} operations, page size {page_size}, need_sort {need_sort}: no drift"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
