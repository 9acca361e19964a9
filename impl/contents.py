"""What the caller writes to K and V, and whether it is still there when it gives the slots back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np
import torch

from impl.kvpool import KVPool
from oracle.world import CopyCall, FreeCall, Run, Slot, Step

FEW = 1 << 10  # stamps that a table has at least


class Contents:
    """What the caller wrote to K and V: one number a token and layer, in all heads and dimensions."""

    def __init__(self, kv: KVPool, window: KVPool | None) -> None:
        self._kv, self._window = kv, window
        self._numbers = _Numbers(kv)
        self._window_numbers = _Numbers(window) if window is not None else None
        self._stamp = 0
        self._written: dict[Slot, tuple[int, int | None]] = {}  # slot -> stamp, window slot
        self._copies: dict[str, list[int | None]] = {}

    def write(self, step: Step, slots: torch.Tensor, window: torch.Tensor | None) -> None:
        """Write new tokens of a step at the slots that it was given."""
        count, first = slots.numel(), self._stamp + 1
        where = window.tolist() if window is not None else [None] * count
        for uid, place, tokens in step.fresh:
            for k in range(tokens):
                self._written[uid, k] = first + place + k, where[place + k]
        for uid, offset, place, tokens in step.grown:
            for k in range(tokens):
                self._written[uid, offset + k] = first + place + k, where[place + k]
        self._stamp += count
        self._numbers.write(slots, self._numbers.of(first, count))
        if self._window is not None and self._window_numbers is not None and window is not None:
            # Where the mapping is wrong, the judge says so: nothing is written outside.
            inside = (window >= 0) & (window < self._window.size + self._window.page_size)
            self._window_numbers.write(window[inside], self._window_numbers.of(first, count)[:, :, inside])

    def check(self, call: FreeCall, numbers: Callable[[Iterable[Run]], list[int]]) -> str:
        """Compare what lies at the slots that a free gives up with what was written there, for the last time.

        The window's half is compared where it was not given up before.
        """
        named = ((uid, k) for uid, low, high in call.runs for k in range(low, high))
        known = [slot for slot in named if slot in self._written]
        if not known:
            return ""
        entries = [self._written.pop(slot) for slot in known]
        slots = numbers((uid, k, k + 1) for uid, k in known)
        problem = self._numbers.compare("", slots, [stamp for stamp, _ in entries])
        if problem or self._window_numbers is None:
            return problem
        kept = [
            entry for (uid, _), entry in zip(known, entries, strict=True) if uid not in call.gone and entry[1]
        ]
        return self._window_numbers.compare(
            "the window's ", [w or 0 for _, w in kept], [stamp for stamp, _ in kept]
        )

    def copied(self, call: CopyCall) -> None:
        """Remember what a CPU copy holds."""
        self._copies[call.name] = [
            self._stamp_at(uid, k) for uid, low, high in call.runs for k in range(low, high)
        ]

    def loaded(self, call: CopyCall) -> None:
        """A copy was loaded: its numbers are now at these slots."""
        slots = [(uid, k) for uid, low, high in call.runs for k in range(low, high)]
        for slot, stamp in zip(slots, self._copies[call.name], strict=True):
            if stamp is None:
                self._written.pop(slot, None)
            else:
                self._written[slot] = stamp, None

    def forget(self) -> None:
        """After restore and clear, what slots hold is unspecified."""
        self._written.clear()

    def _stamp_at(self, uid: int, offset: int) -> int | None:
        entry = self._written.get((uid, offset))
        return entry[0] if entry else None


class _Numbers:
    """What stands for a stamp at a slot of a pool: stamp * layers + layer in K of a layer, the same below zero in V."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._table = self._upto(FEW - 1)

    def _upto(self, stamp: int) -> torch.Tensor:
        """Those of all stamps to this one, and of some more, as K and V have them: tables are made once."""
        pool = self._pool
        return _table(pool.layers, pool.buffers.shape[3:], pool.dtype, str(pool.device), stamp.bit_length())

    def of(self, first: int, count: int) -> torch.Tensor:
        """Those of so many stamps from the first on."""
        if first + count > self._table.shape[2]:
            self._table = self._upto(first + count)
        return self._table[:, :, first : first + count]

    def write(self, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Write new tokens, in all layers, heads and dimensions."""
        self._pool.buffers.index_copy_(2, slots.long(), numbers)

    def compare(self, whose: str, slots: list[int], stamps: list[int]) -> str:
        """What lies at some slots and is not what was written there, as a sentence; empty if all is right."""
        device = self._pool.buffers.device
        index, wanted = (
            torch.from_numpy(np.array(part, dtype=np.int64)).to(device) for part in (slots, stamps)
        )
        found, right = self._pool.buffers.index_select(2, index), self._table.index_select(2, wanted)
        if torch.equal(found, right):
            return ""
        layer, kind, at = (found != right).flatten(3).any(3).transpose(0, 1).nonzero()[0].tolist()
        return f"{whose}{'KV'[kind]} of layer {layer} at slot {slots[at]} is not what was written there"


@functools.cache
def _table(layers: int, row: torch.Size, dtype: torch.dtype, device: str, bits: int) -> torch.Tensor:
    """The numbers of the first 2 ** bits stamps, for K and V of each layer: [2, layers, stamps, heads, head_dim]."""
    signs = torch.tensor([[[1]], [[-1]]], dtype=dtype, device=device)
    layer, stamp = torch.arange(layers, device=device), torch.arange(1 << bits, device=device)
    numbers = signs * (stamp * layers + layer[:, None]).to(dtype)
    return numbers[..., None, None].expand(-1, -1, -1, *row).contiguous()
