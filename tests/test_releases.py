"""Are faults of real SGLang releases found, and not reported where a later release has mended them?

Each case is written by hand, as short as the fault allows; what a release does with it is what it was seen to do.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from impl.names import resolve
from impl.sglang import fetch
from oracle.ops import (
    Alloc,
    Case,
    Clear,
    Config,
    Decode,
    Extend,
    Free,
    GroupBegin,
    GroupEnd,
    Grow,
    Merge,
    Part,
)
from properties.judged import judged

pytestmark = pytest.mark.network

OLD, MIDDLE, NEW = "0.4.10.post2", "0.5.2", "0.5.23"
KVASSAY = Path(sys.executable).with_name("kvassay")
FREE_A = Free((Part("A"),))


def extend(*batch: tuple[str, int]) -> Extend:
    return Extend(tuple(Grow(name, tokens) for name, tokens in batch))


def paged(pages: int, page_size: int, *operations, **config) -> Case:
    config.setdefault("overwrite", False)
    return Case(Config("paged", pages, page_size, **config), operations)


class Fault(NamedTuple):
    """What is wrong in a part of `releases`: a case, and the code, kind, operation and symptom of its finding."""

    part: str
    case: Case
    code: str
    kind: str
    operation: str
    symptom: str
    releases: tuple[str, ...] = (OLD, MIDDLE)


GROUP_OF_A = (extend(("A", 1)), GroupBegin(), FREE_A)

# By their numbers in FAULTS.md.
FAULTS = {
    "F24 extend past the free list": Fault(
        "paged", paged(1, 4, extend(("A", 5))), "GUARD", "fault", "alloc_extend",
        "out-of-bounds load, no fit",
    ),
    "F24 decode past the free list": Fault(
        "paged",
        paged(1, 4, extend(("A", 4)), Decode(("A",))),
        "GUARD",
        "fault",
        "alloc_decode",
        "out-of-bounds load, no fit",
    ),
    "F34 sum over lanes that nothing filled, extend": Fault(
        "paged", paged(2, 4, extend(("A", 1), ("B", 1)), undefined=True), "GUARD", "fault", "alloc_extend",
        "undefined lane",
    ),
    "F34 sum over lanes that nothing filled, decode": Fault(
        "paged", paged(2, 4, Decode(("A", "B")), undefined=True), "GUARD", "fault", "alloc_decode",
        "undefined lane",
    ),
    "F35 tensor kept until the group ends": Fault(
        "paged", paged(1, 2, *GROUP_OF_A, overwrite=True), "ALIAS", "fault", "free_group_end", "done"
    ),
    "F37 group ended twice": Fault(
        "paged", paged(1, 2, *GROUP_OF_A, GroupEnd(), GroupEnd()), "GROUP", "fault", "free_group_end",
        "done, no group",
    ),
    "F38 nested begin": Fault(
        "paged", paged(1, 2, *GROUP_OF_A, GroupBegin()), "CONSERVE", "misuse", "free_group_begin", "accepted"
    ),
    "F01 over a neighbour": Fault(
        "ascend", paged(3, 4, extend(("A", 5)), extend(("B", 4), ("A", 2))), "ALIGN", "fault", "alloc_extend",
        "slots",
    ),
    "F01 alone": Fault(
        "ascend", paged(3, 4, extend(("A", 5)), extend(("A", 2))), "EXHAUST", "fault", "alloc_extend",
        "raised RuntimeError",
    ),
    "F25 decode that fits exactly": Fault(
        "ascend", paged(2, 4, extend(("A", 1)), Decode(("B", "A"))), "EXHAUST", "fault", "alloc_decode",
        "raised IndexError", (MIDDLE,),
    ),
    "F26 extend": Fault(
        "ascend", paged(1, 2, Alloc("A", 2), extend(("B", 2))), "EXHAUST", "fault", "alloc_extend",
        "raised RuntimeError, no fit", (OLD,),
    ),
    "F26 decode": Fault(
        "ascend", paged(1, 2, Alloc("A", 2), Decode(("B",))), "EXHAUST", "fault", "alloc_decode",
        "raised IndexError, no fit", (OLD,),
    ),
    "F39 clear inside a group": Fault(
        "swa",
        Case(
            Config("swa", 1, swa_pages=1, overwrite=False), (GroupBegin(), Clear(), Alloc("A", 1), FREE_A)
        ),
        "CONSERVE", "fault", "free", "done", (OLD,),
    ),
}  # fmt: skip

# What the suite found in the newest release.
NEW_FAULTS = {
    "F34 is in its Triton kernels still": FAULTS["F34 sum over lanes that nothing filled, decode"]._replace(
        part="paged[engine=emulator]"
    ),
    "swa decode keeps window pages when the full pool has none": Fault(
        "swa",
        Case(Config("swa", 1, 2, swa_pages=2, overwrite=False), (Decode(("A", "B")),)),
        "ATOMIC", "fault", "alloc_decode", "none, no fit",
    ),
    "swa has no merge_and_sort_free of its own": Fault(
        "swa",
        Case(Config("swa", 1, swa_pages=1, overwrite=False), (Merge(),)),
        "CONSERVE", "fault", "merge_and_sort_free", "raised TypeError",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def subject():
    """Subjects by name, each with one process for the whole file."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = resolve(name)
        return made[name]

    yield get
    for each in made.values():
        each.close()


def assert_found(fault, violation):
    assert violation is not None
    assert (violation.code, violation.kind, violation.operation, violation.symptom) == fault[2:6]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("release", [OLD, MIDDLE, NEW])
def test_a_fault_is_found_where_it_is(subject, release, fault):
    violation = judged(subject(f"sglang@{release}:{fault.part}"), fault.case, "contract").violation
    if release in fault.releases:
        assert_found(fault, violation)
    else:
        assert violation is None


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS.values() if f.part == "paged" and f.symptom != "undefined lane"]
)
@pytest.mark.parametrize("engine", ["triton", "emulator"])
def test_the_kernels_of_the_new_release_are_mended_too(subject, fault, engine):
    name = f"sglang@{NEW}:paged[engine={engine}]"
    assert judged(subject(name), fault.case, "contract").violation is None


@pytest.mark.parametrize("fault", NEW_FAULTS.values(), ids=NEW_FAULTS)
def test_a_fault_of_the_new_release_is_found(subject, fault):
    assert_found(fault, judged(subject(f"sglang@{NEW}:{fault.part}"), fault.case, "contract").violation)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fence is only put up where processes fork")
@pytest.mark.parametrize("case", [f.case for n, f in FAULTS.items() if n.startswith("F24")])
def test_the_interpreter_dies_where_the_emulator_has_a_finding(subject, case):
    violation = judged(subject(f"sglang@{MIDDLE}:paged[engine=triton]"), case, "contract").violation
    assert violation is not None
    assert (violation.code, violation.symptom) == ("GUARD", "crashed, no fit")


def test_must_have_cases_are_short():
    assert all(len(fault.case.operations) <= 6 for fault in FAULTS.values())


# -- the command ---------------------------------------------------------------------------------------


def gate(folder, *options, **environment):
    return subprocess.run(
        [KVASSAY, "gate", *options, "--budget", "quick", "--seed", "1", "--workers", "1", "--out", folder / "out"],
        capture_output=True, text=True, cwd=folder, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def findings(folder):
    (run,) = json.loads((folder / "out" / "report.json").read_text())["runs"]
    return run["verdict"], {(f["code"], f["kind"], f["operation"], f["symptom"]) for f in run["findings"]}


def test_the_gate_finds_the_faults_of_a_release(tmp_path):
    done = gate(tmp_path, "--impl", f"sglang@{MIDDLE}:ascend")
    assert done.returncode == 1, done.stderr
    verdict, found = findings(tmp_path)
    assert verdict == "fail"
    extends = {code for code, kind, operation, _ in found if (kind, operation) == ("fault", "alloc_extend")}
    assert extends & {"ALIGN", "EXHAUST"}  # F01: over a neighbour, or out of its own output
    assert not any("no fit" in symptom for _, _, _, symptom in found)  # F26, mended


def test_the_gate_goes_on_behind_lanes_that_nothing_filled(tmp_path):
    done = gate(tmp_path, "--impl", f"sglang@{OLD}:paged")
    assert done.returncode == 1, done.stderr
    _, found = findings(tmp_path)
    guards = {symptom for code, kind, _, symptom in found if (code, kind) == ("GUARD", "fault")}
    assert guards == {"undefined lane", "out-of-bounds load, no fit"}  # F34, F24
    assert {("ALIAS", "fault"), ("GROUP", "fault")} <= {
        (code, kind) for code, kind, _, _ in found
    }  # F35, F37


def test_a_working_tree_is_judged_like_its_release(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "python").symlink_to(fetch(MIDDLE))
    done = gate(tmp_path, "--impl", "sglang:token", "--path", tmp_path / "tree")
    assert done.returncode == 1, done.stderr
    verdict, found = findings(tmp_path)
    assert verdict == "fail"
    assert ("GROUP", "fault", "free_group_end", "done, no group") in found


def test_a_release_that_cannot_be_had_is_one_line(tmp_path):
    done = gate(
        tmp_path, "--impl", f"sglang@{MIDDLE}:paged", KVASSAY_CACHE=str(tmp_path / "cache"), PIP_NO_INDEX="1"
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert "is not in the cache" in said[-1]
    assert "Traceback" not in done.stderr
    assert len(said) <= 2  # the heading, and the reason
