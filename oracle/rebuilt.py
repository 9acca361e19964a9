"""What brings a new allocator to where a world is: operations that give its requests what they hold there."""

from __future__ import annotations

from collections.abc import Iterator

from oracle.ops import Alloc, Config, Extend, Free, FreeSwa, Grow, Operation, Part
from oracle.world import Request, World


def rebuilt(world: World, config: Config) -> tuple[Operation, ...]:
    """Operations that give a new allocator's requests what they hold in a world: pages, lengths and holes."""
    return (*_given(world, config), *_holes(world, config.page_size))


def _given(world: World, config: Config) -> Iterator[Operation]:
    """All at once; where the window has no room for that, piece by piece, each window half given up before the next."""
    size, room = config.page_size, config.swa_pages
    if not room or sum(len(request.pages) for request in world.requests.values()) <= room:
        yield from _grow({name: _own(request) for name, request in world.requests.items()}, config)
        yield from _windows(world, {name: (0, len(r.pages)) for name, r in world.requests.items()}, size)
        return
    # Those that have given up window halves go first: they leave room.
    for name, request in sorted(
        world.requests.items(), key=lambda item: -len(world.gone.intersection(item[1].pages))
    ):
        done = 0
        while room > 0 and done < len(request.pages):
            until = min(done + room, len(request.pages))
            yield from _grow({name: min(until * size, _own(request)) - done * size}, config)
            yield from _windows(world, {name: (done, until)}, size)
            room -= sum(uid not in world.gone for uid in request.pages[done:until])
            done = until


def _own(request: Request) -> int:
    return request.length - request.base


def _grow(sizes: dict[str, int], config: Config) -> Iterator[Operation]:
    if not config.extends:
        yield from (Alloc(name, tokens) for name, tokens in sizes.items())
    elif sizes:
        yield Extend(tuple(Grow(name, tokens) for name, tokens in sizes.items()))


def _windows(world: World, places: dict[str, tuple[int, int]], size: int) -> Iterator[Operation]:
    """The window halves that are gone, of the pages from the first place to the last one of each request."""
    gone = tuple(
        Part(name, at * size, at * size + 1)
        for name, (first, last) in places.items()
        for at in range(first, last)
        if world.requests[name].pages[at] in world.gone
    )
    if gone:
        yield FreeSwa(gone)


def _holes(world: World, size: int) -> Iterator[Operation]:
    holes = tuple(
        Part(name, at * size, (at + 1) * size)
        for name, request in world.requests.items()
        for at, uid in enumerate(request.pages)
        if not uid
    )
    if holes:
        yield Free(holes)
