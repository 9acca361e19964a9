"""Does each check catch a fault that suits it, and does it leave what is sound alone?"""

from dataclasses import replace

import pytest

from impl.engines import LocalEngine
from impl.names import local
from impl.subject import own
from impl.torch_engine import TorchEngine
from properties.checks import CHECKS, BatchBroken, Tally, plan_of, plan_of_engine, run_task
from properties.judged import Broken
from properties.relations import RELATIONS
from tests import planted
from tests.planted import ENGINES, PLANTED

SEEDS = range(3)
EVERYWHERE = ("sequences", "state machine", "fixed slots")

ONLY_IN_TWO_RUNS = (
    "hidden_turn", "merge_does_not_sort", "group_reverses", "rolls_for_several", "rolls_for_long_first"
)  # fmt: skip

# Check, planted fault, budget. Of the faults that only a comparison of two runs shows, the relation says so.
CATCHES = [
    *(("sequences", name, "quick") for name in PLANTED if name not in
      ("copies_other_rows", *ONLY_IN_TWO_RUNS, "dies", "two_faults")),
    ("sequences", "copies_other_rows", "ci"),
    ("misuse", "no_debug", "quick"),
    ("state machine", "int32_answers", "quick"),
    ("state machine", "no_debug", "quick"),
    ("fixed slots", "page_too_many", "quick"),
    ("fixed slots", "stale_mapping", "quick"),
    ("fixed slots", "keeps_tensor", "quick"),
    ("relation restore", "hidden_turn", "quick"),
    ("relation clear", "hidden_turn", "quick"),
    ("relation refill", "merge_does_not_sort", "quick"),
    ("relation group", "keeps_tensor", "quick"),
    ("relation group", "group_reverses", "ci"),
    ("relation split", "page_too_many", "quick"),
    ("relation split", "batch_loses_page", "ci"),
    ("relation split", "rolls_for_several", "ci"),
    ("relation permuted", "rolls_for_long_first", "ci"),
    ("relation shared prefix", "rolls_for_several", "ci"),
    ("relation permuted", "page_too_many", "quick"),
    ("relation permuted", "order_of_batch", "ci"),
    ("relation shared prefix", "page_too_many", "quick"),
    ("relation shared prefix", "shared_prefix_shares_all", "ci"),
]  # fmt: skip
ONLY_COMPARED = {
    ("relation restore", "hidden_turn"),
    ("relation clear", "hidden_turn"),
    ("relation refill", "merge_does_not_sort"),
    ("relation group", "group_reverses"),
    ("relation split", "rolls_for_several"),
    ("relation permuted", "rolls_for_long_first"),
    ("relation shared prefix", "rolls_for_several"),
}


def broken_by(check, subject, level, budget, seed):
    for task in plan_of(subject, budget, level):
        if task.check == check:
            try:
                run_task(task, subject, level, seed, Tally())
            except Broken as broken:
                return broken.outcome.violation
    return None


def test_every_check_has_a_fault_of_its_own():
    assert {check for check, _, _ in CATCHES} | {"kernels"} == set(CHECKS)


@pytest.mark.parametrize(("check", "name", "budget"), CATCHES, ids=lambda value: value.replace(" ", "-"))
def test_check_catches(check, name, budget):
    fault = PLANTED[name]
    subject = fault.subject()
    if name == "copies_other_rows":  # rare in cases of all kinds: only one in four has K and V
        subject = replace(subject, space=replace(subject.space, fixed={"data": True, "pages": 4}))
    for seed in SEEDS:
        violation = broken_by(check, subject, fault.level, budget, seed)
        assert violation is not None, f"seed {seed} lets it through"
        assert violation.code in fault.codes
        if (check, name) in ONLY_COMPARED:
            assert violation.symptom == check


@pytest.mark.parametrize("name", ONLY_IN_TWO_RUNS)
def test_what_only_a_comparison_shows_keeps_the_contract_in_every_single_run(name):
    subject = PLANTED[name].subject()
    assert broken_by("sequences", subject, "contract", "quick", 0) is None


@pytest.mark.parametrize(
    ("check", "kind", "level"), sorted({(c, PLANTED[n].kind, PLANTED[n].level) for c, n, _ in CATCHES})
)
def test_sound_subject_passes_the_same_check(check, kind, level):
    for seed in SEEDS if check.startswith("relation") else SEEDS[:1]:
        assert broken_by(check, own(kind), level, "quick", seed) is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("engine", "code"), ENGINES.items(), ids=lambda value: getattr(value, "__name__", value)
)
def test_kernel_check_catches(engine, code, seed):
    subject = LocalEngine(engine.__name__, "", engine())
    with pytest.raises(BatchBroken) as caught:
        run_task(plan_of_engine(subject, "quick")[0], subject, "contract", seed, Tally())
    violation = caught.value.outcome.violation
    assert violation is not None
    # What a slot too far or a lane that is missing breaks besides depends on its neighbours.
    assert violation.code in {code, "UNIQUE", "RANGE"} if code == "ALIGN" else violation.code == code


def test_kernel_check_passes_a_sound_engine():
    subject = LocalEngine("torch", "", TorchEngine())
    tally = Tally()
    run_task(plan_of_engine(subject, "quick")[0], subject, "contract", 0, tally)
    assert tally.cases == 2 * plan_of_engine(subject, "quick")[0].count


def test_every_planted_allocator_is_reachable_by_its_name():
    assert all(getattr(planted, name) is fault for name, fault in PLANTED.items())


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("paged", set()),
        ("token", {"split", "permuted", "shared prefix"}),
        ("swa[page_size=1]", {"split", "permuted", "shared prefix"}),
        ("paged[need_sort=false]", {"refill"}),
        # Its allocator inherits an extend that raises.
        ("tests.planted:no_claims", {"split", "permuted", "shared prefix"}),
    ],
)
def test_relations_without_a_pool_to_run_on_are_not_planned(name, missing):
    subject = local(name)
    planned = {task.check for task in plan_of(subject, "quick", "contract")}
    assert {r.name for r in RELATIONS if f"relation {r.name}" not in planned} == missing


def test_a_relation_for_which_no_pool_is_left_ends_and_compares_nothing():
    subject = replace(own("swa"), space=replace(own("swa").space, page_sizes=(1, 3)))
    tally = Tally()
    task = next(task for task in plan_of(subject, "quick", "contract") if task.check == "relation split")
    run_task(task, subject, "contract", 0, tally, frozenset({"with a page size that is no power of two"}))
    assert (tally.operations, tally.cases) == (0, task.count)
