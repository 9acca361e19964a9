"""`triton.language` for the emulator, as far as kernels of integers need it. Any other name says that it is missing."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from impl.emulator.atomics import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
)
from impl.emulator.choice import where
from impl.emulator.dtypes import (
    INT1,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    Unsupported,
    promoted,
)
from impl.emulator.findings import now
from impl.emulator.memory import load, store
from impl.emulator.poison import Bad, use
from impl.emulator.reductions import argmax, argmin, cumsum, max, min, sum, xor_sum
from impl.emulator.values import Value, filled, made_of, pair, scalar, value_of
from impl.emulator.values import cast as _cast

int1, int8, int16, int32, int64 = INT1, INT8, INT16, INT32, INT64
uint8, uint16, uint32, uint64 = UINT8, UINT16, UINT32, UINT64
tensor = Value
dtype = DType
MOST_LANES = 1 << 20  # of a block, as in Triton


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unsupported(f"tl.{name} is not emulated")


class constexpr:
    """An annotation; called, it gives the number itself."""

    def __new__(cls, value: Any) -> Any:
        """The plain value."""
        return value


# -- the launch ----------------------------------------------------------------------------------------


def program_id(axis: int) -> Value:
    """Which program this is, along an axis of the grid."""
    return scalar(now.program[axis], INT32)


def num_programs(axis: int) -> Value:
    """The grid's size along an axis."""
    return scalar(now.grid[axis], INT32)


def debug_barrier() -> None:
    """Lanes run in step here."""


def static_print(*_: Any, **__: Any) -> None:
    """Nothing is printed."""


device_print = static_print


def static_assert(condition: Any, message: str = "") -> None:
    """AssertionError unless the condition, known beforehand, holds."""
    if not condition:
        raise AssertionError(message)


def device_assert(condition: Any, message: str = "", mask: Any = None) -> None:
    """AssertionError unless the condition holds in all enabled lanes."""
    held = value_of(condition)
    on = True if mask is None else value_of(mask).data
    use(held, "asserts", on)
    if not np.all(np.logical_or(held.data, np.logical_not(on))):
        raise AssertionError(message)


def assume(condition: Any) -> None:
    """A hint for the compiler."""


def _hint(value: Any, *_: Any) -> Any:
    """A hint for the compiler: the value itself."""
    return value


multiple_of = max_contiguous = max_constancy = _hint


# -- making --------------------------------------------------------------------------------------------


def _fixed(number: Any, what: str) -> Any:
    if number.__class__ is not int:
        raise TypeError(f"{what} is a tl.constexpr, not {type(number).__name__}")
    return number


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    lanes = 1
    for size in sizes:
        if _fixed(size, "a block's size") < 1 or size & (size - 1):
            raise ValueError(f"a block has a power of two of lanes along each axis, not {size}")
        lanes *= size
    if lanes > MOST_LANES:
        raise ValueError(f"a block has {MOST_LANES} lanes at most, not {lanes}")
    return sizes


@functools.lru_cache(maxsize=256)
def _arange(start: int, end: int) -> Value:
    _shape(end - start)
    data = np.arange(start, end, dtype=INT32.numpy)
    data.flags.writeable = False
    return made_of(data, INT32, start, end - 1)


def arange(start: Any, end: Any) -> Value:
    """`start` to `end - 1` in int32; their number is a power of two."""
    return _arange(_fixed(start, "the start of a range"), _fixed(end, "the end of a range"))


def full(shape: Any, value: Any, dtype: DType) -> Value:
    """A block of one number."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if value.__class__ is int:
        return _full(sizes, value, dtype)
    one = _cast(value_of(value), dtype)
    return made_of(np.full(_shape(sizes), one.data, dtype=dtype.numpy), dtype, one.lo, one.hi, one.bad)


@functools.lru_cache(maxsize=256)
def _full(shape: tuple[int, ...], number: int, dtype: DType) -> Value:
    return filled(_shape(shape), number, dtype)


def zeros(shape: Any, dtype: DType) -> Value:
    """A block of zeros."""
    return full(shape, 0, dtype)


def zeros_like(value: Value) -> Value:
    """A block of zeros of the same shape and type."""
    return full(value.shape, 0, value.type)


def cast(value: Any, dtype: DType, bitcast: bool = False) -> Value:
    """The value in another type."""
    return value_of(value).to(dtype, bitcast)


# -- lane by lane --------------------------------------------------------------------------------------


def minimum(x: Any, y: Any) -> Value:
    """The smaller one."""
    x, y = pair(x, y)
    if x.bad is not None or y.bad is not None or x.type is INT1:
        return where(x < y, x, y)
    a, b, dtype = x.data, y.data, x.type
    if a.__class__ is int:
        if b.__class__ is int:
            return value_of(x if a < b else y)
        a = dtype.lane[a]
    elif b.__class__ is int:
        b = dtype.lane[b]
    return made_of(np.minimum(a, b), dtype, x.lo if x.lo < y.lo else y.lo, x.hi if x.hi < y.hi else y.hi)


def maximum(x: Any, y: Any) -> Value:
    """The larger one."""
    x, y = pair(x, y)
    if x.bad is not None or y.bad is not None or x.type is INT1:
        return where(x > y, x, y)
    a, b, dtype = x.data, y.data, x.type
    if a.__class__ is int:
        if b.__class__ is int:
            return value_of(x if a > b else y)
        a = dtype.lane[a]
    elif b.__class__ is int:
        b = dtype.lane[b]
    return made_of(np.maximum(a, b), dtype, x.lo if x.lo > y.lo else y.lo, x.hi if x.hi > y.hi else y.hi)


def abs(x: Any) -> Any:
    """Without its sign."""
    return builtins.abs(x)


def clamp(x: Any, least: Any, most: Any) -> Value:
    """The number in a range that is nearest."""
    return minimum(maximum(x, least), most)


def cdiv(x: Any, y: Any) -> Any:
    """`x / y` rounded up, for numbers that are not negative."""
    return (x + y - 1) // y


# -- shapes --------------------------------------------------------------------------------------------


def _reshaped(value: Value, change: Callable[[Any], Any]) -> Value:
    bad = value.bad and Bad(change(np.broadcast_to(value.bad.mask, value.shape)), value.bad.cause)
    return made_of(change(np.asarray(value.data)), value.type, value.lo, value.hi, bad)


def reshape(value: Value, *shape: Any) -> Value:
    """The same lanes in row-major order in another shape."""
    sizes = _shape(shape[0] if len(shape) == 1 else shape)
    return _reshaped(value, lambda lanes: lanes.reshape(sizes))


view = reshape


def ravel(value: Value) -> Value:
    """All lanes along one axis."""
    return _reshaped(value, lambda lanes: lanes.reshape(-1))


def broadcast_to(value: Any, *shape: Any) -> Value:
    """Repeated along axes of size 1."""
    sizes = _shape(shape[0] if len(shape) == 1 else shape)
    return _reshaped(value_of(value), lambda lanes: np.broadcast_to(lanes, sizes))


def expand_dims(value: Value, axis: int) -> Value:
    """With one more axis of size 1."""
    return _reshaped(value, lambda lanes: np.expand_dims(lanes, axis))


# -- Python's own names inside a kernel ------------------------------------------------------------------


def range(*bounds: Any) -> Iterator[Value]:
    """A loop of the run: its variable is a tensor, of the widest type of the bounds and at least int32."""
    kind, numbers = INT32, []
    for bound in bounds:
        if bound.__class__ is int and INT32.low <= bound <= INT32.high:
            numbers.append(bound)
            continue
        value = value_of(bound)
        if value.bad is not None:
            use(value, "loops to")
        if value.type is not kind:
            kind = promoted(kind, value.type)
        numbers.append(int(value.data))
    if kind.signed:  # then each number is of it, as the bounds are
        return map(kind.scalars.__getitem__, builtins.range(*numbers))
    return (scalar(number, kind) for number in builtins.range(*numbers))


static_range = builtins.range


def _least(*values: Any) -> Any:
    """`min(…)` of numbers, or of tensors lane by lane."""
    if all(isinstance(value, int) for value in values):
        return builtins.min(values)
    return functools.reduce(minimum, values) if len(values) > 1 else min(*values)


def _most(*values: Any) -> Any:
    """`max(…)` of numbers, or of tensors lane by lane."""
    if all(isinstance(value, int) for value in values):
        return builtins.max(values)
    return functools.reduce(maximum, values) if len(values) > 1 else max(*values)


BUILTINS = {"min": _least, "max": _most, "range": range, "print": static_print}
"""Python's functions, by the names under which a kernel calls them."""


def next_power_of_2(number: int) -> int:
    """The first power of two that is not smaller; 1 for 0."""
    return 1 << builtins.max(number - 1, 0).bit_length()


__all__ = (
    "argmax",
    "argmin",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
    "cumsum",
    "load",
    "max",
    "min",
    "store",
    "sum",
    "where",
    "xor_sum",
)
