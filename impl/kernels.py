"""Which slots do growing requests get, in Triton? By one launch, or two where an extend has many requests.

No tile grows with the batch. A kernel is compiled once for the page size, for the dtypes of its tensors and for
each width that `TritonEngine` names: no other argument is specialised (that is what `do_not_specialize` is for).
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from impl.pages import PageList
from impl.torch_engine import TorchEngine

TOLD = tl.constexpr(48)  # bits of a place in a list, below the ticket
# Of one extend, and of one page: kernels sum up tokens and pages, and count lanes, in 32 bits. `impl.proofs` says
# why this much; what is more goes to the torch engine.
MOST_TOKENS = MOST_PAGE = (1 << 31) - (1 << 12)
__all__ = ("KERNELS", "MOST_PAGE", "MOST_TOKENS", "TritonEngine")


@triton.jit
def _write(
    prefix,
    seq,
    last_loc,
    token_start,
    page_start,
    k0,
    least,
    free_ptr,
    out_ptr,
    PAGE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write a request's new tokens k0 .. k0 + CHUNK - 1, without those before `least`; it is known where they go.

    Lanes count in 32 bits, from the chunk's first token; all that may be larger is one number a program.
    """
    first = prefix + k0.to(tl.int64)  # the position of the chunk's first token
    held = (prefix + PAGE - 1) // PAGE
    begin = tl.maximum(least - k0, 0).to(tl.int32)  # 0 <= least - k0 <= CHUNK where there is something to do
    end = tl.minimum(seq - first, CHUNK).to(tl.int32)
    room = tl.minimum(tl.maximum(held * PAGE - first, 0), CHUNK).to(tl.int32)  # what goes on in the old page
    shift = (first % PAGE).to(tl.int32)
    pages_ptr = free_ptr + (page_start + first // PAGE - held)
    k = tl.arange(0, CHUNK)
    live = (k >= begin) & (k < end)
    offset = shift + k  # from the start of the page that the chunk starts in
    page = tl.load(pages_ptr + offset // PAGE, mask=live & (k >= room), other=0).to(tl.int64)
    slot = tl.where(k < room, last_loc + 1 + k0 + k, page * PAGE + offset % PAGE)
    tl.store(out_ptr + (token_start + k0) + k, slot, mask=live)  # narrows to the dtype of out


@triton.jit(do_not_specialize=list(range(6)))
def extend_kernel(
    prefix_ptr,
    seq_ptr,
    last_loc_ptr,
    free_ptr,
    out_ptr,
    bs,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    ALONE: tl.constexpr,
):
    """Extend at most LANES requests: each program sums up by itself what the requests before its own take.

    Program p < bs writes the first CHUNK tokens of request p. Program bs + n - 1 writes those of output tokens
    n * CHUNK .. (n + 1) * CHUNK - 1 that are left: none, or some of the one request that the first belongs to.
    There are none of these where the programs p < bs are ALONE.
    """
    p = tl.program_id(0)
    i = tl.arange(0, LANES)
    known = i < tl.minimum(p, bs)
    prefixes = tl.load(prefix_ptr + i, mask=known, other=0).to(tl.int64)
    seqs = tl.load(seq_ptr + i, mask=known, other=0).to(tl.int64)
    lens = (seqs - prefixes).to(tl.int32)
    pages = ((seqs + PAGE - 1) // PAGE - (prefixes + PAGE - 1) // PAGE).to(tl.int32)
    request = p
    if not ALONE:
        if p >= bs:
            ends = tl.cumsum(lens, 0)
            request = tl.sum((known & (ends <= (p - bs + 1) * CHUNK)).to(tl.int32), 0)
    prefix = tl.load(prefix_ptr + request).to(tl.int64)
    seq = tl.load(seq_ptr + request).to(tl.int64)
    last_loc = tl.load(last_loc_ptr + request).to(tl.int64)
    if not ALONE:
        if (p >= bs) & (seq - prefix <= CHUNK):
            return
    token_start = tl.sum(tl.where(i < request, lens, 0), 0)
    page_start = tl.sum(tl.where(i < request, pages, 0), 0)
    least = tl.where(p < bs, 0, CHUNK)
    k0 = tl.where(p < bs, 0, (p - bs + 1) * CHUNK - token_start)
    _write(prefix, seq, last_loc, token_start, page_start, k0, least, free_ptr, out_ptr, PAGE, CHUNK)


@triton.jit(do_not_specialize=list(range(5)))
def starts_kernel(
    prefix_ptr,
    seq_ptr,
    token_start_ptr,
    page_start_ptr,
    bs,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Where each request's tokens and pages start, of any number of requests; LANES requests a program."""
    tokens = tl.full((LANES,), 0, tl.int32)
    pages = tl.full((LANES,), 0, tl.int32)
    for at in range(0, tl.program_id(0) * LANES, LANES):
        j = at + tl.arange(0, LANES)
        prefix = tl.load(prefix_ptr + j).to(tl.int64)
        seq = tl.load(seq_ptr + j).to(tl.int64)
        tokens += (seq - prefix).to(tl.int32)
        pages += ((seq + PAGE - 1) // PAGE - (prefix + PAGE - 1) // PAGE).to(tl.int32)

    i = tl.program_id(0) * LANES + tl.arange(0, LANES)
    prefix = tl.load(prefix_ptr + i, mask=i < bs, other=0).to(tl.int64)
    seq = tl.load(seq_ptr + i, mask=i < bs, other=0).to(tl.int64)
    own = (seq - prefix).to(tl.int32)
    own_pages = ((seq + PAGE - 1) // PAGE - (prefix + PAGE - 1) // PAGE).to(tl.int32)
    tl.store(token_start_ptr + i, tl.sum(tokens, 0) + tl.cumsum(own, 0) - own, mask=i < bs)
    tl.store(page_start_ptr + i, tl.sum(pages, 0) + tl.cumsum(own_pages, 0) - own_pages, mask=i < bs)


@triton.jit(do_not_specialize=list(range(8)))
def chunks_kernel(
    prefix_ptr,
    seq_ptr,
    last_loc_ptr,
    token_start_ptr,
    page_start_ptr,
    free_ptr,
    out_ptr,
    bs,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Extend any number of requests whose starts are known; programs share the work as in `extend_kernel`."""
    p = tl.program_id(0)
    request = p
    if p >= bs:
        # The last request that starts at or before the chunk is one of request .. request + n - 1.
        request, n = p * 0, bs
        while n > 1:
            step = (n + LANES - 1) // LANES
            j = tl.arange(0, LANES) * step
            start = tl.load(token_start_ptr + request + j, mask=j < n, other=0)
            below = (j < n) & (start <= (p - bs + 1) * CHUNK)
            at = (tl.sum(below.to(tl.int32), 0) - 1) * step
            request += at
            n = tl.minimum(step, n - at)
    prefix = tl.load(prefix_ptr + request).to(tl.int64)
    seq = tl.load(seq_ptr + request).to(tl.int64)
    if (p >= bs) & (seq - prefix <= CHUNK):
        return
    last_loc = tl.load(last_loc_ptr + request).to(tl.int64)
    token_start = tl.load(token_start_ptr + request)
    page_start = tl.load(page_start_ptr + request)
    least = tl.where(p < bs, 0, CHUNK)
    k0 = tl.where(p < bs, 0, (p - bs + 1) * CHUNK - token_start)
    _write(prefix, seq, last_loc, token_start, page_start, k0, least, free_ptr, out_ptr, PAGE, CHUNK)


@triton.jit(do_not_specialize=list(range(5)))
def decode_kernel(
    seq_ptr,
    last_loc_ptr,
    free_ptr,
    out_ptr,
    bs,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    ALONE: tl.constexpr,
):
    """Slot of each request's next token: after its last one, or the first of a page of the free list.

    LANES requests a program; each sums up by itself how many requests before open a page, unless it is ALONE.
    """
    opened = tl.full((LANES,), 0, tl.int32)
    if not ALONE:
        for at in range(0, tl.program_id(0) * LANES, LANES):
            before = tl.load(seq_ptr + at + tl.arange(0, LANES)).to(tl.int64) - 1
            opened += (before % PAGE == 0).to(tl.int32)

    i = tl.program_id(0) * LANES + tl.arange(0, LANES)
    pos = tl.load(seq_ptr + i, mask=i < bs, other=0).to(tl.int64) - 1
    last_loc = tl.load(last_loc_ptr + i, mask=i < bs, other=0).to(tl.int64)
    opens = (i < bs) & (pos % PAGE == 0)
    index = tl.cumsum(opens.to(tl.int32), 0) - 1
    if not ALONE:
        index += tl.sum(opened, 0)
    page = tl.load(free_ptr + index, mask=opens, other=0).to(tl.int64)
    slot = tl.where(opens, page * PAGE, last_loc + 1)
    tl.store(out_ptr + i, slot, mask=i < bs)  # narrows to the dtype of out


@triton.jit
def _ones(word):
    """How many of the low 32 bits are set."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24) & 0xFF


@triton.jit(do_not_specialize=list(range(12)))
def free_kernel(
    slots_ptr,
    marks_ptr,
    sums_ptr,
    found_ptr,
    pages_ptr,
    base_ptr,
    news_ptr,
    count,
    most,
    offset,
    capacity,
    ticket,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    FEW: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Put the distinct pages of `count` slots, sorted, before the list that starts at base + offset; move base.

    `news` is memory of the host, and is told the new base together with the ticket of this free.

    One program: barriers order what its lanes update. `marks` has a bit a page, 32 in a word, and `sums` a number
    for each SPAN words; both hold zeros before and after. A page is found by the lane that sets its bit. Page 0
    and pages above `most` are left out, and pages for which there is no room: there are none of these unless the
    caller frees what it does not hold.
    """
    found = count * 0
    for at in range(0, count, LANES):
        i = at + tl.arange(0, LANES)
        page = tl.load(slots_ptr + i, mask=i < count, other=0).to(tl.int64) // PAGE
        before = tl.load(slots_ptr + i - 1, mask=(i < count) & (i > 0), other=0).to(tl.int64) // PAGE
        turn = (i < count) & (page != before) & (page > 0) & (page <= most)  # spares most of the updates
        page = tl.where(turn, page, 0)
        bit = tl.full((LANES,), 1, tl.int64) << (page % 32)
        marked = tl.atomic_or(marks_ptr + page // 32, bit, mask=turn, sem="relaxed")
        new = turn & ((tl.where(turn, marked, 0) & bit) == 0)
        tl.atomic_add(sums_ptr + page // (32 * SPAN), tl.full((LANES,), 1, tl.int32), mask=new, sem="relaxed")
        tl.store(found_ptr + found + tl.cumsum(new.to(tl.int32), 0) - 1, page, mask=new)
        found += tl.sum(new.to(tl.int32), 0)
    tl.debug_barrier()

    total = count * 0
    for at in range(0, most // (32 * SPAN) + 1, LANES):
        j = at + tl.arange(0, LANES)
        inside = j <= most // (32 * SPAN)
        own = tl.load(sums_ptr + j, mask=inside, other=0)
        tl.store(sums_ptr + j, total + tl.cumsum(own, 0) - own, mask=inside)
        total += tl.sum(own, 0)
    tl.debug_barrier()

    start = tl.load(base_ptr) + offset - found
    for at in range(0, found, FEW):
        i = at + tl.arange(0, FEW)
        page = tl.load(found_ptr + i, mask=i < found, other=0)
        word = page // 32
        lower = (tl.full((FEW,), 1, tl.int64) << (page % 32)) - 1
        rank = tl.load(sums_ptr + word // SPAN, mask=i < found, other=0)
        for n in tl.static_range(SPAN):
            other = word // SPAN * SPAN + n
            mark = tl.load(marks_ptr + other, mask=(i < found) & (other <= word), other=0)
            rank += _ones(tl.where(other == word, mark & lower, mark)).to(tl.int32)
        place = start + rank
        tl.store(pages_ptr + place, page, mask=(i < found) & (place > 0) & (place < capacity))
    tl.debug_barrier()

    for at in range(0, found, FEW):
        i = at + tl.arange(0, FEW)
        page = tl.load(found_ptr + i, mask=i < found, other=0)
        tl.atomic_and(marks_ptr + page // 32, tl.full((FEW,), 0, tl.int64), mask=i < found, sem="relaxed")
    for at in range(0, most // (32 * SPAN) + 1, LANES):
        j = at + tl.arange(0, LANES)
        tl.store(sums_ptr + j, tl.full((LANES,), 0, tl.int32), mask=j <= most // (32 * SPAN))
    start = tl.maximum(start, 1)
    tl.store(base_ptr, start)
    tl.store(news_ptr, (ticket.to(tl.int64) << TOLD) + start)


KERNELS = {
    kernel.fn.__name__: kernel
    for kernel in (extend_kernel, starts_kernel, chunks_kernel, decode_kernel, free_kernel)
}


class Launcher:
    """A kernel, launched by what it was compiled to before for the same dtypes, constants and device.

    Triton's own way there looks at every argument, which takes longer than most of these kernels. Nothing else of
    an argument decides what is compiled (`do_not_specialize`), but whether a number needs 64 bits.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._compiled = kernel, dict[Any, Any]()

    def __call__(
        self, programs: int, tensors: tuple[torch.Tensor, ...], numbers: tuple[int, ...], constants: tuple[int, ...],
        num_warps: int,
    ) -> None:  # fmt: skip
        """Launch so many programs with these arguments, in this order."""
        device = tensors[0].device
        key = (device, constants, *[tensor.dtype for tensor in tensors])
        compiled = self._compiled.get(key)
        with _current(device):
            if compiled is not None and max(numbers) < 1 << 31:
                compiled[programs, 1, 1](*tensors, *numbers, *constants)
                return
            made = self._kernel[programs,](*tensors, *numbers, *constants, num_warps=num_warps)
            if max(numbers) < 1 << 31 and isinstance(made, triton.compiler.CompiledKernel):
                self._compiled[key] = made


class TritonEngine:
    """The index engine (`impl.paged.IndexEngine`) on the GPU, or anywhere under TRITON_INTERPRET=1.

    kernels: what to launch instead of `KERNELS`, by name. Which kernels answer, and how wide they are, is
    decided by what the host knows: the number of requests and of tokens.
    """

    most = 512  # requests that an extend by one launch can have
    probes = 64  # requests that a search looks at in one go
    most_freed = 1 << 16  # slots that one program frees, of a list of `most_listed` pages at most
    most_listed = 1 << 23

    def __init__(self, kernels: Mapping[str, Any] = KERNELS) -> None:
        launch = {name: Launcher(kernel) for name, kernel in kernels.items()}
        self._extend, self._decode = launch["extend_kernel"], launch["decode_kernel"]
        self._starts, self._chunks = launch["starts_kernel"], launch["chunks_kernel"]
        self._free = launch["free_kernel"]
        self._scratch: dict[tuple[int, torch.device], Scratch] = {}

    def compared(self) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """What a free finds that others left there, where it should find zeros (`impl.state.Roomy`)."""
        left = [
            marks.nonzero() for scratch in self._scratch.values() for marks in (scratch.marks, scratch.sums)
        ]
        return [places for places in left if places.numel()], ()

    def lanes(self, bs: int) -> int:
        """Requests that one program of an extend by one launch sums up: a power of two from 32 to `most`."""
        return max(32, int(triton.next_power_of_2(bs)))

    def at_once(self, bs: int, total: int) -> bool:
        """Whether an extend is one launch, whose programs sum up by themselves what is before their own."""
        return bs <= self.most

    def chunk(self, bs: int, total: int) -> int:
        """Tokens of one request that one program of an extend writes: 256, or more where requests are long."""
        if bs > self.most or total <= 256 * bs:
            return 256
        return 1024 if total <= 8192 * bs else 2048

    def starts(self, bs: int) -> int:
        """Requests of which one program finds the starts."""
        return 256

    def steps(self, bs: int) -> int:
        """Requests for which one program of a decode answers: 32, 256 or 1024."""
        return 32 if bs <= 32 else 256 if bs <= 256 else 1024

    def freed(self, count: int) -> int:
        """Slots that the program of a free looks at in one go."""
        return 1024 if count <= 1024 else 2048

    def span(self, most: int) -> int:
        """Words of marks, of 32 pages each, that a free in pages up to `most` sums up once."""
        return 8

    def extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write the new slots of all requests to `out`, request after request, token after token."""
        total, bs = out.numel(), prefix_lens.numel()
        if total == 0:
            return
        if total > MOST_TOKENS or page_size > MOST_PAGE:
            TorchEngine().extend(prefix_lens, seq_lens, last_loc, free_pages, out, page_size)
            return
        prefix, seq = prefix_lens.contiguous(), seq_lens.contiguous()
        last, free = last_loc.contiguous(), free_pages.contiguous()
        chunk = self.chunk(bs, total)
        programs = bs + (total - 1) // chunk
        if self.at_once(bs, total):
            constants: tuple[int, ...] = (page_size, self.lanes(bs), chunk, total <= chunk <= 256)
            self._extend(programs, (prefix, seq, last, free, out), (bs,), constants, 4)
            return
        tokens, pages = torch.empty(2, bs, dtype=torch.int32, device=out.device).unbind()
        lanes = self.starts(bs)
        self._starts(-(-bs // lanes), (prefix, seq, tokens, pages), (bs,), (page_size, lanes), 4)
        constants = (page_size, self.probes, chunk)
        self._chunks(programs, (prefix, seq, last, tokens, pages, free, out), (bs,), constants, 1)

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write each request's slot for token `seq_len - 1` to `out`."""
        bs = out.numel()
        if bs == 0:
            return
        if page_size > MOST_PAGE:
            TorchEngine().decode(seq_lens, last_loc, free_pages, out, page_size)
            return
        lanes = self.steps(bs)
        tensors = (seq_lens.contiguous(), last_loc.contiguous(), free_pages.contiguous(), out)
        constants = (page_size, lanes, bs <= lanes < 1024)
        self._decode(-(-bs // lanes), tensors, (bs,), constants, max(1, lanes // 128))

    def put_before(self, slots: torch.Tensor, listed: PageList, page_size: int) -> None:
        """Put the distinct pages of `slots`, sorted, before a list. Page 0 and pages outside the pool are left out."""
        count = slots.numel()
        if count > self.most_freed or listed.most > self.most_listed or page_size > MOST_PAGE:
            TorchEngine().put_before(slots, listed, page_size)
            return
        span = self.span(listed.most)
        scratch = self._scratch.get((listed.most, slots.device))
        if scratch is None:
            scratch = Scratch(self.most_freed, listed.most, span, slots.device)
            self._scratch[listed.most, slots.device] = scratch
        ticket = scratch.next_ticket()
        tensors = (
            slots.contiguous(), scratch.marks, scratch.sums, scratch.found, listed.memory, listed.base, scratch.news,
        )  # fmt: skip
        numbers = (count, listed.most, listed.offset, listed.memory.numel(), ticket)
        lanes = self.freed(count)
        self._free(1, tensors, numbers, (page_size, lanes, lanes // 4, span), 8)
        listed.moved(listed.base, Word(scratch, ticket))


class Scratch:
    """What `free_kernel` works on beside the list: `marks` and `sums`, all zeros between frees, `found`, and `news`.

    `news` is one number on the host that kernels write. Of lists that share it only the last one freed to is told.
    """

    def __init__(self, slots: int, most: int, span: int, device: torch.device) -> None:
        """For frees of so many slots at most, in pages up to `most`; a sum for each `span` words of marks."""
        sums = most // (32 * span) + 1
        self.marks = torch.zeros(sums * span, dtype=torch.int64, device=device)
        self.sums = torch.zeros(sums, dtype=torch.int32, device=device)
        self.found = torch.empty(slots, dtype=torch.int64, device=device)
        self.news = torch.zeros(1, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._ticket = 0

    def next_ticket(self) -> int:
        """One that no launch still to run has: queues of launches are far shorter than 2^15."""
        self._ticket = self._ticket % ((1 << 15) - 1) + 1
        return self._ticket


@dataclass(frozen=True)
class Word:
    """What a free leaves on the host (`impl.pages.News`), under its ticket."""

    scratch: Scratch
    ticket: int

    def __call__(self) -> int | None:
        """The base that this free left, once it is known here."""
        news = int(self.scratch.news.numpy()[0])
        return news & ((1 << TOLD.value) - 1) if news >> TOLD.value == self.ticket else None


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU, which need not be the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" and _several() else _HERE


@functools.cache
def _several() -> bool:
    return torch.cuda.device_count() > 1


_HERE = nullcontext()
