from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from oracle.codes import CODES, LEVELS
from oracle.judge import Judge
from oracle.ops import (
    Alloc,
    Backup,
    Case,
    Clear,
    Config,
    CopyOut,
    Cut,
    Decode,
    Extend,
    Free,
    FreeSwa,
    GroupBegin,
    GroupEnd,
    Grow,
    Merge,
    Operation,
    Part,
    Restore,
)
from oracle.plan import plan
from oracle.reference import SwaReference, reference_for
from oracle.traits import SEED_PAGED, SEED_TOKEN, Traits
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall, FreeCall, StateCall, Step

PAGED = Config("paged", 3, 4)
ONE_SLOT = Config("token", 3)
SWA = Config("swa", 3, 4, swa_pages=2)
DATA = replace(PAGED, data=True)
BEGIN = -1


class Scripted:
    """A subject that is right: a reference, with the numbers of its pages."""

    def __init__(self, config: Config, traits: Traits) -> None:
        assert traits.dialect is not None
        self.config = config
        self.reference = reference_for(config, traits.dialect)
        self.first: dict[int, int] = {}
        self.states: dict[str, object] = {}

    def slots(self, call: FreeCall) -> list[int]:
        return [self.first[uid] + k for uid, low, high in call.runs for k in range(low, high)]

    def look(self, seen: Observation) -> Observation:
        reference = self.reference
        seen = seen._replace(
            available=reference.available(), lists=tuple(tuple(x) for x in reference.lists())
        )
        if not isinstance(reference, SwaReference):
            return seen
        every = range((self.config.pages + 1) * self.config.page_size)
        return seen._replace(
            full=reference.full.available,
            window=reference.swa.available,
            mapping=tuple(reference.mapping.get(slot, 0) for slot in every),
        )

    def answer(self, step: Step) -> Observation:
        if step.call is None:
            return Observation("done")
        if step.status == "misuse":
            return self.look(Observation("raised", error="ValueError: no"))
        reference, outcome, slots = self.reference, "done", None
        match step.call:
            case AllocCall(size):
                slots, outcome = reference.alloc(size), "slots"
            case BatchCall(prefix, seq, last, decode):
                numbers = [self.first[uid] + k if uid else k for uid, k in last]
                slots, outcome = reference.extend([*prefix], [*seq], numbers, decode), "slots"
            case FreeCall(swa=True):
                reference.free(self.slots(step.call), True)  # type: ignore[call-arg]
            case FreeCall():
                reference.free(self.slots(step.call))
            case StateCall("backup_state", name):
                self.states[name] = reference.backup()
            case StateCall("restore_state", name):
                reference.restore(self.states[name])
            case StateCall(method):
                names = {
                    "free_group_begin": "group_begin",
                    "free_group_end": "group_end",
                    "merge_and_sort_free": "merge",
                }
                getattr(reference, names.get(method, method))()
        if outcome == "slots" and slots is None:
            return self.look(Observation("none"))
        for uid, place, _ in step.fresh:
            self.first[uid] = (slots or [])[place]
        return self.look(Observation(outcome, tuple(slots or ())))


def traits_of(config: Config) -> Traits:
    return Traits(dialect=SEED_PAGED if config.kind == "paged" else SEED_TOKEN)


Tamper = Callable[[Observation], Observation]


def judged(
    config: Config,
    operations: tuple[Operation, ...],
    level: str,
    at: int | None = None,
    tamper: Tamper = lambda seen: seen,
) -> Violation | None:
    traits = traits_of(config)
    subject, judge = Scripted(config, traits), Judge(config, traits, level)
    seen = subject.look(Observation("done"))
    violation = judge.begin(tamper(seen) if at == BEGIN else seen)
    if violation is not None:
        return violation
    for index, step in enumerate(plan(Case(config, operations), traits)):
        seen = subject.answer(step)
        violation = judge.check(step, tamper(seen) if at == index else seen)
        if violation is not None:
            return violation
    return judge.end()


class Row(NamedTuple):
    what: str
    code: str
    config: Config
    operations: tuple[Operation, ...]
    at: int
    tamper: Tamper
    operation: str
    summary: str
    kind: str = "fault"
    levels: tuple[str, ...] = LEVELS


def now(**changes: object) -> Tamper:
    return lambda seen: seen._replace(**changes)


def gives(*slots: int) -> Tamper:
    return now(outcome="slots", slots=slots)


def raises(error: str) -> Tamper:
    return now(outcome="raised", slots=(), error=error)


def more(**steps: int) -> Tamper:
    return lambda seen: seen._replace(**{name: getattr(seen, name) + n for name, n in steps.items()})


def maps(*entries: tuple[int, int]) -> Tamper:
    def tamper(seen: Observation) -> Observation:
        mapping = list(seen.mapping or ())
        for slot, window in entries:
            mapping[slot] = window
        return seen._replace(mapping=tuple(mapping))

    return tamper


NONE = now(outcome="none", slots=())
A, B, ALL = Alloc("A", 4), Alloc("B", 4), Alloc("A", 12)
GROW = Extend((Grow("A", 2),))
FREE_A, FREE_B = Free((Part("A"),)), Free((Part("B"),))
AGAIN = Free((Part("A"),), "again")
SAVE, LOAD = Backup("S"), Restore("S")
OPEN, SHUT = GroupBegin(), GroupEnd()

# fmt: off
FAULTS = [
    Row("none though it fits", "EXHAUST", PAGED, (A,), 0, NONE, "alloc", r"alloc 4 for A fits \(3 page\(s\) are free\), and got None"),
    Row("slots though it does not fit", "EXHAUST", PAGED, (ALL, B), 1, gives(4, 5, 6, 7), "alloc", r"alloc 4 for B does not fit \(0 page.* and got \[4, 5, 6, 7\]"),
    Row("raised, and it fits", "EXHAUST", PAGED, (GROW,), 0, raises("IndexError: oh"), "alloc_extend", r"extend A \+2 fits .* raised IndexError: oh"),
    Row("raised, and it does not fit", "EXHAUST", PAGED, (ALL, Decode(("B",))), 1, raises("IndexError: oh"), "alloc_decode", r"decode B does not fit .* raised IndexError: oh"),
    Row("raised, only the window is full", "EXHAUST", SWA, (Alloc("A", 8), B), 1, raises("AssertionError"), "alloc", r"does not fit \(0 page"),
    Row("too few slots", "EXHAUST", PAGED, (Alloc("A", 8),), 0, gives(4, 5, 6, 7), "alloc", r"asks for 8 slot\(s\), and got 4"),
    Row("too many slots", "EXHAUST", PAGED, (GROW,), 0, gives(4, 5, 6, 7), "alloc_extend", r"asks for 2 slot\(s\), and got 4"),
    Row("something for nothing", "EXHAUST", PAGED, (Alloc("A", 0),), 0, gives(4), "alloc", r"asks for 0 slot\(s\), and got 1"),
    Row("none for nothing", "EXHAUST", PAGED, (ALL, Extend(())), 1, NONE, "alloc_extend", r"extend nobody fits .* and got None"),
    Row("forecast too low", "EXHAUST", PAGED, (GROW,), 0, now(forecast=0), "alloc_extend", r"takes 1 page\(s\), and the forecast was 0"),
    Row("a page given twice", "UNIQUE", PAGED, (A, B), 1, gives(4, 5, 6, 7), "alloc", "^page 1 has two owners: operation 1 gave it to A, operation 2 to B$"),
    Row("a page twice in one answer", "UNIQUE", PAGED, (Alloc("A", 8),), 0, gives(4, 5, 6, 7, 4, 5, 6, 7), "alloc", "gave page 1 twice, to A and to A"),
    Row("a page given twice in a group", "UNIQUE", PAGED, (A, OPEN, B), 2, gives(4, 5, 6, 7), "alloc", "^page 1 has two owners: operation 1 gave it to A, operation 3 to B$"),
    Row("a held page is free", "UNIQUE", PAGED, (A,), 0, now(lists=((1, 2), ())), "alloc", "^page 1 is in the free list, and operation 1 gave it to A$"),
    Row("a held page is released", "UNIQUE", PAGED, (A,), 0, now(lists=((2,), (1,))), "alloc", "page 1 is in the free list, and operation 1 gave it to A"),
    Row("a page twice in the list", "UNIQUE", PAGED, (A,), 0, now(lists=((2,), (2,))), "alloc", "^page 2 is in the free list 2 times$"),
    Row("a window page twice in the list", "UNIQUE", SWA, (A,), 0, now(lists=((2, 3), (), (2, 2), ())), "alloc", "^window page 2 is in the free list 2 times$"),
    Row("a held window page is free", "UNIQUE", SWA, (A, Merge()), 1, now(lists=((2, 3), (), (1,), ())), "merge_and_sort_free", "^window page 1 is in the free list, and operation 1 gave it to A$"),
    Row("the padding page given", "RANGE", PAGED, (A,), 0, gives(0, 1, 2, 3), "alloc", r"slot 0 was handed out, which is a padding slot \(pages 1 to 3 of 4\)"),
    Row("a page behind the pool given", "RANGE", PAGED, (A,), 0, gives(16, 17, 18, 19), "alloc", "slot 16 was handed out, which is in no page of the pool"),
    Row("a negative slot given", "RANGE", PAGED, (A,), 0, gives(-4, -3, -2, -1), "alloc", "slot -4 was handed out, which is in no page"),
    Row("a padding slot for growth", "RANGE", PAGED, (GROW, GROW), 1, gives(0, 1), "alloc_extend", "slot 0 was handed out, which is a padding slot"),
    Row("the padding page is free", "RANGE", PAGED, (A,), 0, now(lists=((0, 2), ())), "alloc", "^page 0 is free, and the pool has pages 1 to 3$"),
    Row("a foreign page is free", "RANGE", PAGED, (A,), 0, now(lists=((2, 9), ())), "alloc", "^page 9 is free"),
    Row("a foreign window page is free", "RANGE", SWA, (A,), 0, now(lists=((2, 3), (), (3,), ())), "alloc", "^window page 3 is free, and the pool has pages 1 to 2$"),
    Row("a page that begins inside one", "ALIGN", PAGED, (A,), 0, gives(5, 6, 7, 8), "alloc", r"begins a page with \[5, 6, 7, 8\]"),
    Row("a page out of order", "ALIGN", PAGED, (A,), 0, gives(4, 5, 7, 6), "alloc", "which is no page from its first slot on"),
    Row("growth in another place", "ALIGN", PAGED, (GROW, GROW), 1, gives(8, 9), "alloc_extend", r"goes on inside a page at \[6, 7\], and got \[8, 9\]"),
    Row("regrowth after a cut elsewhere", "ALIGN", PAGED, (GROW, Cut("A", 1), Decode(("A",))), 2, gives(8), "alloc_decode", r"at \[5\], and got \[8\]"),
    Row("one page too few counted", "CONSERVE", PAGED, (A,), 0, more(available=-4), "alloc", r"available_size\(\) says 4 and 8 is right: of 3 page\(s\) of 4, 1 held"),
    Row("one page too many counted", "CONSERVE", PAGED, (A, FREE_A), 1, more(available=4), "free", r"says 16 and 12 is right: .* 0 held"),
    Row("miscounted in a group", "CONSERVE", PAGED, (OPEN, A), 1, more(available=-4), "alloc", "says 4 and 8"),
    Row("the full pool miscounted", "CONSERVE", SWA, (A,), 0, more(full=1), "alloc", r"full_available_size\(\) says 9 and 8"),
    Row("the window miscounted", "CONSERVE", SWA, (A, FreeSwa((Part("A"),))), 1, more(window=4), "free_swa", r"swa_available_size\(\) says 12 and 8"),
    Row("a page lost from the list", "CONSERVE", PAGED, (A,), 0, now(lists=((2,), ())), "alloc", r"the free list has 1 page\(s\), and 2 is right"),
    Row("a window page lost", "CONSERVE", SWA, (A,), 0, now(lists=((2, 3), (), (), ())), "alloc", r"the free list has 0 window page\(s\)"),
    Row("a legal free raised", "CONSERVE", PAGED, (A, FREE_A), 1, raises("KeyError: 1"), "free", "free A is legal and raised KeyError: 1"),
    Row("a legal merge raised", "CONSERVE", SWA, (Merge(),), 0, raises("NotImplementedError"), "merge_and_sort_free", "is legal and raised"),
    Row("pages lost by a refused one", "ATOMIC", PAGED, (Alloc("A", 8), Alloc("B", 8)), 1, more(available=-4), "alloc", r"available_size\(\) says 0 and 4"),
    Row("a list lost by a refused one", "ATOMIC", PAGED, (Alloc("A", 8), Alloc("B", 8)), 1, now(lists=((), ())), "alloc", r"the free list has 0 page"),
    Row("one pool taken, the other full", "ATOMIC", SWA, (Alloc("A", 8), B), 1, more(full=-4), "alloc", r"full_available_size\(\) says 0 and 4"),
    Row("reused before the end", "GROUP", PAGED, (A, OPEN, FREE_A, B), 3, gives(4, 5, 6, 7), "alloc", "^page 1 was handed out to B while A's free of it waits for the end of a group$"),
    Row("reused, partly freed", "GROUP", PAGED, (A, OPEN, Free((Part("A", 0, 2),)), B), 3, gives(4, 5, 6, 7), "alloc", "page 1 was handed out to B while A's free of it waits"),
    Row("counted before the end", "GROUP", PAGED, (A, OPEN, FREE_A), 2, more(available=4), "free", "says 12 and 8 is right: .* 0 held, 1 waiting for the end of the group"),
    Row("listed before the end", "GROUP", PAGED, (A, OPEN, FREE_A), 2, now(lists=((1, 2, 3), ())), "free", "page 1 is in the free list"),
    Row("not back at the end", "GROUP", PAGED, (A, OPEN, FREE_A, SHUT), 3, more(available=-4), "free_group_end", "says 8 and 12"),
    Row("a begin raised", "GROUP", PAGED, (OPEN,), 0, raises("TypeError"), "free_group_begin", "is legal and raised TypeError"),
    Row("a free in a group raised", "GROUP", PAGED, (A, OPEN, FREE_A), 2, raises("TypeError"), "free", "free A is legal and raised"),
    Row("an end raised", "GROUP", PAGED, (A, OPEN, FREE_A, SHUT), 3, raises("TypeError"), "free_group_end", "is legal and raised"),
    Row("a second end frees again", "GROUP", PAGED, (A, OPEN, FREE_A, SHUT, SHUT), 4, more(available=4), "free_group_end", "says 16 and 12"),
    Row("another order after restore", "RESTORE", PAGED, (A, SAVE, B, LOAD), 3, now(lists=((3, 2), ())), "restore_state", r"free list \[2, 3\].* when S was saved, and now free list \[3, 2\]"),
    Row("a count after restore", "RESTORE", PAGED, (A, SAVE, B, LOAD), 3, more(available=-4), "restore_state", "says 4 and 8"),
    Row("pages lost by a backup", "RESTORE", PAGED, (A, SAVE), 1, more(available=-4), "backup_state", "says 4 and 8"),
    Row("a restore raised", "RESTORE", PAGED, (SAVE, LOAD), 1, raises("KeyError"), "restore_state", "is legal and raised KeyError"),
    Row("another order after clear", "CLEAR", PAGED, (A, Clear()), 1, now(lists=((3, 2, 1), ())), "clear", r"\[1, 2, 3\].* in a new allocator, and after clear free list \[3, 2, 1\]"),
    Row("a count after clear in a group", "CLEAR", PAGED, (A, OPEN, FREE_A, Clear()), 3, more(available=-4), "clear", "says 8 and 12"),
    Row("a clear raised", "CLEAR", PAGED, (Clear(),), 0, raises("KeyError"), "clear", "is legal and raised"),
    Row("a new allocator is short", "CLEAR", PAGED, (), BEGIN, more(available=-4), "__init__", "says 8 and 12"),
    Row("a new allocator has page 0", "CLEAR", PAGED, (), BEGIN, now(lists=((0, 1, 2), ())), "__init__", "page 0 is free"),
    Row("no allocator", "CLEAR", PAGED, (), BEGIN, raises("OSError: no"), "__init__", "could not be made: OSError: no"),
    Row("a freed pool refuses", "REUSE", PAGED, (ALL, FREE_A, ALL), 2, NONE, "alloc", "everything was freed, and alloc 12 for A, the whole pool, got None"),
    Row("the drain refuses", "REUSE", PAGED, (A,), 2, NONE, "alloc", "everything was freed, and alloc 12 for drain"),
    Row("a given tensor changed", "ALIAS", PAGED, (A, B), 1, now(disturbed="the tensor of operation 1 changed"), "alloc", "the tensor of operation 1 changed, at: alloc 4 for B"),
    Row("another dtype", "TYPE", PAGED, (A,), 0, now(tensor="is int32"), "alloc", "the answer to alloc 4 for A is int32"),
    Row("no tensor", "TYPE", PAGED, (A,), 0, now(outcome="odd", error="a list"), "alloc", "alloc 4 for A answered with a list"),
    Row("a window slot lost", "MAP", SWA, (A,), 0, maps((5, 0)), "alloc", r"A's slots from 4 map to \[4, 0, 6, 7\], and \[4, 5, 6, 7\] is right"),
    Row("a window outside its pool", "MAP", SWA, (A,), 0, maps((4, 12), (5, 13), (6, 14), (7, 15)), "alloc", r"map to \[12, 13, 14, 15\]"),
    Row("a window given up, still mapped", "MAP", SWA, (A, FreeSwa((Part("A", 1, 2),))), 1, maps((6, 6)), "free_swa", "A's slot 4 maps to .*, and its window half was given up"),
    Row("two to one window", "MAP", SWA, (A, B), 1, maps((8, 4), (9, 5), (10, 6), (11, 7)), "alloc", "^window page 1 serves A and B$"),
    Row("a window that moves", "MAP", SWA, (A, Merge()), 1, maps((4, 8), (5, 9), (6, 10), (7, 11)), "merge_and_sort_free", "A's slots from 4 map to"),
    Row("K and V changed", "DATA", PAGED, (A, FREE_A), 1, now(damaged="K at slot 4 is not what was written"), "free", "K at slot 4 is not what was written, at: free A"),
    Row("a copy raised", "DATA", DATA, (A, CopyOut("A")), 1, raises("IndexError"), "get_cpu_copy", "get_cpu_copy of A is legal and raised IndexError"),
    Row("the process died", "GUARD", PAGED, (A,), 0, now(outcome="crashed", slots=(), error="signal 11"), "alloc", r"process died at: alloc 4 for A \(signal 11\)"),
    Row("a guard zone was written", "GUARD", PAGED, (A,), 0, now(guard="2 slots behind the free list were read"), "alloc", "2 slots behind the free list were read, at: alloc"),
    Row("another page than the reference", "ORDER", PAGED, (A,), 0, now(slots=(12, 13, 14, 15), lists=((1, 2), ())), "alloc", r"got \[12, 13, 14, 15\], and the reference gives \[4, 5, 6, 7\]", levels=("parity",)),
    Row("another order of the list", "ORDER", PAGED, (A,), 0, now(lists=((3, 2), ())), "alloc", r"after alloc 4 for A: free list \[3, 2\].*; the reference has free list \[2, 3\]", levels=("parity",)),
    Row("freed to the wrong end", "ORDER", ONE_SLOT, (Alloc("A", 1), FREE_A), 1, now(lists=((1, 2, 3), ())), "free", r"the reference has free list \[2, 3, 1\]", levels=("parity",)),
]
MISUSE = [
    Row("freed twice", "CONSERVE", PAGED, (A, FREE_A, AGAIN), 2, lambda seen: more(available=4)(now(outcome="done")(seen)), "free", r"free A \[flaw: again\] breaks a rule \(a slot is freed once\), is not refused, and then: available_size\(\) says 16", "misuse"),
    Row("refused, but changed", "ATOMIC", PAGED, (A, Alloc("B", 6)), 1, more(available=-4), "alloc", "breaks a rule .*, is refused, but then: available_size", "misuse"),
    Row("unaligned, rounded down", "EXHAUST", PAGED, (Alloc("A", 6),), 0, gives(4, 5, 6, 7), "alloc", r"is not refused, and then: it was granted 4 slot\(s\) for 6", "misuse"),
    Row("negative", "EXHAUST", PAGED, (Alloc("A", -4),), 0, gives(*range(4, 12)), "alloc", r"it was granted 8 slot\(s\) for -4", "misuse"),
    Row("garbage", "RANGE", PAGED, (Extend((Grow("A", 2),), "dtype"),), 0, gives(0, 1), "alloc_extend", "slot 0 was handed out, which is a padding slot", "misuse"),
    Row("one owner", "UNIQUE", PAGED, (GROW, Extend((Grow("A", 1), Grow("A", 1)))), 1, gives(6, 6), "alloc_extend", "one slot was given twice in one answer", "misuse"),
    Row("an odd answer", "TYPE", PAGED, (Alloc("A", 6),), 0, now(outcome="odd", error="a str"), "alloc", "answered with a str", "misuse"),
    Row("died", "GUARD", PAGED, (Alloc("A", -4),), 0, now(outcome="crashed", error="signal 6"), "alloc", "process died", "misuse"),
    Row("a page freed in a group, early", "CONSERVE", PAGED, (A, OPEN, Free((), "padding")), 2, lambda seen: more(available=4)(now(outcome="done")(seen)), "free", "is not refused, and then: ", "misuse"),
    Row("granted, and free as well", "UNIQUE", PAGED, (Alloc("A", 3),), 0, lambda seen: more(available=-4)(now(outcome="slots", slots=(4, 5, 6))(seen)), "alloc", "a page that it was granted is in the free list as well", "misuse"),
    Row("granted, and a page lost", "CONSERVE", PAGED, (Alloc("A", 3),), 0, now(outcome="slots", slots=(4, 5, 6), available=4, lists=((3,), ())), "alloc", r"available_size\(\) says 4 and 8 is right", "misuse"),
    Row("granted, and a window page lost", "CONSERVE", SWA, (Alloc("A", 3),), 0, now(outcome="slots", slots=(4, 5, 6), full=4, lists=((3,), (), (2,), ())), "alloc", r"full_available_size\(\) says 4 and 8 is right", "misuse"),
    Row("granted, without a window", "MAP", SWA, (Alloc("A", 3),), 0, lambda seen: maps((4, 1), (5, 2), (6, 3))(now(outcome="slots", slots=(4, 5, 6), full=8, lists=((2, 3), (), (2,), ()))(seen)), "alloc", "maps to the window's padding page", "misuse"),
    Row("granted, and a held page is free", "UNIQUE", PAGED, (A, Extend((Grow("B", 1),), "total")), 1, now(outcome="slots", slots=(8,), available=4, lists=((3, 1), ())), "alloc_extend", "a page that is held, or one page twice, is free", "misuse"),
    Row("lengths that differ, and pages from nowhere", "CONSERVE", PAGED, (A, Extend((Grow("B", 1),), "shrinks")), 1, lambda seen: more(available=4)(gives()(seen)), "alloc_extend", r"available_size\(\) rose to 12 from 8", "misuse"),
    Row("accepted without harm", "REJECT", PAGED, (A, Free((), "padding")), 1, now(outcome="done"), "free", r"free .*\[flaw: padding\] breaks a rule \(the padding slot is never freed\) and is not refused", "misuse", ("hardened",)),
    Row("an error by accident", "REJECT", PAGED, (Alloc("A", -4),), 0, raises("IndexError: no"), "alloc", "no check, but IndexError", "misuse", ("hardened",)),
    Row("none instead of an error", "REJECT", PAGED, (Alloc("A", -4),), 0, NONE, "alloc", "sizes and lengths are not negative", "misuse", ("hardened",)),
    Row("grown without harm", "REJECT", SWA, (GROW, FreeSwa((Part("A"),)), Decode(("A",))), 2, gives(6), "alloc_decode", "a page whose SWA half was given up does not grow", "misuse", ("hardened",)),
    Row("nested group accepted", "REJECT", PAGED, (OPEN, OPEN), 1, now(outcome="done"), "free_group_begin", "groups do not nest", "misuse", ("hardened",)),
]
# fmt: on
ROWS = FAULTS + MISUSE


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.code}: {row.what}")
def test_wrong_answer_is_rejected_and_the_right_one_accepted(row: Row, level: str) -> None:
    assert judged(row.config, row.operations, level) is None
    violation = judged(row.config, row.operations, level, row.at, row.tamper)
    if level not in row.levels:
        assert violation is None
        return
    assert violation is not None
    assert (violation.code, violation.kind, violation.operation) == (row.code, row.kind, row.operation)
    if row.code == "REJECT":
        steps = plan(Case(row.config, row.operations), traits_of(row.config))
        assert violation.index == (len(steps) - 1 if violation.symptom == "accepted" else row.at)
    else:
        assert violation.index == max(row.at, 0)
    assert re.search(row.summary, violation.summary)


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_constructor_says_to_other_pools_counts_at_hardened_level(level: str) -> None:
    said = "a pool in pages of 0 slots cannot be, and was made"
    violation = judged(PAGED, (GROW,), level, BEGIN, now(misbuilt=said))
    right = Violation("REJECT", "fault", 0, "__init__", said) if level == "hardened" else None
    assert violation == right


def test_every_code_is_covered() -> None:
    assert {row.code for row in ROWS} == set(CODES)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("config", "operations", "at", "tamper"),
    [
        (PAGED, (GROW,), 0, now(forecast=1)),
        (PAGED, (GROW,), 0, now(forecast=7)),
        (PAGED, (A, SAVE, LOAD, Clear()), BEGIN, now(lists=None, available=None)),
        (PAGED, (A, SAVE, LOAD, Clear()), 1, now(lists=None, available=None)),
        (PAGED, (A, SAVE, LOAD, Clear()), 2, now(lists=None, available=None)),
        (PAGED, (A, SAVE, LOAD, Clear()), 3, now(lists=None, available=None)),
        (SWA, (Extend((Grow("A", 6),)), Merge()), 1, maps((10, 4), (11, 99))),
        (SWA, (A, OPEN, Free((Part("A", 0, 2),)), Merge()), 3, maps((6, 0), (7, 0))),
        (SWA, (A, OPEN, FreeSwa((Part("A"),)), Merge()), 3, maps((4, 0), (5, 0))),
    ],
)
def test_what_is_hidden_or_unspecified_is_no_fault(
    config: Config, operations: tuple[Operation, ...], at: int, tamper: Tamper, level: str
) -> None:
    assert judged(config, operations, level, at, tamper) is None


def test_second_end_may_raise() -> None:
    operations = (A, OPEN, FREE_A, SHUT, SHUT)
    assert judged(PAGED, operations, "hardened", 4, raises("RuntimeError: no group")) is None


@pytest.mark.parametrize("level", LEVELS)
def test_misuse_that_is_granted_soundly_is_unnoticed(level: str) -> None:
    sound = now(outcome="slots", slots=(4, 5, 6), available=8, lists=((2, 3), ()))
    violation = judged(PAGED, (Alloc("A", 3),), level, 0, sound)
    assert (violation.code if violation else None) == ("REJECT" if level == "hardened" else None)


@pytest.mark.parametrize(
    ("operations", "raised", "errors", "wrong"),
    [
        ((Alloc("A", 3),), "ValueError", {"TypeError", "ValueError"}, False),
        ((Alloc("A", 3),), "RuntimeError", {"TypeError", "ValueError"}, True),
        ((Alloc("A", 3),), "IndexError", {"IndexError"}, True),
        ((Alloc("A", 3),), "RuntimeError", set(), False),
        ((OPEN, OPEN), "RuntimeError", {"TypeError", "ValueError"}, False),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_misuse_is_refused_by_the_errors_that_are_claimed(
    operations: tuple[Operation, ...], raised: str, errors: set[str], wrong: bool, level: str
) -> None:
    traits = replace(traits_of(PAGED), errors=frozenset(errors))
    subject, judge = Scripted(PAGED, traits), Judge(PAGED, traits, level)
    *before, last = plan(Case(PAGED, operations), traits)[: len(operations)]
    assert [judge.check(step, subject.answer(step)) for step in before] == [None] * len(before)
    violation = judge.check(last, subject.answer(last)._replace(error=f"{raised}: no"))
    assert (violation is not None) == (wrong and level == "hardened")
    if violation is not None:
        assert (violation.code, violation.kind) == ("REJECT", "misuse")
        assert f"what refuses it is no check, but {raised}" in violation.summary


def test_harm_that_a_probe_shows_is_the_misuse_before_it() -> None:
    def twice(at: int, tamper: Tamper, level: str) -> Violation | None:
        traits = traits_of(PAGED)
        subject, judge = Scripted(PAGED, traits), Judge(PAGED, traits, level)
        judge.begin(subject.look(Observation("done")))
        for index, step in enumerate(plan(Case(PAGED, (A, Free((), "padding"))), traits)):
            seen = subject.answer(step)
            if step.status == "misuse":
                seen = seen._replace(outcome="done", error="")
            violation = judge.check(step, tamper(seen) if index == at else seen)
            if violation is not None:
                return violation
        return judge.end()

    for level in LEVELS:
        violation = twice(2, gives(0, 1, 2, 3), level)
        assert violation is not None
        assert (violation.code, violation.kind, violation.operation) == ("RANGE", "misuse", "free")
        assert violation.index == 2
        assert violation.rule == "padding"
        assert "is not refused, and then: slot 0 was handed out" in violation.summary


def test_contract_level_follows_another_choice_of_pages() -> None:
    traits = traits_of(PAGED)
    judge = Judge(PAGED, traits)
    steps = plan(Case(PAGED, (GROW, GROW, FREE_A)), traits)
    answers = [
        Observation("slots", (12, 13), available=8),
        Observation("slots", (14, 15), available=8, lists=((2, 1), ())),
        Observation("done", available=12, lists=((2,), (1, 3))),
        Observation("slots", (*range(8, 12), *range(4, 8), *range(12, 16)), available=0, lists=((), ())),
    ]
    assert [judge.check(*pair) for pair in zip(steps, answers, strict=True)] == [None] * 4
    assert judge.slot((1, 3)) == 15
    assert judge.slots(((1, 1, 3),)) == [13, 14]


def test_parity_needs_a_dialect_and_a_level_needs_a_name() -> None:
    with pytest.raises(ValueError, match="claims no exact order"):
        Judge(PAGED, Traits(), "parity")
    with pytest.raises(ValueError, match="level is one of contract, parity, hardened"):
        Judge(PAGED, Traits(), "strict")
