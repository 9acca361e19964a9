"""Is every operation that generator and shrinker make one of the alphabet, or like one, in the world it comes in?"""

from dataclasses import replace
from itertools import islice

import pytest

from fuzz.shrink import _renamed, _simpler_operations
from impl.subject import own
from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Alloc, Backup, Config, Cut, Decode, Extend, Free, FreeSwa, Grow, Part, Restore
from oracle.traits import HOST_RULES
from properties.alphabet import NAMES, SNAPSHOT, Alphabet, like
from properties.cases import generate, generate_misuse
from properties.sources import SeededSource
from properties.workload import KINDS_OF_MISUSE

OUTSIDE = None  # beyond a bound that the alphabet sets, so that its world has an end

POOLS = {
    "token": {"pages": 3},
    "paged": {"pages": 3, "page_size": 2},
    "ascend": {"pages": 2, "page_size": 3},
    "swa": {"pages": 3, "page_size": 2, "swa_pages": 2},
}


class Likeness:
    """The operation of the alphabet that stands for another one, as the alphabet's docstring has it."""

    def __init__(self, alphabet):
        self.alphabet, self.ledger = alphabet, alphabet.ledger
        self.size = self.ledger.config.page_size

    def representative(self, world, operation):
        step = self.ledger.step(world, operation)
        operation = self._named(world, operation)
        match operation:
            case Alloc():
                return self._alloc(world, operation, step)
            case Extend(batch, ""):
                return self._extend(world, batch, step)
            case Extend(batch, flaw):
                flaw = like(flaw)
                names = self._one_order(world, tuple(g.request for g in batch))
                return next(iter(o for o in self._flawed(names, flaw) if self._status(world, o) == "misuse"))
            case Decode(requests, flaw) if flaw:
                return Decode(self._one_order(world, requests), like(flaw))
            case Decode():
                return OUTSIDE if self.alphabet._endless(step) else operation
            case Free(parts, ""):
                return self._free(world, parts, step)
            case Cut(name, tokens):
                return self._cut(name, tokens, self._own(world, name))
            case FreeSwa(parts) if parts:
                return self._free_swa(world, parts[0])
            case Backup():
                return OUTSIDE if world.snapshots else Backup(SNAPSHOT)
            case Restore(_, ""):
                return Restore(SNAPSHOT)
        return operation

    def _status(self, world, operation):
        return self.ledger.step(world, operation).status

    def _own(self, world, name):
        return world.requests[name].length - world.requests[name].base

    def _named(self, world, operation):
        """With the first free name for a new request, and two free names in order."""
        free = [name for name in NAMES if name not in world.requests]
        mentioned = [name for name in _names(operation) if name in free]
        if not mentioned or len(free) < 2 or getattr(operation, "flaw", "") == "again":
            return operation
        swapped = {mentioned[0]: free[0], free[0]: mentioned[0]} if mentioned[0] != free[0] else {}
        return _with_names(operation, lambda name: swapped.get(name, name))

    def _one_order(self, world, names):
        return next(self.alphabet._pairs(world)) if len(names) == 2 else names

    def _flawed(self, names, flaw):
        choices = [(1, 1), (1, 0), (0, 1), (0, 0)] if len(names) == 2 else [(1,), (0,)]
        return [Extend(tuple(map(Grow, names, tokens)), flaw) for tokens in choices]

    def _alloc(self, world, operation, step):
        room = self.alphabet._room(world)
        able = [
            name
            for name in self.alphabet._known(world)
            if name not in world.requests or world.requests[name].length % self.size == 0
        ]
        if operation.flaw:
            return Alloc(able[0], self.size if room else 0, "whole")
        match operation.size:
            case size if size < 0:
                return Alloc(NAMES[0], -1)
            case size if size % self.size:
                return Alloc(NAMES[0], 1 if size < self.size else self.size + 1)
            case 0:
                return Alloc(able[0], 0)
            case size if not step.fits:
                return Alloc(able[0], (room + 1) * self.size)
        return OUTSIDE if self.alphabet._endless(step) else operation

    def _extend(self, world, batch, step):
        if step.rule == "one owner":
            return Extend((Grow(batch[0].request, 1), Grow(batch[0].request, 1)))
        if len(batch) == 2 and batch[0].request == batch[1].request:
            if batch[1].tokens == 0:
                return self._extend(world, batch[:1], step)
            return Extend((Grow(batch[0].request, 0), Grow(batch[0].request, 1)))
        made = ()
        for place, item in enumerate(batch):
            donor = world.requests.get(item.prefix)
            if item.request in world.requests or donor is None or donor.length < self.size:
                item = replace(item, prefix="")
            elif donor.base:
                return OUTSIDE
            for tokens in range(item.tokens + 1):
                step = self.ledger.step(world, Extend((*made, replace(item, tokens=tokens))))
                if step.status != "legal" or not step.fits:
                    left = batch[place + 1 :]
                    return Extend((*made, replace(item, tokens=tokens), *(Grow(g.request, 1) for g in left)))
            made = (*made, item)
        return OUTSIDE if self.alphabet._endless(step) else Extend(made)

    def _cut(self, name, tokens, own):
        kept = max(own - tokens, 0)
        return Cut(name, tokens) if kept % self.size else Free((Part(name, kept),))

    def _free(self, world, parts, step):
        held = [part for part in parts if part.request in world.requests]
        if step.rule == "twice":
            return Free((Part(held[0].request), Part(held[0].request)))
        made = []
        for part in held:
            own = self._own(world, part.request)
            stop = None if part.stop is None or part.stop >= own else part.stop
            if part.start < own and stop != 0:
                made.append(Part(part.request, part.start, stop))
        if len(made) == 2 and made[0].request == made[1].request:
            at = max(part.start for part in made)
            at = at if at % self.size == 0 else 1
            made = [replace(p, start=at) if p.start else replace(p, stop=at) for p in made]
        return Free(tuple(made))

    def _free_swa(self, world, part):
        own, size = self._own(world, part.request), self.size
        stop = own if part.stop is None else min(part.stop, own)
        if (part.start, stop) == (0, own):
            return FreeSwa((Part(part.request),))
        first, last = part.start // size, (stop - 1) // size
        if part.start % size == 0 and (stop % size == 0 or stop == own):
            return FreeSwa((Part(part.request, part.start, stop),))
        at = min((first + 1) * size, own) - 1
        return FreeSwa((Part(part.request, at, at + 1 if first == last else last * size + 1),))


def _names(operation):
    found = []
    _with_names(operation, lambda name: found.append(name) or name)
    return [name for name in found if name]


def _with_names(operation, new):
    match operation:
        case Extend(batch):
            items = (replace(g, request=new(g.request), prefix=new(g.prefix)) for g in batch)
            return replace(operation, batch=tuple(items))
        case Decode(requests):
            return replace(operation, requests=tuple(map(new, requests)))
        case Free(parts) | FreeSwa(parts):
            return replace(operation, parts=tuple(replace(p, request=new(p.request)) for p in parts))
        case Alloc(request) | Cut(request) | ops.CopyOut(request) | ops.CopyIn(request):
            return replace(operation, request=new(request))
    return operation


def pool(name):
    subject = own(name)
    return replace(subject, space=replace(subject.space, fixed={**POOLS[name], "data": False, "spare": 0}))


def missing(subject, cases):
    """Operations that are not like one of the alphabet; how many were compared; which kinds they were of."""
    found, compared, kinds = [], 0, set()
    for case in cases:
        ledger = Ledger(case.config, subject.traits(case.config))
        alphabet = Alphabet(ledger, snapshot=True)
        likeness = Likeness(alphabet)
        world = ledger.start()
        for operation in next(iter(_renamed(case))).operations:
            if not set(_names(operation)) <= set(NAMES):
                break
            if isinstance(operation, Backup | Restore) and not getattr(operation, "flaw", ""):
                operation = replace(operation, snapshot=SNAPSHOT)
            step = ledger.step(world, operation)
            if step.status == "skip" or step.rule in ledger.traits.undefined:
                continue
            like = likeness.representative(world, operation)
            if like is OUTSIDE:
                break
            steps = alphabet.steps(world)
            same = ledger.step(world, like)
            here = {s.operation for s in steps}
            calls = {s.call for s in steps if isinstance(s.operation, Free | FreeSwa)}
            if like not in here and (not isinstance(like, Free | FreeSwa) or same.call not in calls):
                found.append((operation, like, world))
            if isinstance(operation, Cut):
                assert (same.call, same.after) == (step.call, step.after)
            compared += 1
            kinds.add((type(operation).__name__, getattr(operation, "flaw", ""), step.rule))
            if step.status == "misuse":
                break
            world = step.after
    return found, compared, kinds


def generated(subject, seeds):
    for example in seeds:
        yield generate(SeededSource(f"alphabet/{example}"), subject.space, subject.traits, "hardened")


def misused(subject):
    for number in range(3 * len(KINDS_OF_MISUSE)):
        source = SeededSource(f"misuse/{number}")
        yield generate_misuse(number, source, subject.space, subject.traits, "hardened")[0]


def shrinking(subject, seeds):
    """What the shrinker makes of generated cases, in one step and in a few."""
    for example, case in zip(seeds, generated(subject, seeds), strict=True):
        yield from islice(_simpler_operations(case), 25)
        for depth in range(6):
            candidates = list(islice(_simpler_operations(case), 400))
            if not candidates:
                break
            case = candidates[(example * 7 + depth * 13) % len(candidates)]
            yield case


@pytest.mark.parametrize("name", POOLS)
def test_what_the_generator_makes_is_in_the_alphabet(name):
    subject = pool(name)
    found, compared, kinds = missing(subject, [*generated(subject, range(200)), *misused(subject)])
    assert not found, found[:3]
    assert compared > 1000
    wanted = (
        HOST_RULES.keys() if name == "paged" else {"negative", "nested group", "twice", "padding", "dtype"}
    )
    assert wanted <= {rule for _, _, rule in kinds}


@pytest.mark.parametrize("name", POOLS)
def test_what_the_shrinker_makes_is_in_the_alphabet(name):
    subject = pool(name)
    found, compared, _ = missing(subject, shrinking(subject, range(25)))
    assert not found, found[:3]
    assert compared > 1000


@pytest.mark.parametrize("name", POOLS)
def test_no_free_is_asked_twice_and_none_is_left_out_for_another_call(name):
    """What is left out for another operation has its call, and comes to the same world."""
    subject = pool(name)
    config = Config(subject.space.kind, **POOLS[name])
    alphabet = Alphabet(Ledger(config, subject.traits(config)), snapshot=True)
    left_out = 0
    for world in islice(worlds(alphabet), 60):
        steps = alphabet.steps(world)
        frees = {s.call: s.after for s in steps if isinstance(s.operation, Free | FreeSwa)}
        assert len(frees) == sum(isinstance(s.operation, Free | FreeSwa) for s in steps)
        for operation in dict.fromkeys(alphabet._operations(world)):
            step = alphabet.ledger.step(world, operation)
            if isinstance(operation, Free | FreeSwa) and step.status == "legal":
                assert frees[step.call] == step.after
                left_out += operation not in {s.operation for s in steps}
    assert left_out or name == "token"


def worlds(alphabet):
    """Worlds that the alphabet leads to, breadth first."""
    line = [alphabet.ledger.start()]
    for world in line:
        yield world
        line += [s.after for s in alphabet.steps(world) if s.status == "legal" and s.fits][:40:3]


def test_the_comparison_sees_an_operation_that_is_missing(monkeypatch):
    subject = pool("paged")
    whole = Alphabet._batches
    monkeypatch.setattr(
        Alphabet, "_batches", lambda self, world: (o for o in whole(self, world) if not isinstance(o, Decode))
    )
    found, _, _ = missing(subject, generated(subject, range(50)))
    assert {type(operation) for operation, _, _ in found} == {Decode}
