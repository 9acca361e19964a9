"""`tl.where`: one of two values, lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from impl.emulator.dtypes import INT1, DType
from impl.emulator.values import Bad, Value, block, cast, merged, pair, value_of


def where(condition: Any, x: Any, y: Any) -> Value:
    """Lane by lane `x` or `y`, with the poison of the chosen side and of the condition."""
    if condition.__class__ is not Value or condition.type is not INT1:
        condition = cast(value_of(condition), INT1)
    if x.__class__ is not Value or y.__class__ is not Value or x.type is not y.type:
        x, y = pair(x, y)
    if condition.bad is None and x.bad is None and y.bad is None:
        chosen = _chosen(condition.data, x.data, y.data, x.type)
        if chosen is not None:
            if chosen.__class__ is int:
                picked: Value = x if condition.data else y
                return picked
            return Value(chosen, x.type, x.lo if x.lo < y.lo else y.lo, x.hi if x.hi > y.hi else y.hi)
    data = np.where(condition.data, x.data, y.data)
    if data.dtype is not x.type.numpy:
        data = data.astype(x.type.numpy)
    bad = None
    if x.bad is not None or y.bad is not None or condition.bad is not None:
        sides = [side.bad.mask if side.bad is not None else False for side in (x, y)]
        bad = condition.bad
        chosen = np.where(condition.data, *sides)
        if chosen.any():
            cause = next(
                side.bad.cause for side in (x, y) if side.bad is not None and np.any(chosen & side.bad.mask)
            )
            bad = merged(Bad(chosen if chosen.shape else True, cause), bad)
    if not data.shape:
        return block(data.item(), x.type, bad)
    return Value(data, x.type, min(x.lo, y.lo), max(x.hi, y.hi), bad)


def _chosen(on: Any, x: Any, y: Any, dtype: DType) -> Any:
    """The data of `where` in its usual forms, in a third of the time that NumPy's takes; None for others."""
    if x.__class__ is int:
        if y.__class__ is int:
            return (x if on else y) if on.__class__ is bool else None
        if on.__class__ is bool or on.shape != y.shape:
            return None
        made = y.copy()
        made[on] = dtype.lane[x]
        return made
    if on.__class__ is bool or x.__class__ is bool or on.shape != x.shape:
        return None
    if y.__class__ is int:
        made = x.copy()
        made[~on] = dtype.lane[y]
        return made
    if y.__class__ is bool or y.shape != x.shape:
        return None
    made = y.copy()
    np.putmask(made, on, x)
    return made
