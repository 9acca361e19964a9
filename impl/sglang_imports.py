"""How do SGLang's allocator modules import without the serving engine's dependencies?

They reach, through `srt/utils` and `memory_pool.py`, for some thirty packages that they never use. A meta-path
finder answers for those with modules whose every attribute is a `StandIn`, installed or not, so that a release
loads the same way on every machine and in milliseconds. Inside `sglang` a few subtrees are replaced as well, which
would pull in transformers and CUDA kernels. What was answered is recorded, so that a report can name it.
Only `packaging` has to be real: the releases compare versions with it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGES = frozenset(
    {
        "IPython",
        "PIL",
        "fastapi",
        "msgspec",
        "openai",
        "orjson",
        "psutil",
        "pybase64",
        "pydantic",
        "pydantic_core",
        "requests",
        "sgl_kernel",
        "starlette",
        "torch_memory_saver",
        "torchvision",
        "tqdm",
        "zmq",
    }
)
"""Packages that the imports of 0.4.6 to 0.5.23 name and the allocators don't use. A further one is added when an
import fails for want of it (`importing`), never for an optional `try: import`: that takes its own branch."""

SUBTREES = ("sglang.srt.layers", "sglang.srt.configs", "sglang.kernels.jit")
"""Parts of `sglang` that `memory_pool.py` imports names from (RadixAttention, mamba shapes, quantisation, CUDA
kernels compiled at run time: 2.5 s of `torch._dynamo`) and that no allocator calls. `impl.sglang` checks that none
of an allocator's methods names a stand-in."""


class _AnyMeta(type):
    """Lets a class stand for a class, function, decorator, constant or namespace while a module is imported."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __bool__(cls) -> bool:
        return False  # "can this machine do …?" asked of a replaced subtree: no

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]  # used as a decorator: what it decorates stays as it is
        return StandIn if cls is StandIn else super().__call__(*args, **kwargs)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


class StandIn(metaclass=_AnyMeta):
    """What a stand-in module gives for every name. Fit to be imported, subclassed and named in annotations."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Takes class keywords such as `msgspec.Struct`'s `tag=True`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Fields of a subclass by position or name, as `msgspec.Struct` and `pydantic.BaseModel` take them."""
        for name, value in [
            *zip(getattr(type(self), "__annotations__", ()), args, strict=False),
            *kwargs.items(),
        ]:
            object.__setattr__(self, name, value)


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of `PACKAGES` and `SUBTREES`, except below a real package that is imported already."""

    def __init__(self) -> None:
        self.served: set[str] = set()
        self.packages = {name for name in PACKAGES if name not in sys.modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec of our own for what we stand in for, else None."""
        top = fullname.partition(".")[0]
        if top not in self.packages and not any(_within(fullname, tree) for tree in SUBTREES):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An empty module that answers every name."""
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""
        self.served.add(module.__name__)


def _within(name: str, tree: str) -> bool:
    return name == tree or name.startswith(tree + ".")


def bare_package(root: Path) -> types.ModuleType:
    """Puts an empty package `sglang` over `root/sglang` into `sys.modules`, past an `__init__` that imports all."""
    package = types.ModuleType("sglang")
    package.__path__ = [str(root / "sglang")]
    package.__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    package.__spec__.submodule_search_locations = package.__path__
    sys.modules["sglang"] = package
    return package


@contextmanager
def standing_in(finder: StandInFinder) -> Iterator[None]:
    """Answers imports for as long as the block runs; afterwards only `sglang`'s own subtrees are still there.

    Outside the block a missing `requests` is missing again, for whoever else asks in this process. The releases'
    import-time warnings (syntax, deprecation, no accelerator) are not the caller's, so they are dropped.
    """
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings(), _old_names():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.meta_path.remove(finder)
        forget(name for name in finder.served if name.partition(".")[0] != "sglang")


def importing(name: str, finder: StandInFinder) -> types.ModuleType:
    """Imports a module of the release inside `standing_in`; a package whose lack stops it gets a stand-in too.

    So a working tree that came to import something new still loads. Raises what the import raises otherwise.
    """
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            top = (error.name or "").partition(".")[0]
            if top in ("", "sglang", "packaging", "numpy", "torch", "triton") or top in finder.packages:
                raise
            finder.packages.add(top)


def forget(names: Iterable[str]) -> None:
    """Takes modules out of `sys.modules`."""
    for name in list(names):
        sys.modules.pop(name, None)


@contextmanager
def _old_names() -> Iterator[None]:
    """What 0.4.6 needs, and no allocator uses: three names that Triton dropped, and no `torch.compile` (2.5 s)."""
    torch: Any = importlib.import_module("torch")
    cache = importlib.import_module("triton.runtime.cache")
    added = [
        n for n in ("default_cache_dir", "default_dump_dir", "default_override_dir") if not hasattr(cache, n)
    ]
    for name in added:
        setattr(cache, name, str)
    compile_ = torch.compile
    torch.compile = _uncompiled
    try:
        yield
    finally:
        torch.compile = compile_
        for name in added:
            delattr(cache, name)


def _uncompiled(model: Any = None, **_options: Any) -> Any:
    return _uncompiled if model is None else model
