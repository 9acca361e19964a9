"""Atomic updates, as `triton.language` names them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from impl.emulator.dtypes import Unsupported
from impl.emulator.findings import OUTSIDE_STORE
from impl.emulator.memory import Pointer, enabled_of, known, load, open_lanes, outside_of, spread
from impl.emulator.poison import use
from impl.emulator.values import Value, block, cast, made_of, value_of

HINTS = frozenset({"sem", "scope"})
Update = Callable[[int, int], int]


def _updated(pointer: Pointer, value: Any, mask: Any, update: Update, **hints: Any) -> Value:
    """Atomic updates, lane after lane: the values before. Many programs may update one place, so none is a race."""
    known(hints, HINTS)
    memory, at, on = pointer.memory, pointer.at, None
    value = cast(value_of(value), memory.type)
    if value.shape not in ((), at.shape):
        at = spread(at, np.broadcast_shapes(value.shape, at.shape))
    if mask is not None:
        at, on = enabled_of(mask, at)
    if value.bad is not None:
        use(value, f"updates {memory.name} by", on)
    shape, dtype, flat, size = at.shape, memory.type, memory.flat, memory.size
    places, operands = _listed(at.data, shape), _listed(value.data, shape)
    enabled = _listed(True if on is None else on, shape)
    if (
        at.bad is None
        and memory.fresh is None
        and (
            (at.lo >= 0 and at.hi < size)
            or all(0 <= here < size for here, on_here in zip(places, enabled, strict=True) if on_here)
        )
    ):
        before = [0] * len(places)
        bad = None if on is None else open_lanes(memory, True if on is False else ~on)
    else:
        old = load(Pointer(memory, at), mask)
        if old.bad is not None:
            use(old, f"updates {memory.name} from", on)
        outside = outside_of(memory, at, on, OUTSIDE_STORE, "update")
        if outside is not None:
            enabled = _listed(np.logical_and(True if on is None else on, np.logical_not(outside)), shape)
        before, bad = _listed(old.data, shape), old.bad
    left = dict[int, int]()  # what a place holds now
    for lane, on_here in enumerate(enabled):
        if on_here:
            here = places[lane]
            was = before[lane] = left[here] if here in left else flat.item(here)
            after = update(was, operands[lane])
            left[here] = after if dtype.low <= after <= dtype.high else dtype.wrapped(after)
    if left:
        changed = np.array(list(left))
        flat[changed] = list(left.values())
        memory.wrote(changed, min(left.values()), max(left.values()))
    if not shape:
        return block(before[0], dtype, bad)
    return made_of(np.array(before, dtype=dtype.numpy).reshape(shape), dtype, min(before), max(before), bad)


def _listed(data: Any, shape: tuple[int, ...]) -> list[int]:
    """One lane after the other, where there are lanes of this shape."""
    if data.__class__ in (int, bool):
        return [data] * math.prod(shape)
    if data.shape != shape:
        data = np.broadcast_to(data, shape)
    lanes: list[int] = data.reshape(-1).tolist()
    return lanes


def _atomic(update: Callable[[int, int], int]) -> Callable[..., Value]:
    def made(pointer: Any, val: Any, mask: Any = None, **hints: Any) -> Value:
        return _updated(pointer, val, mask, update, **hints)

    return made


atomic_add = _atomic(lambda old, new: old + new)
atomic_max = _atomic(lambda old, new: new if new > old else old)
atomic_min = _atomic(lambda old, new: new if new < old else old)
atomic_and = _atomic(lambda old, new: old & new)
atomic_or = _atomic(lambda old, new: old | new)
atomic_xor = _atomic(lambda old, new: old ^ new)
atomic_xchg = _atomic(lambda _, new: new)


def atomic_cas(pointer: Any, cmp: Any, val: Any, **hints: Any) -> Value:
    """Write `val` where `cmp` is; the value before."""
    wanted, new = value_of(cmp), value_of(val)
    if wanted.shape or new.shape:
        raise Unsupported("tl.atomic_cas of a block is not emulated")
    use(wanted, "compares with")
    return _updated(pointer, new, None, lambda old, put: put if old == wanted.data else old, **hints)
