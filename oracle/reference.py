"""What the answer is, number for number: the three allocators in plain Python, in the exact order.

Slots are plain integers and every method answers with a new list. The caller is trusted: what is legal is
the ledger's business (`oracle.ledger`), and a reference is only ever asked what is legal.
"""

from __future__ import annotations

from typing import Any

from oracle.ops import Config
from oracle.traits import Dialect


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


class Pool:
    """Pages 1 to `pages`, in the order of a dialect. A token pool is one with `page_size` 1."""

    def __init__(self, pages: int, page_size: int, need_sort: bool, dialect: Dialect) -> None:
        self.pages, self.page_size, self.dialect = pages, page_size, dialect
        self.need_sort = need_sort or dialect.always_sorts
        self.free_list = list(range(1, pages + 1))
        self.release_list: list[int] = []

    def clear(self) -> None:
        """All pages free, in rising order; no group."""
        self.free_list = list(range(1, self.pages + 1))
        self.release_list = []

    @property
    def available(self) -> int:
        """Slots that an allocation could have."""
        return (len(self.free_list) + len(self.release_list)) * self.page_size

    def merge(self) -> None:
        """Staged pages join the free list, which is then sorted; without staged pages nothing is."""
        if self.release_list:
            self.free_list = sorted(self.free_list + self.release_list)
            self.release_list = []

    def take(self, need: int, demand: int) -> list[int] | None:
        """`need` pages from the head, merging first where `demand` exceeds the free list."""
        if self.need_sort and demand > len(self.free_list):
            self.merge()
        if need > len(self.free_list):
            return None
        taken, self.free_list = self.free_list[:need], self.free_list[need:]
        return taken

    def alloc(self, size: int) -> list[int] | None:
        """Whole pages, slot by slot."""
        need = size // self.page_size
        pages = self.take(need, need)
        return None if pages is None else [slot for page in pages for slot in self.slots(page)]

    def slots(self, page: int) -> range:
        """The slots of a page."""
        return range(page * self.page_size, (page + 1) * self.page_size)

    def extend(
        self, prefix: list[int], seq: list[int], last: list[int], decode: bool = False
    ) -> list[int] | None:
        """The new slots of each request, request after request, token after token."""
        size, batch = self.page_size, len(prefix)
        new = [ceil_div(s, size) - ceil_div(p, size) for p, s in zip(prefix, seq, strict=True)]
        rule = self.dialect.merge_decode if decode else self.dialect.merge_extend
        demand = self._demand(rule, batch, sum(seq) - sum(prefix), sum(new), decode)
        pages = self.take(sum(new), demand)
        if pages is None:
            return None
        answer: list[int] = []
        for p, s, last_loc, count in zip(prefix, seq, last, new, strict=True):
            inside = min(s, ceil_div(p, size) * size) - p
            own, pages = pages[:count], pages[count:]
            fresh = [slot for page in own for slot in self.slots(page)]
            answer += range(last_loc + 1, last_loc + 1 + inside)
            answer += fresh[: s - p - inside]
        return answer

    def _demand(self, rule: str, batch: int, tokens: int, need: int, decode: bool) -> int:
        """What a dialect compares with the free list before it merges."""
        match rule:
            case "bound":
                return batch if decode else batch * ceil_div(tokens, self.page_size)
            case "loose":
                return tokens // self.page_size + batch + 1
            case "always":
                return len(self.free_list) + 1
        return need

    def free(self, slots: list[int]) -> None:
        """The pages of the slots, each once."""
        if not slots:
            return
        pages = dict.fromkeys(slot // self.page_size for slot in slots)
        listed = self.release_list if self.need_sort else self.free_list
        back = sorted(pages) if self.dialect.front else list(pages)
        first = self.dialect.staged_front if self.need_sort else self.dialect.front
        joined = back + listed if first else listed + back
        if self.need_sort:
            self.release_list = joined
        else:
            self.free_list = joined


class Reference:
    """Token and Paged: one pool, groups, snapshots."""

    def __init__(self, config: Config, dialect: Dialect) -> None:
        self.pool = Pool(config.pages, config.page_size, config.need_sort, dialect)
        self.group: list[int] | None = None

    def alloc(self, size: int) -> list[int] | None:
        """`size` slots, or None."""
        return self.pool.alloc(size)

    def extend(
        self, prefix: list[int], seq: list[int], last: list[int], decode: bool = False
    ) -> list[int] | None:
        """The batch's new slots, or None."""
        return self.pool.extend(prefix, seq, last, decode)

    def free(self, slots: list[int]) -> None:
        """Now, or at the end of the open group."""
        if self.group is None:
            self.pool.free(slots)
        else:
            self.group += slots

    def group_begin(self) -> None:
        """From here on frees are collected."""
        self.group = []

    def group_end(self) -> None:
        """What was collected is freed at once; nothing happens without a group."""
        collected, self.group = self.group, None
        if collected:
            self.pool.free(collected)

    def merge(self) -> None:
        """Staged pages join the free list."""
        self.pool.merge()

    def clear(self) -> None:
        """A new allocator."""
        self.pool.clear()
        self.group = None

    def backup(self) -> Any:
        """Everything, apart from the live object."""
        group = None if self.group is None else list(self.group)
        return list(self.pool.free_list), list(self.pool.release_list), group

    def restore(self, state: Any) -> None:
        """Everything as it was; the state stays good."""
        free_list, release_list, group = state
        self.pool.free_list, self.pool.release_list = list(free_list), list(release_list)
        self.group = None if group is None else list(group)

    def lists(self) -> tuple[list[int], ...]:
        """Free list and release list."""
        return self.pool.free_list, self.pool.release_list

    def available(self) -> int:
        """Slots that an allocation could have."""
        return self.pool.available


class SwaReference:
    """Two pools in step, and the mapping from full slots to the slots of the sliding window.

    swa_now: a free of the window's half alone does not wait for the end of a group.
    """

    def __init__(self, config: Config, dialect: Dialect, swa_now: bool = False) -> None:
        self.config, self.swa_now = config, swa_now
        self.full = Pool(config.pages, config.page_size, config.need_sort, dialect)
        self.swa = Pool(config.swa_pages, config.page_size, config.need_sort, dialect)
        self.mapping: dict[int, int] = {}
        self.group: list[tuple[list[int], bool]] | None = None

    def alloc(self, size: int) -> list[int] | None:
        """`size` full slots, with as many of the window behind them, or None."""
        if size > min(self.full.available, self.swa.available):
            return None
        return self._mapped(self.full.alloc(size), self.swa.alloc(size))

    def extend(
        self, prefix: list[int], seq: list[int], last: list[int], decode: bool = False
    ) -> list[int] | None:
        """The batch's new full slots, or None; the window's grow in the same way from theirs."""
        size = self.config.page_size
        need = sum(ceil_div(s, size) - ceil_div(p, size) for p, s in zip(prefix, seq, strict=True))
        if need * size > min(self.full.available, self.swa.available):
            return None
        window_last = [self.mapping.get(slot, -1) for slot in last]
        return self._mapped(
            self.full.extend(prefix, seq, last, decode), self.swa.extend(prefix, seq, window_last, decode)
        )

    def _mapped(self, full: list[int] | None, swa: list[int] | None) -> list[int]:
        if full is None or swa is None:
            raise RuntimeError("both pools were counted, and one of them refused")
        self.mapping.update(zip(full, swa, strict=True))
        return full

    def free(self, slots: list[int], swa_alone: bool = False) -> None:
        """Both halves, or the window's alone, now or at the end of the open group."""
        if not slots:
            return
        if self.group is not None and not (swa_alone and self.swa_now):
            self.group.append((slots, swa_alone))
        else:
            self._give_back([(slots, swa_alone)])

    def _give_back(self, frees: list[tuple[list[int], bool]]) -> None:
        size = self.config.page_size
        window: list[int] = []
        touched: set[int] = set()
        for slots, _ in frees:
            window += [self.mapping[slot] for slot in slots if slot in self.mapping]
            touched.update(slot // size for slot in slots)
        self.full.free([slot for slots, swa_alone in frees if not swa_alone for slot in slots])
        self.swa.free(window)
        for page in touched:
            for slot in self.full.slots(page):
                self.mapping.pop(slot, None)

    def group_begin(self) -> None:
        """From here on frees are collected."""
        self.group = []

    def group_end(self) -> None:
        """What was collected is freed at once; nothing happens without a group."""
        collected, self.group = self.group, None
        if collected:
            self._give_back(collected)

    def merge(self) -> None:
        """Inside each pool."""
        self.full.merge()
        self.swa.merge()

    def clear(self) -> None:
        """A new allocator."""
        self.full.clear()
        self.swa.clear()
        self.mapping, self.group = {}, None

    def backup(self) -> Any:
        """Both pools, the mapping and an open group."""
        return (
            *(list(x) for x in self.lists()),
            dict(self.mapping),
            None if self.group is None else list(self.group),
        )

    def restore(self, state: Any) -> None:
        """Everything as it was; the state stays good."""
        *lists, mapping, group = state
        (self.full.free_list, self.full.release_list, self.swa.free_list, self.swa.release_list) = (
            list(x) for x in lists
        )
        self.mapping, self.group = dict(mapping), None if group is None else list(group)

    def lists(self) -> tuple[list[int], ...]:
        """Free and release list of the full pool, then of the window's."""
        return self.full.free_list, self.full.release_list, self.swa.free_list, self.swa.release_list

    def available(self) -> int:
        """The smaller pool's."""
        return min(self.full.available, self.swa.available)


def reference_for(config: Config, dialect: Dialect, swa_now: bool = False) -> Reference | SwaReference:
    """The reference allocator of a pool's kind."""
    if config.kind == "swa":
        return SwaReference(config, dialect, swa_now)
    return Reference(config, dialect)
