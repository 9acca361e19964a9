"""The kernel tier: one extend or decode as data, what is right for it, and where an answer departs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oracle.reference import Pool, ceil_div
from oracle.traits import SEED_PAGED

ZONE = 96  # numbers on each side of an argument that nobody may read or write
# What they are: far outside every pool that batches are drawn for, and small enough that 128 times it is an int32.
SENTINEL = 9_000_001


@dataclass(frozen=True, slots=True)
class Batch:
    """What one kernel is given.

    prefix, seq: lengths before and after, by request. last: slot of each request's last token, any value
    that is -1 modulo page_size where it has none. free: the free list, in pages, at least `need` of them.
    decode: every request grows by one. ValueError where SPEC.md calls the batch impossible.
    """

    page_size: int
    prefix: tuple[int, ...]
    seq: tuple[int, ...]
    last: tuple[int, ...]
    free: tuple[int, ...]
    decode: bool = False

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError("a page has at least one slot")
        if not len(self.prefix) == len(self.seq) == len(self.last):
            raise ValueError("prefix, seq and last are equally long")
        for index, (p, s, last) in enumerate(zip(self.prefix, self.seq, self.last, strict=True)):
            if not 0 <= p <= s:
                raise ValueError(f"request {index} goes from {p} to {s} tokens")
            if self.decode and s != p + 1:
                raise ValueError(f"request {index} goes from {p} to {s} tokens in a decode")
            if (last + 1 - p) % self.page_size:
                raise ValueError(f"request {index} has {p} tokens, and its last one can't be at slot {last}")
        if len(self.free) < self.need:
            raise ValueError(f"the batch needs {self.need} page(s), and {len(self.free)} are free")

    @property
    def need(self) -> int:
        """Pages that the batch takes from the head of the free list."""
        size = self.page_size
        return sum(ceil_div(s, size) - ceil_div(p, size) for p, s in zip(self.prefix, self.seq, strict=True))

    @property
    def total(self) -> int:
        """Slots that the answer has."""
        return sum(self.seq) - sum(self.prefix)


def answer(batch: Batch) -> list[int]:
    """The new slots, request after request, token after token."""
    pool = Pool(0, batch.page_size, need_sort=False, dialect=SEED_PAGED)
    pool.free_list = list(batch.free)
    slots = pool.extend(list(batch.prefix), list(batch.seq), list(batch.last), batch.decode)
    if slots is None:
        raise RuntimeError("the pages were counted, and the pool refused")
    return slots


def explain_difference(batch: Batch, got: Sequence[int]) -> str | None:
    """One sentence on the first slot that is wrong, or on a wrong length; None where all are right.

    Requests and tokens are counted from 0, tokens from the request's beginning: `prefix` is the first new one.
    """
    right = answer(batch)
    if len(got) != len(right):
        return f"the answer has {len(got)} slot(s), and {len(right)} is right"
    place = 0
    for index, (p, s) in enumerate(zip(batch.prefix, batch.seq, strict=True)):
        for token in range(p, s):
            if got[place] != right[place]:
                part = _part(token, p, s, batch.page_size)
                return (
                    f"request {index}'s token {token} ({part}) is {got[place]}, and {right[place]} is right"
                )
            place += 1
    return None


def _part(token: int, prefix: int, seq: int, page_size: int) -> str:
    """Which of SPEC.md's three parts of an extend a token belongs to."""
    if token < ceil_div(prefix, page_size) * page_size:
        return "in its old page"
    return "in a new full page" if token < seq // page_size * page_size else "in its last new page"
