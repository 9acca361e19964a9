"""Sums, running sums and other reductions, as `triton.language` names them."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from impl.emulator.dtypes import INT1, INT32, UINT32, DType, Unsupported
from impl.emulator.poison import Bad, use
from impl.emulator.values import FEW, Value, block, cast, made_of, scalar, settled, value_of


def _summands(value: Any, dtype: DType | None) -> Value:
    """What is added up: narrow types in 32 bits."""
    given = value_of(value)
    if dtype is None and given.type.bits < 32:
        dtype = INT32 if given.type.signed else UINT32
    return given if dtype is None else cast(given, dtype)


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
