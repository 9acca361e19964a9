"""How is an allocator of a real SGLang release, or of a working tree, had and built on a machine without a GPU?

`fetch`, `installed` and `checkout` give a folder that holds the package; `load` imports its allocator modules alone,
as they are; `build` makes an allocator over a stand-in KV pool. What is replaced on the way, `describe` says.
Facts were taken from 14 releases, 0.4.6.post5 to 0.5.23, by running them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from impl.emulator.launch import Emulator
from impl.errors import SubjectError
from impl.sglang_fetch import cache_dir, checkout, fetch, installed
from impl.sglang_kernels import kernels, run_by
from impl.sglang_release import CLASS_NAMES, PARTS, Engine, Form, Part, Release, load, methods, parameters

__all__ = (
    "PARTS",
    "Engine",
    "Form",
    "Part",
    "Release",
    "StandInPool",
    "SubjectError",
    "build",
    "cache_dir",
    "checkout",
    "describe",
    "describe_source",
    "fetch",
    "installed",
    "load",
)

_DEBUG_VARIABLE = "SGLANG_DEBUG_MEMORY_POOL"
_TORCH_EXTEND = ("alloc_extend_naive", "_alloc_extend_naive", "alloc_extend_kernel_ascend")
"""A release's torch extend, newest name first; the first seven arguments are the same in all of them."""


class StandInPool:
    """A KV pool for allocators that are asked for indices alone."""

    def get_cpu_copy(self, indices: Any) -> Any:
        """No tensors are behind it."""
        raise NotImplementedError("this allocator was built without a KV pool: give kvcache=")

    def load_cpu_copy(self, copy: Any, indices: Any) -> None:
        """No tensors are behind it."""
        raise NotImplementedError("this allocator was built without a KV pool: give kvcache=")


class _PlainCopies:
    """A caller's pool under later releases, which pass `mamba_indices` and `req_pool_index` (always None) as well."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool

    def get_cpu_copy(self, indices: Any, **_unused: Any) -> Any:
        return self.pool.get_cpu_copy(indices)

    def load_cpu_copy(self, copy: Any, indices: Any, **_unused: Any) -> Any:
        return self.pool.load_cpu_copy(copy, indices)

    def __getattr__(self, name: str) -> Any:
        if name == "pool" or name.startswith("__"):
            raise AttributeError(name)  # asked of a copy that is being made, before it has its pool
        return getattr(self.pool, name)


def build(
    release: Release,
    part: Part,
    *,
    size: int,
    page_size: int = 1,
    size_swa: int | None = None,
    need_sort: bool | None = None,
    debug: bool = False,
    engine: Engine = "auto",
    emulator: Emulator | None = None,
    kvcache: Any = None,
    kvcache_swa: Any = None,
    dtype: Any = None,
    device: str = "cpu",
) -> Any:
    """An allocator of the release's own class.

    `size` and `size_swa` count slots. `need_sort` is dropped by releases without it, and False where it is None.
    `debug` turns the release's checks on, which it reads when an allocator is made. `emulator` is who runs the
    kernels with the engine of that name; all allocators of a process share it. `kvcache` and, for swa, the
    window pool `kvcache_swa` answer `get_cpu_copy(indices)` and `load_cpu_copy(copy, indices)`. A swa allocator's
    mapping is `full_to_swa_index_mapping`, on it and on its KV pool. Raises SubjectError for what can't be built.
    """
    torch = importlib.import_module("torch")
    cls = release.cls(part)
    if page_size != 1 and not release.is_paged(part):
        raise SubjectError(f"{part} of SGLang {release.version} has no pages: leave page_size at 1")
    if part == "swa" and size_swa is None:
        raise SubjectError("swa needs size_swa, the slots of the window pool")
    chosen = _engine(release, part, engine, page_size, device)
    if part == "ascend" and device == "cpu":
        _replace_npu_call(release)

    pool = _PlainCopies(kvcache if kvcache is not None else StandInPool())
    if part == "swa":
        pool_swa = _PlainCopies(kvcache_swa if kvcache_swa is not None else StandInPool())
        pool = _swa_pool(cls, pool, pool_swa)
    values = {
        "size": size,
        "size_swa": size_swa,
        "page_size": page_size,
        "dtype": torch.float16 if dtype is None else dtype,
        "device": device,
        "kvcache": pool,
        "need_sort": bool(need_sort),
    }
    names = [name for name, p in parameters(cls.__init__).items() if p.default is p.empty and name != "self"]
    if unknown := [name for name in names if name not in values]:
        raise SubjectError(
            f"{cls.__name__} of SGLang {release.version} wants {', '.join(unknown)}: not known here"
        )
    with _environment(_DEBUG_VARIABLE, "true" if debug else None):
        allocator = cls(**{name: values[name] for name in names})
    if chosen is not None and part != "ascend":
        run_by(release, (emulator or Emulator(undefined=False)) if chosen == "emulator" else None)
        for paged in _paged_allocators(allocator):
            if hasattr(paged, "use_triton_kernels"):  # read at every extend and decode, set when it was made
                paged.use_triton_kernels = chosen != "torch"
    return allocator


def _engine(release: Release, part: Part, engine: Engine, page_size: int, device: str) -> Engine | None:
    """What extend and decode will run on, or None where there is nothing to run."""
    engines = release.engines(part)
    if engine != "auto" and engine not in engines:
        has = f"has {' and '.join(engines)}" if engines else "has no extend"
        raise SubjectError(f"no engine {engine} for {part} of SGLang {release.version}: it {has}")
    if not engines or (part == "swa" and page_size == 1):
        return None
    chosen = engine if engine != "auto" else engines[-1] if device == "cpu" else engines[0]
    if chosen == "emulator" and device != "cpu":
        raise SubjectError(f"the emulator runs on the CPU, and {device} was asked for: choose another engine")
    if chosen == "triton" and device == "cpu" and not _interpreted(release):
        raise SubjectError(
            f"{part} of SGLang {release.version} runs Triton kernels, which a CPU can only interpret: "
            "set TRITON_INTERPRET=1 in the environment before the process starts, or choose the emulator"
        )
    return chosen


def _interpreted(release: Release) -> bool:
    return type(kernels(release)["alloc_extend_kernel"]).__name__ == "InterpretedFunction"


def _paged_allocators(allocator: Any) -> Iterator[Any]:
    yield allocator
    for name in ("full_attn_allocator", "swa_attn_allocator"):
        if hasattr(allocator, name):
            yield getattr(allocator, name)


def _swa_pool(cls: Any, full: Any, swa: Any) -> Any:
    """An instance of the release's own SWAKVPool that never made a buffer, for the constructor's type check.

    Reads of the mapping (`translate_loc_from_full_to_swa`) and CPU copies are the release's own code.
    """
    base = cls.__init__.__globals__.get("SWAKVPool")
    if (
        base is None
    ):  # from 0.5.15 on the class checks for an abstract base and leaves the pool in its old module
        base = importlib.import_module("sglang.srt.mem_cache.swa_memory_pool").SWAKVPool
    stand_in = type("StandInSWAKVPool", (base,), {"__init__": lambda self: None})
    stand_in.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    pool: Any = stand_in()
    pool.full_kv_pool, pool.swa_kv_pool = full, swa
    pool.full_to_swa_index_mapping = None
    return pool


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


def _npu_call(release: Release) -> Literal["operator", "kernel"] | None:
    """How Ascend's extend calls sgl_kernel_npu: 0.5.3 to 0.5.5 an operator, 0.5.8 on a Triton-Ascend kernel."""
    names = release.cls("ascend").alloc_extend.__code__.co_names
    if "sgl_kernel_npu.mem_cache.allocator" in names:
        return "kernel"
    return "operator" if "sgl_kernel_npu" in names else None


def _npu_torch_path(release: Release) -> Any:
    names = release.cls("ascend").alloc_extend.__globals__
    for name in _TORCH_EXTEND:
        if name in names:
            return names[name]
    raise SubjectError(
        f"ascend of SGLang {release.version} calls sgl_kernel_npu, which is not on the package index, and has no "
        "torch path to take its place: check it on a machine that has the package"
    )


def _replace_npu_call(release: Release) -> None:
    """Makes the one call into sgl_kernel_npu run the release's own torch path, with the arguments in its order."""
    call = _npu_call(release)
    if call is None:
        return
    torch_path = _npu_torch_path(release)
    device = "cpu"

    def operator(prefix: Any, seq: Any, last: Any, free: Any, page_size: int, out: Any, _pages: Any) -> None:
        torch_path(prefix, seq, last, free, out, page_size, device)

    def kernel(
        prefix: Any, seq: Any, last: Any, free: Any, out: Any, _bs: int, page_size: int, _upper: int
    ) -> None:
        torch_path(prefix, seq, last, free, out, page_size, device)

    class Launcher:
        """Takes `kernel[grid](…)`."""

        def __getitem__(self, grid: Any) -> Any:
            return kernel

    package = sys.modules["sgl_kernel_npu"] = types.ModuleType("sgl_kernel_npu")
    package.__path__ = []
    if call == "operator":
        setattr(importlib.import_module("torch").ops.npu, "alloc_extend", operator)  # noqa: B010
        return
    for name in ("sgl_kernel_npu.mem_cache", "sgl_kernel_npu.mem_cache.allocator"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
    setattr(sys.modules["sgl_kernel_npu.mem_cache.allocator"], "alloc_extend_kernel", Launcher())  # noqa: B010


def describe(
    release: Release, part: Part, engine: Engine = "auto", *, page_size: int = 2, device: str = "cpu"
) -> str:
    """One or two sentences for reports: what was driven, and what of it was replaced."""
    cls = release.cls(part)
    chosen = _engine(release, part, engine, page_size, device)
    text = f"{cls.__name__} of SGLang {release.version} on {device}, over a stand-in KV pool"
    if chosen == "triton" and device == "cpu":
        text += ", its Triton kernels run by Triton's interpreter"
    elif chosen == "emulator":
        text += ", its Triton kernels run by kvassay's emulator"
    elif chosen == "torch" and part != "ascend":
        text += ", extend and decode on its torch path (use_triton_kernels off)"
    text += "."
    if chosen in ("triton", "emulator") and "torch" in release.engines(part) and device == "cpu":
        text += " By itself the release takes its torch path on CPU; use_triton_kernels was set."
    if part == "ascend" and device == "cpu" and _npu_call(release):
        text += (
            f" Its extend calls sgl_kernel_npu for fewer than 200 new pages; that call was replaced by the release's "
            f"own torch path for more, {_npu_torch_path(release).__name__}, so the vendor's kernel is not covered."
        )
    if part == "swa" and "_free_swa_pages_cuda" in vars(cls):
        text += (
            " Freeing window pages takes its branch for CPU tensors; the CUDA kernel for it is not covered."
        )
    return text


def describe_source(release: Release, part: Part) -> list[str]:
    """Files, relative to the release's root, that the class, its bases, its pools' classes and kernels come from."""
    classes = [release.cls(part)]
    if part == "swa":
        classes += [
            release.classes[p] for p in ("token", "paged") if p in release.classes and _uses(classes[0], p)
        ]
    files: dict[str, None] = {}
    for cls in classes:
        for base in cls.__mro__:
            files.setdefault(sys.modules[base.__module__].__dict__.get("__file__", ""), None)
        for method in methods(cls):
            for name in method.__code__.co_names:
                function = method.__globals__.get(name)
                function = getattr(function, "fn", function)
                if name.startswith(("alloc_", "_alloc_", "get_and_clear")) and inspect.isfunction(function):
                    files.setdefault(function.__code__.co_filename, None)
    inside = [Path(file) for file in files if file and Path(file).is_relative_to(release.root)]
    return [str(file.relative_to(release.root)) for file in inside]


def _uses(cls: Any, part: Part) -> bool:
    return any(name in cls.__init__.__code__.co_names for name in CLASS_NAMES[part])
