"""The kernel tier: one engine against the reference, with every argument lying between filled zones.

A read past an argument's end meets a sentinel, which shows in the answer; a write spoils a zone. Both are
findings on any device. The free list is cut off right behind the last page that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from impl.engines import EngineSubject
from oracle.batch import SENTINEL, Batch, answer, explain_difference
from oracle.verdict import Observation, Violation, short, symptom_of
from properties.sources import Source, chance, pick, weighted

PAGE_SIZES = (1, 2, 3, 4, 5, 8, 12, 16, 64, 100, 128)


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


def check_batch(subject: EngineSubject, batch: Batch, dtype: str) -> Violation | None:
    """Run one batch; the violation, if there is one."""
    return check_answer(batch, dtype, subject.run_batch(batch, dtype))


def check_answer(batch: Batch, dtype: str, seen: Observation) -> Violation | None:
    """What is wrong with an engine's answer to a batch, if anything."""
    method = "alloc_decode" if batch.decode else "alloc_extend"
    asked = f"{method} of {len(batch.seq)} request(s), page size {batch.page_size}, {dtype}"

    def violation(code: str, sentence: str) -> Violation:
        return Violation(code, "fault", 0, method, f"{asked}: {sentence}", symptom_of(seen))

    if seen.outcome == "crashed":
        return violation("GUARD", f"the engine's process died ({seen.error})")
    if seen.outcome != "slots":
        return violation("EXHAUST", f"raised {seen.error}")
    if seen.guard:
        return violation("GUARD", seen.guard)
    if seen.slots == tuple(answer(batch)):
        return None
    code = _code(batch, seen.slots)
    difference = explain_difference(batch, seen.slots) or short(seen.slots)
    if code == "GUARD":
        difference = f"a value from outside the arguments, or a lane that nothing wrote, is in the answer; {difference}"
    return violation(code, difference)


def _code(batch: Batch, got: tuple[int, ...]) -> str:
    """Which promise a wrong answer breaks."""
    pages = {slot // batch.page_size for slot in got}
    limit = max((*batch.free, *(slot // batch.page_size for slot in batch.last), 1))
    if any(abs(page) > SENTINEL // 256 for page in pages):
        return "GUARD"
    if any(not 1 <= page <= limit for page in pages):
        return "RANGE"
    return "UNIQUE" if len(set(got)) < len(got) else "ALIGN"


def shrink_batch(subject: EngineSubject, batch: Batch, dtype: str, key: tuple[str, ...]) -> Batch:
    """The smallest batch with the same finding: fewer requests, then shorter ones, then a tidy free list."""

    def holds(candidate: Batch) -> bool:
        violation = check_batch(subject, candidate, dtype)
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
