"""Where the generator's choices come from: a seed, raw bytes (Hypothesis, coverage-guided fuzzers)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Source(Protocol):
    """Choices. Small numbers are the simple ones, so that a source that shrinks makes cases simpler."""

    def below(self, bound: int) -> int:
        """A number from 0 to `bound - 1`; 0 where bound is 1 or less."""


class SeededSource:
    """Choices from a seed: the same seed makes the same choices, on any machine."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        """A number from 0 to `bound - 1`, all equally likely."""
        return int(self._random() * bound)


class BytesSource:
    """Choices from bytes, two for each; behind their end every choice is 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def below(self, bound: int) -> int:
        """The next two bytes, modulo `bound`."""
        at = self._at
        self._at = at + 2
        return int.from_bytes(self._data[at : at + 2], "big") % bound if bound > 1 else 0


def pick(source: Source, choices: Sequence[T]) -> T:
    """One of `choices`; the first is the simplest."""
    return choices[source.below(len(choices))]


def chance(source: Source, out_of: int) -> bool:
    """True once in `out_of` times; False is the simple answer."""
    return source.below(out_of) == out_of - 1


def weighted(source: Source, weights: Sequence[int]) -> int:
    """A place in `weights`, by weight."""
    at = source.below(sum(weights))
    for place, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return place
    raise ValueError("all weights are 0")
