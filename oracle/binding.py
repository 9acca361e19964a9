"""Which pages a subject chose: what ties the ledger's uids to numbers, and a world told in numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from oracle.world import World


class Binding(NamedTuple):
    """Which page each uid has (and which of the window), and who holds a page: all by number."""

    page: dict[int, int]
    owner: dict[int, int]
    window: dict[int, int]

    def copy(self) -> Binding:
        """The same, to go on by itself."""
        return Binding(dict(self.page), dict(self.owner), dict(self.window))

    def renumbered(self, uids: dict[int, int]) -> Binding:
        """The same under new uids, without those that have none."""
        return Binding(
            {uids[uid]: page for uid, page in self.page.items() if uid in uids},
            {page: uids[uid] for page, uid in self.owner.items() if uid in uids},
            {uids[uid]: page for uid, page in self.window.items() if uid in uids},
        )


def numbered(world: World, bound: Binding, ghosts: bool) -> list[Any]:
    """A world with a page's number for each uid, and a place for each name: that of its request among them all."""
    page = bound.page
    # No two have the same pages, since the last one is held: names never decide the order.
    requests = sorted(
        ([page[uid] if uid else 0 for uid in r.pages], r.length, r.base, name)
        for name, r in world.requests.items()
    )
    group = world.group and [
        sorted(page[uid] for uid in world.group.pages),
        sorted((page[uid], mask) for uid, mask in world.group.parts.items()),
        sorted(page[uid] for uid in world.group.swa),
    ]
    window = sorted((page[uid], other) for uid, other in bound.window.items())
    gone = sorted(page[uid] for uid in world.gone)
    places = {name: place for place, (*_, name) in enumerate(requests)}
    dead = [
        (places.get(name), [(page[uid], low, high) for uid, low, high in runs])
        for name, runs in (world.ghosts.items() if ghosts else ())
    ]
    held = [request[:-1] for request in requests]
    return [held, world.free, world.swa_free, group, window, gone, dead]
