"""Is what counts as reachable what cases really reach, and is a run that tries too little not a pass?"""

from collections import Counter
from dataclasses import replace

import pytest

from fuzz.campaign import TaskResult
from fuzz.report import EXIT
from fuzz.run import RunReport, Target
from impl.names import local
from oracle.ops import Alloc, Case, Clear, Config, Free, Part
from oracle.plan import plan
from oracle.traits import SEED_PAGED
from properties.cases import generate_planned, typical_config
from properties.checks import plan_of
from properties.coverage import FLOORS, UNORDERED, floor_for, points, reachable
from properties.judged import judged
from properties.sources import SeededSource

SUBJECTS = (
    "token",
    "paged",
    "ascend",
    "swa",
    "swa[page_size=1]",
    "paged[page_size=16]",
    "paged[engine=triton]",
)


def traits_of(subject, level="hardened"):
    return subject.traits(typical_config(subject.space, level))


@pytest.mark.parametrize("name", SUBJECTS)
def test_no_case_reaches_what_is_not_listed(name):
    subject = local(name)
    listed = reachable(subject.space, traits_of(subject))
    tried = Counter()
    for number in range(400):
        source = SeededSource(f"{name}/{number}")
        case, steps = generate_planned(source, subject.space, subject.traits, "hardened")
        # Every second step is taken to meet an unordered list: on the words alone it depends.
        tried.update(points(steps, case.config, range(0, len(steps), 2)))
    assert sorted(tried.keys() - listed) == []
    assert len(tried) > 0.7 * len(listed)


def test_points_in_words():
    config = Config("paged", 2, 2)
    case = Case(config, (Alloc("A", 4), Free((Part("A"),)), Clear(), Alloc("B", 2)))
    traits = local("paged").traits(config)
    found = list(points(plan(case, traits), config, [3]))
    assert "the start, then alloc" in found
    assert "alloc exact fit, nothing held" in found
    assert "alloc, then free" in found
    assert "free, no page left" in found
    assert "alloc, after a clear" in found
    assert f"alloc, {UNORDERED}" in found
    assert not any("restore" in point for point in found)


def test_a_run_notices_that_a_free_list_is_unordered():
    config = Config("paged", 3, 2)
    case = Case(config, (Alloc("A", 2), Alloc("B", 2), Free((Part("A"),)), Free((Part("B"),)), Alloc("C", 2)))
    assert f"alloc, {UNORDERED}" in list(judged(local("paged"), case, "contract").points())
    ordered = replace(
        case, operations=(*case.operations[:2], case.operations[3], case.operations[2], Alloc("C", 2))
    )
    assert f"alloc, {UNORDERED}" not in list(judged(local("paged"), ordered, "contract").points())


def test_an_order_that_always_sorts_reaches_no_unordered_list():
    subject = local("paged")
    sorts = replace(traits_of(subject), dialect=replace(SEED_PAGED, always_sorts=True))
    assert not any(UNORDERED in point for point in reachable(subject.space, sorts))
    assert any(UNORDERED in point for point in reachable(subject.space, traits_of(subject)))


def report(tried, avoid=frozenset(), budget="ci"):
    subject = local("paged")
    tasks = plan_of(subject, budget, "hardened")
    results = [
        TaskResult(
            task,
            cases=1,
            operations=1,
            points=Counter(tried if task.check == "sequences" else ()),
            avoid=avoid,
        )
        for task in tasks
    ]
    return RunReport(
        Target("paged", "hardened"),
        results=results,
        space=subject.space,
        traits=traits_of(subject),
        planned=len(tasks),
    )


def test_a_run_that_tries_too_little_is_incomplete():
    listed = sorted(reachable(local("paged").space, traits_of(local("paged"))))
    assert report(listed).verdict == "pass"
    little = report(listed[: len(listed) // 2])
    assert little.verdict == "incomplete"
    assert EXIT[little.verdict] == 3
    assert set(little.coverage.missing) == set(listed[len(listed) // 2 :])
    # What steering leaves out can't be tried: then nothing is asked.
    assert report(listed[:9], avoid=frozenset({"alloc_extend no fit"})).verdict == "pass"


def test_shapes_left_out_are_not_reachable():
    subject = local("paged")
    left = reachable(subject.space, traits_of(subject), frozenset({"alloc_extend no fit", "clear"}))
    everything = reachable(subject.space, traits_of(subject))
    for point in ("alloc_extend no fit", "alloc_extend no fit, no page left", "clear", "clear, then alloc"):
        assert point in everything
        assert point not in left


@pytest.mark.parametrize(
    ("sequences", "floor"), [(9, None), (100, FLOORS[-1][1]), (500, FLOORS[1][1]), (9999999, FLOORS[0][1])]
)
def test_floor_grows_with_the_budget(sequences, floor):
    assert floor_for(sequences, local("paged").space) == floor
    assert floor_for(sequences, local("paged[pages=2]").space) is None


def test_every_budget_of_the_project_s_own_has_a_floor():
    for budget in ("quick", "ci", "nightly"):
        count = sum(t.count for t in plan_of(local("swa"), budget, "parity") if t.check == "sequences")
        assert floor_for(count, local("swa").space) is not None
