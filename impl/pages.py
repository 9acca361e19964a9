"""Where is a list of free pages kept? In memory with room at both ends, so that no free copies the pool."""

from __future__ import annotations

from collections.abc import Callable

import torch

News = Callable[[], int | None]


class Place:
    """A row of a list's memory that the device alone may know: a number there, `base`, and `offset`.

    A kernel can leave word of `base` on the host (`news`), which is heard as soon as it is there. Whoever asks for
    the number earlier waits for the device, once.
    """

    def __init__(self, number: int, device: torch.device) -> None:
        self.offset = number
        self._device = device
        self._base: torch.Tensor | None = None  # zero
        self.settled: int | None = number  # what is known here, without listening for news
        self._news: News | None = None

    @property
    def base(self) -> torch.Tensor:
        """The part that the device knows, as one int64."""
        if self._base is None:
            self._base = torch.zeros(1, dtype=torch.int64, device=self._device)
        return self._base

    @property
    def known(self) -> int | None:
        """The number, where it is known here or has just become so."""
        if self.settled is None and self._news is not None and (told := self._news()) is not None:
            self.settled = told + self.offset
        return self.settled

    def __int__(self) -> int:
        """The number. Waits for the device if it alone knows."""
        if self.settled is not None:
            return self.settled
        known = self.known
        if known is None:
            known = self.settled = self.peek()
        return known

    def peek(self) -> int:
        """The number, without learning it: whoever asks next waits again."""
        return int(self.base) + self.offset if self.settled is None else self.settled

    def shift(self, count: int) -> None:
        """Go so many rows on."""
        self.offset += count
        if self.settled is not None:
            self.settled += count

    def move(self, base: torch.Tensor, news: News | None = None) -> None:
        """Be at `base`, a number on the device, from now on. news: gives it once the host was told, and None before."""
        self._base, self.offset, self.settled, self._news = base, 0, None, news


class PageList:
    """Pages in order: `memory[start:end]`.

    A free writes the pages that come back into the room before the list, or behind it. How many distinct pages
    the freed slots lie in only the device knows, and with it where the list starts, or ends, from then on. `start`,
    `end` and the length wait for the device where it alone knows; `least`, `head` and `drop` never do.

    memory: 1-D. Row 0 is no part of any list: what has to be written and is not wanted goes there.
    most: the highest page number.
    """

    def __init__(self, memory: torch.Tensor, start: int, end: int, most: int) -> None:
        self.memory, self.most = memory, most
        self.first, self.behind = Place(start, memory.device), Place(end, memory.device)
        self._least = end - start
        self._behind_at_most = end

    @classmethod
    def of(cls, pages: torch.Tensor, most: int) -> PageList:
        """A list of its own of these pages, with room before it for all others."""
        room = _room_before(pages, most)
        memory = torch.cat((pages.new_empty(room), pages))
        return cls(memory, room, memory.numel(), most)

    @property
    def start(self) -> int:
        """Where the list starts."""
        return int(self.first)

    @property
    def end(self) -> int:
        """The row behind the list."""
        return int(self.behind)

    @property
    def least(self) -> int:
        """The length, or what is known of it: not more than it is."""
        self._count(self.first.known, self.behind.known)
        return self._least

    def _count(self, start: int | None, end: int | None) -> None:
        if start is not None and end is not None:
            self._least = end - start

    @property
    def listed(self) -> torch.Tensor:
        """The pages, as a view that the next free may change."""
        start, end = self._ends()
        return self.memory[start:end]

    def _ends(self) -> tuple[int, int]:
        start, end = self.first.settled, self.behind.settled
        return (self.start, self.end) if start is None or end is None else (start, end)

    def compared(self) -> tuple[list[int | str], tuple[torch.Tensor, ...]]:
        """Dtype and pages, and whether all others would have room (`impl.state.Roomy`); with their memory.

        Not where the list starts, nor whether that is known here: no answer depends on either.
        """
        start = self.first.peek()
        pages: list[int] = self.memory[start : self.behind.peek()].tolist()
        return [str(self.memory.dtype), *pages, start > self.most - len(pages)], (self.memory,)

    def __len__(self) -> int:
        start, end = self._ends()
        return end - start

    def head(self, count: int) -> torch.Tensor:
        """The first `count` pages, of at least as many."""
        start = self.first.known
        if start is not None:
            return self.memory[start : start + count]
        rows = torch.arange(self.first.offset, self.first.offset + count, device=self.memory.device)
        return self.memory[rows.add_(self.first.base)]

    def drop(self, count: int) -> None:
        """Take the first `count` pages off, of at least as many."""
        self.first.shift(count)
        self._least -= count

    def grow_before(self, start: torch.Tensor, news: News | None = None) -> None:
        """Start at `start`, a number on the device, where pages were written before the list."""
        self._count(self.first.settled, self.behind.settled)
        self.first.move(start, news)

    def append(self, pages: torch.Tensor) -> None:
        """Put pages behind the list."""
        count = pages.numel()
        self._make_room(count)
        self.memory[self.end : self.end + count] = pages
        self.behind.shift(count)
        self._least += count

    def append_some(
        self, pages: torch.Tensor, wanted: torch.Tensor, word: Callable[[torch.Tensor], News | None]
    ) -> None:
        """Put those pages behind the list that are wanted, a bool each. word: leaves word of a number on the device."""
        self._make_room(pages.numel())
        rank = wanted.cumsum(0)
        end = self.behind.base + self.behind.offset
        self.memory[torch.where(wanted, end + rank - 1, 0)] = pages
        end += rank[-1:]
        self.behind.move(end, word(end))
        self._behind_at_most += pages.numel()

    def _make_room(self, count: int) -> None:
        """Behind the list, for so many pages. Where there is none the list moves, and has room for many more."""
        end = self.behind.known
        if end is not None:
            self._behind_at_most = end
        if self._behind_at_most + count > self.memory.numel():
            listed = self.listed
            before, behind = _room_before(listed, self.most), max(count, self.most // 2)
            self.memory = torch.cat((listed.new_empty(before), listed, listed.new_empty(behind)))
            self._least = listed.numel()
            self._behind_at_most = before + self._least
            self.first = Place(before, self.memory.device)
            self.behind = Place(self._behind_at_most, self.memory.device)


def _room_before(pages: torch.Tensor, most: int) -> int:
    """Rows for all other pages of the pool, and row 0."""
    return 1 + max(most - pages.numel(), 0)
