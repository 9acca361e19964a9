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

from impl.constructor import Build, attributes_of, misbuilt
from impl.contents import Contents
from impl.emulator.launch import Emulator
from impl.fence import Fence
from impl.kvpool import KVPool
from impl.spoilt import spoil, spoilt
from impl.watched import Watched, watch
from oracle.flawed import first_that_grows, new_pages, told
from oracle.ops import METHODS, Config, Restore
from oracle.traits import Traits
from oracle.verdict import Observation
from oracle.world import AllocCall, BatchCall, Call, CopyCall, FreeCall, Run, Slot, StateCall, Step

Lists = tuple[tuple[int, ...], ...]

# Larger pools are read in full after a restore, and else at every LOOK_EVERY-th operation only: reading costs more
# than the operation.
SMALL_POOL = 64
LOOK_EVERY = 16
# Allocators may put off what a free has to find out until somebody asks. In pools of so many pages nobody asks
# after a free or a decode, so that what comes next is answered in between; in smaller ones a fault is found where
# it is.
UNASKED_POOL = 20
WATCHED = 4
IDLE = Observation("done")


@dataclass(slots=True)
class Bench:
    """An allocator ready to be driven.

    form: `mirrored` (lengths on the device and on the CPU) or `device` (the older call form).
    lists: reads free and release list (SWA: of both pools), or None where the allocator hides them.
    kv, kv_window: K and V behind full and window slots, or None. fence: a guard page behind free lists.
    emulator: runs the allocator's kernels, and knows what they did wrong.
    counts_pages: its extend can be told the number of new pages.
    build: its constructor, for pools that nobody will use.
    """

    allocator: Any
    form: str = "mirrored"
    lists: Callable[[Any], Lists] | None = None
    kv: KVPool | None = None
    kv_window: KVPool | None = None
    fence: Fence | None = None
    emulator: Emulator | None = None
    counts_pages: bool = False
    build: Build | None = None


class Session:
    """Drives one allocator through the steps of a plan, in order."""

    def __init__(self, config: Config, traits: Traits, bench: Bench, device: str = "cpu") -> None:
        self.config, self.traits, self.device = config, traits, device
        self._device_type = torch.device(device).type
        self.bench, self.allocator = bench, bench.allocator
        self.index = 0
        self._first: dict[int, int] = {0: 0}  # uid -> its first slot
        self._watched: list[Watched] = []
        self._snapshots: dict[str, Any] = {}
        self._kv = Contents(bench.kv, bench.kv_window) if config.data and bench.kv is not None else None

    def parts(self, answers: bool, snapshots: bool = True) -> list[Any]:
        """The allocator and, if wanted, the snapshots that it gave and the answers that are watched."""
        return [
            self.allocator,
            self._snapshots if snapshots else {},
            [watched.tensor for watched in self._watched] if answers else [],
        ]

    def copy(self, parts: list[Any]) -> Session:
        """This session, to go on by itself with copies of its parts. Without K and V alone."""
        if self._kv is not None:
            raise ValueError("a session with K and V can't be copied")
        other: Session = object.__new__(Session)
        other.__dict__.update(self.__dict__)
        other.allocator, other._snapshots, answers = parts
        other.bench, other._first = replace(self.bench, allocator=other.allocator), dict(self._first)
        other._watched = [
            watched.now_in(tensor) for watched, tensor in zip(self._watched, answers, strict=False)
        ]
        return other

    def number_pages(self) -> None:
        """From now on a uid is the number of a page: for steps that say which page they mean (`impl.answers`)."""
        size = self.config.page_size
        self._first = {page: page * size for page in range(self.config.pages + 1)}

    def forget(self) -> None:
        """Drop all snapshots: none of them will be restored."""
        self._snapshots = {}

    @property
    def last_answer(self) -> torch.Tensor | None:
        """The tensor that the last operation answered with, if it did."""
        last = self._watched[-1] if self._watched else None
        return last.tensor if last is not None and last.operation == self.index else None

    def begin(self) -> Observation:
        """What a new allocator shows."""
        seen = self._look(IDLE, full=True)
        wrong = attributes_of(self.allocator, self.config, self.traits.attributes, self.device)
        build = self.bench.build
        built = misbuilt(build, self.config, self.traits) if build is not None else ""
        return seen._replace(tensor=wrong, misbuilt=built) if wrong or built else seen

    def apply(self, step: Step, following: Step | None = None) -> Observation:
        """Ask the allocator for one step; never raises what the allocator raised.

        following: the step behind it, where it is known.
        """
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
            guard = self._guard()
        else:
            guard = self._guard(answer)  # before the answer is overwritten
            seen = self._read(step, answer)
        self._overwrite(taken)
        disturbed = self._disturbed()
        if self._unasked(step, following):
            wrong = disturbed or damaged or guard
            return seen._replace(disturbed=disturbed, damaged=damaged, guard=guard) if wrong else seen
        close = self.config.pages <= SMALL_POOL or step.probe or isinstance(step.operation, Restore)
        return self._look(
            seen,
            full=close or self.index % LOOK_EVERY == 0,
            disturbed=disturbed,
            damaged=damaged,
            guard=guard,
            batch=step.call if isinstance(step.call, BatchCall) and not step.call.flaw else None,
        )

    def _unasked(self, step: Step, following: Step | None) -> bool:
        """Whether the state behind a step is left for the next one to show: misuse would be blamed for it."""
        if following is None or following.status != "legal":
            return False
        call = step.call
        often = isinstance(call, FreeCall) or (isinstance(call, BatchCall) and call.decode)
        return often and step.fits and step.status == "legal" and self.config.pages >= UNASKED_POOL

    def _guard(self, answer: Any = None) -> str:
        return self.bench.emulator.take(answer) if self.bench.emulator is not None else ""

    # -- asking ----------------------------------------------------------------------------------------

    def slot(self, slot: Slot) -> int:
        """The number of a symbolic slot."""
        uid, offset = slot
        return self._first[uid] + offset

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
            return allocator.alloc(float(call.size) if call.flaw else call.size)
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
        if call.flaw:
            return self.allocator.restore_state(object())
        if call.method == "restore_state":
            return self.allocator.restore_state(self._snapshots[call.name])
        return getattr(self.allocator, call.method)()

    def _flawed(self, call: FreeCall, taken: list[torch.Tensor]) -> Any:
        size = self.config.page_size
        match call.flaw:
            case "padding":
                return self._tensor(range(size), taken)
            case "foreign":
                first = (self.config.pages + 1) * size
                return self._tensor(range(first, first + size), taken)
            case "negative":
                return self._tensor(range(-size, 0), taken)
            case "dtype" | "shape" | "tensor" | "device":
                return spoilt(self._tensor(self.slots(call.runs), taken), call.flaw)
        return self._tensor(self.slots(call.runs), taken)

    def _ask_batch(self, call: BatchCall, taken: list[torch.Tensor]) -> Any:
        prefix, seq, total = told(call)
        last = [self.slot(slot) for slot in call.last]
        if call.flaw == "last_loc":
            last[first_that_grows(call)] += 1
        bench, allocator = self.bench, self.allocator
        if bench.fence is not None:
            bench.fence.surround(allocator)
        mirrored = bench.form == "mirrored"
        given: dict[str, Any] = {}
        if not call.decode:
            given["prefix_lens"] = self._tensor(prefix, taken)
            if mirrored:
                given["prefix_lens_cpu"] = self._mirror(prefix, taken)
        given["seq_lens"] = self._tensor(seq, taken)
        if mirrored:
            given["seq_lens_cpu"] = self._mirror(seq, taken)
        given["last_loc"] = self._tensor(last, taken)
        if call.flaw:
            spoil(given, call.flaw, first_that_grows(call))
        arguments = given.values()
        if call.decode:
            return allocator.alloc_decode(*arguments)
        if call.flaw == "new pages" or (bench.counts_pages and not call.flaw and self.index % 3 == 0):
            pages = new_pages(call, self.config.page_size)
            return allocator.alloc_extend(*arguments, total, num_new_pages=pages)
        return allocator.alloc_extend(*arguments, total)

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, step: Step, answer: Any) -> Observation:
        if not isinstance(step.call, AllocCall | BatchCall):
            return IDLE
        if answer is None:
            return Observation("none")
        if not isinstance(answer, torch.Tensor):
            return Observation("odd", error=f"a {type(answer).__name__} instead of a tensor")
        if answer.is_meta:
            return Observation("odd", error="a tensor that holds nothing, on the meta device")
        flat = answer.reshape(-1) if answer.dim() != 1 else answer
        slots = tuple(flat.tolist())
        seen = Observation("slots", slots, tensor=self._departs(METHODS[type(step.operation)], answer))
        for uid, place, _ in step.fresh:
            if place < len(slots):
                self._first[uid] = slots[place]
        if (
            self._kv is not None
            and step.status == "legal"
            and step.fits
            and self._writable(step, answer, slots)
        ):
            self._kv.write(step, answer, self._window_of(answer))
        if self.config.overwrite and self.index % 2:
            answer.zero_()
        self._watched = [*self._watched[-WATCHED + 1 :], watch(self.index, flat)]
        return seen

    def _departs(self, method: str, answer: torch.Tensor) -> str:
        promised = self.traits.dtype_of(method)
        if answer.dtype != getattr(torch, promised):
            return f"is {str(answer.dtype).removeprefix('torch.')}, and {promised} is promised"
        if answer.dim() != 1:
            return f"has shape {tuple(answer.shape)}, and one dimension is promised"
        if answer.device.type != self._device_type:
            return f"is on {answer.device}, and the pool on {self.device}"
        return "" if answer.is_contiguous() else "is not contiguous"

    def _overwrite(self, taken: list[torch.Tensor]) -> None:
        if self.config.overwrite:
            for tensor in taken:
                tensor.zero_()

    def _disturbed(self) -> str:
        for operation, _, read, content in self._watched:
            if read() != content:
                return f"the tensor that operation {operation} was given changed afterwards"
        return ""

    def _look(
        self,
        seen: Observation,
        full: bool,
        disturbed: str = "",
        damaged: str = "",
        guard: str = "",
        batch: BatchCall | None = None,
    ) -> Observation:
        """What was answered, with what can be read from outside: with `full` the lists and the mapping too."""
        allocator, swa, have = self.allocator, self.config.kind == "swa", self.traits.operations
        available = whole = window = lists = mapping = forecast = None
        mismapped = ""
        outcome, error = seen.outcome, seen.error
        try:
            if "available_size" in have:
                available = int(allocator.available_size())
            if swa:
                whole, window = int(allocator.full_available_size()), int(allocator.swa_available_size())
            if full and self.bench.lists is not None:
                lists = self.bench.lists(allocator)
            if full and swa:
                mapping, mismapped = self._mapping()
            if batch is not None and outcome == "slots" and "estimated_num_new_pages" in have:
                forecast = int(allocator.estimated_num_new_pages(len(batch.seq), batch.total))
        except Exception as raised:
            outcome, error = "raised", f"{type(raised).__name__}: {raised} (asked for its state)"
        # By position: an observation is made for every operation, and `_replace` takes six times as long.
        return Observation(
            outcome, seen.slots, error, seen.tensor, available, whole, window, lists, mapping,
            disturbed, damaged, guard, forecast, mismapped,
        )  # fmt: skip

    def _mapping(self) -> tuple[tuple[int, ...], str]:
        """The SWA slot of every full slot, and in what the answer differs from what is claimed of it."""
        promised = self.traits.translates
        every = torch.arange(
            -1 if promised else 0, (self.config.pages + 1) * self.config.page_size, device=self.device
        )
        translated = self.allocator.translate_loc_from_full_to_swa(every)
        mapping = translated.tolist()
        nowhere = mapping.pop(0) if promised else -1
        wrong = ""
        if nowhere != -1:
            wrong = f"-1, which stands for no slot, maps to {nowhere}"
        elif promised and translated.dtype != getattr(torch, promised):
            wrong = f"translated slots are {translated.dtype}, and {promised} is promised"
        elif "full_to_swa_index_mapping" in self.traits.attributes and not self._cache_knows_mapping():
            wrong = "the KV cache has another mapping than the allocator"
        return tuple(mapping), wrong

    def _cache_knows_mapping(self) -> bool:
        """Whether the KV cache has the allocator's mapping, or a proxy of it."""
        cache, own = self.allocator.get_kvcache(), self.allocator.full_to_swa_index_mapping
        known = None if cache is None else cache.full_to_swa_index_mapping
        return cache is None or (known is not None and known.data_ptr() == own.data_ptr())

    # -- K and V ---------------------------------------------------------------------------------------

    def _writable(self, step: Step, answer: torch.Tensor, slots: tuple[int, ...]) -> bool:
        """Whether a caller could write where an answer says. What can't be written is the judge's to name."""
        size = self.config.page_size
        low, high = size, (self.config.pages + 1) * size
        inside = not slots or (low <= min(slots) and max(slots) < high)
        return inside and answer.dim() == 1 and len(slots) == step.tokens

    def _window_of(self, answer: torch.Tensor) -> torch.Tensor | None:
        if self.bench.kv_window is None:
            return None
        window: torch.Tensor = self.allocator.translate_loc_from_full_to_swa(answer)
        return window
