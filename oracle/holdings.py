"""Who holds which page of a live allocator, by number: the part of a world that is too large to copy at every call."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from oracle.world import FreeCall, Group, Request, Step

KNOWN_LENGTHS = 4096


class Adopted(NamedTuple):
    """A page that was held before the first call, the request that it was given to, and in which snapshots too."""

    uid: int
    page: int
    name: str
    tokens: int
    snapshots: tuple[str, ...] = ()


@dataclass(slots=True)
class Holdings:
    """The world, as it is now. `free` and `swa_free` count pages that an allocation can have.

    owner: uid, request and place in it of each held page; page: the number of each uid, those that wait for the
    end of a group included. by_length: some request with so many tokens in whole pages. unknown: pages held
    since before the first call, of which nothing was said yet; seen: pages of which something was, which the
    snapshots since the last `clear` share.
    """

    free: int
    swa_free: int
    requests: dict[str, Request] = field(default_factory=dict)
    owner: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    page: dict[int, int] = field(default_factory=dict)
    group: Group | None = None
    gone: frozenset[int] = frozenset()
    by_length: dict[int, str] = field(default_factory=dict)
    unknown: int = 0
    seen: set[int] = field(default_factory=set)

    def copy(self) -> Holdings:
        """The same, apart from this one."""
        return replace(
            self,
            requests=dict(self.requests),
            owner=dict(self.owner),
            page=dict(self.page),
            by_length=dict(self.by_length),
        )

    def adopt(self, page: Adopted, without_window: bool) -> None:
        """A page of which nothing was said yet becomes a request's."""
        self.requests[page.name] = Request((page.uid,), page.tokens)
        self.owner[page.page], self.page[page.uid] = (page.uid, page.name, 0), page.page
        self.unknown -= 1
        self.seen.add(page.page)
        if without_window:
            self.gone |= {page.uid}

    def take_over(self, step: Step, names: tuple[str, ...], answer: tuple[int, ...], size: int) -> None:
        """What an allowed answer did to the requests `names`."""
        after = step.after
        fresh = {uid: answer[place] // size for uid, place, _ in step.fresh}
        self.seen.update(fresh.values())
        self.free, self.swa_free, self.group, self.gone = (
            after.free,
            after.swa_free,
            after.group,
            after.gone,
        )
        for name in names:
            old, new = self.requests.get(name), after.requests.get(name)
            if new is old:
                continue
            if new is None:
                self.requests.pop(name, None)
                continue
            self.requests[name] = new
            self.by_length[new.length // size * size] = name
            for place in range(len(old.pages) if old is not None else 0, len(new.pages)):
                uid = new.pages[place]
                if uid in fresh:
                    self.owner[fresh[uid]], self.page[uid] = (uid, name, place), fresh[uid]
        back = set(step.back)
        if isinstance(step.call, FreeCall) and not step.call.swa:
            back.update(uid for uid, _, _ in step.call.runs if self._given_up(uid))
        for uid in back:
            page = self.page.get(uid, 0)
            if page in self.owner and self.owner[page][0] == uid:
                del self.owner[page]
            if after.group is None:
                self.page.pop(uid, None)
        if len(self.by_length) > KNOWN_LENGTHS:
            self.by_length = {n: name for n, name in self.by_length.items() if name in self.requests}

    def _given_up(self, uid: int) -> bool:
        """Whether the request that held a page holds it no more."""
        page = self.page.get(uid)
        if page is None or page not in self.owner:
            return False
        mine, name, place = self.owner[page]
        request = self.requests.get(name)
        return mine == uid and (request is None or place >= len(request.pages) or request.pages[place] != uid)
