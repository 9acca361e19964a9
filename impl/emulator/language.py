"""`triton.language` for the emulator, as far as kernels of integers need it. Any other name says that it is missing."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

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
from impl.emulator.memory import atomic, load, store
from impl.emulator.values import (
    FEW,
    Bad,
    Value,
    block,
    filled,
    made_of,
    pair,
    scalar,
    settled,
    use,
    value_of,
)
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


# -- reductions ----------------------------------------------------------------------------------------


def _summands(value: Any, dtype: DType | None) -> Value:
    """What is added up: narrow types in 32 bits."""
    given = value_of(value)
    if dtype is None and given.type.bits < 32:
        dtype = INT32 if given.type.signed else UINT32
    return given if dtype is None else _cast(given, dtype)


def _exact(value: Value) -> Any:
    """Lanes whose sums can't wrap: Python's own numbers where those of the type might."""
    lanes = np.asarray(value.data)
    largest = builtins.max(-value.lo, value.hi)
    return lanes if largest * lanes.size <= value.type.high else lanes.astype(object)


def _folded(
    value: Value, how: str, result: Any, axis: int | None, keep_dims: bool, dtype: DType | None = None
) -> Value:
    """A reduction's result from its exact numbers (an array or one). To fold all lanes into one uses them all."""
    dtype = value.type if dtype is None else dtype
    one = result.__class__ is int or np.ndim(result) == 0
    bad = value.bad
    if bad is not None and one:
        use(value, how)
        bad = Bad(True, bad.cause)
    elif bad is not None:
        bad = Bad(np.broadcast_to(bad.mask, value.shape).any(axis=axis, keepdims=keep_dims), bad.cause)
    return _fitted(int(result) if one else result, dtype, bad, how)


def _fitted(result: Any, dtype: DType, bad: Bad | None, how: str) -> Value:
    """Exact numbers in a type; those that do not fit wrap."""
    if result.__class__ is int:
        if dtype.low <= result <= dtype.high:
            return block(bool(result) if dtype is INT1 else result, dtype, bad)
    elif result.dtype == dtype.numpy:
        return block(result, dtype, bad)
    elif result.dtype != object:  # an index
        return block(result.astype(dtype.numpy), dtype, bad)
    return settled(result, dtype, bad, f"{how} in {dtype}")


def sum(value: Any, axis: int | None = None, keep_dims: bool = False, dtype: DType | None = None) -> Value:
    """The sum, of all lanes or along an axis."""
    added = (
        value
        if value.__class__ is Value and dtype is None and value.type.bits >= 32
        else _summands(value, dtype)
    )
    if added.bad is None and axis == 0 and not keep_dims:
        lanes, kind = added.data, added.type
        if lanes.__class__ is not int and lanes.ndim == 1 and lanes.size <= FEW:
            total = builtins.sum(lanes.tolist())  # many times faster than NumPy's
            if kind.low <= total <= kind.high:
                return scalar(total, kind)
    lanes = _exact(added)
    if lanes.size <= FEW and not keep_dims and (axis is None or (lanes.ndim == 1 and axis == 0)):
        result = builtins.sum(lanes.reshape(-1).tolist())  # many times faster than NumPy's
    else:
        result = np.sum(lanes, axis=axis, keepdims=keep_dims, dtype=lanes.dtype)
    return _folded(added, "sums up", result, axis, keep_dims)


def cumsum(value: Any, axis: int = 0, reverse: bool = False, dtype: DType | None = None) -> Value:
    """Running sums along an axis, each with its own lane; poison reaches the lanes behind it."""
    added = _summands(value, dtype)
    bad, lanes = added.bad, added.data
    plain = bad is None and axis == 0 and not reverse and lanes.__class__ is np.ndarray and lanes.ndim == 1
    if plain and added.lo >= 0 and added.hi * lanes.size <= added.type.high:
        sums = np.add.accumulate(lanes)
        return made_of(sums, added.type, sums.item(0), sums.item(-1))  # they never fall

    def run(how: Any, lanes: Any) -> Any:
        lanes = np.flip(lanes, axis) if reverse else lanes
        sums = how.accumulate(lanes, axis=axis, dtype=lanes.dtype)
        return np.flip(sums, axis) if reverse else sums

    if bad is not None:
        bad = Bad(run(np.logical_or, np.broadcast_to(bad.mask, added.shape)), bad.cause)
    return _fitted(run(np.add, _exact(added)), added.type, bad, "sums up")


def _reduction(
    reduce: Any, words: str, says: str, dtype: DType | None = None, among: Any = None
) -> Callable[..., Value]:
    def made(value: Any, axis: int | None = None, keep_dims: bool = False, **unknown: Any) -> Value:
        if unknown:
            raise Unsupported(f"{', '.join(unknown)}= of a reduction is not emulated")
        given = value_of(value)
        if among is not None and axis == 0 and given.bad is None and given.data.__class__ is not int:
            lanes, kind = given.data, given.type
            if lanes.ndim == 1 and lanes.size <= FEW and kind is not INT1:
                return scalar(among(lanes.tolist()), kind)
        result = reduce(np.asarray(given.data), axis=axis, keepdims=keep_dims)
        return _folded(given, words, result, axis, keep_dims, dtype)

    made.__doc__ = says
    return made


max = _reduction(
    np.max, "takes the largest of", "The largest lane, of all or along an axis.", among=builtins.max
)
min = _reduction(
    np.min, "takes the smallest of", "The smallest lane, of all or along an axis.", among=builtins.min
)
argmax = _reduction(
    np.argmax, "takes the largest of", "Where the largest lane is; the first of several.", INT32
)
argmin = _reduction(
    np.argmin, "takes the smallest of", "Where the smallest lane is; the first of several.", INT32
)
xor_sum = _reduction(np.bitwise_xor.reduce, "combines", "All lanes combined by exclusive or.")


# -- atomics -------------------------------------------------------------------------------------------


def _atomic(update: Callable[[int, int], int]) -> Callable[..., Value]:
    def made(pointer: Any, val: Any, mask: Any = None, **hints: Any) -> Value:
        return atomic(pointer, val, mask, update, **hints)

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
    return atomic(pointer, new, None, lambda old, put: put if old == wanted.data else old, **hints)


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


__all__ = ("load", "store", "where")
