"""Scalars and blocks of integers as a kernel computes with them: they wrap, division truncates, poison spreads.

Each value carries bounds of its lanes. They are what makes checks cheap: a sum is looked at lane by lane only
where the bounds do not rule out that it wraps.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from impl.emulator import bounds as bounds_of
from impl.emulator.bounds import Bounds, Number, seen_bounds
from impl.emulator.dtypes import ALL, INT1, KEPT, DType, Unsupported, of_number, promoted
from impl.emulator.findings import NO_RESULT, WRAP, Cause, place
from impl.emulator.poison import Bad, merged, use

FEW = 64  # lanes
_Array = np.ndarray


# -- arithmetic ----------------------------------------------------------------------------------------


def _tighten(value: Value) -> None:
    """Find bounds by looking: those that were worked out may be wide."""
    data = value.data
    value.lo, value.hi = (data, data) if data.__class__ in (int, bool) else seen_bounds(data)


def _arithmetic(
    sign: str, fast: Callable[[Any, Any], Any], bounds: Callable[[int, int, int, int], Bounds],
    exact: Callable[[int, int], Number], neutral: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """The methods of an operator and of its mirror.

    fast: by NumPy, where `bounds` of the result fit the type; exact: on two lanes as Python's own numbers.
    neutral: on the right side it changes nothing: first offsets are 0, and pages may have one slot.
    """
    divides, commutes = sign in ("//", "%"), sign in ("+", "*")

    def method(self: Value, other: Any) -> Any:
        kind, dtype = other.__class__, self.type
        if kind is int:
            lo, hi = bounds(self.lo, self.hi, other, other)
            if dtype.least <= lo and hi <= dtype.most:
                data = self.data
                if data.__class__ is int:
                    if self.bad is None:
                        return dtype.scalars[fast(data, other)]
                    return made_of(fast(data, other), dtype, lo, hi, self.bad)
                if other == neutral:
                    return self
                lane = dtype.lane[other]
                if lane.__class__ is not int:  # else it is not of the type: `pair` says so
                    return made_of(fast(data, lane), dtype, lo, hi, self.bad)
        elif kind is Value and (other.type is dtype or other.type in dtype.absorbs):
            lo, hi = bounds(self.lo, self.hi, other.lo, other.hi)
            if dtype.least <= lo and hi <= dtype.most:
                bad = self.bad if other.bad is None else merged(self.bad, other.bad)
                a, b = self.data, other.data
                if b.__class__ is int:
                    if a.__class__ is not int:
                        if b == neutral and bad is self.bad:
                            return self
                        b = dtype.lane[b]
                    elif bad is None:
                        return dtype.scalars[fast(a, b)]
                else:
                    if a.__class__ is int:
                        if a == neutral and commutes and bad is other.bad:
                            return cast(other, dtype)
                        a = dtype.lane[a]
                return made_of(fast(a, b), dtype, lo, hi, bad)
        elif kind is not Value and not isinstance(other, int):
            return NotImplemented
        return slow(*pair(self, other, divides))

    def mirrored(self: Value, other: Any) -> Any:
        return method(*pair(other, self, divides)) if isinstance(other, int) else NotImplemented

    def slow(a: Value, b: Value) -> Value:
        dtype = a.type
        lo, hi = bounds(a.lo, a.hi, b.lo, b.hi)
        if not (dtype.least <= lo and hi <= dtype.most):
            _tighten(a)
            _tighten(b)
            lo, hi = bounds(a.lo, a.hi, b.lo, b.hi)
        bad = merged(a.bad, b.bad)
        if dtype.least <= lo and hi <= dtype.most:
            return made_of(fast(a.data, b.data), dtype, lo, hi, bad)
        lanes = np.frompyfunc(exact, 2, 1)(_objects(a.data), _objects(b.data))
        return settled(lanes, dtype, bad, f"computes a {dtype} {sign}")

    return method, mirrored


def _comparison(compare: Callable[[Any, Any], Any], ordered: bool = True) -> Any:
    """The method of a comparison. ordered: what holds for two numbers, or for neither, does so for all between them."""

    def method(self: Value, other: Any) -> Any:
        kind, a = other.__class__, self.data
        if kind is int:
            bad, b = self.bad, other
        else:
            if kind is not Value and not isinstance(other, int):
                return NotImplemented
            if (
                kind is not Value
                or other.type.signed != self.type.signed
                or other.type.numpy is not self.type.numpy
            ):
                self, other = pair(self, other)
                a = self.data
            bad, b = self.bad if other.bad is None else merged(self.bad, other.bad), other.data
        if b.__class__ is int:
            if a.__class__ is _Array:
                if ordered and bad is None:
                    on = compare(self.lo, b)
                    if compare(self.hi, b) is on:
                        return filled(a.shape, on, INT1)
                b = self.type.lane[b]
            elif bad is None:
                return INT1.scalars[compare(a, b)]
        elif a.__class__ is int:
            a = other.type.lane[a]
        return made_of(compare(a, b), INT1, 0, 1, bad)

    return method


def _any(a: Value, b: Value) -> Bounds:
    return a.type.low, a.type.high


def _and(a: Value, b: Value) -> Bounds:
    """A number that is not negative keeps the other one below it."""
    if a.lo < 0:
        return (0, b.hi) if b.lo >= 0 else _any(a, b)
    return 0, a.hi if b.lo < 0 or a.hi < b.hi else b.hi


def _bitwise(combine: Callable[[Any, Any], Any], bounds: Callable[[Value, Value], Bounds]) -> Any:
    def method(self: Value, other: Any) -> Any:
        kind = other.__class__
        if kind is not Value and not isinstance(other, int):
            return NotImplemented
        if kind is not Value or other.type is not self.type:
            self, other = pair(self, other)
        dtype = self.type
        bad = self.bad if other.bad is None else merged(self.bad, other.bad)
        a, b = self.data, other.data
        if dtype is INT1:
            if bad is None and a.__class__ is bool and b.__class__ is bool:
                return INT1.scalars[combine(a, b)]
            return made_of(combine(a, b), INT1, 0, 1, bad)
        if a.__class__ is int:
            if b.__class__ is int:
                data = combine(a, b)
                return made_of(data, dtype, data, data, bad)
            a = dtype.lane[a]
        elif b.__class__ is int:
            b = dtype.lane[b]
        return made_of(combine(a, b), dtype, *bounds(self, other), bad)

    return method


# -- the value -----------------------------------------------------------------------------------------


_ALL = slice(None)


class Value:
    """A scalar (`data` is an int) or a block (`data` is an array of the type), with `lo <= every lane <= hi`.

    bad: lanes that may not be used, or None.
    """

    __slots__ = ("bad", "data", "hi", "lo", "type")

    data: Any
    type: DType
    lo: int
    hi: int
    bad: Bad | None

    @property
    def dtype(self) -> DType:
        """The type of a lane."""
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        """Lanes by axis; () for a scalar."""
        return () if self.data.__class__ in (int, bool) else tuple(self.data.shape)

    @property
    def numel(self) -> int:
        """Lanes."""
        return int(np.size(self.data))

    def to(self, dtype: DType, bitcast: bool = False) -> Value:
        """The value in another type; what does not fit wraps."""
        if bitcast:
            raise Unsupported("to(…, bitcast=True) is not emulated")
        return self if dtype is self.type else cast(self, dtype)

    def __getitem__(self, key: Any) -> Value:
        keys = key if isinstance(key, tuple) else (key,)
        for k in keys:
            if k is not None and k != _ALL:
                raise Unsupported("of a block only [:, None] and its like are emulated")
        bad = self.bad and Bad(np.broadcast_to(self.bad.mask, self.shape)[keys], self.bad.cause)
        return made_of(np.asarray(self.data)[keys], self.type, self.lo, self.hi, bad)

    def __bool__(self) -> bool:
        if self.data.__class__ not in (int, bool):
            raise ValueError("the truth of a block is not one: use tl.where, or a mask")
        if self.bad is not None:
            use(self, "branches on")
        return bool(self.data)

    def __index__(self) -> int:
        raise TypeError("a tl.constexpr is wanted here, and this is a value of the run")

    def __invert__(self) -> Value:
        if self.type is INT1:
            data = not self.data if self.data.__class__ is bool else ~self.data
            return made_of(data, INT1, 0, 1, self.bad)
        if not self.type.signed:
            high = self.type.high
            return made_of(high - self.data, self.type, high - self.hi, high - self.lo, self.bad)
        return made_of(~self.data, self.type, ~self.hi, ~self.lo, self.bad)

    def __neg__(self) -> Any:
        return 0 - self

    def __abs__(self) -> Any:
        if self.lo >= 0:
            return self
        from impl.emulator.choice import where  # which needs this class

        return where(self < 0, -self, self)

    __add__, __radd__ = _arithmetic("+", operator.add, bounds_of.add, operator.add, 0)
    __sub__, __rsub__ = _arithmetic("-", operator.sub, bounds_of.subtract, operator.sub, 0)
    __mul__, __rmul__ = _arithmetic("*", operator.mul, bounds_of.multiply, operator.mul, 1)
    __floordiv__, __rfloordiv__ = _arithmetic(
        "//", operator.floordiv, bounds_of.divide, bounds_of.quotient, 1
    )
    __mod__, __rmod__ = _arithmetic("%", bounds_of.modulo, bounds_of.remain, bounds_of.remainder)
    __lshift__, __rlshift__ = _arithmetic("<<", operator.lshift, bounds_of.shift_left, bounds_of.left, 0)
    __rshift__, __rrshift__ = _arithmetic(">>", operator.rshift, bounds_of.shift_right, bounds_of.right, 0)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __eq__, __ne__ = _comparison(operator.eq, ordered=False), _comparison(operator.ne, ordered=False)
    __and__ = __rand__ = _bitwise(operator.and_, _and)
    __or__ = __ror__ = _bitwise(operator.or_, _any)
    __xor__ = __rxor__ = _bitwise(operator.xor, _any)
    __hash__ = None  # type: ignore[assignment]

    def __truediv__(self, other: Any) -> Any:
        raise Unsupported("/ gives a floating-point number, which is not emulated: // divides integers")

    __rtruediv__ = __truediv__


def made_of(data: Any, type: DType, lo: int, hi: int, bad: Bad | None = None) -> Value:
    """A value. A class's own `__init__` takes half as long again to be called."""
    made = Value()
    made.data = data
    made.type = type
    made.lo = lo
    made.hi = hi
    made.bad = bad
    return made


class _Scalars(dict[int, Value | None]):
    """Scalars of a type without poison, each made once: nothing changes a value. None for what is not of the type."""

    def __init__(self, dtype: DType) -> None:
        super().__init__()
        self._dtype = dtype

    def __missing__(self, number: int) -> Value | None:
        dtype = self._dtype
        if not dtype.low <= number <= dtype.high:
            return None
        if len(self) >= KEPT:
            self.clear()
        made = self[number] = made_of(
            bool(number) if dtype is INT1 else int(number), dtype, int(number), int(number)
        )
        return made


for _dtype in ALL:
    object.__setattr__(_dtype, "scalars", _Scalars(_dtype))

# -- conversions ---------------------------------------------------------------------------------------


def scalar(number: int, dtype: DType | None = None) -> Value:
    """A number as a scalar of a type, by default of its own (`of_number`). ValueError where it does not fit."""
    dtype = of_number(number) if dtype is None else dtype
    made: Value | None = dtype.scalars[number]
    if made is None:
        raise ValueError(f"{number} is out of range for {dtype}")
    return made


@functools.lru_cache(maxsize=256)
def filled(shape: tuple[int, ...], number: int, dtype: DType) -> Value:
    """A block of one number of the type. All that ask for it share it."""
    data = np.full(shape, number, dtype=dtype.numpy)
    data.flags.writeable = False
    return made_of(data, dtype, int(number), int(number))


def block(data: Any, dtype: DType, bad: Bad | None = None) -> Value:
    """An array (or number) as a value, its bounds found by looking."""
    if data.__class__ in (int, bool):
        return made_of(data, dtype, int(data), int(data), bad)
    return made_of(data, dtype, *seen_bounds(data), bad)


def value_of(thing: Any) -> Value:
    """A value, or a plain number as one."""
    if thing.__class__ is Value:
        made: Value = thing
        return made
    if isinstance(thing, int):
        return scalar(thing)
    if isinstance(thing, float):
        raise Unsupported("floating point is not emulated")
    raise TypeError(f"a value or a number is wanted here, not {type(thing).__name__}")


def pair(a: Any, b: Any, divides: bool = False) -> tuple[Value, Value]:
    """Two operands in the type in which they meet; a plain number takes the type of a tensor."""
    if a.__class__ is Value and b.__class__ is int and a.type is not INT1:
        return a, scalar(b, a.type)
    if a.__class__ is Value and isinstance(b, int):
        b = scalar(b, a.type if a.type is not INT1 or b.__class__ is bool else None)
    elif b.__class__ is Value and isinstance(a, int):
        a = scalar(a, b.type if b.type is not INT1 or a.__class__ is bool else None)
    a, b = value_of(a), value_of(b)
    if a.type is b.type:
        return a, b
    common = promoted(a.type, b.type, divides)
    return cast(a, common), cast(b, common)


def cast(value: Value, dtype: DType) -> Value:
    """A value in a type. Lanes that do not fit wrap, and may not be used."""
    if value.type is dtype:
        return value
    data, bad = value.data, value.bad
    if dtype is INT1:
        return made_of(data != 0, INT1, 0, 1, bad)
    if dtype.low <= value.lo and value.hi <= dtype.high:
        if data.__class__ is int:
            if bad is None:
                made: Value = dtype.scalars[data]
                return made
        elif data.__class__ is bool:
            data = int(data)
        elif value.type.numpy is not dtype.numpy:
            data = data.astype(dtype.numpy)
        return made_of(data, dtype, value.lo, value.hi, bad)
    return settled(_objects(data), dtype, bad, f"narrows {value.type} to {dtype}")


def settled(exact: Any, dtype: DType, bad: Bad | None, what: str) -> Value:
    """Exact results as lanes of a type: what does not fit wraps and is poison, and so is None, no result at all."""
    lanes = np.asarray(exact, dtype=object)
    none = np.equal(lanes, None)  # type: ignore[call-overload]
    lanes = np.where(none, 0, lanes)
    data = np.frompyfunc(dtype.wrapped, 1, 1)(lanes)
    for category, mask in ((NO_RESULT, none), (WRAP, np.not_equal(data, lanes))):
        mask = np.asarray(mask, dtype=bool)
        if mask.any():
            lane = int(mask.reshape(-1).argmax())
            of = f" to {lanes.reshape(-1)[lane]}" if category == WRAP else ""
            which = f" in lane {lane}" if mask.size > 1 else ""
            bad = merged(
                Bad(mask if mask.shape else True, Cause(category, place(), f"{what}{of}{which}")), bad
            )
    return block(int(data) if not lanes.shape else np.asarray(data).astype(dtype.numpy), dtype, bad)


def _objects(data: Any) -> Any:
    return data if data.__class__ in (int, bool) else data.astype(object)
