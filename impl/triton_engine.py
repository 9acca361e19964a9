"""Which kernels answer, how wide, how are they launched, and what do they keep between launches?"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton

from impl.free_kernel import TOLD, free_kernel
from impl.free_many_kernels import list_kernel, mark_kernel
from impl.kernels import MOST_TOKENS, decode_kernel, extend_kernel, shares_kernel, sums_kernel
from impl.pages import PageList
from impl.torch_engine import TorchEngine

KERNELS = {
    kernel.fn.__name__: kernel
    for kernel in (
        extend_kernel, sums_kernel, shares_kernel, decode_kernel, free_kernel, mark_kernel, list_kernel,
    )
}  # fmt: skip

MOST_TICKETS = (1 << 63 - TOLD.value) - 1  # what is left of 64 bits above a place in a list, and not negative


class Launcher:
    """A kernel, launched by what it was compiled to before for the same dtypes, constants and device.

    Triton's own way there looks at every argument, which takes longer than most of these kernels. Nothing else of
    an argument decides what is compiled (`do_not_specialize`), but whether a number needs 64 bits. As torch's
    compiler does, it goes past Triton's hooks for profilers, and gives addresses: a tensor would be asked for it.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._compiled = kernel, dict[Any, Callable[..., None]]()

    def __call__(
        self, programs: int, tensors: tuple[torch.Tensor, ...], numbers: tuple[int, ...], constants: tuple[int, ...],
        num_warps: int, scratch: Scratch | None = None,
    ) -> None:  # fmt: skip
        """Launch so many programs with these arguments, in this order; tensors of a scratch come after the others."""
        if tensors[0].is_cuda:
            self._on_gpu(programs, tensors, numbers, constants, num_warps, scratch)
            return
        shared = () if scratch is None else scratch.tensors
        self._kernel[programs,](*tensors, *shared, *numbers, *constants, num_warps=num_warps)

    def _on_gpu(
        self, programs: int, tensors: tuple[torch.Tensor, ...], numbers: tuple[int, ...], constants: tuple[int, ...],
        num_warps: int, scratch: Scratch | None,
    ) -> None:  # fmt: skip
        device = tensors[0].device
        key = (device, constants, *[tensor.dtype for tensor in tensors])
        launch = self._compiled.get(key)
        with _current(device):
            if launch is not None and max(numbers) < 1 << 31:
                addresses = [tensor.data_ptr() for tensor in tensors]
                if scratch is not None:
                    addresses += scratch.addresses
                launch(programs, addresses, numbers, constants)
                return
            if scratch is not None:
                tensors += scratch.tensors
            made = self._kernel[programs,](*tensors, *numbers, *constants, num_warps=num_warps)
            if max(numbers) < 1 << 31 and isinstance(made, triton.compiler.CompiledKernel):
                self._compiled[key] = _launch(made, device.index)


def _launch(made: Any, device: int) -> Callable[..., None]:
    """What launches a compiled kernel on the current stream of a device."""
    run, stream = made.run, triton.runtime.driver.active.get_current_stream
    fixed = made.function, made.packed_metadata, None, None, None

    def launch(
        programs: int, addresses: list[int], numbers: tuple[int, ...], constants: tuple[int, ...]
    ) -> None:
        run(programs, 1, 1, stream(device), *fixed, *addresses, *numbers, *constants)

    return launch


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current GPU, which need not be the tensors'."""
    return torch.cuda.device(device) if _several() else _HERE


@functools.cache
def _several() -> bool:
    return torch.cuda.device_count() > 1


_HERE = nullcontext()


class TritonEngine:
    """The index engine (`impl.paged.IndexEngine`) on the GPU, or anywhere under TRITON_INTERPRET=1.

    kernels: what to launch instead of `KERNELS`, by name. Which kernels answer, and how wide they are, is
    decided by what the host knows: the number of requests and of tokens. All frees go to one stream.
    """

    warps = 4  # of programs for which no plan says another number
    most = 512  # requests that an extend by one launch can have
    most_freed = 1 << 13  # slots that one program frees
    most_listed = 1 << 23  # pages of a list that kernels free to: there is a mark for each

    def __init__(self, kernels: Mapping[str, Any] = KERNELS) -> None:
        launch = {name: Launcher(kernel) for name, kernel in kernels.items()}
        self._extend, self._decode = launch["extend_kernel"], launch["decode_kernel"]
        self._sums, self._shares = launch["sums_kernel"], launch["shares_kernel"]
        self._free = launch["free_kernel"]
        self._mark, self._list = launch["mark_kernel"], launch["list_kernel"]
        self._scratch: dict[tuple[int, torch.device], Scratch] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TritonEngine:
        """Itself: allocators may share an engine, and so may their copies."""
        return self

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
        """Whether each program of an extend sums up by itself all that is before its own request."""
        return bs <= self.most

    def chunk(self, bs: int, total: int) -> int:
        """Tokens of one request that one program of an extend writes: 256, or more where requests are long."""
        if total <= 256 * bs:
            return 256
        return 1024 if total <= 8192 * bs else 2048

    def share(self, bs: int, total: int) -> tuple[int, int, int, int, int]:
        """Of an extend of many requests: those of a block that is summed up beforehand, and by how many warps, those that
        a program writes in one go, how many tokens of each, and how many tokens in all."""
        if total >= 256 * bs:
            return 1024, 4, 8, 128, 2048
        if total >= 32 * bs:
            return (32, 1, 32, 32, 2048) if bs <= 1 << 15 else (1024, 4, 32, 32, 2048)
        return 1024, 4, 128, 16, 1024

    def summed(self, blocks: int) -> int:
        """Sums of blocks that a program looks at in one go."""
        return 32 if blocks <= 32 else 512

    def steps(self, bs: int) -> tuple[int, int]:
        """Requests for which one program of a decode answers, 1, 32, 256 or 1024, and its warps."""
        return (1, 1) if bs == 1 else (32, 1) if bs <= 32 else (256, 2) if bs <= 256 else (1024, 8)

    def freed(self, count: int) -> tuple[int, int, int]:
        """Slots that the program of a free looks at in one go, pages that it ranks in one go, and its warps."""
        return (1024, 256, 8) if count <= 1024 else (4096, 512, 16)

    def marked(self, count: int) -> tuple[int, int]:
        """Slots that a program of a large free marks, and counts of marks that one looks at in one go."""
        return 256, 1024

    def spans(self, most: int) -> tuple[int, int]:
        """Words of marks, of 32 pages each, that a free in pages up to `most` counts together: a small, a large one."""
        return 8, 32 if most <= 1 << 20 else 128

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
        if total > MOST_TOKENS:
            TorchEngine().extend(prefix_lens, seq_lens, last_loc, free_pages, out, page_size)
            return
        prefix, seq = prefix_lens.contiguous(), seq_lens.contiguous()
        last, free = last_loc.contiguous(), free_pages.contiguous()
        if self.at_once(bs, total):
            chunk = self.chunk(bs, total)
            programs = bs + (total - 1) // chunk
            constants: tuple[int, ...] = (page_size, self.lanes(bs), chunk, total <= chunk <= 256)
            self._extend(programs, (prefix, seq, last, free, out), (bs,), constants, self.warps)
            return
        lanes, warps, rows, wide, share = self.share(bs, total)
        blocks = -(-bs // lanes)
        totals = torch.empty(2 * blocks, dtype=torch.int32, device=out.device)
        if blocks > 1:
            self._sums(blocks, (prefix, seq, totals), (bs, blocks), (page_size, lanes), warps)
        constants = (page_size, lanes, self.summed(blocks), rows, wide, share)
        self._shares(
            -(-total // share), (prefix, seq, last, free, totals, out), (bs, blocks), constants, self.warps
        )

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
        lanes, warps = self.steps(bs)
        tensors = (seq_lens.contiguous(), last_loc.contiguous(), free_pages.contiguous(), out)
        constants = (page_size, lanes, bs <= lanes < 1024)
        self._decode(-(-bs // lanes), tensors, (bs,), constants, warps)

    def put_before(self, slots: torch.Tensor, listed: PageList, page_size: int) -> None:
        """Put the distinct pages of `slots`, sorted, before a list. Page 0 and pages outside the pool are left out."""
        count = slots.numel()
        if count > MOST_TOKENS or listed.most > self.most_listed:
            TorchEngine().put_before(slots, listed, page_size)
            return
        scratch = self._scratch.get((listed.most, slots.device))
        if scratch is None:
            scratch = Scratch(self.most_freed, listed.most, self.spans(listed.most), slots.device)
            self._scratch[listed.most, slots.device] = scratch
        ticket = scratch.next_ticket()
        if count > self.most_freed:
            self._put_many_before(slots.contiguous(), listed, page_size, scratch, ticket)
            return
        tensors = (slots.contiguous(), listed.memory, listed.first.base)
        numbers = (count, listed.most, listed.first.offset, listed.memory.numel(), ticket)
        lanes, few, warps = self.freed(count)
        constants = (page_size, lanes, few, scratch.spans[0])
        self._free(1, tensors, numbers, constants, warps, scratch)
        listed.grow_before(listed.first.base, Word(scratch, ticket))

    def _put_many_before(
        self, slots: torch.Tensor, listed: PageList, page_size: int, scratch: Scratch, ticket: int
    ) -> None:
        count, span = slots.numel(), scratch.spans[1]
        blocks = listed.most // (32 * span) + 1
        lanes, wide = self.marked(count)
        counts = torch.zeros(blocks, dtype=torch.int32, device=slots.device)
        moved = torch.empty(1, dtype=torch.int64, device=slots.device)
        marks = (slots, scratch.marks, counts)
        self._mark(-(-count // lanes), marks, (count, listed.most), (page_size, lanes, span), self.warps)
        tensors = (listed.memory, listed.first.base, scratch.marks, counts, moved, scratch.news)
        numbers = (listed.first.offset, listed.memory.numel(), blocks, ticket)
        self._list(blocks, tensors, numbers, (wide, span), self.warps)
        listed.grow_before(moved, Word(scratch, ticket))


class Scratch:
    """What `free_kernel` works on beside the list: `marks` and `sums`, all zeros between frees, `found`, and `news`.

    `news` is one number on the host that kernels write. Of lists that share it only the last one freed to is told.
    """

    def __init__(self, slots: int, most: int, spans: tuple[int, int], device: torch.device) -> None:
        """For frees of so many slots by `free_kernel`, and of any number by others, in pages up to `most`.

        spans: words of marks that are counted together, by one and by the others: powers of two.
        """
        self.spans, words = spans, max(spans)
        sums = most // (32 * spans[0]) + 1
        self.marks = torch.zeros((most // (32 * words) + 1) * words, dtype=torch.int64, device=device)
        self.sums = torch.zeros(sums, dtype=torch.int32, device=device)
        self.found = torch.empty(slots, dtype=torch.int64, device=device)
        self.news = torch.zeros(1, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.tensors = (self.marks, self.sums, self.found, self.news)  # as `free_kernel` takes them
        self._ticket = 0

    @functools.cached_property
    def addresses(self) -> list[int]:
        """Those of `tensors`, for launches on a GPU: asked for once, since each answer takes long."""
        return [tensor.data_ptr() for tensor in self.tensors]

    def next_ticket(self) -> int:
        """One that no launch still to run has: queues of launches are far shorter than MOST_TICKETS."""
        self._ticket = self._ticket % MOST_TICKETS + 1
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
