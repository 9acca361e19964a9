"""How does a defect get into the arithmetic of a kernel? As a changed line in the text of our own engine."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from impl.emulator.launch import Emulator
from impl.paged import IndexEngine


class StalePatch(ValueError):
    """The text that a patch changes is not there, or not there once: the module has moved on."""


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs the patched text of a module."""

    module: str
    engine: Callable[[ModuleType], IndexEngine]


def _emulated(module: ModuleType) -> IndexEngine:
    from impl.emulator.engine import EmulatedEngine  # Triton is an extra
    from impl.triton_engine import KERNELS

    return EmulatedEngine(
        Emulator(), {name: getattr(module, name, kernel) for name, kernel in KERNELS.items()}
    )


RUNNERS = {
    "formula": Runner("impl.defects.formula", lambda module: module.FormulaEngine()),
    "kernels": Runner("impl.kernels", _emulated),
    "free": Runner("impl.free_kernel", _emulated),
    "large frees": Runner("impl.free_many_kernels", _emulated),
}


@dataclass(frozen=True, slots=True)
class Patch:
    """`old` becomes `new` in the text of an engine; runner: of `RUNNERS`."""

    about: str
    runner: str
    old: str
    new: str

    def engine(self) -> IndexEngine:
        """The engine with this patch. StalePatch where the text does not fit any more."""
        runner = RUNNERS[self.runner]
        return runner.engine(load(runner.module, self.old, self.new))


@functools.cache
def load(module: str, old: str, new: str) -> ModuleType:
    """A module of ours, made anew from its text with `old` replaced by `new`. StalePatch unless `old` is there once."""
    spec = importlib.util.find_spec(module)
    source = getattr(spec and spec.loader, "get_source", lambda _: None)(module)
    if source is None:
        raise StalePatch(f"{module} has no text to change")
    if source.count(old) != 1:
        raise StalePatch(f"{module} has {source.count(old)} times, and not once: {old!r}")
    changed = source.replace(old, new)
    file = f"<{module} where {old!r} is {new!r}>"
    # Triton reads a kernel's text by way of its file; tracebacks do too.
    linecache.cache[file] = len(changed), None, changed.splitlines(keepends=True), file
    made = ModuleType(module)
    made.__file__ = file
    importlib.import_module(module)  # dataclasses look up the module of their class by its name
    exec(compile(changed, file, "exec"), made.__dict__)
    return made
