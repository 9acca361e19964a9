"""Index engines as subjects of the kernel tier: one batch in, plain numbers out, with zones around every argument.

A read past an argument's end meets a sentinel, which shows in the answer; a write spoils a zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from impl.defects.patches import Patch
from impl.emulator.launch import Emulator
from impl.errors import SubjectError
from impl.names import DEFECT, imported, known_defect
from impl.paged import IndexEngine
from oracle.batch import SENTINEL, ZONE, Batch
from oracle.verdict import Observation

INTERPRETED_SHARE = 0.1  # Triton's interpreter takes milliseconds an operation
DTYPES = {"int32": torch.int32, "int64": torch.int64}
OWN_ENGINES = {
    "torch": "torch operators",
    "triton": "our Triton kernels; on a CPU in Triton's interpreter",
    "emulator": "our Triton kernels on the emulator, which sees what they must not do; on a CPU only",
}


class EngineSubject(Protocol):
    """An index engine that answers batches."""

    name: str
    about: str
    share: float

    def run_batch(self, batch: Batch, dtype: str) -> Observation:
        """The slots, what was raised, how the process died, or (in `guard`) what was written outside."""

    def close(self) -> None:
        """Give back what the subject holds (processes)."""


@dataclass(slots=True)
class LocalEngine:
    """An engine in this process. emulator: what runs its kernels, if it is emulated."""

    name: str
    about: str
    engine: IndexEngine
    device: str = "cpu"
    share: float = 1.0
    emulator: Emulator | None = None

    def run_batch(self, batch: Batch, dtype: str) -> Observation:
        """Run one batch between guard zones."""
        index = DTYPES[dtype]
        arguments = {
            "prefix_lens": _Guarded(batch.prefix, torch.int64, self.device),
            "seq_lens": _Guarded(batch.seq, torch.int64, self.device),
            "last_loc": _Guarded(batch.last, torch.int64, self.device),
            "free_pages": _Guarded(batch.free, index, self.device),
            "out": _Guarded((SENTINEL,) * batch.total, index, self.device),
        }
        prefix, seq, last, free, out = (argument.inner for argument in arguments.values())
        try:
            if batch.decode:
                self.engine.decode(seq, last, free, out, batch.page_size)
            else:
                self.engine.extend(prefix, seq, last, free, out, batch.page_size)
        except Exception as error:
            # Whatever an engine raises is an answer, for the judge to weigh.
            return Observation("raised", error=f"{type(error).__name__}: {error}")
        if self.emulator is not None and (found := self.emulator.take(out)):
            return Observation("slots", tuple(out.tolist()), guard=found)
        for name, argument in arguments.items():
            where = argument.spoilt(inner=name != "out")
            if where:
                return Observation("slots", guard=f"it wrote {where} of {name}")
        return Observation("slots", tuple(out.tolist()))

    def close(self) -> None:
        """Nothing is held."""


class _Guarded:
    """A tensor between two zones that are filled with a sentinel."""

    def __init__(self, values: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
        filled = torch.full((2 * ZONE + len(values),), SENTINEL, dtype=dtype)
        filled[ZONE : ZONE + len(values)] = torch.tensor(values, dtype=dtype)
        self._whole = filled.to(device)
        self._before = self._whole.clone()
        self._count = len(values)
        self.inner = self._whole[ZONE : ZONE + len(values)]

    def spoilt(self, inner: bool) -> str:
        """Where it was written, in words: outside, or (where it is an input) inside."""
        if not inner:
            self._before[ZONE : ZONE + self._count] = self.inner
        if torch.equal(self._whole, self._before):
            return ""
        at = int((self._whole != self._before).nonzero()[0]) - ZONE
        if 0 <= at < self._count:
            return f"into the input at {at}"
        return (
            f"{-at} element(s) before the start"
            if at < 0
            else f"{at - self._count} element(s) behind the end"
        )


def on_cpu(device: str) -> str:
    """The device, for an emulated engine. SubjectError where it is not the CPU."""
    if device != "cpu":
        raise SubjectError(
            f"the emulator runs on the CPU: leave out --device {device}, or choose another engine"
        )
    return device


def local_engine(name: str, device: str = "cpu") -> LocalEngine:
    """An engine by name: `torch`, `triton`, `emulator`, or `package.module:engine`, in this process."""
    match name:
        case "torch":
            from impl.torch_engine import TorchEngine

            return LocalEngine(name, "kvassay's own torch engine", TorchEngine(), device)
        case "triton":
            from impl.triton_engine import TritonEngine  # Triton is an extra

            where = "run by Triton's interpreter" if device == "cpu" else f"compiled for {device}"
            share = INTERPRETED_SHARE if device == "cpu" else 1.0
            return LocalEngine(name, f"kvassay's own Triton kernels, {where}", TritonEngine(), device, share)
        case "emulator":
            from impl.emulator.engine import EmulatedEngine

            emulator = Emulator()
            about = "kvassay's own Triton kernels, on the emulator"
            return LocalEngine(name, about, EmulatedEngine(emulator), on_cpu(device), emulator=emulator)
    if name.startswith(DEFECT):
        defect = known_defect(name)
        if not isinstance(defect.fault, Patch):
            raise SubjectError(f"{name} is no engine's fault: leave --tier kernel out")
        engine = defect.fault.engine()
        return LocalEngine(name, defect.about, engine, device, emulator=getattr(engine, "emulator", None))
    if ":" not in name:
        raise SubjectError(
            f"no engine is called {name!r}; there are {', '.join(OWN_ENGINES)}, defect:ID and package.module:engine"
        )
    engine = imported(name)
    engine = engine() if isinstance(engine, type) else engine
    missing = [method for method in ("extend", "decode") if not callable(getattr(engine, method, None))]
    if missing:
        raise SubjectError(
            f"{name} has no {' and no '.join(missing)}: see impl.paged.IndexEngine for what an engine has"
        )
    about = (getattr(engine, "__doc__", None) or f"the engine {name}").strip().splitlines()[0]
    return LocalEngine(name, about, engine, device)
