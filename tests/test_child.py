"""Is a subject in another process answered for as one in this, also when it dies there?"""

import itertools

import pytest

from impl.child import ChildEngine, ChildSubject
from impl.errors import SubjectError
from impl.names import local
from oracle.batch import Batch
from oracle.ops import Alloc, Case, Clear, Config, Free, GroupBegin, GroupEnd, Part
from oracle.plan import plan
from properties.cases import generate
from properties.judged import judged
from properties.sources import SeededSource

SOUND = Case(Config("token", 3), (Alloc("A", 1), Free((Part("A"),)), Alloc("A", 2)))
DEADLY = Case(Config("token", 3), (Alloc("A", 1), Free((Part("A"),)), Alloc("A", 3), Alloc("B", 1)))
GROUPED = Case(Config("token", 4), (Alloc("A", 2), GroupBegin(), Free((Part("A"),)), GroupEnd(), Clear()))


@pytest.fixture(scope="module")
def sound():
    subject = ChildSubject("tests.planted:second_end")
    yield subject
    subject.close()


@pytest.fixture(scope="module")
def mortal():
    subject = ChildSubject("tests.planted:dies")
    yield subject
    subject.close()


def whole(subject, case):
    return list(subject.run(case, plan(case, subject.traits(case.config))))


def stepwise(subject, case):
    driver = subject.open(case.config)
    steps = plan(case, subject.traits(case.config))
    return [
        driver.begin(),
        *(driver.apply(step, following) for step, following in itertools.zip_longest(steps, steps[1:])),
    ]


def test_describes_the_subject_as_this_process_does(sound):
    here = local("tests.planted:second_end")
    assert (sound.about, sound.space, sound.share) == (here.about, here.space, here.share)
    assert sound.traits(SOUND.config) == here.traits(SOUND.config)


@pytest.mark.parametrize("example", range(6))
def test_whole_and_stepwise_and_local_runs_answer_the_same(sound, example):
    here = local("tests.planted:second_end")
    case = generate(SeededSource(f"child/{example}"), here.space, here.traits, "contract")
    assert (
        whole(sound, case)
        == stepwise(sound, case)
        == list(here.run(case, plan(case, here.traits(case.config))))
    )


def test_a_signal_is_an_observation_that_names_it(mortal):
    seen = whole(mortal, DEADLY)
    assert [entry.outcome for entry in seen] == ["done", "slots", "done", "crashed"]
    assert seen[-1].error == "signal SIGSEGV"


def test_a_signal_is_judged_and_the_next_case_works(mortal):
    violation = judged(mortal, DEADLY, "contract").violation
    assert (violation.code, violation.operation, violation.index) == ("GUARD", "alloc", 2)
    assert "SIGSEGV" in violation.summary
    config = Config("token", 1)  # a pool of one page may be taken whole
    assert judged(mortal, Case(config, (Alloc("A", 1),)), "contract").violation is None


def test_a_signal_while_driven_step_by_step(mortal):
    driver = mortal.open(DEADLY.config)
    steps = plan(DEADLY, mortal.traits(DEADLY.config))
    assert driver.begin().outcome == "done"
    assert [driver.apply(step).outcome for step in steps[:3]] == ["slots", "done", "crashed"]
    assert mortal.open(Config("token", 2)).begin().available == 2


def test_a_run_that_is_left_alone_does_not_leak_into_the_next(sound):
    expected = whole(sound, GROUPED)
    for looked_at in range(4):
        run = sound.run(SOUND, plan(SOUND, sound.traits(SOUND.config)))
        list(itertools.islice(run, looked_at))
        assert whole(sound, GROUPED) == expected
        assert stepwise(sound, GROUPED) == expected


def test_two_subjects_at_once_do_not_mix(sound, mortal):
    runs = [subject.run(SOUND, plan(SOUND, subject.traits(SOUND.config))) for subject in (sound, mortal)]
    mixed = list(itertools.islice(zip(*runs, strict=True), 4))
    apart = [whole(sound, SOUND)[:4], whole(mortal, SOUND)[:4]]
    assert [list(side) for side in zip(*mixed, strict=True)] == apart
    assert whole(mortal, DEADLY)[-1].outcome == "crashed"
    assert whole(sound, SOUND)[-1].outcome == "slots"


def test_a_closed_subject_starts_again(sound):
    before = whole(sound, SOUND)
    sound.close()
    sound.close()
    assert whole(sound, SOUND) == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.planted:raises", "tests.planted:raises raised RuntimeError: no pool today"),
        ("tests.planted:no_allocator", "gave a object without alloc, free"),
    ],
)
def test_a_factory_that_gives_no_allocator_is_one_clear_line(name, says):
    with pytest.raises(SubjectError, match=r"^[^\n]*$") as error:
        ChildSubject(name)
    assert says in str(error.value)


def test_an_engine_in_a_child_answers_batches():
    engine = ChildEngine("defect:old-page")
    batch = Batch(4, (2,), (6,), (5,), (3,))
    assert engine.run_batch(batch, "int64").slots == (7, 8, 12, 13)
    engine.close()
