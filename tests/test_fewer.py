"""Does each step of the shrinker come to the same in fewer operations?"""

from dataclasses import replace

import pytest

from fuzz import fewer
from fuzz.shrink import Shrinker
from impl.names import local
from oracle.ops import (
    Alloc,
    Backup,
    Case,
    Clear,
    Config,
    Cut,
    Decode,
    Extend,
    Free,
    FreeSwa,
    GroupBegin,
    Grow,
    Merge,
    Part,
    Restore,
)
from properties.cases import generate, generate_misuse
from properties.judged import judged
from properties.sources import SeededSource

TOKEN, PAGED = Config("token", 4), Config("paged", 4, 2)
A, B = (Part("A"),), (Part("B"),)


def extend(**tokens):
    return Extend(tuple(Grow(name, count) for name, count in tokens.items()))


@pytest.mark.parametrize(
    ("config", "operations", "joined"),
    [
        (TOKEN, (Alloc("A", 1), Merge(), Alloc("A", 2)), (Merge(), Alloc("A", 3))),
        (PAGED, (Alloc("A", 2), Decode(("B",))), (Decode(("A", "B")),)),
        (PAGED, (Alloc("A", 2), Decode(("A",))), (extend(A=3),)),
        (PAGED, (extend(A=1, B=1), Extend((Grow("B", 2), Grow("C", 3, "A")))), (extend(A=1, B=3, C=3),)),
        (PAGED, (extend(A=6, B=1), Cut("A", 3)), (extend(A=3, B=1),)),
        (TOKEN, (Alloc("A", 3), Cut("A", 1)), (Alloc("A", 2),)),
        (TOKEN, (Free(A), Merge(), Free(B)), (Free(A + B), Merge())),
        (TOKEN, (Cut("A", 1), Cut("A", 2)), (Cut("A", 3),)),
        (PAGED, (FreeSwa(A), FreeSwa(B)), (FreeSwa(A + B),)),
        # A name that stands for another request later is another name there.
        (PAGED, (extend(A=6), Free(A), Decode(("A",)), Cut("A", 1)), (Extend((Grow("A", 6), Grow("B", 1))), Free(A), Cut("B", 1))),
        # What two requests have, as one request's.
        (TOKEN, (Alloc("A", 1), Alloc("B", 2), Free(B), Free(A)), (Alloc("A", 3), Cut("A", 2), Free(A))),
        (TOKEN, (Alloc("A", 1), Alloc("B", 2), Free(A), Free(B)), (Alloc("B", 3), Cut("B", 1), Free(B))),
        (TOKEN, (Alloc("A", 1), Alloc("B", 2), Free(A + B)), (Alloc("A", 3), Free(A))),
    ],
)  # fmt: skip
def test_two_operations_as_one(config, operations, joined):
    assert (joined,) in set(fewer.two_as_one((operations,), config))


@pytest.mark.parametrize(
    "operations",
    [
        (Extend((Grow("A", 1),), "total"), Decode(("B",))),
        (Alloc("A", -1), Alloc("A", 1)),
        (Free(A), Merge()),
        (GroupBegin(), GroupBegin()),
    ],
)
def test_what_is_wrong_or_has_no_sum_is_not_joined(operations):
    assert not set(fewer.two_as_one((operations,), PAGED))


def test_in_long_cases_neighbours_alone_are_joined():
    far = (Alloc("A", 1), *(Merge(),) * fewer.FEW, Alloc("A", 1))
    assert not set(fewer.two_as_one((far,), TOKEN))
    near = (*(Merge(),) * fewer.FEW, Alloc("A", 1), Alloc("A", 1))
    assert {pieces[0][-1] for pieces in fewer.two_as_one((near,), TOKEN)} == {Alloc("A", 2)}


def test_pieces_stay_pieces():
    pieces = ((Alloc("A", 1), Alloc("B", 1)), (Free(B),), (Merge(),))
    assert ((Alloc("A", 2),), (Cut("A", 1),), (Merge(),)) in set(fewer.two_as_one(pieces, TOKEN))
    assert ((Alloc("A", 1),), (Free(B),), ()) in set(fewer.without_two(pieces))
    assert ((Alloc("B", 1),), (Free(B),), (Merge(),)) not in set(fewer.with_one_moved(pieces))
    moved = set(fewer.with_one_moved(((Merge(), Alloc("A", 1), GroupBegin()),)))
    assert ((GroupBegin(), Alloc("A", 1)),) in moved


def test_one_less_on_a_pool_without_its_pages_or_with_one_more():
    case = Case(Config("swa", 3, 1, 2), (Alloc("A", 1), Alloc("B", 2)))
    made = set(fewer.with_another_pool(case))
    assert Case(Config("swa", 2, 1, 1), (Alloc("B", 2),)) in made
    assert Case(Config("swa", 3, 1, 3), (Alloc("A", 1),)) in made
    assert Case(Config("swa", 3, 1, 2, need_sort=True), ()) in made
    assert all(len(other.operations) < 2 for other in made)


def test_all_that_is_allocated_at_once_with_frees_that_are_cuts():
    operations = (
        GroupBegin(), Alloc("A", 1), Free(A), Alloc("B", 1), Alloc("A", 2), Cut("A", 1), Merge(), Free(A + B),
    )  # fmt: skip
    whole = (GroupBegin(), Alloc("A", 4), Cut("A", 1), Cut("A", 1), Merge(), Free(A))
    assert Case(TOKEN, whole) in set(fewer.all_at_once(Case(Config("token", 2), operations)))
    assert not set(fewer.all_at_once(Case(TOKEN, (Merge(), Free(A)))))
    assert not set(fewer.all_at_once(Case(TOKEN, (Extend(()), Merge()))))


@pytest.mark.parametrize(
    ("name", "config", "operations", "least"),
    [
        ("four-frees", Config("token", 9), (GroupBegin(), *(o for name in "ABCDE" for o in (Alloc(name, 1), Free((Part(name),))))), 7),
        ("F17-decode", Config("swa", 1, 2, 1), (extend(A=1), FreeSwa(A), Decode(("B",))), 1),
        ("F40-group", Config("token", 20), (GroupBegin(), Alloc("A", 1), Backup("S"), Clear(), Restore("S"), Free(A), Alloc("B", 0)), 6),
    ],
)  # fmt: skip
def test_the_shrinker_gets_below_what_greedy_dropping_leaves(name, config, operations, least):
    subject, case = local(f"defect:{name}"), Case(config, operations)
    key = judged(subject, case, "contract").violation.key

    def holds(other):
        violation = judged(subject, other, "contract").violation
        return violation is not None and violation.key == key

    without_one = (operations[:place] + operations[place + 1 :] for place in range(len(operations)))
    assert not any(holds(Case(config, rest)) for rest in without_one)
    shrunk = Shrinker(holds, subject.space).shrink(case)
    assert holds(shrunk)
    assert len(shrunk.operations) == least


@pytest.mark.parametrize("name", ["token", "paged", "swa"])
def test_every_step_takes_whatever_is_drawn(name):
    """Batches without requests, and all misuse, too: a step that breaks takes the run with it."""
    subject, seen = local(name), 0
    for number in range(80):
        drawn = (
            generate(SeededSource(number), subject.space, subject.traits, "hardened"),
            generate_misuse(number, SeededSource(number), subject.space, subject.traits, "hardened")[0],
        )
        for case in drawn:
            for start in range(0, len(case.operations), 3):
                few = replace(case, operations=case.operations[start : start + 3])
                for step in (fewer.all_at_once, fewer.with_another_pool):
                    seen += sum(1 for _ in step(few))
                for step in (fewer.without_two, fewer.with_one_moved):
                    seen += sum(1 for _ in step((few.operations,)))
                seen += sum(1 for _ in fewer.two_as_one((few.operations,), few.config))
    assert seen > 1000
