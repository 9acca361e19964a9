"""From calls by slot number to operations by request: what a trace and a live program say, in the suite's words.

A live program has no requests by name, only tensors of slots. So every allocation becomes a request of its
own; an extend or decode that goes on inside a page, or a decode that goes on at its end, grows the request
that holds `last_loc`; and a free becomes parts of the requests that hold its slots. Only what a call touches
is shown to the ledger, so a call costs what it touches and not what is held.
"""

from __future__ import annotations

from typing import NamedTuple

from oracle import ops
from oracle.holdings import Adopted, Holdings
from oracle.ledger import Ledger
from oracle.ops import Config, Grow, Operation, Part
from oracle.parts import Piece, owners, parts_of, plain
from oracle.rawcall import RawCall
from oracle.rebuilt import rebuilt
from oracle.traits import Traits
from oracle.world import NO_TOKEN, BatchCall, Request, Step, World, misused

SNAPSHOT = "snapshot"


class Untranslatable(ValueError):
    """A call that has no operation: from here on nothing is known of who holds what."""


class Translated(NamedTuple):
    """One call as a step of the ledger.

    before: what a case asks first, so that the operation finds the same there; the live allocator was not asked
    it. names: requests that the step may change.
    """

    step: Step
    before: tuple[Operation, ...] = ()
    names: tuple[str, ...] = ()


class Translator:
    """Translates the calls of one allocator, in their order.

    free, swa_free: pages free at the first call, where that was no new allocator; windows: those held pages whose
    window half was there, None where all were. `adopted` then has every page that a later call showed to be held;
    `prologue()` makes a new allocator as full.
    """

    def __init__(
        self,
        config: Config,
        traits: Traits,
        free: int | None = None,
        swa_free: int | None = None,
        windows: frozenset[int] | None = None,
    ) -> None:
        self.config, self.ledger = config, Ledger(config, traits)
        free = config.pages if free is None else free
        self._now = Holdings(free, config.swa_pages if swa_free is None else swa_free)
        self._now.unknown = self._before = config.pages - free
        self._windows = windows
        self.adopted: list[Adopted] = []
        self._saved: dict[str, Holdings] = {}
        self._uid = 1
        self._names = 0
        self._ready: list[Operation] = []  # of the call at hand
        self._early: set[int] = set()  # uids that a case gives up before the allocator does

    @property
    def held(self) -> dict[int, tuple[int, str, int]]:
        """Uid, request and place in it of every page that is known to be held."""
        return self._now.owner

    def knows(self, snapshot: str) -> bool:
        """Whether a snapshot was taken since the first call."""
        return snapshot in self._saved

    def ahead(self) -> bool:
        """Whether a case has pages free now that the allocator still holds."""
        self._early &= self._now.page.keys()
        return bool(self._early)

    def own_tokens(self, name: str) -> int:
        """Tokens that a request was given itself."""
        request = self._now.requests[name]
        return request.length - request.base

    def prologue(self) -> tuple[Operation, ...]:
        """What fills a new allocator as the first call found this one."""
        requests = {page.name: Request((page.uid,), page.tokens) for page in self.adopted}
        gone = frozenset(page.uid for page in self.adopted if self._without_window(page.page))
        rest = self._before - len(self.adopted)
        if rest:
            # Nobody spoke of these: any of them may be those without a window half.
            uids = range(self._uid, self._uid + rest)
            torn = 0 if self._windows is None else self._before - len(self._windows) - len(gone)
            requests = {"before": Request(tuple(uids), rest * self.config.page_size), **requests}
            gone = gone.union(uids[:torn])
        return rebuilt(World(0, 0, requests, gone=gone), self.config)

    # -- one call --------------------------------------------------------------------------------------

    def translate(self, call: RawCall) -> Translated:
        """The step of a call. Untranslatable where it has none."""
        self._ready = []
        match call.method:
            case "alloc":
                return self._alloc(call)
            case "alloc_extend":
                return self._batch(call, call.prefix, decode=False)
            case "alloc_decode":
                return self._batch(call, tuple(s - 1 for s in call.seq), decode=True)
            case "free":
                return self._free(call)
            case "free_swa":
                return self._free_swa(call)
            case "free_group_begin":
                return self._step(ops.GroupBegin(), ())
            case "free_group_end":
                parts = self._now.group.parts if self._now.group is not None else ()
                torn = (self._now.owner[self._now.page[uid]][1] for uid in parts)
                return self._step(ops.GroupEnd(), tuple(dict.fromkeys(torn)))
            case "merge_and_sort_free":
                return self._step(ops.Merge(), ())
            case "backup_state":
                return self._step(ops.Backup(call.name), ())
            case "restore_state":
                return self._restore(call)
            case "clear":
                return self._step(ops.Clear(), ())
        raise Untranslatable(f"{call.name or call.error or call.method} is not understood")

    def apply(self, translated: Translated, answer: tuple[int, ...]) -> None:
        """Take over what an allowed answer did. answer: the slots that were handed out."""
        step, now = translated.step, self._now
        match step.operation:
            case ops.Backup(name):
                self._saved[name] = now.copy()
                return
            case ops.Restore(name):
                self._now = self._saved[name].copy()
                return
            case ops.Clear():
                self._now = Holdings(self.config.pages, self.config.swa_pages)
                return
        self._uid = max(self._uid, step.after.next_uid)
        now.take_over(step, translated.names, answer, self.config.page_size)

    # -- pieces of it ----------------------------------------------------------------------------------

    def _window(self, names: tuple[str, ...]) -> World:
        """The world as far as a call touches it."""
        now = self._now
        return World(
            now.free, now.swa_free, {name: now.requests[name] for name in names if name in now.requests},
            now.group, now.gone, next_uid=self._uid,
        )  # fmt: skip

    def _step(self, operation: Operation, names: tuple[str, ...]) -> Translated:
        return Translated(self.ledger.step(self._window(names), operation), tuple(self._ready), names)

    def _name(self) -> str:
        self._names += 1
        return f"r{self._names}"

    def _give(self, name: str, tokens: int) -> Operation:
        """An operation that gives a new request so many tokens."""
        if self.config.extends:
            return ops.Extend((Grow(name, tokens),))
        return ops.Alloc(name, tokens)

    def _alloc(self, call: RawCall) -> Translated:
        name = self._name()
        if type(call.size) is int:
            return self._step(ops.Alloc(name, call.size), (name,))
        return self._step(ops.Alloc(name, int(call.size or 0), "whole"), (name,))

    def _restore(self, call: RawCall) -> Translated:
        if call.outcome == "raised" and not call.name:
            return self._step(ops.Restore("", SNAPSHOT), ())
        saved = self._saved.get(call.name)
        if saved is None:
            raise Untranslatable(f"a snapshot {call.name!r} that was not taken before is restored")
        then = World(saved.free, saved.swa_free, group=saved.group, gone=saved.gone)
        window = self._window(())._replace(snapshots={call.name: then})
        return Translated(self.ledger.step(window, ops.Restore(call.name)))

    # -- batches ---------------------------------------------------------------------------------------

    def _batch(self, call: RawCall, prefix: tuple[int, ...], decode: bool) -> Translated:
        size = self.config.page_size
        if not self.config.extends:
            raise Untranslatable(f"{call.method} of a pool without pages")
        flaw = _flaw(call, prefix, size)
        items: list[Grow] = []
        names: dict[str, None] = {}
        for p, s, last in zip(prefix, call.seq, call.last, strict=False):
            item = self._item(p, max(s - p, 0), last, decode, names)
            if isinstance(item, str):
                return self._lost(call, p, max(s - p, 0), item, decode)
            items.append(item)
            names[item.request] = None
            if item.prefix:
                names[item.prefix] = None
        touched = tuple(names)
        if decode:
            return self._step(ops.Decode(tuple(item.request for item in items), flaw), touched)
        return self._step(ops.Extend(tuple(items), flaw), touched)

    def _item(self, p: int, tokens: int, last: int, decode: bool, names: dict[str, None]) -> Grow | str:
        """Who grows by `tokens` behind `p` tokens that end at `last`; or the page that is wrong there, in words."""
        size = self.config.page_size
        page, offset = divmod(last, size)
        if p % size and tokens and (last + 1 - p) % size == 0:
            holder = self._holder(page, offset + 1)
            if holder is None:
                return "padding" if page == 0 else "the freed" if 0 < page <= self.config.pages else "no pool"
            return Grow(self._ends_at(holder, offset), tokens)
        if p <= 0 or p % size:
            return Grow(self._name(), tokens)
        found = self._now.owner.get(page)
        donor = found[1] if found is not None and self._whole_until(found, p) else ""
        if decode:
            return Grow(donor if donor and donor not in names and self._full(donor) else self._name(), tokens)
        if not donor or self._now.requests[donor].length // size * size != p:
            named = self._now.by_length.get(p, "")
            donor = named if self._is_donor(named, p) else ""
        return Grow(self._name(), tokens, donor)

    def _whole_until(self, found: tuple[int, str, int], p: int) -> bool:
        """Whether a page is the last whole one of its request."""
        _, name, place = found
        request = self._now.requests[name]
        return (request.length - request.base) // self.config.page_size == place + 1

    def _full(self, name: str) -> bool:
        return self._now.requests[name].length % self.config.page_size == 0

    def _is_donor(self, name: str, p: int) -> bool:
        request = self._now.requests.get(name)
        if request is None or request.length // self.config.page_size * self.config.page_size != p:
            return False
        place = (p - request.base) // self.config.page_size - 1
        return p == request.base or bool(request.pages[place])

    def _ends_at(self, holder: tuple[int, str, int], offset: int) -> str:
        """The request of a page, cut back (by its caller alone) or filled up to an offset of that page."""
        _, name, place = holder
        request, size = self._now.requests[name], self.config.page_size
        own = request.length - request.base
        wanted = place * size + offset + 1
        if place < len(request.pages) - 1:
            return self._split(name, place, wanted)
        if wanted != own:
            if wanted < own:
                self._cut(name, wanted)
            self._now.requests[name] = request._replace(length=request.base + wanted)
        return name

    def _split(self, name: str, place: int, wanted: int) -> str:
        """A request goes on inside a page that is not its last: the pages behind it get a name of their own."""
        now, request, size = self._now, self._now.requests[name], self.config.page_size
        rest = request.pages[place + 1 :]
        own = request.length - request.base - (place + 1) * size
        self._cut(name, wanted)
        now.requests[name] = request._replace(pages=request.pages[: place + 1], length=request.base + wanted)
        self._early.update(uid for uid in rest if uid)
        other = self._name()
        now.requests[other] = Request(rest, own)
        for at, uid in enumerate(rest):
            if uid and now.page.get(uid) in now.owner:
                now.owner[now.page[uid]] = uid, other, at
        return name

    def _cut(self, name: str, wanted: int) -> None:
        """A case cuts the request back to so many own tokens.

        A cut has no place in a group that holds parts of pages: a case ends that group first and begins another one.
        """
        request, group = self._now.requests[name], self._now.group
        own, pages = request.length - request.base, list(request.pages)
        if group is None or not group.parts or any(mask & (mask + 1) for mask in group.parts.values()):
            self._ready.append(ops.Cut(name, own - wanted))
            return
        self._early.update(group.pages, group.parts)
        while pages and (not pages[-1] or pages[-1] in group.parts):
            pages.pop()
        own = min(own, len(pages) * self.config.page_size)
        cut = (ops.Cut(name, own - wanted),) if own > wanted else ()
        self._ready += [ops.GroupEnd(), *cut, ops.GroupBegin()]

    def _lost(self, call: RawCall, p: int, tokens: int, where: str, decode: bool) -> Translated:
        """A request that goes on inside a page that nobody holds."""
        name, inside = self._name(), p % self.config.page_size
        ready = [*self._ready, self._give(name, inside)]
        if where == "the freed":
            freed = self._name()
            ready += [self._give(freed, 1), ops.Free((Part(freed),))]
        flaw = f"last page of {where}"
        operation = ops.Decode((name,), flaw) if decode else ops.Extend((Grow(name, tokens),), flaw)
        asked = BatchCall((p,), (p + tokens,), (NO_TOKEN,), decode, flaw)
        total = sum(call.seq) - sum(call.prefix) if call.prefix else len(call.seq)
        return Translated(misused(self._window(()), operation, "last page", asked, total), tuple(ready))

    def _holder(self, page: int, length: int) -> tuple[int, str, int] | None:
        """Who holds a page; one that nobody has spoken of yet was held from the start, up to `length`."""
        now = self._now
        found = now.owner.get(page)
        if found is None and now.unknown and page not in now.seen and 0 < page <= self.config.pages:
            # Nobody has spoken of it, so it was held at each snapshot too, but for those behind a `clear`.
            since = tuple(name for name, saved in self._saved.items() if saved.unknown)
            adopted = Adopted(self._uid, page, self._name(), length, since)
            self._uid += 1
            self.adopted.append(adopted)
            for holdings in (now, *(self._saved[name] for name in since)):
                holdings.adopt(adopted, self._without_window(page))
            found = now.owner[page]
        return found

    def _without_window(self, page: int) -> bool:
        """Whether a page that was held before the first call had no window half then."""
        return self._windows is not None and page not in self._windows

    # -- frees -----------------------------------------------------------------------------------------

    def _free(self, call: RawCall) -> Translated:
        parts, wrong = self._parts(call)
        for rule in ("negative", "padding", "foreign"):
            if rule in wrong:
                return self._step(ops.Free((), rule), ())
        if "twice" in wrong:
            return self._twice(wrong["twice"])
        return self._step(ops.Free(plain(parts, self._now.requests)), owners(parts))

    def _free_swa(self, call: RawCall) -> Translated:
        parts, _ = self._parts(call)
        if call.slots and not parts:
            raise Untranslatable("the window half of slots that nobody holds is freed")
        return self._step(ops.FreeSwa(plain(parts, self._now.requests)), owners(parts))

    def _parts(self, call: RawCall) -> tuple[list[Part], dict[str, list[Piece]]]:
        # Of a page of before nobody knows how far it is filled: a group may give it up in several parts.
        return parts_of(
            call.slots, self.config, self._now, lambda page: self._holder(page, self.config.page_size)
        )

    def _twice(self, pieces: list[Piece]) -> Translated:
        """A free of what is free. Other pages may have been handed out since, so a case frees new ones twice."""
        now, size = self._now, self.config.page_size
        name = self._name()
        pages = max(1, min(len({page for page, _, _ in pieces}), now.free))
        ready = (*self._ready, self._give(name, pages * size), ops.Free((Part(name),)))
        ghosts = {name: tuple((0, page * size + low, page * size + high) for page, low, high in pieces)}
        window = self._window(())._replace(ghosts=ghosts)
        operation = ops.Free((Part(name),), "again")
        return Translated(self.ledger.step(window, operation), ready)


def _flaw(call: RawCall, prefix: tuple[int, ...], size: int) -> str:
    """What is wrong with the lengths of a batch, if anything."""
    if not len(prefix) == len(call.seq) == len(call.last):
        return "lengths"
    if any(p < 0 for p in prefix):
        return "negative"
    if any(s < p for p, s in zip(prefix, call.seq, strict=True)):
        return "shrinks"
    if call.total is not None and call.total != sum(call.seq) - sum(prefix):
        return "total"
    need = sum(-(-s // size) + (-p // size) for p, s in zip(prefix, call.seq, strict=True))
    if call.new_pages not in (None, need):
        return "new pages"
    lasts = zip(prefix, call.seq, call.last, strict=True)
    return "last_loc" if any(s > p and (last + 1 - p) % size for p, s, last in lasts) else ""
