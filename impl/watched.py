"""Does an answer change after it was given? Nobody but the caller may write to it from then on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

_INDICES = frozenset((torch.int32, torch.int64))


class Watched(NamedTuple):
    """The answer to an operation: its tensor, how that is read (`readable`), and what it held at first."""

    operation: int
    tensor: torch.Tensor
    read: Any
    content: bytes | list[int]

    def changed(self) -> bool:
        """Whether it holds something else now."""
        return _content(self.read) != self.content

    def now_in(self, tensor: torch.Tensor) -> Watched:
        """The same answer, in a copy of its tensor."""
        return Watched(self.operation, tensor, readable(tensor), self.content)


def watch(operation: int, tensor: torch.Tensor) -> Watched:
    """From now on. The tensor stays referenced, so that its memory is not given to another one."""
    read = readable(tensor)
    return Watched(operation, tensor, read, _content(read))


def readable(tensor: torch.Tensor) -> Any:
    """The tensor, or the same memory as NumPy sees it: lists of that are made eight times as fast."""
    return tensor.numpy() if tensor.is_cpu and tensor.dtype in _INDICES else tensor


def _content(read: Any) -> bytes | list[int]:
    """All that is there, to be compared later: NumPy makes bytes faster than lists."""
    content: bytes | list[int] = read.tobytes() if isinstance(read, np.ndarray) else read.tolist()
    return content
