"""The integer types of a kernel, and which of two an operation computes in. Floating point is not emulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Lanes(dict[int, Any]):
    """Numbers as arrays of a type without axes. One that is not of this type stays as it is, for NumPy to compare with."""

    def __init__(self, kind: Any, low: int, high: int) -> None:
        super().__init__()
        self._kind, self._low, self._high = kind, low, high

    def __missing__(self, number: int) -> Any:
        if not self._low <= number <= self._high:
            return number
        if len(self) >= KEPT:
            self.clear()
        made = self[number] = np.array(number, dtype=self._kind)
        made.flags.writeable = False
        return made


KEPT = 4096  # numbers of a type
WIDE = np.dtype(np.int64)


class Unsupported(NotImplementedError):
    """A kernel uses what the emulator does not know."""


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An integer type: `low` to `high` are its numbers, `numpy` the type of the arrays that hold them.

    That has 64 bits, but for int1: bounds say when a number leaves its type, and so no cast between types touches lanes.

    least, most: the same where arithmetic may stay in the type; empty for int1, whose sums are no int1.
    absorbs: this type and narrower ones of its sign, whose lanes may meet its own as they are.
    lane: a number beside an array of this type, as NumPy takes it in half the time. scalars: numbers as values
    (`impl.emulator.values`), None for one that is not of this type.
    """

    name: str
    bits: int
    signed: bool
    numpy: Any = field(init=False)
    low: int = field(init=False)
    high: int = field(init=False)
    least: int = field(init=False)
    most: int = field(init=False)
    absorbs: frozenset[DType] = field(init=False, default=frozenset())
    lane: Lanes = field(init=False)
    scalars: dict[int, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        low = -(1 << self.bits - 1) if self.signed else 0
        high = (1 << self.bits - self.signed) - 1
        kind: Any = WIDE if self.bits > 1 else np.dtype(np.bool_)
        if self.bits == 64 and not self.signed:
            kind = np.dtype(np.uint64)
        made: dict[str, Any] = {"numpy": kind, "low": low, "high": high, "least": low, "most": high}
        if self.bits == 1:
            made |= {"least": 1, "most": 0}
        made["lane"] = Lanes(kind, low, high)
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name

    @property
    def primitive_bitwidth(self) -> int:
        """Bits, as kernels ask for them."""
        return self.bits

    @property
    def scalar(self) -> DType:
        """The type of one lane."""
        return self

    def wrapped(self, number: int) -> int:
        """A whole number as this type holds it, in two's complement."""
        return (number - self.low) % (1 << self.bits) + self.low


INT1 = DType("int1", 1, signed=False)
INT8, INT16, INT32, INT64 = (DType(f"int{bits}", bits, signed=True) for bits in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (DType(f"uint{bits}", bits, signed=False) for bits in (8, 16, 32, 64))
ALL = (INT1, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64)
for _wide in ALL[1:]:
    _narrow = (
        dtype
        for dtype in ALL[1:]
        if dtype.signed == _wide.signed and dtype.bits <= _wide.bits and dtype.numpy is _wide.numpy
    )
    object.__setattr__(_wide, "absorbs", frozenset(_narrow))
BY_NAME = {dtype.name: dtype for dtype in ALL}


def of_number(number: int) -> DType:
    """The type of a plain number that meets no tensor: the first of int32, uint32, int64, uint64 that holds it."""
    if number.__class__ is bool:
        return INT1
    for dtype in (INT32, UINT32, INT64, UINT64):
        if dtype.low <= number <= dtype.high:
            return dtype
    raise ValueError(f"{number} fits no integer type")


def promoted(a: DType, b: DType, divides: bool = False) -> DType:
    """The type in which two tensors meet: the wider one, and of two equally wide ones the unsigned one."""
    if a.signed == b.signed:
        return a if a.bits > b.bits else b
    if divides:
        raise TypeError(f"{a} and {b} differ in sign: cast one of them before it divides")
    signed, unsigned = (a, b) if a.signed else (b, a)
    return unsigned if unsigned.bits >= signed.bits else signed
