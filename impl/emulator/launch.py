"""A Triton kernel's unchanged source, run by the emulator: `kernel[grid](…)`."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from impl.emulator import language
from impl.emulator.dtypes import BY_NAME, INT32, Unsupported
from impl.emulator.findings import CODES, UNWRITTEN, now
from impl.emulator.fresh import unwritten
from impl.emulator.memory import START, Memory, Pointer
from impl.emulator.values import scalar

STEP = 2 * language.MOST_LANES
# What a launch may say to the compiler.
OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "waves_per_eu", "enable_fp_fusion"})


class Emulator:
    """Runs kernels, and keeps the first finding of each category until somebody asks.

    undefined: whether a lane that a masked load leaves open may not be used; else it holds 0, as in Triton's
    interpreter.
    """

    def __init__(self, undefined: bool = True) -> None:
        self.undefined = undefined
        self.found: dict[str, str] = {}
        self._kernels: dict[FunctionType, Kernel] = {}

    def kernel(self, jitted: Any) -> Kernel:
        """A kernel of Triton's (`@triton.jit`), to be launched here."""
        function = plain(jitted)
        if function not in self._kernels:
            self._kernels[function] = Kernel(function, self)
        return self._kernels[function]

    def look_at(self, answer: Any) -> None:
        """Note an element of what the launches were for that none has written."""
        if not self.found and (left := unwritten(answer)):
            self.found[UNWRITTEN] = (
                f"nothing has written element {left[0]} of the {answer.numel()} that are given"
            )

    def take(self, answer: Any = None) -> str:
        """The first finding since the last call, as `category: sentence`, and empty if there is none.

        answer: what the allocator gave, to be looked at as well.
        """
        if answer is not None:
            self.look_at(answer)
        if not self.found:
            return ""
        sentences = [f"{category}: {sentence}" for category, sentence in self.found.items()]
        self.found.clear()
        return sentences[0]


class Kernel:
    """`kernel[grid](…)`, as Triton's kernels are launched."""

    def __init__(self, function: FunctionType, emulator: Emulator) -> None:
        self.fn, self._emulator = function, emulator
        self._run = emulated(function)
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._names, self._known = tuple(parameters), parameters.keys()
        self._said = {"num_warps"} - self._known  # beside the arguments, in most launches
        self._given = tuple(
            (at, name) for at, (name, p) in enumerate(parameters.items()) if not _is_constexpr(p.annotation)
        )

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> None:
        if len(args) != len(self._names) or kwargs.keys() != self._said or not _is_warps(kwargs["num_warps"]):
            given = dict(zip(self._names, args, strict=False)) | kwargs
            if len(given) < len(args) + len(kwargs) or given.keys() != self._known:
                given = self._completed(args, kwargs)
            args = tuple(given[name] for name in self._names)
        sizes = grid(dict(zip(self._names, args, strict=True))) if callable(grid) else grid
        sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
        whole = (int(sizes[0]), 1, 1) if len(sizes) == 1 else tuple(int(s) for s in (*sizes, 1, 1)[:3])
        values = list(args)
        for at, name in self._given:
            values[at] = _argument(name, args[at])
        emulator, run = self._emulator, self._run
        before = now.kernel, now.program, now.grid, now.alone, now.undefined, now.found
        now.kernel, now.grid = self.fn.__name__, (whole[0], whole[1], whole[2])
        now.alone = whole == (1, 1, 1)
        now.stamp, now.undefined, now.found = 0, emulator.undefined, emulator.found
        try:
            for z, y, x in itertools.product(*map(range, reversed(whole))):
                now.program = x, y, z
                now.stamp += STEP
                run(*values)
        finally:
            now.kernel, now.program, now.grid, now.alone, now.undefined, now.found = before

    def _completed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments with defaults, and without what is said to the compiler. TypeError as for a function,
        ValueError for a number of warps that Triton refuses."""
        ours = {name: value for name, value in kwargs.items() if name in self._known or name not in OPTIONS}
        warps = kwargs.get("num_warps", 1) if "num_warps" not in ours else 1
        if not _is_warps(warps):
            raise ValueError(f"{self.fn.__name__}: num_warps is a power of two, not {warps}")
        try:
            bound = self._signature.bind(*args, **ours)
        except TypeError as error:
            raise TypeError(f"{self.fn.__name__}: {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)


def _is_warps(warps: int) -> bool:
    return warps > 0 and not warps & (warps - 1)


def _argument(name: str, value: Any) -> Any:
    """An argument that is no tl.constexpr, as the kernel gets it."""
    if value.__class__ is int and (made := INT32.scalars[value]) is not None:
        return made
    if isinstance(value, torch.Tensor):
        return Pointer(Memory(name, value), START)
    if value is None:
        return None
    if isinstance(value, int):
        return scalar(value)
    raise Unsupported(f"{name} is a {type(value).__name__}: arguments are tensors and whole numbers")


def _is_constexpr(annotation: Any) -> bool:
    return getattr(annotation, "__name__", str(annotation)).rpartition(".")[2] == "constexpr"


# -- the stand-ins -------------------------------------------------------------------------------------

TRITON = SimpleNamespace(
    language=language,
    cdiv=language.cdiv,
    next_power_of_2=language.next_power_of_2,
    jit=lambda function: function,
)
_made: dict[FunctionType, FunctionType] = {}


def plain(jitted: Any) -> FunctionType:
    """The Python function of a kernel."""
    function = getattr(jitted, "fn", jitted)
    if not isinstance(function, FunctionType):
        raise Unsupported(
            f"{type(jitted).__name__} over {type(function).__name__} is not emulated, only @triton.jit"
        )
    return function


def is_jitted(thing: Any) -> bool:
    """Whether something is a kernel of Triton's, compiled or interpreted."""
    return type(thing).__module__.startswith("triton.") and isinstance(
        getattr(thing, "fn", None), FunctionType
    )


def emulated(function: FunctionType) -> FunctionType:
    """The same code, with stand-ins where it names Triton and with emulated helpers."""
    if function not in _made:
        names = dict(function.__globals__)
        twin = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        _made[function] = twin  # before its helpers: one of them may be itself
        CODES[id(function.__code__)] = function.__code__
        for name in function.__code__.co_names:
            if name in names:
                names[name] = stand_in(names[name])
            elif name in language.BUILTINS:
                names[name] = language.BUILTINS[name]
    return _made[function]


def stand_in(thing: Any) -> Any:
    """What takes the place of something that a kernel's module names."""
    home = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""
    if isinstance(thing, ModuleType):
        if home == "triton":
            return TRITON
        if home.startswith("triton.language"):
            return language
        return _Module(thing)
    kind = type(thing).__name__
    if kind == "constexpr":
        return thing.value
    if kind == "dtype" and type(thing).__module__.startswith("triton."):
        return BY_NAME.get(thing.name) or _missing(thing.name)
    if is_jitted(thing):
        function = plain(thing)
        return getattr(language, function.__name__) if _is_triton(function.__module__) else emulated(function)
    if _is_triton(home) and callable(thing):
        return getattr(TRITON, thing.__name__, None) or getattr(language, thing.__name__)
    return thing


def _is_triton(module: str) -> bool:
    return module == "triton" or module.startswith("triton.")


def _missing(name: str) -> Any:
    raise Unsupported(f"tl.{name} is not emulated")


class _Module:
    """A module that a kernel names, seen through stand-ins."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return stand_in(getattr(self._module, name))
