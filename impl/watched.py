"""Does an answer change after it was given? Nobody but the caller may write to it from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

_INDICES = frozenset((torch.int32, torch.int64))


class Watched(NamedTuple):
    """The answer to an operation: its tensor, what reads all of it, and what was read at first."""

    operation: int
    tensor: torch.Tensor
    read: Callable[[], object]
    content: object

    def now_in(self, tensor: torch.Tensor) -> Watched:
        """The same answer, in a copy of its tensor."""
        return self._replace(tensor=tensor, read=_reader(tensor))


def watch(operation: int, tensor: torch.Tensor) -> Watched:
    """From now on. The tensor stays referenced, so that its memory is not given to another one."""
    read = _reader(tensor)
    return Watched(operation, tensor, read, read())


def _reader(tensor: torch.Tensor) -> Callable[[], object]:
    """By way of NumPy where it can be: bytes are many times faster than lists."""
    return tensor.numpy().tobytes if tensor.is_cpu and tensor.dtype in _INDICES else tensor.tolist
