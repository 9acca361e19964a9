"""What an operator gives: bounds of the result by those of the operands, and the exact result of two lanes.

Bounds are the lowest and the highest number of each operand, in this order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Number = int | None
Bounds = tuple[int, int]
FAR = -(1 << 200), 1 << 200  # bounds that say nothing
LISTED = 24  # lanes whose bounds are found sooner in a list


def add(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a + b`."""
    return al + bl, ah + bh


def subtract(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a - b`."""
    return al - bh, ah - bl


def multiply(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a * b`."""
    if al >= 0 and bl >= 0:
        return al * bl, ah * bh
    corners = al * bl, al * bh, ah * bl, ah * bh
    return min(corners), max(corners)


def divide(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a // b`: where neither may be below zero, NumPy's division is Triton's."""
    return (al // bh, ah // bl) if al >= 0 and bl > 0 else FAR


def remain(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a % b` by `modulo`."""
    if bl <= 0:
        return FAR
    if al < 0:  # lanes that are off often are: what was loaded there is 0, and something is taken from it
        return max(al, 1 - bh), min(max(ah, 0), bh - 1)
    return (al, ah) if ah < bl else (0, min(ah, bh - 1))


def modulo(a: Any, b: Any) -> Any:
    """With the sign of `a`, for `b` above 0."""
    if a.__class__ is int and b.__class__ is int:
        return a % b if a >= 0 else -(-a % b)
    return np.fmod(a, b)


def shift_left(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a << b`."""
    return (al << bl, ah << bh) if al >= 0 and bl >= 0 and bh < 64 else FAR


def shift_right(al: int, ah: int, bl: int, bh: int) -> Bounds:
    """Of `a >> b`."""
    return (al >> bh, ah >> bl) if al >= 0 and bl >= 0 and bh < 64 else FAR


def quotient(a: int, b: int) -> Number:
    """Towards zero, as in C."""
    if not b:
        return None
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> Number:
    """With the sign of `a`, as in C."""
    return (abs(a) % abs(b)) * (1 if a >= 0 else -1) if b else None


def left(a: int, b: int) -> Number:
    """`a << b`; None where 64 bits have no such place."""
    return a << b if 0 <= b < 64 else None


def right(a: int, b: int) -> Number:
    """`a >> b`, likewise."""
    return a >> b if 0 <= b < 64 else None


def seen_bounds(data: Any) -> Bounds:
    """The smallest and the largest lane of an array; 0 and 0 where there is none."""
    if data.size == 1:
        return (only := data.item(), only)
    if data.size > LISTED:  # NumPy says four times as fast where the smallest lane is as which it is
        return data.item(data.argmin()), data.item(data.argmax())
    # Many times faster than NumPy's reductions of short arrays.
    lanes = data.tolist() if data.ndim == 1 else data.reshape(-1).tolist()
    return (min(lanes), max(lanes)) if lanes else (0, 0)
