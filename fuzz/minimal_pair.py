"""Is a shrunk pair of runs minimal? Every pair on its pool whose first run is shorter is run, within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from impl.subject import Subject
from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Operation, Part
from oracle.world import World
from properties.alphabet import Alphabet
from properties.relations import Pair

RUNS = 1_000


def shortest_pair(
    subject: Subject, pair: Pair, holds: Callable[[Pair], bool], limit: int = RUNS
) -> tuple[Pair, int]:
    """The shortest pair that is known, and how many operations its first run has at least.

    Pairs with shorter runs are looked for in the alphabet, with two requests; `limit` of them are run.
    """
    length = _length(pair)
    ledger = Ledger(pair.config, subject.traits(pair.config))
    alphabet = Alphabet(ledger, snapshot=True, misuse=False)
    level = [replace(pair, pieces=((), (), ()))]
    runs = 0
    while level:
        least = min(map(_length, level))
        for candidate in level:
            if _length(candidate) >= length:
                continue
            runs += 1
            if runs > limit:
                return pair, min(least, length)
            if holds(candidate):
                return candidate, _length(candidate)
        level = [
            longer for shorter in level for longer in _longer(shorter, alphabet) if _length(longer) < length
        ]
    return pair, length


def _length(pair: Pair) -> int:
    return len(pair.cases()[0].operations)


def _longer(pair: Pair, alphabet: Alphabet) -> Iterator[Pair]:
    """Pairs with an operation more: at the end of the last piece that has some, or of one behind it."""
    last = max((at for at, piece in enumerate(pair.pieces) if piece), default=0)
    for at in range(last, len(pair.pieces)):
        for operation in _choices(pair, at, alphabet):
            pieces = (*pair.pieces[:at], (*pair.pieces[at], operation), *pair.pieces[at + 1 :])
            longer = replace(pair, pieces=pieces)
            if longer.cases() != pair.cases():
                yield longer


def _choices(pair: Pair, at: int, alphabet: Alphabet) -> list[Operation]:
    before, between, _ = pair.pieces
    run = (before, before + between, pair.cases()[0].operations)[at]
    made = [step.operation for step in alphabet.steps(_world(run, alphabet.ledger))]
    if at != 1 or pair.relation.middle == "any":
        return made
    if pair.relation.middle == "frees":  # of whole requests, as they are drawn
        return [o for o in made if isinstance(o, ops.Free) and all(p == Part(p.request) for p in o.parts)]
    return [] if between else [o for o in made if isinstance(o, ops.Extend)]  # one batch is made of all


def _world(operations: tuple[Operation, ...], ledger: Ledger) -> World:
    world = ledger.start()
    for operation in operations:
        world = ledger.step(world, operation).after
    return world
