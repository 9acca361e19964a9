"""Which elements of a tensor did nothing write since it was made? `torch.empty` leaves open what they hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

_MARK = "_kvassay_fresh"


@dataclass(slots=True)
class Fresh:
    """What kernels wrote of a tensor that began unwritten: offsets into its storage.

    version: torch's count of writes when it was made; once torch itself has written, all of it counts as written.
    """

    version: int
    written: set[int] = field(default_factory=set)


def mark_fresh(tensor: torch.Tensor) -> torch.Tensor:
    """Zero a tensor, so that runs are alike, and take all of it for unwritten from here on."""
    tensor.zero_()
    setattr(tensor, _MARK, Fresh(tensor._version))
    return tensor


def fresh_of(tensor: torch.Tensor) -> tuple[Fresh | None, int]:
    """What is known of the tensor, or of the one that it is a view of, and how far inside it begins."""
    base = tensor._base
    found: Fresh | None = getattr(tensor, _MARK, None)
    if base is None:
        base = tensor
    elif found is None:
        found = getattr(base, _MARK, None)
    if found is None or tensor._version != found.version or tensor.dtype != base.dtype:
        return None, 0
    return found, tensor.storage_offset()


def unwritten(tensor: Any) -> list[int]:
    """Elements of a 1-D tensor that nothing has written."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 1:
        return []
    fresh, shift = fresh_of(tensor)
    if fresh is None:
        return []
    step = tensor.stride(0)
    return [at for at in range(tensor.numel()) if shift + at * step not in fresh.written]


class WatchedTorch:
    """`torch` for a module: what its `empty` and `empty_like` give begins as unwritten."""

    def empty(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """`torch.empty`, marked."""
        return _marked(torch.empty(*args, **kwargs))

    def empty_like(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """`torch.empty_like`, marked."""
        return _marked(torch.empty_like(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    return mark_fresh(tensor) if tensor.is_cpu and not tensor.is_floating_point() else tensor
