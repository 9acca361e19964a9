"""What the caller writes to K and V, and whether it is still there when it gives the slots back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from impl.kvpool import KVPool
from oracle.world import CopyCall, FreeCall, Run, Slot, Step


class Contents:
    """What the caller wrote to K and V: one number a token and layer, in all heads and dimensions."""

    def __init__(self, kv: KVPool, window: KVPool | None) -> None:
        self._kv, self._window = kv, window
        self._stamp = 0
        self._written: dict[Slot, tuple[int, int | None]] = {}  # slot -> stamp, window slot
        self._copies: dict[str, list[int | None]] = {}

    def write(self, step: Step, slots: torch.Tensor, window: torch.Tensor | None) -> None:
        """Write new tokens of a step at the slots that it was given."""
        count = slots.numel()
        stamps = torch.arange(self._stamp + 1, self._stamp + 1 + count)
        where = window.tolist() if window is not None else [None] * count
        for uid, place, tokens in step.fresh:
            for k in range(tokens):
                self._written[uid, k] = self._stamp + 1 + place + k, where[place + k]
        for uid, offset, place, tokens in step.grown:
            for k in range(tokens):
                self._written[uid, offset + k] = self._stamp + 1 + place + k, where[place + k]
        self._stamp += count
        _fill(self._kv, slots, stamps)
        if self._window is not None and window is not None:
            # Where the mapping is wrong, the judge says so: nothing is written outside.
            inside = (window >= 0) & (window < self._window.size + self._window.page_size)
            _fill(self._window, window[inside], stamps[inside.cpu()])

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
        problem = _compare(self._kv, "", slots, [stamp for stamp, _ in entries])
        if problem or self._window is None:
            return problem
        kept = [
            entry for (uid, _), entry in zip(known, entries, strict=True) if uid not in call.gone and entry[1]
        ]
        return _compare(
            self._window, "the window's ", [w or 0 for _, w in kept], [stamp for stamp, _ in kept]
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


def _compare(pool: KVPool, whose: str, slots: list[int], wanted: list[int]) -> str:
    index = torch.tensor(slots, dtype=torch.int64, device=pool.k_buffer[0].device)
    for layer in range(pool.layers):
        k, v = pool.get_kv(layer, index)
        for name, tensor, sign in (("K", k, 1), ("V", v, -1)):
            stamps = torch.tensor(wanted, dtype=tensor.dtype, device=tensor.device).view(-1, 1, 1)
            right = sign * (stamps * pool.layers + layer)
            wrong = (tensor != right).flatten(1).any(1)
            if bool(wrong.any()):
                at = slots[int(wrong.nonzero()[0])]
                return f"{whose}{name} of layer {layer} at slot {at} is not what was written there"
    return ""


def _fill(pool: KVPool, slots: torch.Tensor, stamps: torch.Tensor) -> None:
    spread = stamps.to(pool.dtype).to(slots.device).view(-1, 1, 1).expand(-1, *pool.k_buffer[0].shape[1:])
    for layer in range(pool.layers):
        values = spread * pool.layers + layer
        pool.set_kv(layer, slots, values, -values)
