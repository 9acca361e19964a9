"""A release of SGLang as a subject: what it claims, in which order it hands out, and how its state is read.

Facts about releases were found by running them (0.4.6.post5 to 0.5.23). Where a class says by itself what it
has, it is asked; what only its source tells stands here as data.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import replace
from typing import Any, cast

import torch
from packaging.version import InvalidVersion, Version

from impl import sglang
from impl.emulator.launch import Emulator
from impl.errors import SubjectError
from impl.fence import Fence
from impl.session import Bench, Lists
from impl.subject import PAGE_SIZES, LocalSubject, Space, kv_pools, plain
from oracle.ops import Config
from oracle.traits import OPTIONAL, SEED_PAGED, SEED_TOKEN, Dialect, Traits

# Where nobody says which release a working tree is, it is taken for a new one.
UNKNOWN = Version("9999")
NEED_SORT, FREE_SWA_WAITS = Version("0.5.1"), Version("0.5.18")
STAGED_LISTS, TRANSLATES_TO_INT64, HIGHEST_SEEN = Version("0.5.20"), Version("0.5.20"), Version("0.5.23")
INTERPRETED_SHARE = 0.5
FENCED = 4096

# When a release merges what was freed, read from its source.
_OLD = {"always_sorts": True, "merge_extend": "exact", "merge_decode": "exact"}
_DIALECTS = {
    ("old", "token"): replace(SEED_TOKEN, name="sglang up to 0.4.10 token", **_OLD),  # type: ignore[arg-type]
    ("old", "paged"): replace(SEED_PAGED, name="sglang up to 0.4.10 paged", **_OLD),  # type: ignore[arg-type]
    ("old", "ascend"): replace(SEED_PAGED, name="sglang up to 0.4.10 ascend", **_OLD),  # type: ignore[arg-type]
    ("new", "token"): replace(SEED_TOKEN, name="sglang from 0.5.1 token"),
    ("new", "paged"): replace(SEED_PAGED, name="sglang from 0.5.1 paged", merge_extend="loose"),
    ("new", "ascend"): replace(SEED_PAGED, name="sglang from 0.5.1 ascend", merge_extend="exact", merge_decode="exact"),
    ("staged", "token"): replace(SEED_TOKEN, name="sglang from 0.5.20 token"),
    ("staged", "paged"): replace(SEED_PAGED, name="sglang from 0.5.20 paged", staged_front=False, merge_extend="loose"),
    ("staged", "ascend"): replace(
        SEED_PAGED, name="sglang from 0.5.20 ascend", staged_front=False, merge_extend="exact", merge_decode="exact"
    ),
}  # fmt: skip

# What callers read. The `size` of window pools is the full one's or the smaller one's: releases differ.
_ATTRIBUTES = {
    "token": frozenset({"size", "page_size", "dtype", "device"}),
    "paged": frozenset({"size", "page_size", "dtype", "device", "num_pages"}),
    "swa": frozenset({"size_full", "size_swa", "page_size", "dtype", "device", "full_to_swa_index_mapping"}),
}


def release_subject(name: str, version: str, part: str, engine: str, path: str, device: str) -> LocalSubject:
    """The part of a release (`version`), of a working tree (`path`), or of what is installed."""
    if path and version:
        raise SubjectError("--path is a working tree: write sglang:PART with it, and leave out the version")
    root = sglang.checkout(path) if path else sglang.fetch(version) if version else sglang.installed()
    release = sglang.load(root)
    chosen = cast("sglang.Part", part)
    release.cls(chosen)  # says why, where the release has no such part
    number = _version(release.version)
    wanted = cast("sglang.Engine", engine or "auto")
    if engine and engine not in release.engines(chosen):
        raise SubjectError(
            f"{name}: the engines of {part} are {', '.join(release.engines(chosen)) or 'none'}"
        )
    runs = _engine(release, chosen, wanted, device)
    interpreted = runs == "triton" and device == "cpu"
    emulator = Emulator() if runs == "emulator" else None
    if interpreted:
        with contextlib.suppress(ImportError):
            # Triton's interpreter loads this at its first launch, which takes half a second: once here, and not
            # in every process that a crash makes us fork.
            importlib.import_module("triton.experimental.gluon")
    kind = "paged" if part == "ascend" else part
    # Releases take their token allocator where a page has one slot; only the window's pools know both.
    sizes = (1,) if not release.is_paged(chosen) else PAGE_SIZES if part == "swa" else PAGE_SIZES[1:]
    sorts = (False, True) if release.has_need_sort(chosen) else (False,)

    def make(config: Config) -> Bench:
        if emulator is not None:
            emulator.undefined = config.undefined
        full, window = kv_pools(config, device)
        allocator = sglang.build(
            release, chosen, size=config.size, page_size=config.page_size,
            size_swa=config.swa_pages * config.page_size or None, need_sort=config.need_sort, debug=config.debug,
            engine=wanted, emulator=emulator, kvcache=full, kvcache_swa=window, dtype=torch.float32, device=device,
        )  # fmt: skip
        # What a fresh allocator would report for a launch that never happened is uninitialised memory: make it
        # the same rubbish in every run (one page, no token).
        values = getattr(allocator, "ret_values", None)
        if isinstance(values, torch.Tensor) and values.numel() == 1:
            values.fill_(1 << 32 if values.dtype == torch.int64 else 1)
        fence = Fence(FENCED) if interpreted else None
        return Bench(allocator, form, _lists, full, window, fence, emulator)

    have = _methods(release, chosen, sizes)
    form = release.form(chosen) or "mirrored"
    attributes = _ATTRIBUTES[kind] | ({"need_sort"} if len(sorts) > 1 else set())

    def claims(config: Config) -> Traits:
        operations = have
        if part == "swa" and config.page_size > 1:
            operations = have - {"alloc"}  # refused by an assertion since pools of the window have pages
        return Traits(
            operations=operations,
            default_dtype="int32" if part == "ascend" else "int64",
            dtypes={"alloc": "int64"} if part == "ascend" else {},
            swa_now=part == "swa" and number < FREE_SWA_WAITS,
            free_full="free_full" in dir(release.cls(chosen)) and part == "swa",
            undefined=frozenset({"mirror", "new pages"}) if form == "device" else frozenset(),
            dialect=_dialect(number, part, config),
            attributes=attributes,
        )

    about = sglang.describe(
        release, chosen, wanted, page_size=sizes[-1] if len(sizes) > 1 else 1, device=device
    )
    share = INTERPRETED_SHARE if interpreted else 1.0
    space = Space(kind, sizes, sorts, small=interpreted, undefined=emulator is not None)
    return LocalSubject(name, about, space, make, claims, device, share)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return UNKNOWN


def _engine(release: sglang.Release, part: sglang.Part, engine: str, device: str) -> str:
    """What runs extend and decode; empty where there is neither."""
    engines = release.engines(part)
    if engine != "auto" or not engines:
        return engine if engines else ""
    return engines[-1] if device == "cpu" else engines[0]


def _dialect(number: Version, part: str, config: Config) -> Dialect | None:
    """The exact order of a release, as far as it was read; SWA pools with pages claim none."""
    if part == "swa" and config.page_size > 1:
        return None
    age = "old" if number < NEED_SORT else "new" if number < STAGED_LISTS else "staged"
    return _DIALECTS[age, "token" if part == "swa" else part]


def _methods(release: sglang.Release, part: sglang.Part, sizes: tuple[int, ...]) -> frozenset[str]:
    """What the class has, leaving out what answers that it is not implemented."""
    size = 4 * sizes[0]
    try:
        allocator = sglang.build(
            release, part, size=size, page_size=sizes[0], size_swa=size if part == "swa" else None
        )
    except SubjectError:
        raise
    except Exception as error:
        raise SubjectError(
            f"{part} of SGLang {release.version} can't be made: {type(error).__name__}: {error}"
        ) from error
    have = {"alloc", "free", "free_group_begin", "free_group_end", "clear"}
    have |= {method for method in OPTIONAL | {"available_size"} if callable(getattr(allocator, method, None))}
    if part in ("token", "swa"):
        have -= {"get_cpu_copy", "load_cpu_copy"} if part == "swa" else set()
        have -= (
            set() if release.engines(part) else {"alloc_extend", "alloc_decode", "estimated_num_new_pages"}
        )
    for method in ("available_size", "backup_state"):
        if method in have and not _implemented(getattr(allocator, method)):
            have -= {method} | ({"restore_state"} if method == "backup_state" else set())
    return frozenset(have)


def _implemented(method: Any) -> bool:
    try:
        method()
    except NotImplementedError:
        return False
    return True


def _lists(allocator: Any) -> Lists:
    """Free and waiting pages of a release's allocator, of both pools where it has two."""
    pools = (
        (allocator.full_attn_allocator, allocator.swa_attn_allocator)
        if hasattr(allocator, "full_attn_allocator")
        else (allocator,)
    )
    return tuple(plain(listed) for pool in pools for listed in (pool.free_pages.tolist(), _waiting(pool)))


def _waiting(pool: Any) -> list[int]:
    staged = getattr(pool, "staged_pages", None)  # a list of tensors, from 0.5.20 on
    if isinstance(staged, list):
        return [page for tensor in staged for page in tensor.tolist()]
    released = getattr(pool, "release_pages", None)
    return released.tolist() if isinstance(released, torch.Tensor) else []
