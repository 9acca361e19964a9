"""All that tells two allocators apart, as plain data, and a copy of one: what merging equal states rests on.

The state is everything that can be reached from the object: tensors by dtype, shape and values, numbers, texts,
containers in their order, objects of any class, and which tensors lie over each other in memory. Left out are
KV caches, modules, functions, and what lies in a tensor's storage outside of the tensor: only an operator that
reads outside of its arguments could tell, and that is what guard zones are for. A class of ours that keeps room for
later says itself what of it counts (`Roomy`).
"""

from __future__ import annotations

import copy
import marshal
from collections.abc import Iterable
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Protocol

import numpy as np
import torch

PLAIN = frozenset((int, bool, str, float, bytes, NoneType))
SETTINGS = frozenset((torch.dtype, torch.device, torch.Size))
NAMED = (FunctionType, BuiltinFunctionType, ModuleType, type)
KV_CACHES = frozenset(("_kvcache", "kvcache"))  # as allocators call what they keep for `get_kvcache`


class Roomy(Protocol):
    """An object with room in memory that it writes before it reads: more than tells it from another one."""

    def compared(self) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """What tells it from another one, and the tensors of which only the place counts. Changes nothing."""


class UnreadableError(Exception):
    """A part of an allocator that can't be compared; the message names it."""


class State:
    """The state of some objects. value: plain data that `marshal` takes; spans: where each tensor lies;
    caches: the KV caches that were left out.

    left_out: objects that are no part of it.
    """

    def __init__(self, roots: tuple[Any, ...], left_out: frozenset[int] = frozenset()) -> None:
        self._numbers: dict[int, int] = {}
        self._left_out = left_out
        self.spans: list[tuple[int, int]] = []  # first and last address + 1
        self.caches: list[Any] = []
        read = [self._read(root, "the allocator") for root in roots]
        self.shared = overlaps(self.spans)
        self.value = (read, self.shared)

    @property
    def digest(self) -> bytes:
        """16 bytes that equal states have in common, in any process."""
        return digest(self.value)

    def _read(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in SETTINGS:
            return str(value)
        if id(value) in self._left_out:
            return "left out"
        known = self._numbers.get(id(value))
        if known is not None:
            return ("the same as", known)
        if kind is not tuple:
            self._numbers[id(value)] = len(self._numbers)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind is list or kind is tuple:
            return [kind.__name__, *(self._read(item, where) for item in value)]
        if kind is dict:
            return [
                "dict", *((self._read(key, where), self._read(item, where)) for key, item in value.items())
            ]  # fmt: skip
        if (kind is set or kind is frozenset) and all(type(item) in PLAIN for item in value):
            return [kind.__name__, *sorted(map(repr, value))]
        if isinstance(value, NAMED):
            if getattr(value, "__closure__", None):
                raise UnreadableError(f"{where} holds a function with a closure, {value.__qualname__}")
            return [
                kind.__name__,
                getattr(value, "__module__", ""),
                getattr(value, "__qualname__", str(value)),
            ]
        if kind is MethodType:
            return ["method", value.__func__.__qualname__, self._read(value.__self__, where)]
        if isinstance(value, np.ndarray):
            return ["array", str(value.dtype), list(value.shape), value.tobytes()]
        return self._object(value, kind, where)

    def _object(self, value: Any, kind: type, where: str) -> Any:
        if not _is_attributes(kind):
            raise UnreadableError(f"{where} holds a {kind.__module__}.{kind.__qualname__}")
        read: list[Any] = [kind.__qualname__]
        if hasattr(kind, "compared"):
            compared, rooms = value.compared()
            self.spans += map(span, rooms)
            return [*read, self._read(compared, kind.__qualname__)]
        for name, entry in value.__dict__.items():
            if type(entry) in PLAIN:
                read.append((name, entry))
            elif name in KV_CACHES:
                self.caches.append(entry)
            else:
                read.append((name, self._read(entry, kind.__qualname__)))
        return read

    def _tensor(self, value: torch.Tensor) -> Any:
        self.spans.append(span(value))
        data = None if value.is_meta else value.tolist()
        return [str(value.dtype), list(value.shape), data]


def digest(value: Any) -> bytes:
    """16 bytes that stand for plain data, the same in every process."""
    # Version 2: later ones write down which objects are one in memory, and that is no part of the data.
    return blake2b(marshal.dumps(value, 2), digest_size=16).digest()


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First address and last one + 1 of a tensor's elements; the same twice where it has none."""
    if not tensor.numel():
        return 0, 0
    first = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()


def lies_over(tensor: torch.Tensor, spans: list[tuple[int, int]]) -> bool:
    """Whether a tensor shares memory with one of the spans."""
    first, end = span(tensor)
    return any(low < end and first < high for low, high in spans)


def overlaps(spans: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Which pairs of spans share memory, and how far the second begins behind the first."""
    found = []
    ordered = sorted((low, high, at) for at, (low, high) in enumerate(spans) if high > low)
    for place, (low, high, at) in enumerate(ordered):
        for other_low, _, other in ordered[place + 1 :]:
            if other_low >= high:
                break
            found.append((at, other, other_low - low))
    return sorted(found)


def copied(value: Any, memo: dict[int, Any], left_out: frozenset[int] = frozenset()) -> Any:
    """A copy of an object whose tensors share no memory: attribute by attribute, tensor by tensor.

    Ten times faster than `copy.deepcopy`. TypeError for classes that say themselves how they are copied.
    """
    kind = type(value)
    if kind in PLAIN or kind in SETTINGS or id(value) in left_out:
        return value
    if id(value) in memo:
        return memo[id(value)]
    made: Any
    if kind is torch.Tensor:
        made = value.clone()
    elif kind is list:
        memo[id(value)] = made = []
        made.extend(copied(item, memo, left_out) for item in value)
    elif kind is tuple:
        made = tuple(copied(item, memo, left_out) for item in value)
    elif kind is dict:
        memo[id(value)] = made = {}
        for key, item in value.items():
            made[key] = copied(item, memo, left_out)
    elif isinstance(value, NAMED) or kind is frozenset:
        made = value
    else:
        if kind not in _PLAINLY_COPIED:
            _PLAINLY_COPIED[kind] = _is_attributes(kind) and not _copies_itself(kind)
        if not _PLAINLY_COPIED[kind]:
            raise TypeError(f"{kind.__qualname__} is copied in a way of its own")
        memo[id(value)] = made = object.__new__(kind)
        entries = made.__dict__
        for name, entry in value.__dict__.items():
            shared = type(entry) in PLAIN or name in KV_CACHES
            entries[name] = entry if shared else copied(entry, memo, left_out)
        return made
    memo[id(value)] = made
    return made


def _is_attributes(kind: type) -> bool:
    """Whether objects of this class are what is in their `__dict__`, and nothing else."""
    known = _ATTRIBUTES.get(kind)
    if known is None:
        slots = any(vars(base).get("__slots__") for base in kind.__mro__)
        # As large as an object of a class without any field in C.
        bare = (kind.__basicsize__, kind.__itemsize__) == (_Bare.__basicsize__, _Bare.__itemsize__)
        known = _ATTRIBUTES[kind] = bare and not slots and kind.__dictoffset__ == _Bare.__dictoffset__
    return known


class _Bare:
    """What a class statement makes."""


def _copies_itself(kind: type) -> bool:
    """Whether a class says itself how it is copied."""
    names = ("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__new__")
    return any(getattr(kind, name, None) is not getattr(object, name, None) for name in names)


_ATTRIBUTES: dict[type, bool] = {}
_PLAINLY_COPIED: dict[type, bool] = {}


def deep_copied(value: Any, left_out: Iterable[Any] = ()) -> Any:
    """`copy.deepcopy`, with what is left out shared. It keeps what tensors share memory sharing it."""
    return copy.deepcopy(value, {id(shared): shared for shared in left_out})
