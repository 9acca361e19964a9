"""Memory as a kernel sees it: pointers that know their tensor, loads, stores and atomic updates.

A tensor's elements are what its pointer may touch, however much memory lies behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from impl.emulator.dtypes import ALL, INT1, INT64, DType, Unsupported
from impl.emulator.findings import (
    OUTSIDE_LOAD,
    OUTSIDE_STORE,
    RACE,
    UNDEFINED,
    UNWRITTEN,
    Cause,
    now,
    place,
    report,
)
from impl.emulator.fresh import fresh_of
from impl.emulator.values import Bad, Value, block, cast, merged, scalar, seen_bounds, use, value_of

BY_TORCH = {getattr(torch, "bool" if dtype is INT1 else dtype.name): dtype for dtype in ALL}


class Memory:
    """One tensor argument of one launch.

    flat: its elements by their offset from the pointer. lo, hi: bounds of them, found at the first load.
    others, mine: offsets that other programs and this one have written. fresh: what is known to be unwritten.
    """

    __slots__ = ("flat", "fresh", "hi", "lo", "mine", "name", "others", "shift", "size", "type")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_cpu:
            raise Unsupported(f"the emulator reads tensors of the CPU, and {name} is on {tensor.device}")
        if not (tensor.dim() == 1 and tensor.is_contiguous()):
            reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
            tensor = torch.as_strided(tensor, (reach if tensor.numel() else 0,), (1,))
        kind = BY_TORCH.get(tensor.dtype)
        if kind is None:
            raise Unsupported(f"{name} holds {tensor.dtype}, and the emulator knows integers")
        self.name, self.type, self.flat = name, kind, tensor.numpy()
        self.size = self.flat.size
        self.lo: int | None = None
        self.hi = 0
        self.others: set[int] | None = None
        self.mine: set[int] | None = None
        self.fresh, self.shift = fresh_of(tensor)

    def next_program(self) -> None:
        """What was written so far, another program wrote."""
        if self.mine is not None:
            self.others = self.mine if self.others is None else self.others | self.mine
            self.mine = None

    def unwritten(self, places: Any) -> Any:
        """Which of these offsets nothing has written; None where all are written."""
        if self.fresh is None:
            return None
        written, shift = self.fresh.written, self.shift
        if places.__class__ is int:
            return places + shift not in written or None
        open_ = [at + shift not in written for at in places.reshape(-1).tolist()]
        return np.array(open_).reshape(places.shape) if any(open_) else None

    def write(self, places: Any, data: Any, lo: int, hi: int) -> None:
        """Note who wrote where (one offset or an array of them, all within the tensor), and write."""
        listed = [places] if places.__class__ is int else places.tolist()
        new = set(listed)
        if len(new) < len(listed):
            twice = min(at for at in new if listed.count(at) > 1)
            report(RACE, f"two lanes of one store write {self.name}[{twice}]")
        if self.others is not None and not self.others.isdisjoint(new):
            twice = min(self.others & new)
            report(RACE, f"writes {self.name}[{twice}], which another program of the launch has written")
        self.mine = new if self.mine is None else self.mine | new
        self.wrote(new, lo, hi)
        self.flat[places] = data

    def wrote(self, places: set[int], lo: int, hi: int) -> None:
        """Note that these offsets hold something now, between these bounds."""
        if self.lo is not None:
            self.lo, self.hi = min(self.lo, lo), max(self.hi, hi)
        if self.fresh is not None:
            shift = self.shift
            self.fresh.written.update(places if not shift else {at + shift for at in places})


class Pointer:
    """A pointer, or a block of them: a tensor and offsets into it, in elements."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Memory, at: Value) -> None:
        self.memory, self.at = memory, at

    @property
    def dtype(self) -> PointerType:
        """The type of the pointer."""
        return PointerType(self.memory.type)

    type = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Lanes by axis; () for a scalar."""
        return self.at.shape

    def __add__(self, other: Any) -> Pointer:
        if other.__class__ is not Value:
            other = scalar(other, INT64)
        at = self.at
        if at is START:
            return Pointer(self.memory, other)
        if at.type is not INT64:  # addresses have 64 bits, whatever the offsets have
            at = cast(at, INT64)
        if not other.type.signed:
            other = cast(other, INT64)
        return Pointer(self.memory, at + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        return self + (-cast(value_of(other), INT64))

    def __getitem__(self, key: Any) -> Pointer:
        return Pointer(self.memory, self.at[key])

    def to(self, *_: Any, **__: Any) -> Any:
        """No other type is seen behind a pointer."""
        raise Unsupported("casts of pointers are not emulated")


class PointerType:
    """What `pointer.dtype` answers."""

    def __init__(self, element_ty: DType) -> None:
        self.element_ty = element_ty

    def __repr__(self) -> str:
        return f"pointer<{self.element_ty}>"


START = scalar(0, INT64)


def _enabled(mask: Any, at: Value) -> Any:
    """The enabled lanes at these offsets: None for all, else an array of their shape (False for a scalar)."""
    if mask.__class__ is not Value:
        mask = value_of(mask)
    if mask.type is not INT1:
        raise TypeError(f"a mask is boolean, not {mask.type}")
    if mask.bad is not None:
        use(mask, "is masked by")
    on = mask.data
    if on.__class__ is bool:
        return None if on else np.zeros(at.shape, dtype=bool) if at.shape else False
    return on if on.shape == at.data.shape else np.broadcast_to(on, at.shape)


def _outside(memory: Memory, at: Value, on: Any, category: str, verb: str) -> Any:
    """Which enabled lanes lie outside the tensor, reported; None where none does."""
    if at.bad is not None:
        use(at, f"{verb}s {memory.name} at", on)
    places, where = at.data, ""
    if places.__class__ is int:
        if 0 <= places < memory.size or on is False:
            return None
        outside, first = True, places
    else:
        inside = places.view(at.type.unsigned) < memory.size
        outside = ~inside if on is None else on > inside
        if not np.count_nonzero(outside):
            return None
        first = places[outside][0]
        where = f" in lane {outside.reshape(-1).argmax()}"
    report(category, f"{verb}s {memory.name}[{first}]{where}, and {memory.name} has {memory.size} element(s)")
    return outside


def load(pointer: Pointer, mask: Any = None, other: Any = None, **hints: Any) -> Value:
    """`tl.load`: what lies outside gives poison, and so does a lane that is off and has no `other`."""
    if hints:
        _known(hints, LOAD_HINTS)
    if pointer.__class__ is not Pointer:
        raise TypeError("tl.load wants a pointer")
    if mask is None and other is not None:
        raise ValueError("other says what disabled lanes hold, and there is no mask")
    memory, at = pointer.memory, pointer.at
    dtype, places = memory.type, at.data
    if places.__class__ is not int and mask is not None and getattr(mask, "shape", ()) not in ((), places.shape):
        places = np.broadcast_to(places, np.broadcast_shapes(places.shape, mask.shape))
        at = Value(places, at.type, at.lo, at.hi, at.bad)
    on = None if mask is None else _enabled(mask, at)
    sure = at.lo >= 0 and at.hi < memory.size and at.bad is None
    outside = None if sure else _outside(memory, at, on, OUTSIDE_LOAD, "load")
    fill = None
    if other is not None and on is not None:
        fill = scalar(other, dtype) if other.__class__ is int else cast(value_of(other), dtype)
    if places.__class__ is int:
        return _load_one(memory, places, on, fill, outside)
    if sure:
        got = memory.flat[places]
    elif memory.size:
        got = memory.flat.take(places, mode="clip")
    else:
        got = np.zeros(places.shape, dtype=dtype.numpy)
    if memory.lo is None:
        memory.lo, memory.hi = seen_bounds(memory.flat)
    lo, hi, bad = memory.lo, memory.hi, None
    if outside is not None:
        bad = Bad(outside, Cause(OUTSIDE_LOAD, place(), f"lies outside {memory.name}"))
    if memory.fresh is not None:
        bad = merged(_open(memory, places, on), bad)
    if on is not None and np.count_nonzero(on) < on.size:
        off = ~on
        if fill is None:
            got[off] = 0
            lo, hi = min(lo, 0), max(hi, 0)
            if now.undefined:
                bad = merged(Bad(off, _left_open(memory)), bad)
        else:
            got[off] = fill.data if fill.data.__class__ in (int, bool) else np.broadcast_to(fill.data, off.shape)[off]
            lo, hi = lo if lo < fill.lo else fill.lo, hi if hi > fill.hi else fill.hi
            if fill.bad is not None:
                bad = merged(Bad(np.logical_and(fill.bad.mask, off), fill.bad.cause), bad)
    return Value(got, dtype, lo, hi, bad)


def _load_one(memory: Memory, at: int, on: Any, fill: Value | None, outside: Any) -> Value:
    if on is False:
        if fill is not None:
            return fill
        return block(0, memory.type, Bad(True, _left_open(memory)) if now.undefined else None)
    if outside is not None:
        return block(0, memory.type, Bad(True, Cause(OUTSIDE_LOAD, place(), f"lies outside {memory.name}")))
    bad = _open(memory, at, None) if memory.fresh is not None else None
    return block(memory.flat.item(at), memory.type, bad)


def _left_open(memory: Memory) -> Cause:
    return Cause(UNDEFINED, place(), f"loads {memory.name} in enabled lanes alone and names no other")


def _open(memory: Memory, places: Any, on: Any) -> Bad | None:
    """The poison of lanes that read what nothing has written."""
    unwritten = memory.unwritten(places)
    if unwritten is not None and on is not None:
        unwritten = unwritten & on
    if unwritten is None or not np.any(unwritten):
        return None
    first = places if places.__class__ is int else int(places[unwritten][0])
    return Bad(unwritten, Cause(UNWRITTEN, place(), f"loads {memory.name}[{first}], which nothing has written"))


def store(pointer: Pointer, value: Any, mask: Any = None, **hints: Any) -> None:
    """`tl.store`: what lies outside is dropped; the value narrows to the tensor's type."""
    if hints:
        _known(hints, STORE_HINTS)
    if pointer.__class__ is not Pointer:
        raise TypeError("tl.store wants a pointer")
    memory, at = pointer.memory, pointer.at
    dtype = memory.type
    value = value_of(value) if value.__class__ is not Value else value
    if value.type is not dtype:
        value = cast(value, dtype)
    places, data = at.data, value.data
    if places.__class__ is not int:
        shape = places.shape
        if getattr(mask, "shape", shape) != shape or getattr(data, "shape", shape) != shape:
            shape = np.broadcast_shapes(shape, getattr(mask, "shape", ()), value.shape)
            places = np.broadcast_to(places, shape)
            at = Value(places, at.type, at.lo, at.hi, at.bad)
            data = np.broadcast_to(data, shape) if value.shape else data
    elif value.shape:
        raise ValueError("a block can't be stored at one place")
    on = None if mask is None else _enabled(mask, at)
    if value.bad is not None:
        use(value, f"stores into {memory.name}", on)
    outside = None
    if at.lo < 0 or at.hi >= memory.size or at.bad is not None:
        outside = _outside(memory, at, on, OUTSIDE_STORE, "store")
    if places.__class__ is int:
        if on is None and outside is None:
            memory.write(places, data, value.lo, value.hi)
        return
    if outside is not None:
        on = ~outside if on is None else on & ~outside
    if on is None:
        places = places.reshape(-1)
        data = data.reshape(-1) if value.shape else data
    else:
        places = places[on]
        data = data[on] if value.shape else data
    if places.size:
        memory.write(places, data, value.lo, value.hi)


Update = Callable[[int, int], int]


def atomic(pointer: Pointer, value: Any, mask: Any, update: Update, **hints: Any) -> Value:
    """Atomic updates, lane after lane: the values before. Many programs may update one place, so none is a race."""
    _known(hints, ATOMIC_HINTS)
    memory = pointer.memory
    value = cast(value_of(value), memory.type)
    shape = np.broadcast_shapes(pointer.shape, value.shape, getattr(mask, "shape", ()))
    at = pointer.at
    if shape:
        at = Value(np.broadcast_to(np.asarray(at.data, dtype=np.int64), shape), INT64, at.lo, at.hi, at.bad)
    on = None if mask is None else _enabled(mask, at)
    use(value, f"updates {memory.name} by", on)
    old = load(Pointer(memory, at), None if on is None else Value(on, INT1, 0, 1))
    use(old, f"updates {memory.name} from", on)
    outside = _outside(memory, at, on, OUTSIDE_STORE, "update")
    enabled = np.ones(shape, dtype=bool) if on is None else np.broadcast_to(on, shape)
    if outside is not None:
        enabled = enabled & ~np.asarray(outside)
    places, operands = np.broadcast_to(at.data, shape), np.broadcast_to(value.data, shape)
    before = np.array(np.broadcast_to(old.data, shape), dtype=memory.type.numpy)
    for lane in zip(*np.nonzero(enabled) if shape else [[()]] if enabled else [[]], strict=True):
        lane = lane if shape else ()
        here = int(places[lane])
        before[lane] = memory.flat[here]
        after = memory.type.wrapped(update(int(memory.flat[here]), int(operands[lane])))
        memory.flat[here] = after
        memory.wrote({here}, after, after)
    return block(before if shape else before.item(), memory.type, old.bad)


LOAD_HINTS = frozenset({"cache_modifier", "eviction_policy", "volatile"})
STORE_HINTS = frozenset({"cache_modifier", "eviction_policy"})
ATOMIC_HINTS = frozenset({"sem", "scope"})


def _known(given: dict[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            raise Unsupported(f"{name}= is not emulated")

