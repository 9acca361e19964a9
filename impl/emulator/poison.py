"""Lanes that may not be used, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from impl.emulator.findings import Cause, report_use


class Bad(NamedTuple):
    """The poisoned lanes of a value (`True` or an array that broadcasts to it), and why."""

    mask: Any
    cause: Cause


def use(value: Any, how: str, on: Any = None) -> None:
    """Report the poison of a value in the enabled lanes (`on`; None: all)."""
    bad = value.bad
    if bad is not None and np.any(bad.mask if on is None else np.logical_and(bad.mask, on)):
        report_use(bad.cause, how)


def merged(a: Bad | None, b: Bad | None) -> Bad | None:
    """The poison of a lane-by-lane result."""
    if a is None or b is None:
        return a or b
    return Bad(np.logical_or(a.mask, b.mask), a.cause)
