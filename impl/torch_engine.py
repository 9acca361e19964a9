"""Which slots do growing requests get, in torch operators alone? For devices without a kernel language."""

import torch

from impl.pages import News, PageList


class TorchEngine:
    """The index engine (`impl.paged.IndexEngine`) without kernels, loops over requests or device reads."""

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
        prefix, seq, last = prefix_lens.long(), seq_lens.long(), last_loc.long()
        lens = seq - prefix
        after = torch.floor_divide(seq + (page_size - 1), page_size)
        new = after - torch.floor_divide(prefix + (page_size - 1), page_size)
        listed = free_pages[:total].long()  # each new page holds a new token, so there are not more

        # A table of pages, by their first slots: each request's old page (or a row for it), then its new ones.
        ends = new.cumsum(0).add_(torch.arange(bs, device=out.device))
        old = ends - new
        table = torch.zeros(bs + listed.numel(), dtype=torch.int64, device=out.device)
        is_new = torch.ones_like(table, dtype=torch.bool).index_fill_(0, old, False)
        table.masked_scatter_(is_new, listed * page_size)
        table.index_copy_(0, old, last - last % page_size)

        # Token t of the output is at t + page_size + shift in a memory in which the table's pages lie one after the other.
        shift = torch.add(seq - lens.cumsum(0), ends - after, alpha=page_size)
        at = torch.repeat_interleave(shift, lens, output_size=total).add_(
            torch.arange(page_size, page_size + total, device=out.device)
        )
        table.sub_(torch.arange(0, page_size * table.numel(), page_size, device=out.device))
        torch.add(table.index_select(0, torch.floor_divide(at, page_size)), at, out=out)

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write each request's slot for token `seq_len - 1` to `out`."""
        bs, listed = out.numel(), free_pages.numel()
        if bs == 0:
            return
        torch.add(last_loc, 1, out=out)
        if listed == 0:
            return  # then none is needed
        slots = (free_pages if listed <= bs else free_pages[:bs]) * page_size
        # The n-th request that opens a page takes the n-th page.
        out.masked_scatter_(seq_lens % page_size == 1 % page_size, slots.to(out.dtype))

    def put_before(self, slots: torch.Tensor, listed: PageList, page_size: int) -> None:
        """Put the distinct pages of `slots`, sorted, before a list. Page 0 and pages outside the pool are left out."""
        above = listed.most + 1
        # Slot 0 goes first, so that each page has one before it. What is left out becomes page 0, and has rank 0.
        pages = torch.floor_divide(torch.cat((slots.new_zeros(1), slots)).long(), page_size)
        pages = pages.clamp_(0, above).remainder_(above).sort().values
        named = pages[1:]
        rank = (named != pages[:-1]).cumsum(0)
        row = torch.sub(listed.first.base, rank[-1:]).add_(listed.first.offset - 1)  # before the first page
        # One that is met again is written again; row 0 takes what has no room, and `row` what is left out.
        listed.memory.scatter_(0, rank.add_(row).clamp_(min=0), named.to(listed.memory.dtype))
        start = row.clamp_(min=0).add_(1)
        listed.grow_before(start, word_of(start))


def word_of(number: torch.Tensor) -> News | None:
    """Leave word of one int64 on the device. None for a CPU, which nobody waits for."""
    return Word(number) if number.is_cuda else None


class Word:
    """Tells what a number on a GPU is (`impl.pages.News`) once it has been copied to the host."""

    def __init__(self, number: torch.Tensor) -> None:
        self._copy = torch.empty(1, dtype=torch.int64, pin_memory=True)
        self._copy.copy_(number, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def __call__(self) -> int | None:
        """The number, or None as long as the copy is under way."""
        return int(self._copy) if self._copied.query() else None  # type: ignore[no-untyped-call]
