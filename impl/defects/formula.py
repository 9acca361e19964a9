"""Which slots do growing requests get, token by token? The plainest engine, for defects to change a line of."""

import torch


class FormulaEngine:
    """An index engine (`impl.paged.IndexEngine`), several operators a token."""

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
        total = out.numel()
        if total == 0:
            return
        prefix, seq = prefix_lens.long(), seq_lens.long()
        lens = seq - prefix
        held = (prefix + (page_size - 1)) // page_size
        new_pages = (seq + (page_size - 1)) // page_size - held
        start = lens.cumsum(0) - lens
        page_start = new_pages.cumsum(0) - new_pages

        # The request of each token. The output's size is known, so nothing waits for the device.
        i = torch.repeat_interleave(lens, output_size=total)
        k = torch.arange(total, device=out.device) - start[i]
        pos = prefix[i] + k
        new_page = pos // page_size - held[i]
        # Inside the old page `new_page` is -1: the lookup then hits the row before, or the last by wrapping
        # round. That row is there, and is not used.
        page = _listed(free_pages)[page_start[i] + new_page].long()
        out.copy_(torch.where(new_page < 0, last_loc[i] + k + 1, page * page_size + pos % page_size))

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """Write each request's slot for token `seq_len - 1` to `out`."""
        if out.numel() == 0:
            return
        opens = (seq_lens.long() - 1) % page_size == 0
        # Before the first page is opened this is -1, as in extend.
        page = _listed(free_pages)[opens.cumsum(0) - 1].long()
        out.copy_(torch.where(opens, page * page_size, last_loc.long() + 1))


def _listed(free_pages: torch.Tensor) -> torch.Tensor:
    """The free list, with one row even if it is empty.

    On an empty list no request needs a page, but the lookup of the others still wants a row.
    """
    return free_pages if free_pages.numel() else free_pages.new_zeros(1)
