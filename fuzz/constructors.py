"""How a subject's allocator is made outside kvassay: its own imports and its own constructor, as lines of Python."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, fields
from pathlib import Path

from impl.names import DEFECT, OWN, parse, plug_ins
from impl.sglang_fetch import checkout, fetch, installed
from oracle.ops import Config

ENGINES = {
    "torch": ("impl.torch_engine", "TorchEngine"),
    "triton": ("impl.triton_engine", "TritonEngine"),
}
_CLASSES = {
    "token": ("TokenToKVPoolAllocator",),
    "paged": ("PagedTokenToKVPoolAllocator",),
    "ascend": ("NPUPagedTokenToKVPoolAllocator", "AscendPagedTokenToKVPoolAllocator"),
    "swa": ("SWATokenToKVPoolAllocator",),
}


class NoHandover(ValueError):
    """A finding that can't be told without kvassay; the message says why."""


@dataclass(frozen=True, slots=True)
class Maker:
    """imports: lines. setup: lines in front of the constructor, and `after` it. call: the constructor.

    mirrored: whether extend and decode are called with CPU mirrors of the lengths. about: how to run it, a
    sentence. fenced: whether a read past the free list has to be made to show.
    """

    imports: tuple[str, ...]
    call: str
    setup: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    mirrored: bool = True
    about: str = ""
    fenced: bool = False


def maker_of(name: str, config: Config, tree: str = "") -> Maker:
    """The lines for a subject's name. NoHandover where there are none. tree: `--path`."""
    parsed = parse(name)
    base = parsed.base
    if base in OWN and parsed.engine in ("", *ENGINES):
        return _own(base, config, parsed.engine)
    if base in OWN:
        return _by_name(f"{base}[engine={parsed.engine}]", config)
    if base.startswith(("sglang@", "sglang:")):
        return _sglang(base, config, tree)
    if base.startswith(DEFECT):
        return _by_name(name, config)
    target = plug_ins()[base].value if base in plug_ins() else base
    return _factory(target, config)


def _own(base: str, config: Config, engine: str) -> Maker:
    module, name = {
        "token": ("impl.token", "TokenAllocator"),
        "paged": ("impl.paged", "PagedAllocator"),
        "ascend": ("impl.ascend", "AscendAllocator"),
        "swa": ("impl.swa", "SwaAllocator"),
    }[base]
    imports = [f"from {module} import {name}"]
    sizes = [config.size]
    if base == "swa":
        sizes.append(config.swa_pages * config.page_size)
    if base != "token":
        sizes.append(config.page_size)
    kvcache, setup = "None", []
    if config.data and base != "swa":
        imports.append("from impl.kvpool import KVPool")
        setup.append(
            f'kv = KVPool({config.size}, {config.page_size}, layers=1, heads=1, head_dim=1, dtype=torch.float32, device="cpu")'
        )
        kvcache = "kv"
    options = f'dtype=torch.float32, device="cpu", kvcache={kvcache}, need_sort={config.need_sort}, debug={config.debug}'
    if engine:
        source, kind = ENGINES[engine]
        imports.append(f"from {source} import {kind}")
        options += f", engine={kind}()"
    call = f"{name}({', '.join(map(str, sizes))}, {options})"
    return Maker(tuple(imports), call, tuple(setup))


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _pool(config: Config) -> str:
    values = [f"{field.name}={_literal(getattr(config, field.name))}" for field in fields(config)]
    return ", ".join([*values, f"size={config.size}", f"extends={config.extends}"])


def _factory(target: str, config: Config) -> Maker:
    module, _, attribute = target.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names) or not attribute:
        raise NoHandover(f"{target} is no name that Python can import")
    first = attribute.split(".")[0]
    setup = [f"pool = SimpleNamespace({_pool(config)})"]
    after = ["kv = allocator._kvcache"] if config.data and config.kind != "swa" else []
    return Maker(
        ("from types import SimpleNamespace", f"from {module} import {first}"),
        f"{attribute}(pool)",
        tuple(setup),
        tuple(after),
        about=f"Run it where {module} can be imported, such as with PYTHONPATH=. in front.",
    )


def _by_name(name: str, config: Config) -> Maker:
    imports = ("from impl.names import local", "from oracle.ops import Config")
    given = ", ".join(
        f"{f.name}={_literal(getattr(config, f.name))}"
        for f in fields(config)
        if getattr(config, f.name) != f.default
    )
    setup = (f"pool = Config({given})",)
    after = ("kv = allocator.get_kvcache()",) if config.data and config.kind != "swa" else ()
    return Maker(imports, f'local("{name}").make(pool).allocator', setup, after)


# -- SGLang --------------------------------------------------------------------------------------------


def _sglang(base: str, config: Config, tree: str) -> Maker:
    """What the release's own files say: where the class is, and what its constructor takes. Nothing is imported."""
    version, _, part = base.removeprefix("sglang").removeprefix("@").rpartition(":")
    root = checkout(tree) if tree else fetch(version) if version else installed()
    module, name, cls, text = _class(root, _CLASSES[part], base)
    values = {
        "size": config.size, "page_size": config.page_size, "size_swa": config.swa_pages * config.page_size,
        "dtype": "torch.float16", "device": '"cpu"', "kvcache": "pool" if part == "swa" else "None",
        "need_sort": config.need_sort,
    }  # fmt: skip
    wanted = _needed(_method(cls, "__init__", root))
    if unknown := [key for key in wanted if key not in values]:
        raise NoHandover(f"the constructor of {name} wants {', '.join(unknown)}, which is not known here")
    call = f"{name}({', '.join(f'{key}={values[key]}' for key in wanted)})"
    imports, setup, after = [f"from {module} import {name}"], [], []
    if config.debug:
        imports.insert(0, "import os")
        setup.append('os.environ["SGLANG_DEBUG_MEMORY_POOL"] = "true"  # read when an allocator is made')
    if part == "swa":
        pool_module, pool_name, _, _ = _class(root, ("SWAKVPool",), base)
        imports.append(f"from {pool_module} import {pool_name}")
        setup += [
            'stand_in = type("StandIn", (SWAKVPool,), {"__init__": lambda self: None})  # no buffers are needed',
            "stand_in.__abstractmethods__ = frozenset()",
            "pool = stand_in()",
            "pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None",
        ]
    if "ret_values" in text and part == "paged":
        after += [
            'if hasattr(allocator, "ret_values"):  # nothing initialises it: the same rubbish in every run',
            "    allocator.ret_values.fill_(1 << 32)",
        ]
    extend = _method(cls, "alloc_extend", root)
    names = [argument.arg for argument in extend.args.args] if extend else []
    about = "Kernels in Triton run on a CPU with TRITON_INTERPRET=1 in the environment."
    return Maker(
        tuple(imports), call, tuple(setup), tuple(after), mirrored="prefix_lens_cpu" in names or not names,
        about=about if part in ("paged", "swa") else "", fenced=True,
    )  # fmt: skip


def _class(root: Path, names: tuple[str, ...], base: str) -> tuple[str, str, ast.ClassDef, str]:
    srt = root / "sglang" / "srt"
    files = [f for part in ("mem_cache", "hardware_backend") for f in sorted((srt / part).rglob("*.py"))]
    for name in names:
        defines = re.compile(rf"^class {name}\b", re.MULTILINE)
        for file in sorted(files, key=lambda f: len(f.parts)):
            text = file.read_text(encoding="utf-8", errors="replace")
            if defines.search(text):
                found = next(
                    node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name
                )  # fmt: skip
                parts = file.relative_to(root).with_suffix("").parts
                module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                return module, name, found, text
    raise NoHandover(f"{base} has no class {' or '.join(names)}")


def _method(cls: ast.ClassDef, name: str, root: Path) -> ast.FunctionDef | None:
    """The method as the class has it, or the first of its bases that has one."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    for base in cls.bases:
        if isinstance(base, ast.Name) and base.id.endswith("Allocator"):
            found = _method(_class(root, (base.id,), "SGLang")[2], name, root)
            if found is not None:
                return found
    return None


def _needed(function: ast.FunctionDef | None) -> list[str]:
    if function is None:
        return []
    arguments = function.args.args[1:]
    return [a.arg for a in arguments[: len(arguments) - len(function.args.defaults)]]
