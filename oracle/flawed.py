"""What a flaw makes of the numbers of a batch: one place for all that ask an allocator, or write down how."""

from __future__ import annotations

from typing import NamedTuple

from oracle.world import BatchCall


class Told(NamedTuple):
    """The numbers that an allocator is told: lengths on the CPU, and the sum of the growth (decode: seq alone)."""

    prefix: list[int]
    seq: list[int]
    total: int


def told(call: BatchCall) -> Told:
    """The numbers of a batch, spoilt where its flaw is about them."""
    prefix, seq, total = list(call.prefix), list(call.seq), call.total
    if not call.flaw:
        return Told(prefix, seq, total)
    first = first_that_grows(call)
    match call.flaw:
        case "total":
            total += 1
        case "shrinks":
            total -= seq[first] - prefix[first] + 1
            seq[first] = prefix[first] - 1
        case "negative" if call.decode:
            seq[first] = 0
        case "negative":
            total += 1 + prefix[first]
            prefix[first] = -1
    return Told(prefix, seq, total)


def first_that_grows(call: BatchCall) -> int:
    """The request that a flaw spoils; the first one where none grows."""
    return next((i for i, (p, s) in enumerate(zip(call.prefix, call.seq, strict=True)) if s > p), 0)


def new_pages(call: BatchCall, page_size: int) -> int:
    """What `num_new_pages` is told: the pages that the requests open, and one more where that is the flaw."""
    pairs = zip(call.prefix, call.seq, strict=True)
    return sum(-(-s // page_size) + (-p // page_size) for p, s in pairs) + (call.flaw == "new pages")
