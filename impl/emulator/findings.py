"""What went wrong in a launch: a category, and a sentence with the kernel and the line."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass, field
from pathlib import PurePath
from types import CodeType
from typing import NamedTuple

OUTSIDE_LOAD, OUTSIDE_STORE = "out-of-bounds load", "out-of-bounds store"
UNDEFINED = "undefined lane"
UNWRITTEN = "unwritten memory"
RACE = "write race"
WRAP = "integer wrap"
NO_RESULT = "undefined result"


class Place(NamedTuple):
    """A line of a kernel, or of a function that it calls."""

    file: str
    line: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{PurePath(self.file).name}:{self.line}" + (f" `{text}`" if text else "")


class Cause(NamedTuple):
    """Why a lane holds nothing that may be used. `what` goes on from the place: `loads …`."""

    category: str
    place: Place
    what: str


@dataclass(slots=True)
class Now:
    """The program that runs. There is one at a time: programs run one after the other, in one thread.

    stamp: larger than that of the program before by more than a block has lanes. alone: whether the launch has one
    program. found: the first sentence of each category, in the order in which they came.
    undefined: whether lanes that a masked load leaves open may not be used; else they hold 0.
    """

    kernel: str = ""
    program: tuple[int, int, int] = (0, 0, 0)
    grid: tuple[int, int, int] = (1, 1, 1)
    stamp: int = 0
    alone: bool = True
    undefined: bool = True
    found: dict[str, str] = field(default_factory=dict)


now = Now()
CODES: dict[int, CodeType] = {}
"""The code of all functions that are emulated, by `id`: the innermost of them is where a finding belongs.

A code's own hash is made anew from all of it whenever one asks.
"""


def place() -> Place:
    """The line of the kernel that is being run."""
    frame = sys._getframe(1)
    while id(frame.f_code) not in CODES:
        if frame.f_back is None:
            return Place("", 0)
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def report(category: str, what: str) -> Cause:
    """Note a finding at the line that runs; the first of its category is kept."""
    cause = Cause(category, place(), what)
    if category not in now.found:
        now.found[category] = f"{now.kernel}, {cause.place}, {_program()}: {what}"
    return cause


def report_use(cause: Cause, use: str) -> None:
    """Note that a lane with a cause is used all the same at the line that runs."""
    if cause.category not in now.found:
        origin = f"from {cause.place}, which {cause.what}"
        now.found[cause.category] = f"{now.kernel}, {place()}, {_program()}: {use} a lane {origin}"


def _program() -> str:
    used = now.program[: 3 - (now.grid[2] == 1) - (now.grid[1:] == (1, 1))]
    return f"program {', '.join(map(str, used))}"
