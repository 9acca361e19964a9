"""Listening to a live allocator without changing what it answers.

The allocator stays the object that it is: its class is replaced by one made from it, in which the methods that
matter tell listeners what was asked and what came. So whoever holds the allocator already is heard as well,
`isinstance` holds, and attributes are its own. Where an object's class can't be replaced (one written in C),
a proxy stands in front of it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from oracle.ops import Config
from oracle.rawcall import RawCall, Runs, runs_of

logger = logging.getLogger("kvassay")

# How each method is called in a trace. Releases from 0.5.18 on have frees by many names; what else changes who
# holds what is `other`, and nobody can follow it.
TAPPED = {
    "alloc": "alloc", "alloc_extend": "alloc_extend", "alloc_decode": "alloc_decode",
    "free": "free", "free_full": "free", "free_page_ids": "free", "free_segment": "free", "free_segments": "free",
    "free_full_segment": "free", "free_full_segments": "free",
    "free_swa": "free_swa", "free_swa_segment": "free_swa",
    "free_group_begin": "free_group_begin", "free_group_end": "free_group_end",
    "merge_and_sort_free": "merge_and_sort_free", "backup_state": "backup_state",
    "restore_state": "restore_state", "clear": "clear",
    "resize": "other", "alloc_extend_swa_tail": "other",
    "set_full_to_swa_mapping": "other", "clear_full_to_swa_mapping": "other",
}  # fmt: skip
SNAPSHOTS = 8  # that are remembered; names go round
SHORT = 24  # numbers up to which a loop is faster than NumPy
# The names of what is read. Where a class has others, its bases are asked, and then this order holds.
_USUAL = {
    "alloc": ("need_size",),
    "alloc_extend": (
        "prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc", "extend_num_tokens", "num_new_pages",
    ),
    "alloc_decode": ("seq_lens", "seq_lens_cpu", "last_loc"),
    "free_page_ids": ("page_ids",), "free_segments": ("segments",), "free_full_segments": ("segments",),
}  # fmt: skip
_ALLOCATIONS = frozenset({"alloc", "alloc_extend", "alloc_decode"})


class Listener(Protocol):
    """Whoever wants to know. What it raises is kept from the program, unless it is a `Stop`."""

    def heard(self, call: RawCall) -> None:
        """A call has come back."""


class Stop(Exception):
    """Raised by a listener to stop the program, on its owner's wish."""


class Tap:
    """One allocator and who listens to it.

    mirrors: read lengths from `prefix_lens_cpu` and `seq_lens_cpu` where a call has them, not from the device.
    """

    def __init__(self, allocator: Any, mirrors: bool = False) -> None:
        self.target, self.mirrors = allocator, mirrors
        self.listeners: list[Listener] = []
        self.plain: type = type(allocator)
        self._lock = threading.RLock()
        self._inside = False
        self._snapshots: OrderedDict[str, Any] = OrderedDict()
        self._taken = 0
        self._swa = hasattr(allocator, "full_available_size")
        self._counts = _answers(allocator, "available_size")
        self._parameters: dict[str, tuple[str, ...]] = {}
        self._unread: set[str] = set()

    def call(self, method: str, ask: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Ask the allocator, and tell the listeners. `ask` takes the arguments without the allocator."""
        with self._lock:
            if self._inside or not self.listeners:
                return ask(*args, **more)
            self._inside = True
            try:
                return self._told(method, ask, args, more)
            finally:
                self._inside = False

    def _told(self, method: str, ask: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        # What is asked is read first: the allocator, or a group, may keep and change a tensor.
        asked = self._safely(lambda: self._asked(method, args, more)) or RawCall("other", name=method)
        try:
            answer = ask(*args, **more)
        except BaseException as error:
            self._tell(asked._replace(outcome="raised", error=type(error).__name__))
            raise
        self._tell(self._safely(lambda: self._answered(asked, answer)) or RawCall("other", name=method))
        return answer

    def _tell(self, call: RawCall) -> None:
        whole = self._safely(lambda: self._counted(call)) or call
        for listener in list(self.listeners):
            try:
                listener.heard(whole)
            except Stop:
                raise
            except Exception:
                # A server is not to fall over its own recorder.
                logger.exception("kvassay: %r broke at %s, and listens no more", listener, call.method)
                self.listeners.remove(listener)

    def _safely(self, read: Callable[[], RawCall]) -> RawCall | None:
        try:
            return read()
        except Exception as error:
            # The same again and again: once is enough in a log.
            if str(error) not in self._unread:
                self._unread.add(str(error))
                logger.exception("kvassay: a call could not be read")
            return None

    # -- reading ---------------------------------------------------------------------------------------

    def _asked(self, method: str, args: tuple[Any, ...], more: dict[str, Any]) -> RawCall:
        name = TAPPED[method]
        if name == "other":
            return RawCall("other", name=method)
        given = self._given(method, args, more)
        match name:
            case "alloc":
                size = given["need_size"]
                return RawCall(name, size=size if type(size) in (int, float) else int(size))
            case "alloc_extend":
                return RawCall(
                    name,
                    prefix=self._lengths(given, "prefix_lens"),
                    seq=self._lengths(given, "seq_lens"),
                    last=_numbers(given["last_loc"]),
                    total=int(given["extend_num_tokens"]),
                    new_pages=None if given.get("num_new_pages") is None else int(given["num_new_pages"]),
                )
            case "alloc_decode":
                return RawCall(name, seq=self._lengths(given, "seq_lens"), last=_numbers(given["last_loc"]))
            case "free" | "free_swa":
                return RawCall(name, slots=self._freed(method, given))
            case "restore_state":
                state = next(iter(given.values()), None)
                known = (label for label, taken in self._snapshots.items() if taken is state)
                return RawCall(name, name=next(known, ""))
        return RawCall(name)

    def _given(self, method: str, args: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
        if method not in self._parameters:
            self._parameters[method] = _parameters(self.plain, method)
        return {**dict(zip(self._parameters[method], args, strict=False)), **more}

    def _lengths(self, given: dict[str, Any], name: str) -> tuple[int, ...]:
        mirror = given.get(name + "_cpu") if self.mirrors else None
        return _numbers(given[name] if mirror is None else mirror)

    def _freed(self, method: str, given: dict[str, Any]) -> Runs:
        if method in ("free_segments", "free_full_segments"):
            return tuple(run for segment in given["segments"] for run in _runs(segment[0]))
        if method == "free_page_ids":
            size = int(getattr(self.target, "page_size", 1))
            return tuple((first * size, count * size) for first, count in _runs(given["page_ids"]))
        return _runs(given["free_index"])

    def _answered(self, asked: RawCall, answer: Any) -> RawCall:
        if asked.method == "backup_state":
            self._taken += 1
            label = f"S{self._taken % SNAPSHOTS}"
            self._snapshots[label] = answer
            return asked._replace(name=label)
        if asked.method not in _ALLOCATIONS:
            return asked
        if answer is None:
            return asked._replace(outcome="none")
        if not hasattr(answer, "tolist"):
            return asked._replace(outcome="odd", error=type(answer).__name__)
        if getattr(answer, "ndim", 1) != 1:
            return asked._replace(outcome="odd", error=f"{answer.ndim}-dimensional {type(answer).__name__}")
        return asked._replace(outcome="slots", answer=_runs(answer))

    def _counted(self, call: RawCall) -> RawCall:
        target = self.target
        free = int(target.available_size()) if self._counts else None
        if not self._swa:
            return call._replace(free=free)
        return call._replace(
            free=free, full=int(target.full_available_size()), window=int(target.swa_available_size())
        )


def _numbers(values: Any) -> tuple[int, ...]:
    """The numbers of a tensor (on a GPU this waits for it), an array or a list."""
    return tuple(map(int, values.tolist() if hasattr(values, "tolist") else values))


def _runs(values: Any) -> Runs:
    """The same as runs."""
    numbers = values.tolist() if hasattr(values, "tolist") else list(values)
    if numbers and type(numbers[0]) is not int:
        raise TypeError(f"slots are numbers in one dimension, not {type(numbers[0]).__name__}")
    if len(numbers) <= SHORT:
        return runs_of(numbers)
    array = np.asarray(numbers, dtype=np.int64)
    ends = np.flatnonzero(np.diff(array) != 1) + 1
    firsts = np.concatenate(([0], ends))
    counts = np.diff(np.concatenate((firsts, [len(array)])))
    return tuple(zip(array[firsts].tolist(), counts.tolist(), strict=True))


def _parameters(plain: type, method: str) -> tuple[str, ...]:
    """The names of a method's parameters, as the first class that calls them by SGLang's names has them."""
    usual = _USUAL.get(method, ("free_index",) if TAPPED[method].startswith("free") else ())
    read = "last_loc" if "last_loc" in usual else usual[-1] if usual else ""
    for base in plain.__mro__:
        defined = vars(base).get(method)
        if inspect.isfunction(defined):
            names = tuple(name for name in inspect.signature(defined).parameters if name != "self")
            if not usual or read in names:
                return names
    return usual


def _answers(allocator: Any, method: str) -> bool:
    try:
        getattr(allocator, method)()
    except Exception:  # not implemented in some classes, in words of their own
        return False
    return True


# -- putting it in place -------------------------------------------------------------------------------

_MARK = "_kvassay_tap"


def tap_of(allocator: Any) -> Tap | None:
    """The tap of an allocator that is listened to."""
    tap = getattr(type(allocator), _MARK, None) or getattr(allocator, _MARK, None)
    return tap if isinstance(tap, Tap) else None


def tapped(allocator: Any, mirrors: bool = False) -> tuple[Any, Tap]:
    """The allocator with a tap in place (the same object, or a proxy where that can't be), and the tap."""
    tap = tap_of(allocator)
    if tap is not None:
        return allocator, tap
    tap = Tap(allocator, mirrors)
    try:
        allocator.__class__ = _listening(type(allocator), tap)
    except TypeError:
        return _Proxy(tap), tap
    return allocator, tap


def untapped(allocator: Any) -> Any:
    """The allocator as it was."""
    tap = tap_of(allocator)
    if tap is None:
        return allocator
    tap.listeners.clear()
    if not isinstance(allocator, _Proxy):
        allocator.__class__ = tap.plain
    return tap.target


def _listening(plain: type, tap: Tap) -> type:
    """A class made from another one, whose methods tell a tap."""

    def wrapped(method: str) -> Any:
        original = getattr(plain, method)

        @functools.wraps(original)
        def tell(self: Any, *args: Any, **more: Any) -> Any:
            if self is not tap.target:  # a copy of the allocator is somebody else
                return original(self, *args, **more)
            return tap.call(method, functools.partial(original, self), args, more)

        return tell

    members: dict[str, Any] = {
        method: wrapped(method) for method in TAPPED if inspect.isroutine(getattr(plain, method, None))
    }
    members |= {"__slots__": (), _MARK: tap, "__module__": plain.__module__, "__doc__": plain.__doc__}
    members["__qualname__"] = plain.__qualname__
    return type(plain)(plain.__name__, (plain,), members)


class _Proxy:
    """Stands in front of an allocator whose class can't be replaced."""

    def __init__(self, tap: Tap) -> None:
        object.__setattr__(self, _MARK, tap)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        tap: Tap = object.__getattribute__(self, _MARK)
        return type(tap.target)

    def __getattr__(self, name: str) -> Any:
        tap: Tap = object.__getattribute__(self, _MARK)
        value = getattr(tap.target, name)
        if name in TAPPED and callable(value):
            return lambda *args, **more: tap.call(name, value, args, more)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, _MARK).target, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, _MARK).target, name)


def pool_of(allocator: Any, kind: str = "") -> Config:
    """The pool of a live allocator, by its attributes. kind: where the class does not tell."""
    full = getattr(allocator, "full_attn_allocator", allocator)
    window = getattr(allocator, "swa_attn_allocator", None)
    size, page_size = int(full.size), int(getattr(allocator, "page_size", 1))
    paged = page_size > 1 or any("Paged" in base.__name__ for base in type(allocator).__mro__)
    return Config(
        kind=kind or ("swa" if window is not None else "paged" if paged else "token"),
        pages=size // page_size,
        page_size=page_size,
        swa_pages=int(window.size) // page_size if window is not None else 0,
        need_sort=bool(getattr(allocator, "need_sort", False)),
        debug=bool(getattr(allocator, "debug", getattr(allocator, "debug_mode", False))),
        spare=size % page_size,
    )
