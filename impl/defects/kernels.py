"""Defects in the arithmetic of extend and decode: each a changed line in the text of one of our engines."""

from __future__ import annotations

from impl.defects.patches import Patch
from impl.defects.record import Defect

# Lines of impl.defects.formula.
STORE = "out.copy_(torch.where(new_page < 0, last_loc[i] + k + 1, page * page_size + pos % page_size))"
HELD = "held = (prefix + (page_size - 1)) // page_size"
PAGE_START = "page_start = new_pages.cumsum(0) - new_pages"
PAGE = "page = _listed(free_pages)[page_start[i] + new_page].long()"
DECODE_PAGE = "page = _listed(free_pages)[opens.cumsum(0) - 1].long()"
DECODE_STORE = "out.copy_(torch.where(opens, page * page_size, last_loc.long() + 1))"

AFTER = "\n        "  # a line of its own


def _formula(about: str, old: str, new: str) -> Patch:
    return Patch(about, "formula", old, new)


def _kernels(about: str, old: str, new: str) -> Patch:
    return Patch(about, "kernels", old, new)


WRITES_TO_PAGE_END = _formula(
    "An extend inside one page writes up to the page's end, over its neighbour's output.",
    STORE,
    STORE
    + AFTER
    + AFTER.join(
        (
            "for row in ((new_pages == 0) & (lens > 0)).nonzero().flatten().tolist():",
            "    first, room = int(start[row]), int(held[row] * page_size - prefix[row])",
            "    part = out[first : first + room]",
            "    part.copy_(last_loc[row] + 1 + torch.arange(part.numel(), device=out.device))",
        )
    ),
)
TAKES_TAIL_OF_OTHER_PAGE = _formula(
    "An extend inside one page takes slots of a page that it did not count.",
    "torch.where(new_page < 0,",
    "torch.where((new_page < 0) & (new_pages[i] > 0),",
)
OLD_PAGE = _formula(
    "What an extend adds to its old page lies one slot too far.",
    "last_loc[i] + k + 1,",
    "last_loc[i] + k + 2,",
)
FULL_PAGES = _formula(
    "The full new pages of an extend lie one slot too far.",
    "page * page_size + pos % page_size))",
    "page * page_size + pos % page_size + (pos < seq[i] // page_size * page_size).long()))",
)
LAST_PAGE = _formula(
    "The last new page of an extend, where it is not full, lies one slot too far.",
    "page * page_size + pos % page_size))",
    "page * page_size + pos % page_size + (pos >= seq[i] // page_size * page_size).long()))",
)
DECODE_STEP = _formula(
    "A decode that goes on inside a page leaves out a slot.", "last_loc.long() + 1))", "last_loc.long() + 2))"
)
DECODE_END = _formula(
    "A decode to a page's end takes the first slot of a page that it did not count.",
    "opens = (seq_lens.long() - 1) % page_size == 0",
    "opens = (seq_lens.long() - 1) % page_size * (seq_lens.long() % page_size) == 0",
)
ROUNDS_UP = _formula(
    "A prefix that ends with its page counts one page more, so that an extend runs on behind the last location.",
    HELD,
    "held = (prefix + page_size * (prefix > 0)) // page_size",
)
COUNTS_REQUESTS = _formula(
    "The sum of the pages before a request counts requests, and not their pages.",
    PAGE_START,
    "page_start = (new_pages > 0).cumsum(0) - (new_pages > 0).long()",
)
FORGETS_FIRST = _formula(
    "The sum of the pages before a request leaves the first one out.",
    PAGE_START,
    "page_start = (new_pages.cumsum(0) - new_pages - new_pages[0]).clamp(min=0)",
)
LAST_REQUEST = _formula(
    "The last request of three or more goes on from its neighbour's last location.",
    "torch.where(new_page < 0, last_loc[i] + k",
    "torch.where(new_page < 0, last_loc[torch.where((i > 1) & (i == lens.numel() - 1), i - 1, i)] + k",
)
FIRST_REQUEST = _formula(
    "The first request of a decode of several always opens a page.",
    DECODE_PAGE,
    "opens[0] |= opens.numel() > 1" + AFTER + DECODE_PAGE,
)
PAGE_ORDER = _formula(
    "A request takes its new pages in falling order.",
    PAGE,
    "page = _listed(free_pages)[page_start[i] + torch.where(new_page < 0, new_page, new_pages[i] - 1 - new_page)].long()",
)
GATHERS_PAST_END = _formula(
    "A decode looks up a page for each request, also behind the last one that was counted.",
    "[opens.cumsum(0) - 1]",
    "[opens.cumsum(0) - opens.long()]",
)
NEEDS_A_ROW = _formula(
    "A decode for which no page is needed looks into a free list that is empty.",
    DECODE_PAGE,
    "page = free_pages[opens.cumsum(0) - 1].long()",
)
WRAPS = _formula(
    "Page times page size is computed in 16 bits (32 in the field: so that small pools show it).",
    "page * page_size + pos % page_size))",
    "(page * page_size).short().long() + pos % page_size))",
)
SHORT_OUTPUT = _formula(
    "An extend writes the first 64 slots of its answer, and zeros behind them.",
    STORE,
    STORE + AFTER + "out[64:] = 0",
)
NO_CARRY = _formula(
    "The pages of a decode are summed up in blocks of eight requests, without what the blocks before opened.",
    "[opens.cumsum(0) - 1]",
    "[torch.cat([block.cumsum(0) for block in opens.split(8)]) - 1]",
)

# Lines of impl.kernels.
SHARE = _kernels(
    "A share that begins inside a request goes on with the next one.",
    "passed = tokens + tl.cumsum(lens, 0) <= low",
    "passed = tokens + tl.cumsum(lens, 0) - lens < low",
)
FIRST_AGAIN = _kernels(
    "A chunk behind the first takes the request after its own.",
    "request = tl.sum((known & (ends <=",
    "request = 1 + tl.sum((known & (ends <=",
)
SECOND_SLOT = _kernels(
    "A decode that would take the second slot of a page opens one.",
    "opens = (i < bs) & (pos % PAGE == 0)",
    "opens = (i < bs) & (pos % PAGE <= 1)",
)
ANY_LANE = _kernels(
    "Lanes that need no page look one up too, before the free list or behind it.",
    "mask=live & (k >= room), other=0",
    "mask=live, other=0",
)
FILLS_NOTHING = _kernels(
    "Lanes that a masked load leaves out, without a value to fill them, take part in a sum.",
    "mask=opens, other=0).to(tl.int64)\n    slot = tl.where(opens, page * PAGE, last_loc + 1)",
    "mask=opens).to(tl.int64)\n    slot = tl.where(opens, 0, last_loc + 1) + page * PAGE",
)
NEIGHBOURS_ALONE = Patch(
    "A free counts a page again where it comes back to it.",
    "free",
    "new = turn & ((tl.where(turn, marked, 0) & bit) == 0)",
    "new = turn",
)
MARKS_STAY = Patch(
    "The first program of a large free leaves its marks, so that the next free does not count those pages.",
    "large frees",
    "mask=marks != 0)",
    "mask=(marks != 0) & (own > 0))",
)
LISTS_ALONE = Patch(
    "Each program of a large free lists its pages as if it were the first.",
    "large frees",
    "before += tl.sum(tl.where(j < own, counts, 0), 0)",
    "before += 0",
)

PAGES = (2, 3, 4, 8, 16, 64)
DEFECTS = (
    Defect("F01", "ascend", WRITES_TO_PAGE_END, "ALIGN UNIQUE RANGE",
           seen="an extend inside one page that writes over its neighbour's output", page_sizes=PAGES, shortest=2),
    Defect("F01-tail", "ascend", TAKES_TAIL_OF_OTHER_PAGE, "ALIGN UNIQUE RANGE EXHAUST",
           seen="an extend inside one page that takes the tail of another", page_sizes=PAGES, shortest=2),
    Defect("F24-lanes", "paged", ANY_LANE, "GUARD", seen="a kernel that reads past the free list", page_sizes=PAGES, shortest=2),
    Defect("F25", "paged", GATHERS_PAST_END, "EXHAUST",
           seen="a gather past the end where the pool has exactly what is needed", page_sizes=PAGES, shortest=2),
    Defect("F25-empty", "paged", NEEDS_A_ROW, "EXHAUST", seen="a gather from a pool that has nothing", page_sizes=PAGES,
           shortest=2),
    Defect("F32", "paged", SHORT_OUTPUT, "ALIGN RANGE UNIQUE", seen="a bound that cuts the output short", shortest=1),
    Defect("F33-wrap", "paged", WRAPS, "RANGE ALIGN UNIQUE", seen="page times page size that wraps", page_sizes=(256,), shortest=2),
    Defect("F34", "paged", FILLS_NOTHING, "GUARD", seen="masked lanes without a fill value in a sum", page_sizes=PAGES, shortest=2),
    Defect("old-page", "paged", OLD_PAGE, "ALIGN RANGE UNIQUE", page_sizes=PAGES, shortest=2),
    Defect("full-pages", "paged", FULL_PAGES, "ALIGN RANGE UNIQUE", shortest=1),
    Defect("last-page", "paged", LAST_PAGE, "ALIGN RANGE UNIQUE", page_sizes=PAGES, shortest=1),
    Defect("decode-step", "paged", DECODE_STEP, "ALIGN RANGE UNIQUE", page_sizes=PAGES, shortest=2),
    Defect("decode-end", "swa", DECODE_END, "ALIGN RANGE UNIQUE EXHAUST", page_sizes=PAGES, shortest=2),
    Defect("rounds-up", "paged", ROUNDS_UP, "ALIGN RANGE UNIQUE", shortest=2),
    Defect("counts-requests", "paged", COUNTS_REQUESTS, "UNIQUE", shortest=1),
    Defect("forgets-first", "swa", FORGETS_FIRST, "UNIQUE MAP", page_sizes=PAGES, shortest=1),
    Defect("last-request", "paged", LAST_REQUEST, "ALIGN RANGE UNIQUE", page_sizes=PAGES, shortest=2),
    Defect("first-request", "paged", FIRST_REQUEST, "ALIGN UNIQUE RANGE EXHAUST", page_sizes=PAGES, shortest=2),
    Defect("page-order", "paged", PAGE_ORDER, "ORDER", "parity", shortest=1),
    Defect("no-carry", "paged", NO_CARRY, "UNIQUE ALIGN", shortest=1),
    Defect("kernel-share", "paged", SHARE, "GUARD ALIGN UNIQUE RANGE EXHAUST", shortest=1),
    Defect("kernel-first-again", "paged", FIRST_AGAIN, "GUARD ALIGN UNIQUE RANGE EXHAUST", shortest=1),
    Defect("kernel-neighbours", "paged", NEIGHBOURS_ALONE, "GUARD UNIQUE CONSERVE GROUP", shortest=3),
    Defect("kernel-marks-stay", "paged", MARKS_STAY, "GUARD UNIQUE CONSERVE GROUP", shortest=4),
    Defect("kernel-lists-alone", "paged", LISTS_ALONE, "GUARD UNIQUE CONSERVE GROUP", shortest=2),
    Defect("kernel-second-slot", "paged", SECOND_SLOT, "GUARD ALIGN UNIQUE RANGE EXHAUST", page_sizes=PAGES, shortest=2),
)  # fmt: skip
