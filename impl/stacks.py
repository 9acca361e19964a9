"""Where in the program a call came from: stacks that are cheap to take, and become text only when asked for."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType

OURS = Path(__file__).parent
_SKIPPED = frozenset(str(OURS / name) for name in ("tap.py", "stacks.py", "checker.py")) | {"<string>"}

Frames = tuple[tuple[CodeType, int], ...]  # innermost first


class Stacks:
    """Each distinct stack once, by number. depth: frames that are kept of one."""

    def __init__(self, depth: int = 12) -> None:
        self.depth = depth
        self._numbers: dict[Frames, int] = {}
        self._stacks: list[Frames] = []

    def take(self) -> int:
        """The number of the stack of whoever called the allocator."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in _SKIPPED:
            frame = frame.f_back
        frames: list[tuple[CodeType, int]] = []
        caller: object = frame
        while caller is not None and len(frames) < self.depth:
            frames.append((frame.f_code, frame.f_lineno))
            caller = frame.f_back
            if frame.f_back is not None:
                frame = frame.f_back
        taken = tuple(frames)
        number = self._numbers.get(taken)
        if number is None:
            number = self._numbers[taken] = len(self._stacks)
            self._stacks.append(taken)
        return number

    def site(self, number: int) -> str:
        """File and line of the innermost frame."""
        code, line = self._stacks[number][0]
        return f"{code.co_filename}:{line} in {code.co_name}"

    def text(self, number: int) -> str:
        """A stack as Python prints one, innermost last."""
        lines = []
        for code, line in reversed(self._stacks[number]):
            lines.append(f"  {code.co_filename}:{line} in {code.co_name}")
            source = linecache.getline(code.co_filename, line).strip()
            if source:
                lines.append(f"    {source}")
        return "\n".join(lines)
