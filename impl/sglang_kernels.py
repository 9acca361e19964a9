"""Where a release launches its allocator kernels, and who runs them: Triton, or the emulator."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from impl.emulator.fresh import WatchedTorch
from impl.emulator.language import next_power_of_2
from impl.emulator.launch import Emulator, is_jitted
from impl.sglang_release import Release

_kernels: dict[str, Any] = {}  # of the one release of this process, as they were before anything was replaced


def kernels(release: Release) -> dict[str, Any]:
    """The release's own allocator kernels by name, whoever runs them now."""
    if not _kernels:
        _kernels.update((name, thing) for name, thing in _names(release).items() if is_jitted(thing))
    return _kernels


def run_by(release: Release, emulator: Emulator | None) -> None:
    """Have the kernels run by an emulator, or again by Triton (None); for all allocators of the process.

    On an emulator the module's `torch.empty` is watched, so that memory which no kernel writes is known.
    """
    names = _names(release)
    names["torch"] = torch if emulator is None else WATCHED
    for name, kernel in kernels(release).items():
        names[name] = kernel if emulator is None else emulator.kernel(kernel)


def _names(release: Release) -> dict[str, Any]:
    """The globals of the paged class's module, where it finds its kernels."""
    names: dict[str, Any] = release.cls("paged").alloc_extend.__globals__
    return names


WATCHED = WatchedTorch()


class ReleaseEngine:
    """Bare kernels with a release's arguments as an index engine (`impl.paged.IndexEngine`), launched as its allocator does.

    kernels: `alloc_extend_kernel` and `alloc_decode_kernel`: a release's own (`kernels`), or others of that design.
    """

    def __init__(self, kernels: Mapping[str, Any], emulator: Emulator | None = None) -> None:
        """emulator: None has Triton run the kernels."""
        self._kernels = {
            name: kernel if emulator is None else emulator.kernel(kernel) for name, kernel in kernels.items()
        }

    def extend(
        self,
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """`alloc_extend_kernel`, a program a request."""
        lengths = {"pre_lens_ptr": prefix_lens, "seq_lens_ptr": seq_lens}
        self._launch("alloc_extend_kernel", lengths, last_loc, free_pages, out, page_size)

    def decode(
        self,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out: torch.Tensor,
        page_size: int,
    ) -> None:
        """`alloc_decode_kernel`, a program a request."""
        lengths = {"seq_lens_ptr": seq_lens}
        self._launch("alloc_decode_kernel", lengths, last_loc, free_pages, out, page_size)

    def _launch(
        self, name: str, lengths: dict[str, Any], last_loc: Any, free_pages: Any, out: Any, page_size: int
    ) -> None:
        kernel, bs = self._kernels[name], last_loc.numel()
        names = inspect.signature(kernel.fn).parameters
        values = lengths | {
            "last_loc_ptr": last_loc,
            "free_page_ptr": free_pages,
            "out_indices": out,
            "bs_upper": next_power_of_2(bs),
            "page_size": page_size,
            "max_num_extend_tokens": next_power_of_2(out.numel()),
        }
        if "ret_values" in names:  # older releases have their kernels sum up, too
            values["ret_values"] = torch.empty((), dtype=torch.int64, device=out.device)
        if bs:
            kernel[(bs,)](*(values[name] for name in names))
