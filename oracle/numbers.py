"""Numbers as a case file has them: `4..7 12 0x3` stands for 4, 5, 6, 7, 12, 0, 0, 0."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_ITEM = re.compile(r"(-?\d{1,18})(?:\.\.(-?\d{1,18})|x(\d{1,18}))?", re.ASCII)
LIMIT = 1 << 24  # numbers that one text may stand for: no pool that was ever checked has more slots


def packed(numbers: Iterable[int]) -> str:
    """The shortest text: runs that rise by one as `first..last`, repeats as `number x count`."""
    items: list[str] = []
    run: list[int] = []
    for number in numbers:
        step = number - run[-1] if run else 0
        if run and step in (0, 1) and (len(run) == 1 or step == run[1] - run[0]):
            run.append(number)
            continue
        items += _item(run)
        run = [number]
    return " ".join([*items, *_item(run)])


def _item(run: list[int]) -> Iterator[str]:
    if len(run) < 3:  # two numbers read better as two numbers
        yield from map(str, run)
    elif run[0] == run[1]:
        yield f"{run[0]}x{len(run)}"
    else:
        yield f"{run[0]}..{run[-1]}"


def unpacked(text: str) -> tuple[int, ...]:
    """The numbers of a text. ValueError, with the item that is wrong, where it is none."""
    numbers: list[int] = []
    for item in text.split():
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ValueError(f"{item!r} is no number, no 4..7 and no 0x3")
        first, last, count = match.groups()
        size = int(last) - int(first) + 1 if last else int(count or 1)
        if size < 1 or len(numbers) + size > LIMIT:
            raise ValueError(f"{item!r} stands for {'no' if size < 1 else 'too many'} numbers")
        numbers += range(int(first), int(last) + 1) if last else [int(first)] * size
    return tuple(numbers)
