"""What allocators does an SGLang release hold, and how are they called? Its modules are imported as they are."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from impl.errors import SubjectError
from impl.sglang_fetch import holds_package
from impl.sglang_imports import StandIn, StandInFinder, bare_package, forget, importing, standing_in

Part = Literal["token", "paged", "ascend", "swa"]
Form = Literal["device", "mirrored"]
Engine = Literal["auto", "triton", "emulator", "torch"]

PARTS: tuple[Part, ...] = ("token", "paged", "ascend", "swa")

CLASS_NAMES: Mapping[Part, tuple[str, ...]] = {
    "token": ("TokenToKVPoolAllocator",),
    "paged": ("PagedTokenToKVPoolAllocator",),
    # Ascend's class was renamed in 0.5.8.
    "ascend": ("NPUPagedTokenToKVPoolAllocator", "AscendPagedTokenToKVPoolAllocator"),
    "swa": ("SWATokenToKVPoolAllocator",),
}
"""What a part's class is called, newest name first."""


@dataclass(frozen=True)
class Release:
    """A loaded release: its allocator classes, or why one is not there. What can differ is asked of the classes."""

    version: str
    root: Path
    classes: Mapping[Part, Any]
    missing: Mapping[Part, str]
    """For each part without a class: one sentence that says why."""
    stood_in: tuple[str, ...]
    """Modules that were answered by stand-ins while loading."""

    def cls(self, part: Part) -> Any:
        """The class of a part. Raises SubjectError with the reason where the release has none."""
        if part not in self.classes:
            raise SubjectError(self.missing.get(part) or f"no part {part!r}: there are {', '.join(PARTS)}")
        return self.classes[part]

    def form(self, part: Part) -> Form | None:
        """How extend and decode are called: with lengths on the device alone, with CPU mirrors, or not at all."""
        names = parameters(getattr(self.cls(part), "alloc_extend", None))
        return "mirrored" if "prefix_lens_cpu" in names else "device" if "prefix_lens" in names else None

    def has_need_sort(self, part: Part) -> bool:
        """Whether the constructor takes `need_sort` (0.5.1 on). Before, every free went to the release list."""
        return "need_sort" in parameters(self.cls(part).__init__)

    def is_paged(self, part: Part) -> bool:
        """Whether the constructor takes a page size: paged and ascend always, swa from 0.5.8 on, token never."""
        return "page_size" in parameters(self.cls(part).__init__)

    def engines(self, part: Part) -> tuple[Engine, ...]:
        """The engines that `build` can give this part; none where it has neither extend nor decode.

        The first is what it runs on a GPU, the last what it runs on a CPU. `emulator` is the Triton path, emulated.
        """
        if self.form(part) is None:
            return ()
        if part == "ascend":
            return ("torch",)
        paged = self.cls("paged")
        chooses = "use_triton_kernels" in paged.__init__.__code__.co_names
        return ("triton", "emulator", "torch") if chooses else ("triton", "emulator")


_loaded: Release | None = None


def load(root: Path) -> Release:
    """Imports a release's allocator modules into this process, which can hold one release: a second one raises.

    For the Triton engine TRITON_INTERPRET=1 has to be in the environment before Triton is imported, here or by
    anybody; `build` says so when it is too late. Takes 20 to 250 ms after torch.
    """
    global _loaded
    root = root.resolve()
    if _loaded is not None:
        if _loaded.root == root:
            return _loaded
        raise SubjectError(
            f"this process holds SGLang {_loaded.version} from {_loaded.root} already, and can hold one only: "
            "use another process for a second"
        )
    if not holds_package(root):
        raise SubjectError(f"{root} holds no sglang/srt: fetch the release again or give a checkout's path")
    if "sglang" in sys.modules:
        raise SubjectError("sglang was imported in this process by somebody else: use a fresh process")
    for needed in ("torch", "triton", "numpy", "packaging"):
        if importlib.util.find_spec(needed) is None:
            raise SubjectError(f"driving SGLang needs {needed}: pip install 'kvassay[sglang]'")
    before = set(sys.modules)
    finder = StandInFinder()
    bare_package(root)
    classes: dict[Part, Any] = {}
    missing: dict[Part, str] = {}
    with standing_in(finder):
        for part in PARTS:
            try:
                classes[part] = _import_class(root, part, finder)
            except SubjectError as error:
                missing[part] = str(error)
    version = _version(root)
    if not classes:
        forget(name for name in set(sys.modules) - before if name.partition(".")[0] == "sglang")
        raise SubjectError(f"no allocator of SGLang {version} in {root} could be loaded: {missing['token']}")
    _loaded = Release(version, root, classes, missing, tuple(sorted(finder.served)))
    return _loaded


def _import_class(root: Path, part: Part, finder: StandInFinder) -> Any:
    for name in CLASS_NAMES[part]:
        for module_name in _modules_with_class(root, name):
            try:
                found = getattr(importing(module_name, finder), name)
            except Exception as error:  # whatever a working tree's import may raise is the reason
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                raise SubjectError(f"{module_name} can't be imported ({cause})") from error
            if replaced := sorted(_stand_ins_used(found)):
                raise SubjectError(f"{name} uses {', '.join(replaced)}, which kvassay only has stand-ins for")
            return found
    raise SubjectError(f"SGLang {_version(root)} has no class {' or '.join(CLASS_NAMES[part])}")


def _modules_with_class(root: Path, name: str) -> Iterator[str]:
    """Modules that define a class, looked for in the files: it moved five times in two years.

    So far in `mem_cache/` `memory_pool.py`, `paged_allocator.py`, `allocator.py`, `allocator_ascend.py`,
    `swa_memory_pool.py`, `allocator/*.py`, and `hardware_backend/npu/allocator_npu.py`.
    """
    defines = re.compile(rf"^class {name}\b", re.MULTILINE)
    srt = root / "sglang" / "srt"
    files = [f for part in ("mem_cache", "hardware_backend") for f in sorted((srt / part).rglob("*.py"))]
    for file in sorted(files, key=lambda f: len(f.parts)):
        if defines.search(file.read_text(encoding="utf-8", errors="replace")):
            parts = file.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def methods(cls: Any) -> Iterator[types.FunctionType]:
    """The functions and property getters of a class and its bases."""
    for base in cls.__mro__:
        for member in vars(base).values():
            member = inspect.unwrap(member) if callable(member) else getattr(member, "fget", member)
            if isinstance(member, types.FunctionType):
                yield member


def _stand_ins_used(cls: Any) -> Iterator[str]:
    for method in methods(cls):
        for name in method.__code__.co_names:
            if method.__globals__.get(name) is StandIn:
                yield name


def parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """A function's parameters by name; none for None."""
    return inspect.signature(function).parameters if function is not None else {}


def _version(root: Path) -> str:
    """The version by the files, since a checkout need not be installed; `unknown` where a tree was never built."""
    for file in ("_version.py", "version.py"):
        path = root / "sglang" / file
        if path.is_file() and (
            found := re.search(r"^__version__\b.*=\s*[\"']([^\"']+)", path.read_text(), re.M)
        ):
            return found[1]
    for info in sorted(root.glob("sglang-*.dist-info")):
        return info.name.removeprefix("sglang-").removesuffix(".dist-info")
    return "unknown"
