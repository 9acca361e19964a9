"""Memory as a kernel sees it: pointers that know their tensor, loads and stores.

A tensor's elements are what its pointer may touch, however much memory lies behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from impl.emulator.bounds import seen_bounds
from impl.emulator.dtypes import ALL, INT1, INT64, WIDE, DType, Unsupported
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
from impl.emulator.fresh import all_of, fresh_of, reach
from impl.emulator.poison import Bad, merged, use
from impl.emulator.values import FEW, Value, block, cast, filled, made_of, scalar, value_of

BY_TORCH = {getattr(torch, "bool" if dtype is INT1 else dtype.name): dtype for dtype in ALL}


class Memory:
    """One tensor argument of one launch.

    flat: its elements by their offset from the pointer. lo, hi: bounds of them, found at the first load.
    writer: who wrote an element, as `now.stamp`; 0 where nobody did, None before the first store, and where there is
    one program.
    fresh: what is known to be unwritten, and how far inside it the pointer is.
    """

    __slots__ = ("flat", "fresh", "hi", "lo", "name", "shift", "size", "type", "writer")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        if not tensor.is_cpu:
            raise Unsupported(f"the emulator reads tensors of the CPU, and {name} is on {tensor.device}")
        if not (tensor.dim() == 1 and tensor.is_contiguous()):
            tensor = torch.as_strided(tensor, (reach(tensor),), (1,))
        kind = BY_TORCH.get(tensor.dtype)
        if kind is None:
            raise Unsupported(f"{name} holds {tensor.dtype}, and the emulator knows integers")
        self.name, self.type, self.flat = name, kind, tensor.numpy()
        self.size = self.flat.size
        self.lo: int | None = None
        self.hi = 0
        self.writer: Any = None
        self.fresh, self.shift = fresh_of(tensor)

    def unwritten(self, places: Any) -> Any:
        """Which of these offsets nothing has written; None where all are written."""
        if self.fresh is None:
            return None
        written = self.fresh.written.take(places + self.shift, mode="clip")
        return None if all_of(written) else ~written

    def write(self, places: Any, data: Any, lo: int, hi: int) -> None:
        """Write at one offset or at an array of them, all within the tensor, and note who did."""
        if not now.alone:
            self._claim(places)
        elif places.__class__ is not int:
            self._distinct(places)
        self.flat[places] = data
        self.wrote(places, lo, hi)

    def _claim(self, places: Any) -> None:
        """Note that this program writes here, and report where another one has."""
        writer, stamp = self.writer, now.stamp
        if writer is None:
            writer = self.writer = np.zeros(self.size, dtype=np.int64)
        if places.__class__ is int:
            before = writer.item(places)
            if 0 < before < stamp:
                self._taken(places)
            writer[places] = stamp
            return
        before = writer[places]
        if any(before.tolist()) if places.size <= FEW else np.count_nonzero(before):
            taken = (before > 0) & (before < stamp)
            if taken.any():
                self._taken(places[taken].min())
        self._distinct(places)
        writer[places] = stamp

    def _taken(self, twice: int) -> None:
        report(RACE, f"writes {self.name}[{twice}], which another program of the launch has written")

    def _distinct(self, places: Any) -> None:
        """Report two lanes of one store at one place."""
        if places.size <= FEW:
            listed = places.tolist()
            if len(set(listed)) == len(listed):
                return
        ordered = np.sort(places)
        same = ordered[1:] == ordered[:-1]
        if np.count_nonzero(same):
            report(RACE, f"two lanes of one store write {self.name}[{ordered[1:][same][0]}]")

    def wrote(self, places: Any, lo: int, hi: int) -> None:
        """Note that these offsets hold something now, between these bounds."""
        if self.lo is not None:
            self.lo, self.hi = min(self.lo, lo), max(self.hi, hi)
        if self.fresh is not None:
            self.fresh.written[places + self.shift if self.shift else places] = True


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
        return self.__add__(-other if other.__class__ is int else -cast(value_of(other), INT64))

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


def enabled_of(mask: Any, at: Value) -> tuple[Value, Any]:
    """Offsets and mask in one shape. The mask is None where all lanes are known to be on, and False where none is."""
    if mask.__class__ is not Value:
        mask = value_of(mask)
    if mask.type is not INT1:
        raise TypeError(f"a mask is boolean, not {mask.type}")
    if mask.bad is not None:
        use(mask, "is masked by")
    on, places = mask.data, at.data
    if on.__class__ is bool:
        return at, None if on else False
    if places.__class__ is int:
        raise ValueError("a block can't mask a scalar pointer")
    if on.shape != places.shape:
        shape = np.broadcast_shapes(on.shape, places.shape)
        at = spread(at, shape)
        on = np.broadcast_to(on, shape)
    if mask.lo == mask.hi:
        return at, None if mask.lo else False
    return at, on


def spread(at: Value, shape: tuple[int, ...]) -> Value:
    """A value repeated along axes."""
    return made_of(np.broadcast_to(at.data, shape), at.type, at.lo, at.hi, at.bad)


def outside_of(memory: Memory, at: Value, on: Any, category: str, verb: str) -> Any:
    """Which enabled lanes lie outside the tensor, reported; None where none does."""
    if at.bad is not None:
        use(at, f"{verb}s {memory.name} at", on)
    places, where = at.data, ""
    if places.__class__ is int:
        if 0 <= places < memory.size or on is False:
            return None
        outside, first = True, places
    else:
        inside = places < memory.size
        if at.lo < 0:
            inside &= places >= 0
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
        known(hints, LOAD_HINTS)
    if pointer.__class__ is not Pointer:
        raise TypeError("tl.load wants a pointer")
    memory, at, on = pointer.memory, pointer.at, None
    if mask is not None:
        at, on = enabled_of(mask, at)
    elif other is not None:
        raise ValueError("other says what disabled lanes hold, and there is no mask")
    places, dtype, size = at.data, memory.type, memory.size
    if on is False:
        return _load_none(memory, at.shape, other)
    if places.__class__ is not int:
        if places.dtype is not WIDE:
            places = places.astype(WIDE)  # NumPy takes many times as long to index with others
        if on is not None and other.__class__ is int and at.bad is None and memory.fresh is None:
            found = _elements(memory, places[on], at)
            if found is not None and dtype.low <= other <= dtype.high:
                if memory.lo is None:
                    memory.lo, memory.hi = seen_bounds(memory.flat)
                lo, hi = memory.lo, memory.hi
                got = np.zeros(places.shape, dtype=dtype.numpy)
                if other:
                    got.fill(other)
                got[on] = found
                return made_of(got, dtype, lo if lo < other else other, hi if hi > other else other)
    outside = None
    if at.lo < 0 or at.hi >= size or at.bad is not None:
        outside = outside_of(memory, at, on, OUTSIDE_LOAD, "load")
    if places.__class__ is int:
        return _load_one(memory, places, outside)
    if at.lo >= 0 and at.hi < size:
        got = memory.flat[places]
    elif size:
        got = memory.flat.take(places, mode="clip")
    else:
        got = np.zeros(places.shape, dtype=dtype.numpy)
    if got.dtype is not dtype.numpy:
        got = got.astype(dtype.numpy)
    if memory.lo is None:
        memory.lo, memory.hi = seen_bounds(memory.flat)
    lo, hi, bad = memory.lo, memory.hi, None
    if outside is not None:
        bad = Bad(outside, Cause(OUTSIDE_LOAD, place(), f"lies outside {memory.name}"))
    if memory.fresh is not None:
        bad = merged(_open(memory, places, on), bad)
    if on is None:
        return made_of(got, dtype, lo, hi, bad)
    off = ~on
    if other is None:
        got[off] = dtype.lane[0]
        bad = merged(open_lanes(memory, off), bad)
        return made_of(got, dtype, min(lo, 0), max(hi, 0), bad)
    fill = spread(cast(value_of(other), dtype), places.shape)
    got[off] = fill.data[off]
    if fill.bad is not None:
        bad = merged(Bad(np.logical_and(fill.bad.mask, off), fill.bad.cause), bad)
    return made_of(got, dtype, min(lo, fill.lo), max(hi, fill.hi), bad)


def _elements(memory: Memory, places: Any, at: Value) -> Any:
    """The elements at some of a pointer's places; None where one lies outside."""
    if at.lo < 0 and places.size and seen_bounds(places)[0] < 0:
        return None  # NumPy would count from the end
    try:
        return memory.flat[places]
    except IndexError:  # it looks for this anyway; who is to blame is found out later
        return None


def _within(places: Any, at: Value, size: int) -> bool:
    """Whether these places, some of a pointer's, lie within so many elements."""
    if at.lo >= 0 and at.hi < size:
        return True
    lo, hi = seen_bounds(places)
    return lo >= 0 and (hi < size or not places.size)


def _load_one(memory: Memory, at: int, outside: Any) -> Value:
    if outside is not None:
        return block(0, memory.type, Bad(True, Cause(OUTSIDE_LOAD, place(), f"lies outside {memory.name}")))
    if memory.fresh is None:
        return scalar(memory.flat.item(at), memory.type)
    return block(memory.flat.item(at), memory.type, _open(memory, at, None))


def _load_none(memory: Memory, shape: tuple[int, ...], other: Any) -> Value:
    """What a load gives that is off in all lanes."""
    dtype = memory.type
    if other is not None:
        if not shape:
            return cast(scalar(other, dtype) if isinstance(other, int) else other, dtype)
        if other.__class__ is int and dtype.low <= other <= dtype.high:
            return filled(shape, other, dtype)
        return spread(cast(value_of(other), dtype), shape)
    return made_of(np.zeros(shape, dtype=dtype.numpy) if shape else 0, dtype, 0, 0, open_lanes(memory, True))


def open_lanes(memory: Memory, off: Any) -> Bad | None:
    """The poison of lanes for which a load that is off there names no other."""
    if not now.undefined or not (off is True or np.count_nonzero(off)):
        return None
    what = f"loads {memory.name} in enabled lanes alone and names no other"
    return Bad(off, Cause(UNDEFINED, place(), what))


def _open(memory: Memory, places: Any, on: Any) -> Bad | None:
    """The poison of lanes that read what nothing has written."""
    unwritten = memory.unwritten(places)
    if unwritten is not None and on is not None:
        unwritten = unwritten & on
    if unwritten is None or not np.any(unwritten):
        return None
    first = places if places.__class__ is int else int(places[unwritten][0])
    return Bad(
        unwritten, Cause(UNWRITTEN, place(), f"loads {memory.name}[{first}], which nothing has written")
    )


def store(pointer: Pointer, value: Any, mask: Any = None, **hints: Any) -> None:
    """`tl.store`: what lies outside is dropped; the value narrows to the tensor's type."""
    if hints:
        known(hints, STORE_HINTS)
    if pointer.__class__ is not Pointer:
        raise TypeError("tl.store wants a pointer")
    memory, at = pointer.memory, pointer.at
    dtype = memory.type
    value = value_of(value) if value.__class__ is not Value else value
    if value.type is not dtype:
        value = cast(value, dtype)
    on = None
    data = value.data
    if data.__class__ not in (int, bool):
        if at.data.__class__ is int:
            raise ValueError("a block can't be stored at one place")
        if data.shape != at.data.shape:
            at = spread(at, np.broadcast_shapes(data.shape, at.data.shape))
    if mask is not None:
        at, on = enabled_of(mask, at)
        if on is False:
            return
    places = at.data
    if places.__class__ is not int and places.dtype is not WIDE:
        places = places.astype(WIDE)
    plain = value.bad is None and at.bad is None
    if plain and isinstance(on, np.ndarray) and isinstance(data, np.ndarray) and on.shape == data.shape:
        chosen = places[on]
        if _within(chosen, at, memory.size):
            if chosen.size:
                memory.write(chosen, data[on], value.lo, value.hi)
            return
    if value.bad is not None:
        use(value, f"stores into {memory.name}", on)
    outside = None
    if at.lo < 0 or at.hi >= memory.size or at.bad is not None:
        outside = outside_of(memory, at, on, OUTSIDE_STORE, "store")
    if places.__class__ is int:
        if on is None and outside is None:
            memory.write(places, data, value.lo, value.hi)
        return
    if data.__class__ not in (int, bool) and data.shape != places.shape:
        data = np.broadcast_to(data, places.shape)
    if outside is not None:
        on = ~outside if on is None else on & ~outside
    if on is None:
        on = ...
    places = places[on].reshape(-1)
    if places.size:
        memory.write(
            places, data if data.__class__ in (int, bool) else data[on].reshape(-1), value.lo, value.hi
        )


LOAD_HINTS = frozenset({"cache_modifier", "eviction_policy", "volatile"})
STORE_HINTS = frozenset({"cache_modifier", "eviction_policy"})


def known(given: dict[str, Any], names: frozenset[str]) -> None:
    """Unsupported, unless a launch's hints are of these names."""
    for name in given:
        if name not in names:
            raise Unsupported(f"{name}= is not emulated")
