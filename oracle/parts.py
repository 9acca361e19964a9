"""Slots of a free as parts of the requests that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oracle.holdings import Holdings
from oracle.ops import Config, Part
from oracle.rawcall import Runs
from oracle.world import NOTHING, Request

Piece = tuple[int, int, int]  # page, first offset, offset behind the last one
Holder = tuple[int, str, int]  # uid of a page, who holds it, and its place there


def parts_of(
    slots: Runs, config: Config, now: Holdings, holder_of: Callable[[int], Holder | None]
) -> tuple[list[Part], dict[str, list[Piece]]]:
    """Parts of requests, in the order of the slots; and what nobody holds, by the rule that is broken there.

    holder_of: who holds a page.
    """
    size = config.page_size
    parts: list[Part] = []
    wrong: dict[str, list[Piece]] = {}
    slack: dict[int, None] = {}
    named: set[int] = set()
    given = now.group.parts if now.group is not None else NOTHING
    for page, low, high in _pieces(slots, size):
        holder = holder_of(page)
        if holder is None:
            wrong.setdefault(_wrong_with(page, config), []).append((page, low, high))
            continue
        uid, name, place = holder
        live = _live(now.requests[name], place, size)
        if uid in given and any(given[uid] >> k & 1 for k in range(low, min(high, live))):
            wrong.setdefault("twice", []).append((page, low, high))
            continue
        if low >= live:
            slack[page] = None
            continue
        named.add(page)
        _join(parts, name, place * size + low, place * size + min(high, live))
    for page in slack:
        if page not in named:
            # No live slot of the page is named, and the page goes all the same: as if its last one were.
            _, name, place = now.owner[page]
            end = place * size + _live(now.requests[name], place, size)
            _join(parts, name, end - 1, end)
    return parts, wrong


def plain(parts: list[Part], requests: Mapping[str, Request]) -> tuple[Part, ...]:
    """The parts as a person would write them: without an end where they go to the end."""
    return tuple(
        Part(p.request, p.start)
        if p.stop is not None and p.stop >= requests[p.request].length - requests[p.request].base
        else p
        for p in parts
    )


def owners(parts: list[Part]) -> tuple[str, ...]:
    """The requests of parts, each once, in order."""
    return tuple(dict.fromkeys(part.request for part in parts))


def _live(request: Request, place: int, size: int) -> int:
    """Tokens of a request in the page at `place`."""
    return min(size, request.length - request.base - place * size)


def _wrong_with(page: int, config: Config) -> str:
    if page < 0:
        return "negative"
    if page == 0:
        return "padding"
    return "twice" if page <= config.pages else "foreign"


def _pieces(slots: Runs, size: int) -> list[Piece]:
    """Runs of slots, cut at the ends of pages."""
    pieces: list[Piece] = []
    for first, count in slots:
        end = first + count
        while first < end:
            page, low = divmod(first, size)
            high = min(size, low + end - first)
            pieces.append((page, low, high))
            first += high - low
    return pieces


def _join(parts: list[Part], name: str, start: int, stop: int) -> None:
    if parts and parts[-1].request == name and parts[-1].stop == start:
        parts[-1] = Part(name, parts[-1].start, stop)
    else:
        parts.append(Part(name, start, stop))
