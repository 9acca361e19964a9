"""Where is a list of free pages kept? In memory with room at both ends, so that no free copies the pool."""

from __future__ import annotations

from collections.abc import Callable

import torch

News = Callable[[], int | None]


class PageList:
    """Pages in order: `memory[start:end]`, where `start` may be known to the device alone.

    A free writes the pages that come back into the room before the list, or behind it. How many distinct pages
    the freed slots lie in only the device knows: the list then starts at `base + offset`, `base` being a number on
    the device. A kernel can leave word of it on the host (`news`), which is heard as soon as it is there. Whoever
    asks for `start` or the length earlier waits for the device, once; `least`, `head` and `drop` never wait.

    memory: 1-D. Row 0 is no part of any list: what has to be written and is not wanted goes there.
    most: the highest page number.
    """

    def __init__(self, memory: torch.Tensor, start: int, end: int, most: int) -> None:
        self.memory, self.end, self.most = memory, end, most
        self.base = torch.zeros(1, dtype=torch.int64, device=memory.device)
        self.offset = start
        self._start: int | None = start
        self._least = end - start
        self._news: News | None = None

    @classmethod
    def of(cls, pages: torch.Tensor, most: int) -> PageList:
        """A list of its own of these pages, with room before it for all others."""
        room = 1 + max(most - pages.numel(), 0)
        memory = torch.cat((pages.new_empty(room), pages))
        return cls(memory, room, memory.numel(), most)

    @property
    def start(self) -> int:
        """Where the list starts. Waits for the device if it alone knows."""
        if not self._heard():
            self._start = int(self.base) + self.offset
        assert self._start is not None
        return self._start

    @property
    def least(self) -> int:
        """The length, or what is known of it: not more than it is."""
        return self.end - self._start if self._heard() and self._start is not None else self._least

    @property
    def listed(self) -> torch.Tensor:
        """The pages, as a view that the next free may change. Waits like `start`."""
        return self.memory[self.start : self.end]

    def compared(self) -> tuple[list[int | bool], tuple[torch.Tensor, ...]]:
        """The pages, and whether all others would have room (`impl.state.Roomy`); with the memory they lie in.

        Not where the list starts, nor whether that is known here: no answer depends on either.
        """
        start = int(self.base) + self.offset if self._start is None else self._start
        pages: list[int | bool] = self.memory[start : self.end].tolist()
        return [*pages, start > self.most - len(pages)], (self.memory,)

    def __len__(self) -> int:
        return self.end - self.start

    def head(self, count: int) -> torch.Tensor:
        """The first `count` pages, of at least as many."""
        if self._heard() and self._start is not None:
            return self.memory[self._start : self._start + count]
        first = torch.arange(self.offset, self.offset + count, device=self.memory.device)
        return self.memory[first.add_(self.base)]

    def drop(self, count: int) -> None:
        """Take the first `count` pages off, of at least as many."""
        self.offset += count
        self._least -= count
        if self._start is not None:
            self._start += count

    def moved(self, base: torch.Tensor, news: News | None = None) -> None:
        """Start at `base`, a number on the device, from now on: before where the list started, or there.

        news: gives that number as soon as the host was told, and None before.
        """
        if self._start is not None:
            self._least = self.end - self._start
        self.base, self.offset, self._start, self._news = base, 0, None, news

    def _heard(self) -> bool:
        """Whether the start is known here, or has just become so."""
        if self._start is None and self._news is not None and (told := self._news()) is not None:
            self._start = told + self.offset
        return self._start is not None

    def append(self, pages: torch.Tensor) -> None:
        """Put pages behind the list. Without room there the list moves, which makes room for many more."""
        count = pages.numel()
        if self.end + count > self.memory.numel():
            listed = self.listed
            room = max(count, self.most // 2)
            self.memory = torch.cat((listed.new_empty(1), listed, listed.new_empty(room)))
            self.base, self.offset, self._start = torch.zeros_like(self.base), 1, 1
            self.end = 1 + listed.numel()
        self.memory[self.end : self.end + count] = pages
        self.end += count
        self._least += count
