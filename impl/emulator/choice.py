"""`tl.where`: one of two values, lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from impl.emulator.dtypes import INT1
from impl.emulator.poison import Bad, merged
from impl.emulator.values import Value, block, cast, filled, made_of, pair, value_of


def where(condition: Any, x: Any, y: Any) -> Value:
    """Lane by lane `x` or `y`, with the poison of the chosen side and of the condition."""
    if condition.__class__ is not Value or condition.type is not INT1:
        condition = cast(value_of(condition), INT1)
    if x.__class__ is not Value or y.__class__ is not Value or x.type is not y.type:
        x, y = pair(x, y)
    chosen = _chosen(condition, x, y)
    if condition.bad is None and x.bad is None and y.bad is None:
        return chosen
    sides = [side.bad.mask if side.bad is not None else False for side in (x, y)]
    poison, bad = np.where(condition.data, *sides), condition.bad
    if np.count_nonzero(poison):
        cause = next(
            side.bad.cause for side in (x, y) if side.bad is not None and np.any(poison & side.bad.mask)
        )
        bad = merged(Bad(poison if poison.shape else True, cause), bad)
    return made_of(chosen.data, chosen.type, chosen.lo, chosen.hi, bad)


def _chosen(condition: Value, x: Value, y: Value) -> Value:
    """The lanes: in the usual forms in a third of the time that NumPy's own `where` takes."""
    on, a, b = condition.data, x.data, y.data
    if on.__class__ is bool:
        return (x if on else y) if a.__class__ is b.__class__ is int else _by_numpy(condition, x, y)
    if (a.__class__ is not int and (a.__class__ is bool or a.shape != on.shape)) or (
        b.__class__ is not int and (b.__class__ is bool or b.shape != on.shape)
    ):
        return _by_numpy(condition, x, y)
    if condition.lo == condition.hi:
        side = x if condition.lo else y
        return side if side.data.__class__ is not int else filled(on.shape, side.data, x.type)
    if a.__class__ is int:
        made = b.copy() if b.__class__ is not int else filled(on.shape, b, y.type).data.copy()
        made[on] = x.type.lane[a]
    elif b.__class__ is int:
        made = a.copy()
        made[~on] = x.type.lane[b]
    else:
        made = b.copy()
        np.putmask(made, on, a)
    return made_of(made, x.type, x.lo if x.lo < y.lo else y.lo, x.hi if x.hi > y.hi else y.hi)


def _by_numpy(condition: Value, x: Value, y: Value) -> Value:
    data = np.where(condition.data, x.data, y.data)
    if not data.shape:
        return block(data.item(), x.type)
    if data.dtype is not x.type.numpy:
        data = data.astype(x.type.numpy)
    return made_of(data, x.type, min(x.lo, y.lo), max(x.hi, y.hi))
