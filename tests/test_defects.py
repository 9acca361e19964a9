"""Is each known defect found, at its level and under a code that it names? And does its base pass the same?"""

import importlib
import linecache
import re
from dataclasses import replace
from pathlib import Path

import pytest

from impl.child import ChildSubject
from impl.defects import catalogue, groups, kernels, lists, sizes, state, swa
from impl.defects.catalogue import CANARY, CATALOGUE
from impl.defects.patches import RUNNERS, Patch, StalePatch, load
from impl.engines import local_engine
from impl.errors import SubjectError
from impl.names import local, resolve
from impl.subject import OWN, LocalSubject, own
from impl.torch_engine import TorchEngine
from oracle.codes import CODES, LEVELS
from oracle.ops import Alloc, Case, Config, Decode, Extend, Grow
from properties.checks import CHECKS, BatchBroken, Tally, plan_of_engine, run_task
from properties.judged import judged
from tests.broken import broken_by

SEEDS, ENOUGH = range(5), 2  # the rarest are missed by every second run of this budget
PATCHED = [defect.id for defect in CATALOGUE.values() if isinstance(defect.fault, Patch)]
DEEP = 4  # operations that a hard one needs


@pytest.fixture
def named():
    made = []

    def make(name):
        made.append(resolve(f"defect:{name}"))
        return made[-1]

    yield make
    for subject in made:
        subject.close()


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_defect_is_found_under_a_code_that_it_names(name, named):
    defect, subject = CATALOGUE[name], named(name)
    found = 0
    for seed in SEEDS:
        violation = broken_by(defect.check, subject, defect.level, "ci", seed)
        if violation is not None:
            assert violation.code in defect.codes
            found += 1
        if found == ENOUGH:
            return
    pytest.fail(f"found with {found} of {len(SEEDS)} seeds")


@pytest.mark.parametrize(
    ("part", "check", "level"),
    sorted({(defect.part, defect.check, defect.level) for defect in CATALOGUE.values()}),
)
def test_its_base_passes_the_same_check(part, check, level):
    assert broken_by(check, own(part), level, "quick", 0) is None


# -- the catalogue -------------------------------------------------------------------------------------


def test_ids_are_unique_and_there_are_many():
    assert len(CATALOGUE) == len(catalogue.ALL) >= 45
    assert CATALOGUE[CANARY.id] is CANARY


def test_each_fault_is_another_one():
    assert len({defect.fault for defect in CATALOGUE.values()}) == len(CATALOGUE)
    assert len({defect.about for defect in CATALOGUE.values()}) == len(CATALOGUE)


def test_every_class_of_a_fault_is_in_the_catalogue():
    used = {ancestor for d in CATALOGUE.values() if isinstance(d.fault, type) for ancestor in d.fault.__mro__}
    for module in (lists, sizes, groups, state, swa):
        ours = {
            value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__
        }
        assert ours <= used, module.__name__
    assert {value for value in vars(kernels).values() if isinstance(value, Patch)} <= {
        defect.fault for defect in CATALOGUE.values()
    }


def test_every_row_of_the_list_of_faults_is_here_or_said_to_be_none_of_an_allocators():
    rows = {f"F{number:02}" for number in range(1, 43)}
    here = {name.partition("-")[0] for name in CATALOGUE}
    left = set(re.findall(r"F\d\d", catalogue.__doc__.partition("- ")[2]))
    assert here & rows | left == rows
    assert not here & left


def test_some_need_four_operations_or_more_in_a_certain_order():
    assert sum((defect.shortest or 0) >= DEEP for defect in CATALOGUE.values()) >= 5


@pytest.mark.parametrize("defect", CATALOGUE.values(), ids=CATALOGUE)
def test_what_an_entry_says_makes_sense(defect):
    assert defect.part in OWN
    assert defect.level in LEVELS
    assert defect.codes <= set(CODES)
    assert defect.codes
    assert defect.check in CHECKS
    assert defect.about.endswith(".")
    assert "\n" not in defect.about
    assert defect.seen
    space = defect.subject().space
    assert set(defect.page_sizes) <= set(space.page_sizes)
    assert space.need_sort == defect.need_sort


# -- what is seen of them ------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["paged", "swa"])
def test_an_answer_outside_the_pool_is_judged_where_k_and_v_are_written(part):
    config = Config(part, 1, 2, swa_pages=int(part == "swa"), data=True)
    subject = replace(CANARY, part=part).subject()
    violation = judged(subject, Case(config, (Extend((Grow("A", 2),)),)), "contract").violation
    assert violation.code == "RANGE"


def test_an_answer_of_two_dimensions_is_judged_where_k_and_v_are_written():
    case = Case(Config("paged", 1, 2, data=True), (Decode(("A",)),))
    assert judged(local("defect:two-dimensions"), case, "contract").violation.code == "TYPE"


# -- by name -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_defect_is_reachable_by_its_name(name):
    subject = local(f"defect:{name}[pages=3]")
    assert isinstance(subject, LocalSubject)
    assert (subject.name, subject.about) == (f"defect:{name}[pages=3]", CATALOGUE[name].about)
    assert subject.space.fixed == {"pages": 3}


def test_parameters_go_on_to_the_pools():
    assert resolve("defect:F12[page_size=4]").space.fixed == {"page_size": 4}
    config = Config("paged", 2, 4)
    assert (
        judged(local("defect:F09[page_size=4]"), Case(config, (Alloc("A", 4),)), "contract").violation.code
        == "UNIQUE"
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("defect:F1", "no defect is called 'F1': did you mean F"),
        ("defect:", "no defect is called '': `kvassay list` has all"),
        ("defect:half-twise", "did you mean half-twice"),
        ("defect:F02[page_size=4]", "defect:F02 has page size 1"),
        ("defect:F02[need_sort=false]", "defect:F02 can't be made with need_sort=False"),
        ("defect:old-page[engine=torch]", "its engine is what is wrong with it"),
        ("defect:F37[engine=torch]", "token has no engine"),
    ],
)
@pytest.mark.parametrize("make", [resolve, local])
def test_what_names_no_defect_is_refused_in_one_line(make, name, says):
    with pytest.raises(SubjectError, match=r"^[^\n]*$") as error:
        make(name)
    assert says in str(error.value)


def test_a_deadly_one_lives_in_a_process_of_its_own(named):
    assert CATALOGUE["dies"].deadly
    assert isinstance(named("dies"), ChildSubject)
    assert not CANARY.deadly


# -- patches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PATCHED)
def test_a_patched_engine_is_its_module_with_the_patch_alone(name):
    patch = CATALOGUE[name].fault
    runner = RUNNERS[patch.runner]
    engine = patch.engine()
    changed = load(runner.module, patch.old, patch.new)
    source = Path(importlib.import_module(runner.module).__file__)
    assert "".join(linecache.getlines(changed.__file__)) == source.read_text().replace(patch.old, patch.new)
    assert type(engine).extend.__module__ in (runner.module, "impl.emulator.engine")


@pytest.mark.parametrize("old", ["no such line", "page_size"])
def test_a_patch_whose_text_is_not_there_once_is_refused(old):
    with pytest.raises(StalePatch, match="and not once"):
        load("impl.torch_engine", old, "")


@pytest.mark.parametrize("module", ["torch._C", "impl.no_such_module"])
def test_a_module_without_text_is_refused(module):
    with pytest.raises(StalePatch, match="has no text to change"):
        load(module, "a", "b")


def test_a_patch_leaves_the_module_itself_alone():
    before = TorchEngine.extend
    made = load("impl.torch_engine", "total == 0", "total < 0")
    assert TorchEngine.extend is before
    assert made.TorchEngine is not TorchEngine
    assert "total < 0" in "".join(linecache.getlines(made.__file__))


def test_a_patched_engine_in_the_kernel_tier():
    engine = local_engine("defect:old-page")
    with pytest.raises(BatchBroken):
        run_task(plan_of_engine(engine, "quick")[0], engine, "contract", 0, Tally())
    with pytest.raises(SubjectError, match="no engine's fault"):
        local_engine("defect:F12")


def test_a_defect_without_order_claims_none():
    hidden = CATALOGUE["hidden-turn"]
    assert hidden.subject().traits(Config("token", 2)).dialect is None
    assert replace(hidden, ordered=True).subject().traits(Config("token", 2)).dialect is not None
