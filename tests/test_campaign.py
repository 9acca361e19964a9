"""Does a campaign get behind what it found, and does the seed alone decide what that is?"""

import json
import os
import subprocess
import sys
from pathlib import Path

from fuzz.campaign import campaign
from fuzz.run import Options, Target, run
from impl.names import local
from impl.subject import own
from properties.cases import generate
from properties.checks import Task
from properties.sources import SeededSource

REPOSITORY = Path(__file__).parent.parent

# Prints what the checks that Hypothesis draws have asked, for two seeds.
DRAWN = """
import hashlib, json
from impl.names import local
from impl.subject import own
from properties.checks import Tally, fixed_slots, state_machine

class Recorded:
    def __init__(self):
        self.subject, self.log = own("token"), hashlib.sha256()
    def __getattr__(self, name):
        return getattr(self.subject, name)
    def open(self, config):
        self.log.update(repr(config).encode())
        self.driver = self.subject.open(config)
        return self
    def begin(self):
        return self.driver.begin()
    def apply(self, step):
        self.log.update(repr(step.operation).encode())
        return self.driver.apply(step)
    def run(self, case, steps):
        self.log.update(repr(case).encode())
        return self.subject.run(case, steps)

drawn = {}
for check in (state_machine, fixed_slots):
    for seed in "01":
        subject = Recorded()
        check(subject, "contract", seed, 8, Tally())
        drawn[f"{check.__name__} {seed}"] = subject.log.hexdigest()
print(json.dumps(drawn))
"""


def sequences_of(name, count=25):
    return Task(f"tests.planted:{name}", "sequences", 0, count)


def test_a_shallow_fault_does_not_hide_a_deep_one():
    result = campaign(sequences_of("two_faults"), local("tests.planted:two_faults"), "contract", 2)
    shallow = [
        f for f in result.findings if f.violation.code == "EXHAUST" and "IndexError" in f.violation.symptom
    ]
    deep = [f for f in result.findings if f.violation.code in ("CONSERVE", "REUSE") and f.length >= 3]
    assert shallow
    assert deep
    assert shallow[0].steered in result.avoid or result.findings[-1] is shallow[0]


def test_without_the_shallow_fault_only_the_deep_one_is_there_to_find():
    alone = campaign(
        sequences_of("exhaustion_raises"), local("tests.planted:exhaustion_raises"), "contract", 0
    )
    assert {f.violation.code for f in alone.findings} == {"EXHAUST"}


def test_a_sound_subject_ends_with_nothing_left_out():
    result = campaign(Task("paged", "sequences", 0, 25), own("paged"), "contract", 0)
    assert (result.findings, result.stopped_at, result.avoid) == ([], "", frozenset())
    assert result.cases == 25
    assert result.operations > result.cases


def test_one_seed_finds_the_same_twice():
    def found():
        result = campaign(sequences_of("two_faults", 12), local("tests.planted:two_faults"), "contract", 7)
        return (
            result.findings,
            result.cases,
            result.operations,
            result.points,
            result.avoid,
            result.stopped_at,
        )

    first = found()
    assert first == found()
    assert first[0]


def test_seeds_make_cases_of_their_own():
    subject = own("paged")

    def cases(seed):
        task = Task("paged", "sequences", 0, 20).seed(seed)
        sources = (SeededSource(f"{task}/{example}") for example in range(20))
        return [generate(source, subject.space, subject.traits, "contract") for source in sources]

    assert cases(3) == cases(3)
    assert not set(cases(3)) & set(cases(4))
    assert len(set(cases(3))) == 20


def test_seeds_of_tasks_differ():
    tasks = [Task(name, check, shard, 1) for name in ("a", "b") for check in ("c", "d") for shard in (0, 1)]
    assert len({task.seed(seed) for task in tasks for seed in (0, 1)}) == 16


def test_ci_in_the_environment_changes_nothing_that_hypothesis_draws():
    def drawn(**more):
        environment = {key: value for key, value in os.environ.items() if key not in ("CI", "GITHUB_ACTIONS")}
        done = subprocess.run(
            [sys.executable, "-c", DRAWN],
            cwd=REPOSITORY,
            env=environment | more,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    here, there = drawn(), drawn(CI="true")
    assert here == there
    assert len(set(here.values())) == len(here) == 4


def test_number_of_workers_decides_nothing(monkeypatch):
    # Worker processes start from here, and the planted factory is found in the root of the repository.
    monkeypatch.chdir(REPOSITORY)
    targets = Target("token", "contract"), Target("tests.planted:second_end", "contract")

    def found(workers):
        options = Options(targets, budget="quick", seed=5, workers=workers)
        reports = sorted(run(options, lambda report, result: None), key=lambda r: targets.index(r.target))
        return [
            (
                r.target,
                r.findings,
                r.cases,
                r.operations,
                r.coverage,
                r.verdict,
                r.error,
                [x.task for x in r.results],
            )
            for r in reports
        ]

    one = found(1)
    assert one == found(2)
    assert [entry[5] for entry in one] == ["pass", "fail"]
