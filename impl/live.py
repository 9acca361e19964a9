"""For programs that run: `record` writes a trace of a live allocator, `check` judges it.

    from impl.live import check, record, report_of
    allocator = check(record(allocator, "/tmp/pool.trace"))

Both give back the allocator, which stays the object that it was (see `impl.tap`); both may be in place at once.
Reading a tensor on a GPU waits for it, which is the larger part of the cost there.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from impl.checker import Broken, Checker, Leak, LiveFinding, Site
from impl.recorder import Recorder
from impl.tap import Tap, pool_of, tap_of, tapped, untapped
from oracle.follow import Follower
from oracle.ops import Config
from oracle.rawcall import Header, Runs, Start, runs_of
from oracle.traits import ALWAYS, OPTIONAL, Traits

__all__ = (
    "Broken", "Checker", "Leak", "LiveFinding", "Site", "check", "detach", "record", "report_of",
)  # fmt: skip


def record(
    allocator: Any,
    path: str | Path,
    *,
    subject: str = "",
    kind: str = "",
    limit: int = 64 << 20,
    keep: int = 0,
    mirrors: bool = False,
) -> Any:
    """The allocator, which from here on writes a trace to `path` (`{pid}` in it becomes the process id).

    subject: what `kvassay shrink` replays the trace on; by default what the class says. kind: token, paged or
    swa, where the class does not tell. limit: bytes of a file before the next one is begun; keep: how many
    full ones stay (0: all). mirrors: lengths are read from the CPU mirrors where a call has them, which saves
    two waits for the device. FileExistsError where there is a trace.
    """
    pool = pool_of(allocator, kind)
    made_by = f"{type(allocator).__module__}.{type(allocator).__qualname__}"
    header = Header(pool, subject or subject_of(allocator), _start(allocator, pool), made_by=made_by)
    own_path = str(path).replace("{pid}", str(os.getpid()))
    recorder = Recorder(own_path, header, limit, keep, lambda: _windows(allocator, pool))
    allocator, tap = tapped(allocator, mirrors)
    tap.listeners.append(recorder)
    return allocator


def check(
    allocator: Any,
    *,
    raises: bool = False,
    found: Callable[[LiveFinding], object] | None = None,
    file: str | Path | None = None,
    kind: str = "",
    traits: Traits | None = None,
    depth: int = 12,
    mirrors: bool = False,
) -> Any:
    """The allocator, which from here on is judged call by call, and its caller with it.

    A finding goes to the log of the name `kvassay`, to `found` and to the end of `file`; with `raises` the call
    that shows it raises `Broken` when it has been done. depth: frames kept of a stack. traits: what the allocator claims, where it
    is none of ours and none of SGLang's. `report_of` gives findings so far and what is held. An allocator in use is
    taken over as it is; RuntimeError inside a group of frees, ValueError where window halves are gone already.
    """
    pool = pool_of(allocator, kind)
    follower = Follower(pool, traits or _traits_of(allocator), _start(allocator, pool))
    allocator, tap = tapped(allocator, mirrors)
    tap.listeners.append(Checker(follower, found, file, raises, depth))
    return allocator


def report_of(allocator: Any) -> Checker:
    """Findings and leaks of an allocator that is checked. LookupError where it is not."""
    tap = tap_of(allocator)
    for listener in tap.listeners if tap is not None else ():
        if isinstance(listener, Checker):
            return listener
    raise LookupError("nobody checks this allocator: check(allocator) first")


def detach(allocator: Any) -> Any:
    """The allocator as it was; its trace is closed."""
    tap: Tap | None = tap_of(allocator)
    for listener in tap.listeners if tap is not None else ():
        if isinstance(listener, Recorder):
            listener.close()
    return untapped(allocator)


def subject_of(allocator: Any) -> str:
    """The name of a live allocator at `kvassay --impl`; empty where its class is nobody's that we know."""
    module, name = type(allocator).__module__, type(allocator).__name__
    own = {"impl.token": "token", "impl.paged": "paged", "impl.ascend": "ascend", "impl.swa": "swa"}
    if module in own:
        return own[module]
    if module.partition(".")[0] != "sglang":
        return ""
    part = (
        "ascend" if name.startswith(("Ascend", "NPU")) else "swa" if name.startswith("SWA")
        else "paged" if name.startswith("Paged") else "token"
    )  # fmt: skip
    loader = sys.modules.get("impl.sglang_release")
    release = getattr(loader, "_loaded", None)
    try:
        version = release.version if release is not None else importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return f"sglang:{part}"
    return f"sglang@{version}:{part}"


def _traits_of(allocator: Any) -> Traits:
    cls = type(allocator)
    # Releases whose SWA class has no groups of its own free window halves at once, also inside a group.
    at_once = cls.__module__.startswith("sglang") and hasattr(cls, "free_swa")
    return Traits(operations=ALWAYS | OPTIONAL, swa_now=at_once and "free_group_begin" not in vars(cls))


def _start(allocator: Any, pool: Config) -> Start:
    """How a pool is now. RuntimeError inside a group: what waits can't be known."""
    # Ours, releases up to 0.5.15, and later ones.
    closed = getattr(allocator, "is_not_in_free_group", getattr(allocator, "free_group", None) is None)
    if not closed or getattr(allocator, "_group", None) is not None:
        raise RuntimeError("a group of frees is open: begin to listen outside of one")
    if pool.kind != "swa":
        return Start(int(allocator.available_size()))
    full, window = int(allocator.full_available_size()), int(allocator.swa_available_size())
    return Start(full, window, _windows(allocator, pool))


def _windows(allocator: Any, pool: Config) -> Runs | None:
    """The pages that have a window half now; None where the allocator has no mapping that says so."""
    if pool.kind != "swa" or not hasattr(allocator, "translate_loc_from_full_to_swa"):
        return None
    slots = torch.arange(
        pool.page_size, (pool.pages + 1) * pool.page_size, device=getattr(allocator, "device", "cpu")
    )
    rows = allocator.translate_loc_from_full_to_swa(slots).view(pool.pages, pool.page_size)
    pages = ((rows > 0).any(dim=1).nonzero().flatten() + 1).tolist()
    # Entries that a fault left behind say nothing: then nobody knows.
    whole = len(pages) == pool.swa_pages - int(allocator.swa_available_size()) // pool.page_size
    return runs_of(pages) if whole else None
