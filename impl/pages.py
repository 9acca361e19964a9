"""Where is a list of free pages kept? In memory with room at both ends, so that no free copies the pool."""

from __future__ import annotations

import torch


class PageList:
    """Pages in order: `memory[start:end]`, where `start` may be known to the device alone.

    A free writes the pages that come back into the room before the list, or behind it. How many distinct pages
    the freed slots lie in only the device knows: the list then starts at `base + offset`, `base` being a number on
    the device. Whoever asks for `start` or the length waits for it, once; `least`, `head` and `drop` never wait.

    memory: 1-D. Row 0 is no part of any list: what has to be written and is not wanted goes there.
    most: the highest page number.
    """

    def __init__(self, memory: torch.Tensor, start: int, end: int, most: int) -> None:
        self.memory, self.end, self.most = memory, end, most
        self.offset = start
        self.base = torch.zeros(1, dtype=torch.int64, device=memory.device)
        self.least = end - start
        self._start: int | None = start

    @classmethod
    def of(cls, pages: torch.Tensor, most: int) -> PageList:
        """A list of its own of these pages, with room before it for all others."""
        room = 1 + max(most - pages.numel(), 0)
        memory = torch.cat((pages.new_empty(room), pages))
        return cls(memory, room, memory.numel(), most)

    @property
    def start(self) -> int:
        """Where the list starts. Waits for the device if it alone knows."""
        if self._start is None:
            self._start = self.offset = max(1, int(self.base) + self.offset)
            self.base = torch.zeros_like(self.base)
            self.least = self.end - self._start
        return self._start

    @property
    def listed(self) -> torch.Tensor:
        """The pages, as a view that the next free may change. Waits like `start`."""
        return self.memory[self.start : self.end]

    def __len__(self) -> int:
        return self.end - self.start

    def head(self, count: int) -> torch.Tensor:
        """The first `count` pages, of at least as many."""
        if self._start is not None:
            return self.memory[self._start : self._start + count]
        first = torch.arange(self.offset, self.offset + count, device=self.memory.device)
        return self.memory[first.add_(self.base)]

    def drop(self, count: int) -> None:
        """Take the first `count` pages off, of at least as many."""
        self.offset += count
        self.least -= count
        if self._start is not None:
            self._start += count

    def moved(self, base: torch.Tensor) -> None:
        """Start at `base`, a number on the device, from now on: before where the list started, or there."""
        self.base, self.offset, self._start = base, 0, None

    def append(self, pages: torch.Tensor) -> None:
        """Put pages behind the list. Without room there the list moves, which makes room for many more."""
        count = pages.numel()
        if self.end + count > self.memory.numel():
            listed = self.listed
            room = max(count, self.most // 2)
            self.memory = torch.cat((listed.new_empty(1), listed, listed.new_empty(room)))
            self.offset = self._start = 1
            self.end = 1 + listed.numel()
        self.memory[self.end : self.end + count] = pages
        self.end += count
        self.least += count
