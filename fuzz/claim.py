"""A claim: the lines around the call that is wrong, which fail where the finding is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oracle.verdict import Violation

if TYPE_CHECKING:
    from fuzz.emitter import Emitter

Lines = list[str]
Late = Callable[["Emitter"], Lines]  # lines that need to know which variable has which slots


def _none(_: Emitter) -> Lines:
    return []


@dataclass(frozen=True, slots=True)
class Claim:
    """The lines around the call that is wrong.

    after, before: behind and in front of it. wrap: the call itself, where an error is part of the finding.
    first: in front of all. kept_at: behind earlier steps. data: K and V are written; watches: answers are kept;
    crashes: the process is to die.
    """

    after: Late = _none
    before: Late = _none
    wrap: Callable[[Lines], Iterator[str]] | None = None
    first: tuple[str, ...] = ()
    kept_at: dict[int, Late] = field(default_factory=dict)
    data: bool = False
    watches: bool = False
    crashes: bool = False


def quoted(text: str) -> str:
    """A text as a literal of Python, in double quotes where that needs no escape."""
    text = text.encode("utf-8", "backslashreplace").decode()
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain.startswith("'") and '"' not in plain else plain


def says(condition: str, violation: Violation) -> str:
    """An assertion with the finding's sentence."""
    return f"assert {condition}, {quoted(violation.summary)}"


def asserted(violation: Violation, condition: str) -> Late:
    """One assertion, which needs to know nothing more."""
    return lambda _: [says(condition, violation)]
