"""Is what the shrinker leaves the same finding, possible, and short?"""

from dataclasses import replace

import pytest

from fuzz.shrink import Shrinker, shrink_pair
from impl.defects.catalogue import CATALOGUE
from impl.engines import LocalEngine
from impl.names import local
from oracle.ops import Alloc, Case, Config, Cut, Decode, Extend, Free, GroupBegin, GroupEnd, Grow, Merge, Part
from oracle.plan import plan
from properties.checks import (
    BatchBroken,
    RelationBroken,
    Tally,
    plan_of_engine,
    relation,
    run_task,
    sequences,
)
from properties.judged import Broken, judged
from properties.kernels import check_batch, shrink_batch
from properties.relations import RELATIONS, compare
from tests.planted import ENGINES, ReadsPastFreeList

MOST = 6
COMPARED = [name for name, defect in CATALOGUE.items() if defect.check.startswith("relation ")]
IN_ONE_RUN = [
    "repeats-page", "F37", "F35", "F40-released", "F40-group", "F39", "F15", "F26", "F36", "F17", "F22",
    "counts-waiting", "F33", "copy-other-rows", "other-end", "F03", "batch-loses-page", "longest-first",
    "shared-prefix",
]  # fmt: skip
TO_THE_MINIMUM = [
    "repeats-page", "F37", "F35", "F15", "F26", "F22", "counts-waiting", "F33", "copy-other-rows", "other-end",
    "batch-loses-page",
]  # fmt: skip


def subject_of(name):
    subject = CATALOGUE[name].subject()
    if name == "copy-other-rows":  # rare in cases of all kinds
        subject = replace(subject, space=replace(subject.space, fixed={"data": True, "pages": 4}))
    return subject


def first_broken(subject, level, seed=0):
    with pytest.raises(Broken) as caught:
        sequences(subject, level, str(seed), 400, Tally())
    return caught.value.outcome


def same(subject, level, violation):
    def holds(case):
        other = judged(subject, case, level).violation
        return other is not None and other.key == violation.key

    return holds


@pytest.fixture(scope="module")
def shrunk():
    done = {}

    def shrink(name):
        if name not in done:
            subject, level = subject_of(name), CATALOGUE[name].level
            outcome = first_broken(subject, level)
            shrinker = Shrinker(same(subject, level, outcome.violation), subject.space)
            done[name] = outcome, shrinker.shrink(outcome.case), shrinker
        return done[name]

    return shrink


@pytest.mark.parametrize("name", IN_ONE_RUN)
def test_shrunk_case_is_short_possible_and_the_same_finding(name, shrunk):
    subject, fault = subject_of(name), CATALOGUE[name]
    outcome, case, shrinker = shrunk(name)
    assert outcome.violation.code in fault.codes
    again = judged(subject, case, fault.level).violation
    assert again is not None
    assert again.key == outcome.violation.key
    assert len(case.operations) <= min(MOST, len(outcome.case.operations))
    assert case.config.page_size in subject.space.page_sizes
    assert case.config.need_sort in subject.space.need_sort
    assert shrinker.runs <= shrinker.limit
    assert all(step.status != "skip" for step in plan(case, subject.traits(case.config)) if not step.probe)


@pytest.mark.parametrize("name", TO_THE_MINIMUM)
def test_shrunk_case_is_at_most_one_above_the_minimum(name, shrunk):
    _, case, _ = shrunk(name)
    assert CATALOGUE[name].shortest <= len(case.operations) <= CATALOGUE[name].shortest + 1


@pytest.mark.parametrize("name", ["repeats-page", "F15", "F22"])
def test_shrinking_twice_gives_the_same_case(name, shrunk):
    subject, level = subject_of(name), CATALOGUE[name].level
    outcome, case, first = shrunk(name)
    second = Shrinker(same(subject, level, outcome.violation), subject.space)
    assert second.shrink(outcome.case) == case
    assert second.runs == first.runs


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_run_limit_is_kept_and_what_was_reached_still_holds(limit, shrunk):
    subject = subject_of("repeats-page")
    outcome, _, _ = shrunk("repeats-page")
    asked = []
    holds = same(subject, "contract", outcome.violation)

    def counted(case):
        asked.append(case)
        return holds(case)

    case = Shrinker(counted, subject.space, limit=limit).shrink(outcome.case)
    assert len(asked) <= limit
    assert holds(case)
    assert limit or case == outcome.case


def big(config):
    """A long case in which F15 and repeats-page show, with all that a shrinker can take away."""
    size = config.page_size
    return Case(
        config,
        (
            Decode(("K",)), Merge(), Alloc("L", 2 * size), GroupBegin(), Free((Part("L", size),)), GroupEnd(),
            Extend((Grow("M", 3 * size), Grow("N", 1))), Cut("M", size), Free((Part("M"), Part("L"))), Merge(),
        ),
    )  # fmt: skip


def test_parameters_in_the_subjects_name_are_kept():
    subject = local("defect:repeats-page[page_size=4,need_sort=true,pages=11]")
    case = big(Config("paged", 11, 4, need_sort=True, spare=3))
    violation = judged(subject, case, "contract").violation
    shrunk = Shrinker(same(subject, "contract", violation), subject.space).shrink(case)
    assert (shrunk.config.page_size, shrunk.config.need_sort, shrunk.config.pages) == (4, True, 11)
    assert shrunk.config.spare == 0
    assert len(shrunk.operations) < len(case.operations)


def test_page_sizes_and_modes_that_the_subject_can_not_be_made_with_are_not_asked_for():
    base = CATALOGUE["repeats-page"].subject()
    subject = replace(base, space=replace(base.space, page_sizes=(4, 8), need_sort=(True,)))
    case = big(Config("paged", 12, 8, need_sort=True))
    violation = judged(subject, case, "contract").violation
    configs = []
    holds = same(subject, "contract", violation)

    def recorded(candidate):
        configs.append(candidate.config)
        return holds(candidate)

    shrunk = Shrinker(recorded, subject.space).shrink(case)
    assert {config.page_size for config in configs} == {4, 8}
    assert {config.need_sort for config in configs} == {True}
    assert shrunk.config.page_size == 4


def test_a_shrinker_that_is_told_yes_to_everything_ends_with_nothing():
    subject = CATALOGUE["repeats-page"].subject()
    case = big(Config("paged", 40, 4, need_sort=True, spare=2, data=True))
    assert Shrinker(lambda case: True, subject.space).shrink(case) == Case(
        Config("paged", 1, 1, overwrite=False), ()
    )


def test_a_shrinker_that_is_told_no_changes_nothing():
    case = big(Config("paged", 40, 4, need_sort=True))
    shrinker = Shrinker(lambda case: False, CATALOGUE["repeats-page"].subject().space)
    assert shrinker.shrink(case) == case
    assert 0 < shrinker.runs <= shrinker.limit


@pytest.mark.parametrize("name", COMPARED)
def test_shrunk_pair_is_short_and_the_same_finding(name):
    fault = CATALOGUE[name]
    subject = fault.subject()
    which = next(r for r in RELATIONS if f"relation {r.name}" == fault.check)
    with pytest.raises(RelationBroken) as caught:
        relation(which)(subject, fault.level, "0", 60, Tally())
    violation, pair = caught.value.outcome.violation, caught.value.pair
    assert violation.symptom == f"relation {which.name}"

    def holds(candidate):
        other, _ = compare(subject, candidate, fault.level)
        return other is not None and other.key == violation.key

    small = shrink_pair(pair, holds)
    assert holds(small)
    assert small == shrink_pair(pair, holds)
    assert small.relation is which
    assert small.config.page_size in subject.space.page_sizes
    assert small.config.need_sort or not which.sorts
    assert sum(map(len, small.pieces)) <= min(3, sum(map(len, pair.pieces)))
    assert small.config.pages <= 2


@pytest.mark.parametrize("name", ENGINES)
def test_shrunk_batch_is_small_and_the_same_finding(name):
    engine, code = ENGINES[name]
    subject = LocalEngine(name, "", engine())
    with pytest.raises(BatchBroken) as caught:
        run_task(plan_of_engine(subject, "quick")[0], subject, "contract", 0, Tally())
    batch, dtype, violation = caught.value.batch, caught.value.dtype, caught.value.outcome.violation
    small = shrink_batch(subject, batch, dtype, violation.key)
    again = check_batch(subject, small, dtype)
    assert again is not None
    assert again.key == violation.key
    assert small == shrink_batch(subject, batch, dtype, violation.key)
    assert small.page_size == batch.page_size
    assert small.decode == batch.decode
    assert 1 <= len(small.seq) <= len(batch.seq)
    if violation.code == code:  # RANGE and UNIQUE hang on the numbers of the neighbours
        assert len(small.seq) <= 2
        assert small.total <= small.page_size + 1


def test_shrunk_batch_of_an_engine_that_reads_past_the_free_list_has_the_free_list_it_needs():
    subject = LocalEngine("", "", ReadsPastFreeList())
    with pytest.raises(BatchBroken) as caught:
        run_task(plan_of_engine(subject, "quick")[0], subject, "contract", 1, Tally())
    broken = caught.value
    small = shrink_batch(subject, broken.batch, broken.dtype, broken.outcome.violation.key)
    assert len(small.free) == small.need


def test_pages_of_a_size_that_no_case_is_drawn_with_are_no_obstacle():
    """A recorded pool has the pages that it has."""
    subject = CATALOGUE["batch-loses-page"].subject()
    assert 128 not in subject.space.page_sizes
    several = Extend((Grow("r7", 200), Grow("r8", 1), Grow("r9", 129)))
    case = Case(Config("paged", 40, 128), (Extend((Grow("r6", 5),)), several, Free((Part("r6"),))))
    holds = same(subject, "contract", judged(subject, case, "contract").violation)
    both = (Extend((Grow("A", 1), Grow("B", 1))),)
    assert Shrinker(holds, subject.space).shrink(case) == Case(Config("paged", 3, 1, overwrite=False), both)
    alone = replace(subject.space, page_sizes=(100,))
    assert Shrinker(holds, alone).shrink(case) == Case(Config("paged", 3, 128, overwrite=False), both)
