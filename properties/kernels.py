"""The kernel tier: one engine against the reference, with every argument lying between filled zones.

A read past an argument's end meets a sentinel, which shows in the answer; a write spoils a zone. Both are
findings on any device. The free list is cut off right behind the last page that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from impl.paged import IndexEngine
from oracle.batch import Batch, answer, explain_difference
from oracle.verdict import Violation, short
from properties.sources import Source, chance, pick, weighted

ZONE = 96
PAGE_SIZES = (1, 2, 3, 4, 5, 8, 12, 16, 64, 100, 128)
# Far outside every pool that is drawn here, and small enough that 128 times it is an int32.
SENTINEL = 9_000_001
DTYPES = {"int32": torch.int32, "int64": torch.int64}


def draw_batch(source: Source, largest: int = 300) -> Batch:
    """A batch of 0 to `largest` requests, with recycled pages in no order, and lengths at and next to page ends."""
    size = pick(source, PAGE_SIZES)
    count = (source.below(4), source.below(20), source.below(largest + 1))[weighted(source, (5, 4, 1))]
    decode = chance(source, 3)
    prefix, seq, pages_before = [], [], []
    for _ in range(count):
        p = pick(source, (0, 1, size - 1, size, size + 1, source.below(5 * size), source.below(40 * size)))
        grow = pick(
            source,
            (1, 0, size - p % size, size, size + 1, source.below(2 * size + 1), source.below(9 * size)),
        )
        prefix.append(p)
        seq.append(p + 1 if decode else p + grow)
        pages_before.append(-(-p // size))
    need = sum(-(-s // size) - -(-p // size) for p, s in zip(prefix, seq, strict=True))
    # The pool's pages in an order of their own: first the last pages of the requests, then the free list.
    order = _shuffled(source, need + count + source.below(4))
    last = [page * size + (p - 1) % size if p else -1 for page, p in zip(order[:count], prefix, strict=True)]
    spare = 0 if not chance(source, 3) else source.below(3)
    free = order[count : count + need + spare]
    return Batch(size, tuple(prefix), tuple(seq), tuple(last), tuple(free), decode)


def _shuffled(source: Source, count: int) -> list[int]:
    pages = list(range(1, count + 1))
    if chance(source, 4):
        return pages
    for place in range(count - 1, 0, -1):
        other = source.below(place + 1)
        pages[place], pages[other] = pages[other], pages[place]
    return pages


def check_batch(
    engine: IndexEngine, batch: Batch, dtype: str = "int64", device: str = "cpu"
) -> Violation | None:
    """Run one batch between guard zones; the violation, if there is one."""
    index = DTYPES[dtype]
    guarded = {
        "prefix_lens": _Guarded(batch.prefix, torch.int64, device),
        "seq_lens": _Guarded(batch.seq, torch.int64, device),
        "last_loc": _Guarded(batch.last, torch.int64, device),
        "free_pages": _Guarded(batch.free, index, device),
        "out": _Guarded((SENTINEL,) * batch.total, index, device),
    }
    out = guarded["out"]
    method = "alloc_decode" if batch.decode else "alloc_extend"
    try:
        arguments = [guarded[name].inner for name in ("seq_lens", "last_loc", "free_pages", "out")]
        if batch.decode:
            engine.decode(*arguments, batch.page_size)
        else:
            engine.extend(guarded["prefix_lens"].inner, *arguments, batch.page_size)
    except Exception as error:
        kind = type(error).__name__
        return Violation(
            "EXHAUST",
            "fault",
            0,
            method,
            f"a batch of {len(batch.seq)} raised {kind}: {error}",
            f"raised {kind}",
        )
    for name, argument in guarded.items():
        spoilt = argument.spoilt(inner=name != "out")
        if spoilt:
            return Violation("GUARD", "fault", 0, method, f"{method} wrote {spoilt} of {name}", "zone")
    got = tuple(out.inner.tolist())
    if got == tuple(answer(batch)):
        return None
    difference = explain_difference(batch, list(got)) or f"answered {short(got)}"
    code = _code(batch, got)
    if code == "GUARD":
        difference = f"a value from outside the arguments, or a lane that nothing wrote, is in the answer: {difference}"
    return Violation(
        code, "fault", 0, method, f"{method} of {len(batch.seq)} request(s): {difference}", "wrong"
    )


def _code(batch: Batch, got: tuple[int, ...]) -> str:
    """Which promise a wrong answer breaks."""
    pages = {slot // batch.page_size for slot in got}
    limit = max((*batch.free, *(slot // batch.page_size for slot in batch.last), 1))
    if any(abs(page) > SENTINEL // 256 for page in pages):
        return "GUARD"
    if any(not 1 <= page <= limit for page in pages):
        return "RANGE"
    return "UNIQUE" if len(set(got)) < len(got) else "ALIGN"


class _Guarded:
    """A tensor between two zones that are filled with a sentinel."""

    def __init__(self, values: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        filled = torch.full((2 * ZONE + len(values),), SENTINEL, dtype=dtype)
        filled[ZONE : ZONE + len(values)] = torch.tensor(values, dtype=dtype)
        self._whole = filled.to(device)
        self._before = self._whole.clone()
        self._count = len(values)
        self.inner = self._whole[ZONE : ZONE + len(values)]

    def spoilt(self, inner: bool) -> str:
        """Where it was written, in words: outside, or (where it is an input) inside."""
        changed = (self._whole != self._before).nonzero().reshape(-1).tolist()
        if not inner:
            changed = [at for at in changed if not ZONE <= at < ZONE + self._count]
        if not changed:
            return ""
        at = changed[0] - ZONE
        if 0 <= at < self._count:
            return f"into the input at {at}"
        return (
            f"{-at} element(s) before the start"
            if at < 0
            else f"{at - self._count} element(s) behind the end"
        )


def shrink_batch(engine: IndexEngine, batch: Batch, dtype: str, device: str, key: tuple[str, ...]) -> Batch:
    """The smallest batch with the same finding: fewer requests, then shorter ones, then a tidy free list."""

    def holds(candidate: Batch) -> bool:
        violation = check_batch(engine, candidate, dtype, device)
        return violation is not None and violation.key == key

    progress = True
    while progress:
        progress = False
        for candidate in _smaller_batches(batch):
            if holds(candidate):
                batch, progress = candidate, True
                break
    return batch


def _smaller_batches(batch: Batch) -> Iterator[Batch]:
    count = len(batch.seq)
    length = count // 2
    while length:
        for start in range(0, count, length):
            keep = [i for i in range(count) if not start <= i < start + length]
            yield _cut_to(batch, keep)
        length //= 2
    if count == 1:
        yield _cut_to(batch, [])
    for i in range(count):
        p, s = batch.prefix[i], batch.seq[i]
        for shorter_p, shorter_s in (
            (p % batch.page_size, s - (p - p % batch.page_size)),
            (p, p + (s - p) // 2),
            (p, s - 1),
        ):
            if (
                (shorter_p, shorter_s) != (p, s)
                and shorter_s >= shorter_p
                and not (batch.decode and shorter_s != shorter_p + 1)
            ):
                yield _tidy(
                    replace(batch, prefix=_put(batch.prefix, i, shorter_p), seq=_put(batch.seq, i, shorter_s))
                )


def _cut_to(batch: Batch, keep: list[int]) -> Batch:
    chosen = (tuple(values[i] for i in keep) for values in (batch.prefix, batch.seq, batch.last))
    prefix, seq, last = chosen
    return _tidy(replace(batch, prefix=prefix, seq=seq, last=last))


def _tidy(batch: Batch) -> Batch:
    """The same batch with a free list as long as it needs."""
    last = tuple(-1 if p == 0 else slot for p, slot in zip(batch.prefix, batch.last, strict=True))
    need = sum(
        -(-s // batch.page_size) - -(-p // batch.page_size)
        for p, s in zip(batch.prefix, batch.seq, strict=True)
    )
    return replace(batch, last=last, free=batch.free[:need])


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
