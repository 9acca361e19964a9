"""Whether an adapter is sound: the subject is made, every method that it claims is called once, and judged."""

from __future__ import annotations

from dataclasses import dataclass

from impl.subject import KV_SLOTS, Subject
from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import METHODS, Alloc, Case, Config, Extend, Grow, Operation, Part
from oracle.traits import Traits
from properties.judged import judged


@dataclass(frozen=True, slots=True)
class Look:
    """What one small case showed. state: `ok`, `not claimed`, or the violation in words."""

    method: str
    state: str
    sound: bool


def examine(subject: Subject) -> list[Look]:
    """Each method in a case of its own, on a pool of four pages."""
    size = subject.space.fixed.get("page_size", subject.space.page_sizes[-1])
    pages = subject.space.fixed.get("pages", 4)
    config = Config(
        subject.space.kind,
        pages,
        size,
        swa_pages=subject.space.fixed.get("swa_pages", pages) if subject.space.kind == "swa" else 0,
        need_sort=subject.space.fixed.get("need_sort", subject.space.need_sort[-1]),
        data=subject.space.data and pages * size <= KV_SLOTS,
    )
    traits = subject.traits(config)
    return [_look(subject, config, traits, method) for method in METHODS.values() if method != "cut"]


def _look(subject: Subject, config: Config, traits: Traits, method: str) -> Look:
    if method not in traits.operations:
        return Look(method, "not claimed", sound=True)
    case = Case(config, _small_case(config, traits, method))
    ledger = Ledger(config, traits)
    world = ledger.start()
    for operation in case.operations:
        step = ledger.step(world, operation)
        world = step.after
        if step.status == "skip" and METHODS[type(operation)] == method:
            return Look(method, "not possible on this pool", sound=True)
    violation = judged(subject, case, "contract").violation
    return Look(method, violation.summary if violation else "ok", sound=violation is None)


def _small_case(config: Config, traits: Traits, method: str) -> tuple[Operation, ...]:
    take: Operation = (
        Alloc("A", config.page_size)
        if "alloc" in traits.operations
        else Extend((Grow("A", config.page_size),))
    )
    free = ops.Free((Part("A"),))
    cases: dict[str, tuple[Operation, ...]] = {
        "alloc": (take, free),
        "alloc_extend": (Extend((Grow("A", config.page_size + 1),)),),
        "alloc_decode": (ops.Decode(("A",)), ops.Decode(("A", "B"))),
        "free": (take, free, take),
        "free_swa": (take, ops.FreeSwa((Part("A"),)), free),
        "free_group_begin": (take, ops.GroupBegin(), free),
        "free_group_end": (take, ops.GroupBegin(), free, ops.GroupEnd(), take),
        "merge_and_sort_free": (take, free, ops.Merge(), take),
        "backup_state": (take, ops.Backup("S"), free),
        "restore_state": (take, ops.Backup("S"), free, ops.Restore("S"), free),
        "clear": (take, ops.Clear(), take),
        "get_cpu_copy": (take, ops.CopyOut("A")),
        "load_cpu_copy": (take, ops.CopyOut("A"), free, take, ops.CopyIn("A")),
    }
    return cases[method]
