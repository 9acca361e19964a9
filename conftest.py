"""The pytest face of the suite: what is judged is chosen by options, and the gate's own plan is run.

pytest properties --impl sglang@0.5.2:ascend --budget quick
"""

from __future__ import annotations

import datetime
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton

from hypothesis import settings

from fuzz.campaign import TaskResult, campaign
from fuzz.findings import accept, distinct, read_accepted
from fuzz.report import lines_of, versions
from fuzz.run import KERNEL, OWN_LEVELS, Options, Target, plan_for, subject_of, targets_for
from properties.checks import Avoid, Task
from properties.workload import NONE

# `derandomize` is off in each: Hypothesis otherwise turns it on where CI is set, and ignores the seed.
for profile, examples in (("quick", 20), ("ci", 100), ("nightly", 2000)):
    settings.register_profile(profile, max_examples=examples, derandomize=False, database=None, deadline=None)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The gate's options, as pytest's."""
    group = parser.getgroup("kvassay", "what `pytest properties` judges")
    group.addoption(
        "--impl",
        action="append",
        default=[],
        metavar="SUBJECT",
        help="may be repeated; default: the project's own",
    )
    group.addoption("--device", default="cpu", help="where its tensors live")
    group.addoption("--path", default="", help="a working tree of SGLang, for sglang:PART")
    group.addoption(
        "--level",
        default="",
        choices=("", "contract", *OWN_LEVELS),
        help="default: what the subject is held to",
    )
    group.addoption(
        "--budget",
        default="quick",
        choices=("quick", "ci", "nightly"),
        help="how many cases (default: quick)",
    )
    group.addoption("--tier", default="allocator", choices=("allocator", KERNEL))
    group.addoption(
        "--run-seed",
        type=int,
        default=None,
        metavar="N",
        help="makes the run; default: drawn, and printed in the header",
    )
    group.addoption("--accepted", type=Path, default=None, help="a TOML file of findings that you live with")


SEED = "KVASSAY_SEED"  # how the controller of pytest-xdist tells its workers which seed it drew


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed once, in whichever process comes first."""
    given = config.getoption("--run-seed")
    if given is not None:
        os.environ[SEED] = str(given)
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(1_000_000)))


def options_of(config: pytest.Config) -> Options:
    """The run that the options ask for."""
    accepted: Path | None = config.getoption("--accepted")
    return Options(
        targets=targets_for(
            tuple(config.getoption("--impl")),
            config.getoption("--level"),
            config.getoption("--tier"),
            config.getoption("--device"),
        ),
        budget=config.getoption("--budget"),
        seed=int(os.environ[SEED]),
        device=config.getoption("--device"),
        path=config.getoption("--path"),
        accepted=tuple(read_accepted(accepted)) if accepted else (),
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is judged, with which versions and which seed."""
    options = options_of(config)
    names = ", ".join(f"{target.name} ({target.level})" for target in options.targets)
    found = ", ".join(f"{name} {version}" for name, version in versions().items())
    return [f"kvassay: {names}", f"kvassay: budget {options.budget}, --run-seed {options.seed}; {found}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each task of the plan; all of one subject on one worker, since later ones need the first."""
    if "task" not in metafunc.fixturenames:
        return
    from impl.errors import SubjectError

    options = options_of(metafunc.config)
    check = metafunc.function.check
    params = []
    for target in options.targets:
        try:
            tasks = plan_for(target, options)
        except SubjectError as error:
            raise pytest.UsageError(str(error)) from error
        for task in tasks:
            if check(task):
                mark = pytest.mark.xdist_group(f"{target.tier} {target.name} {target.level}")
                params.append(
                    pytest.param((target, task), id=f"{task}-{target.level}".replace(" ", "-"), marks=mark)
                )
    metafunc.parametrize("task", params)


class Runs:
    """The tasks that were done, so that later ones can go round what the first ones found."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._done: dict[tuple[Target, Task], TaskResult] = {}

    def result(self, target: Target, task: Task) -> TaskResult:
        """The result of a task; tasks that come before it in the plan are done first."""
        key = target, task
        if key not in self._done:
            subject = subject_of(target, self._options)
            self._done[key] = campaign(
                task, subject, target.level, self._options.seed, self._avoid(target, task)
            )
        return self._done[key]

    def _avoid(self, target: Target, task: Task) -> Avoid:
        plan = [other for other in plan_for(target, self._options) if other.check == "sequences"]
        if task.check == "sequences":
            plan = plan[:1] if task.shard else []
        return NONE.union(*(self.result(target, other).avoid for other in plan))


@pytest.fixture(scope="session")
def runs(pytestconfig: pytest.Config) -> Runs:
    """All results of this process."""
    return Runs(options_of(pytestconfig))


@pytest.fixture
def holds(runs: Runs, pytestconfig: pytest.Config) -> Callable[[tuple[Target, Task]], None]:
    """Does a task, and fails with every distinct fault that it found, in words and operations."""

    def do(task: tuple[Target, Task]) -> None:
        result = runs.result(*task)
        accepted = list(options_of(pytestconfig).accepted)
        findings = accept(distinct(result.findings), accepted, datetime.date.today())
        bad = [finding for finding in findings if not finding.accepted]
        if bad:
            pytest.fail("\n\n".join("\n".join(lines_of(finding)) for finding in bad), pytrace=False)
        if findings:
            pytest.xfail("; ".join(finding.accepted for finding in findings))

    return do


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without what the subjects have no task for, such as a relation between snapshots."""
    idle = [item for item in items if "[NOTSET]" in item.nodeid]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]
