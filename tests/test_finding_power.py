"""Does each check catch a fault that suits it, and does it leave what is sound alone?"""

from dataclasses import replace

import pytest

from impl.defects.catalogue import CATALOGUE
from impl.engines import LocalEngine
from impl.names import local
from impl.subject import own
from impl.token import TokenAllocator
from impl.torch_engine import TorchEngine
from properties.checks import CHECKS, BatchBroken, Tally, plan_of, plan_of_engine, run_task
from properties.relations import RELATIONS
from tests.broken import broken_by
from tests.planted import ENGINES

SEEDS = range(3)
# Check, defect, budget. That the sequences find each defect, `test_defects` shows.
CATCHES = [
    ("sequences", "repeats-page", "quick"),
    ("misuse", "F02", "quick"),
    ("state machine", "F33", "quick"),
    ("state machine", "F08", "ci"),
    ("fixed slots", "F15", "quick"),
    ("fixed slots", "F22", "quick"),
    ("fixed slots", "F35", "quick"),
    ("relation restore", "hidden-turn", "quick"),
    ("relation clear", "hidden-turn", "quick"),
    ("relation refill", "unsorted-merge", "quick"),
    ("relation group", "F35", "quick"),
    ("relation group", "group-reverses", "ci"),
    ("relation split", "F15", "ci"),
    ("relation split", "batch-loses-page", "ci"),
    ("relation split", "rolls", "ci"),
    ("relation permuted", "rolls-long-first", "ci"),
    ("relation shared prefix", "rolls", "ci"),
    ("relation permuted", "F15", "quick"),
    ("relation permuted", "longest-first", "ci"),
    ("relation shared prefix", "F15", "ci"),
    ("relation shared prefix", "shared-prefix", "ci"),
]
# Faults that only a comparison of two runs shows: each run by itself keeps every promise of the contract.
ONLY_IN_TWO_RUNS = [name for name, defect in CATALOGUE.items() if defect.check.startswith("relation ")]


def test_every_check_has_a_fault_of_its_own():
    assert {check for check, _, _ in CATCHES} | {"kernels"} == set(CHECKS)


@pytest.mark.parametrize(("check", "name", "budget"), CATCHES, ids=lambda value: value.replace(" ", "-"))
def test_check_catches(check, name, budget):
    fault = CATALOGUE[name]
    subject = fault.subject()
    for seed in SEEDS:
        violation = broken_by(check, subject, fault.level, budget, seed)
        assert violation is not None, f"seed {seed} lets it through"
        assert violation.code in fault.codes
        if name in ONLY_IN_TWO_RUNS:
            assert violation.symptom == check


@pytest.mark.parametrize("name", ONLY_IN_TWO_RUNS)
def test_what_only_a_comparison_shows_keeps_the_contract_in_every_single_run(name):
    subject = CATALOGUE[name].subject()
    assert broken_by("sequences", subject, "contract", "quick", 0) is None


@pytest.mark.parametrize(
    ("check", "kind", "level"), sorted({(c, CATALOGUE[n].part, CATALOGUE[n].level) for c, n, _ in CATCHES})
)
def test_sound_subject_passes_the_same_check(check, kind, level):
    for seed in SEEDS if check.startswith("relation") else SEEDS[:1]:
        assert broken_by(check, own(kind), level, "quick", seed) is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ENGINES)
def test_kernel_check_catches(name, seed):
    engine, code = ENGINES[name]
    subject = LocalEngine(name, "", engine())
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


class PutsOff(TokenAllocator):
    """Finds out what a free gave back when it is asked for its size, and hands out one slot twice before."""

    def free(self, free_index):
        super().free(free_index)
        self.late = free_index.numel() > 0

    def available_size(self):
        self.late = False
        return super().available_size()

    def alloc(self, need_size):
        taken = super().alloc(need_size)
        if taken is not None and getattr(self, "late", False):
            taken[-1:] = taken[:1]
        return taken


def test_what_is_wrong_until_somebody_asks_is_found():
    subject = own("token", before=(PutsOff,))
    violation = broken_by("sequences", subject, "contract", "quick", 1)
    assert violation is not None
    assert violation.operation == "alloc"
