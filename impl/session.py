"""One run of one allocator: symbolic steps go in as tensors, plain observations come out.

The session plays the caller. It keeps the numbers of the pages that it was given, overwrites tensors that it
gave or was given (a caller may reuse its buffers), watches those that it leaves alone, and writes K and V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from impl.contents import Contents
from impl.fence import Fence
from impl.kvpool import KVPool
from oracle.ops import METHODS, Config
from oracle.traits import Traits
from oracle.verdict import Observation
from oracle.world import AllocCall, BatchCall, Call, CopyCall, FreeCall, Run, Slot, StateCall, Step

Lists = tuple[tuple[int, ...], ...]

# Larger pools are read in full at every LOOK_EVERY-th operation only: reading costs more than the operation.
SMALL_POOL = 64
LOOK_EVERY = 16
WATCHED = 4
IDLE = Observation("done")


@dataclass(slots=True)
class Bench:
    """An allocator ready to be driven.

    form: `mirrored` (lengths on the device and on the CPU) or `device` (the older call form).
    lists: reads free and release list (SWA: of both pools), or None where the allocator hides them.
    kv, kv_window: K and V behind full and window slots, or None. fence: a guard page behind free lists.
    """

    allocator: Any
    form: str = "mirrored"
    lists: Callable[[Any], Lists] | None = None
    kv: KVPool | None = None
    kv_window: KVPool | None = None
    fence: Fence | None = None


class Session:
    """Drives one allocator through the steps of a plan, in order."""

    def __init__(self, config: Config, traits: Traits, bench: Bench, device: str = "cpu") -> None:
        self.config, self.traits, self.device = config, traits, device
        self.bench, self.allocator = bench, bench.allocator
        self.index = 0
        self._first: dict[int, int] = {}  # uid -> its first slot
        self._watched: list[tuple[int, torch.Tensor, list[int]]] = []
        self._snapshots: dict[str, Any] = {}
        self._kv = Contents(bench.kv, bench.kv_window) if config.data and bench.kv is not None else None

    def parts(self, answers: bool) -> list[Any]:
        """The allocator, the snapshots that it gave and, if wanted, the answers that are watched."""
        return [
            self.allocator,
            self._snapshots,
            [tensor for _, tensor, _ in self._watched] if answers else [],
        ]

    def copy(self, parts: list[Any]) -> Session:
        """This session, to go on by itself with copies of its parts. Without K and V alone."""
        if self._kv is not None:
            raise ValueError("a session with K and V can't be copied")
        other: Session = object.__new__(Session)
        other.__dict__.update(self.__dict__)
        other.allocator, other._snapshots, answers = parts
        other.bench, other._first = replace(self.bench, allocator=other.allocator), dict(self._first)
        other._watched = [(w[0], tensor, w[2]) for w, tensor in zip(self._watched, answers, strict=False)]
        return other

    @property
    def last_answer(self) -> torch.Tensor | None:
        """The tensor that the last operation answered with, if it did."""
        return self._watched[-1][1] if self._watched and self._watched[-1][0] == self.index else None

    def begin(self) -> Observation:
        """What a new allocator shows."""
        return self._look(IDLE, full=True)

    def apply(self, step: Step) -> Observation:
        """Ask the allocator for one step; never raises what the allocator raised."""
        self.index += 1
        if step.status == "skip" or step.call is None:
            return IDLE
        damaged = ""
        if (
            self._kv is not None
            and isinstance(step.call, FreeCall)
            and step.status == "legal"
            and not step.call.swa
        ):
            damaged = self._kv.check(step.call, self.slots)
        taken: list[torch.Tensor] = []
        try:
            answer = self._ask(step.call, taken)
        except Exception as error:
            # Whatever an allocator raises is an answer, for the judge to weigh.
            first = str(error).strip().splitlines() or [""]
            seen = Observation("raised", error=f"{type(error).__name__}: {first[0][:200]}")
        else:
            seen = self._read(step, answer)
        self._overwrite(taken)
        disturbed = self._disturbed()
        small = self.config.pages <= SMALL_POOL
        seen = self._look(seen, full=small or step.probe or self.index % LOOK_EVERY == 0)
        if isinstance(step.call, BatchCall) and not step.call.flaw and seen.outcome == "slots":
            seen = self._forecast(step.call, seen)
        return seen._replace(disturbed=disturbed, damaged=damaged) if disturbed or damaged else seen

    # -- asking ----------------------------------------------------------------------------------------

    def slot(self, slot: Slot) -> int:
        """The number of a symbolic slot."""
        uid, offset = slot
        return self._first[uid] + offset if uid else offset

    def slots(self, runs: Iterable[Run]) -> list[int]:
        """The numbers of runs of symbolic slots."""
        return [n for uid, low, high in runs for n in range(self._first[uid] + low, self._first[uid] + high)]

    def _tensor(
        self, values: Iterable[int], taken: list[torch.Tensor], dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        made = self._mirror(values, taken, dtype)
        if self.device != "cpu":
            taken[-1] = made = made.to(self.device)
        return made

    def _mirror(
        self, values: Iterable[int], taken: list[torch.Tensor], dtype: torch.dtype = torch.int64
    ) -> torch.Tensor:
        # By way of NumPy: several times faster than torch.tensor for short lists.
        made = torch.from_numpy(np.array(list(values), dtype=np.int64))
        if dtype is not torch.int64:
            made = made.to(dtype)
        taken.append(made)
        return made

    def _ask(self, call: Call, taken: list[torch.Tensor]) -> Any:
        allocator = self.allocator
        if isinstance(call, AllocCall):
            return allocator.alloc(call.size)
        if isinstance(call, BatchCall):
            return self._ask_batch(call, taken)
        if isinstance(call, FreeCall):
            index = self._flawed(call, taken) if call.flaw else self._tensor(self.slots(call.runs), taken)
            if call.swa:
                return allocator.free_swa(index)
            return (
                self._free_full(call, taken) if call.gone and self.traits.free_full else allocator.free(index)
            )
        if isinstance(call, CopyCall):
            index = self._tensor(self.slots(call.runs), taken)
            contents = self._kv
            if call.load:
                allocator.load_cpu_copy(self._snapshots["copy of " + call.name], index)
                if contents is not None:
                    contents.loaded(call)
            else:
                self._snapshots["copy of " + call.name] = allocator.get_cpu_copy(index)
                if contents is not None:
                    contents.copied(call)
            return None
        return self._ask_state(call)

    def _free_full(self, call: FreeCall, taken: list[torch.Tensor]) -> None:
        """A free for an allocator that wants `free_full` where the window half is gone."""
        whole = [run for run in call.runs if run[0] not in call.gone]
        if whole:
            self.allocator.free(self._tensor(self.slots(whole), taken))
        self.allocator.free_full(
            self._tensor(self.slots(run for run in call.runs if run[0] in call.gone), taken)
        )

    def _ask_state(self, call: StateCall) -> Any:
        if call.method == "backup_state":
            self._snapshots[call.name] = self.allocator.backup_state()
            return None
        if self._kv is not None and call.method in ("restore_state", "clear"):
            self._kv.forget()
        if call.method == "restore_state":
            return self.allocator.restore_state(self._snapshots[call.name])
        return getattr(self.allocator, call.method)()

    def _flawed(self, call: FreeCall, taken: list[torch.Tensor]) -> torch.Tensor:
        size = self.config.page_size
        match call.flaw:
            case "padding":
                return self._tensor(range(size), taken)
            case "foreign":
                first = (self.config.pages + 1) * size
                return self._tensor(range(first, first + size), taken)
            case "negative":
                return self._tensor(range(-size, 0), taken)
            case "dtype":
                return self._tensor(self.slots(call.runs), taken, torch.float32)
        return self._tensor(self.slots(call.runs), taken)

    def _ask_batch(self, call: BatchCall, taken: list[torch.Tensor]) -> Any:
        prefix, seq, total = list(call.prefix), list(call.seq), call.total
        last = [self.slot(slot) for slot in call.last]
        dtype = torch.int64
        first = next((i for i, (p, s) in enumerate(zip(prefix, seq, strict=True)) if s > p), 0)
        match call.flaw:
            case "total":
                total += 1
            case "lengths":
                seq.pop()
            case "shrinks":
                total -= seq[first] - prefix[first] + 1
                seq[first] = prefix[first] - 1
            case "last_loc":
                last[first] += 1
            case "dtype":
                dtype = torch.float32
        bench, allocator = self.bench, self.allocator
        if bench.fence is not None:
            bench.fence.surround(allocator)
        seq_device, last_device = self._tensor(seq, taken, dtype), self._tensor(last, taken)
        if call.decode:
            if bench.form == "device":
                return allocator.alloc_decode(seq_device, last_device)
            return allocator.alloc_decode(seq_device, self._mirror(seq, taken, dtype), last_device)
        prefix_device = self._tensor(prefix, taken)
        if bench.form == "device":
            return allocator.alloc_extend(prefix_device, seq_device, last_device, total)
        mirrors = self._mirror(prefix, taken), self._mirror(seq, taken, dtype)
        return allocator.alloc_extend(prefix_device, mirrors[0], seq_device, mirrors[1], last_device, total)

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, step: Step, answer: Any) -> Observation:
        if not isinstance(step.call, AllocCall | BatchCall):
            return IDLE
        if answer is None:
            return Observation("none")
        if not isinstance(answer, torch.Tensor):
            return Observation("odd", error=f"a {type(answer).__name__} instead of a tensor")
        slots = tuple(answer.reshape(-1).tolist())
        seen = Observation("slots", slots, tensor=self._departs(METHODS[type(step.operation)], answer))
        for uid, place, _ in step.fresh:
            if place < len(slots):
                self._first[uid] = slots[place]
        if self._kv is not None and step.status == "legal" and step.fits and len(slots) == step.tokens:
            self._kv.write(step, answer, self._window_of(answer))
        if self.config.overwrite and self.index % 2:
            answer.zero_()
        self._watched = [*self._watched[-WATCHED + 1 :], (self.index, answer, answer.reshape(-1).tolist())]
        return seen

    def _departs(self, method: str, answer: torch.Tensor) -> str:
        promised = self.traits.dtype_of(method)
        if answer.dtype != getattr(torch, promised):
            return f"is {str(answer.dtype).removeprefix('torch.')}, and {promised} is promised"
        if answer.dim() != 1:
            return f"has shape {tuple(answer.shape)}, and one dimension is promised"
        if answer.device.type != torch.device(self.device).type:
            return f"is on {answer.device}, and the pool on {self.device}"
        return "" if answer.is_contiguous() else "is not contiguous"

    def _overwrite(self, taken: list[torch.Tensor]) -> None:
        if self.config.overwrite:
            for tensor in taken:
                tensor.zero_()

    def _disturbed(self) -> str:
        for index, tensor, values in self._watched:
            if tensor.reshape(-1).tolist() != values:
                return f"the tensor that operation {index} was given changed afterwards"
        return ""

    def _look(self, seen: Observation, full: bool) -> Observation:
        allocator, swa = self.allocator, self.config.kind == "swa"
        available = whole = window = lists = mapping = None
        try:
            if "available_size" in self.traits.operations:
                available = int(allocator.available_size())
            if swa:
                whole, window = int(allocator.full_available_size()), int(allocator.swa_available_size())
            if full and self.bench.lists is not None:
                lists = self.bench.lists(allocator)
            if full and swa:
                every = torch.arange((self.config.pages + 1) * self.config.page_size, device=self.device)
                mapping = tuple(allocator.translate_loc_from_full_to_swa(every).tolist())
        except Exception as error:
            words = f"{type(error).__name__}: {error} (asked for its state)"
            return seen._replace(outcome="raised", error=words)
        return seen._replace(available=available, full=whole, window=window, lists=lists, mapping=mapping)

    def _forecast(self, call: BatchCall, seen: Observation) -> Observation:
        if "estimated_num_new_pages" not in self.traits.operations:
            return seen
        try:
            return seen._replace(
                forecast=int(self.allocator.estimated_num_new_pages(len(call.seq), call.total))
            )
        except Exception as error:
            return seen._replace(
                outcome="raised", error=f"{type(error).__name__}: {error} (asked for a forecast)"
            )

    # -- K and V ---------------------------------------------------------------------------------------

    def _window_of(self, answer: torch.Tensor) -> torch.Tensor | None:
        if self.bench.kv_window is None:
            return None
        window: torch.Tensor = self.allocator.translate_loc_from_full_to_swa(answer)
        return window
