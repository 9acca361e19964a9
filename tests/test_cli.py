"""Does the command line say what is wrong in one line, and leave what it promises?"""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import fuzz.canary
import fuzz.doctor
import fuzz.run
from fuzz.cli import main
from impl.defects.catalogue import CATALOGUE
from impl.names import local, resolve
from oracle import casefile
from oracle.codes import CODES
from properties.checks import CHECKS
from properties.judged import judged

REPOSITORY = Path(__file__).parent.parent
KVASSAY = Path(sys.executable).with_name("kvassay")
FAULTY = "tests.planted:int32_answers"


class Here:
    """A process pool that does everything in this process, at once."""

    def __init__(self, *_, **__):
        self.submitted = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()

    def submit(self, function, *arguments):
        self.submitted += 1
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_):
        pass


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The gate's tasks run in this process, and what it judges too; that it is the same in others, `test_child` shows."""
    monkeypatch.setattr(fuzz.run, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(fuzz.run, "_SUBJECTS", {})
    monkeypatch.setattr(
        fuzz.run, "resolve", lambda *a: local(*a) if ":" in a[0] and not a[1] else resolve(*a)
    )
    yield
    for subject in fuzz.run._SUBJECTS.values():
        subject.close()


def kvassay(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def gate(out, *arguments, budget="quick", seed=0):
    return kvassay("gate", "--budget", budget, "--seed", seed, "--out", out, *arguments)


def refused(result, says):
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("kvassay: ")
    assert says in result.stderr
    assert "Traceback" not in result.output


# -- bad input -----------------------------------------------------------------------------------------

BAD_NAMES = [
    (["--impl", "nonsense"], "no subject is called 'nonsense'"),
    (["--impl", "sglang@0.5.2"], "sglang@0.5.2 names no part of SGLang"),
    (["--impl", "paged[page_size=x]"], "page_size is a whole number, not 'x'"),
    (["--impl", "paged[colour=red]"], "no parameter 'colour'"),
    (["--impl", "paged[need_sort=perhaps]"], "need_sort is true or false"),
    (["--impl", "paged["], "is no subject's name"),
    (["--impl", "token[engine=torch]"], "token has no engine"),
    (["--impl", "paged", "--path", "/nowhere"], "--path goes with sglang:PART"),
    (["--impl", "defect:F123"], "no defect is called 'F123': did you mean F"),
    (["--impl", "no_such_module:factory"], "no_such_module can't be imported"),
    (["--impl", "tests.planted:nothing"], "tests.planted has no 'nothing'"),
    (["--impl", "tests.planted:raises"], "raised RuntimeError: no pool today"),
    (["--impl", "tests.planted:no_allocator"], "gave a object without alloc, free"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD_NAMES)
def test_gate_refuses_a_bad_subject_in_one_line(tmp_path, arguments, says):
    refused(gate(tmp_path, *arguments), says)


@pytest.mark.parametrize(("arguments", "says"), BAD_NAMES)
def test_doctor_refuses_a_bad_subject_in_one_line(monkeypatch, arguments, says):
    monkeypatch.setattr("impl.names.resolve", fuzz.run.resolve)
    result = kvassay("doctor", *arguments)
    refused(result, says)


def test_a_folder_without_sglang_is_refused_in_one_line(tmp_path):
    refused(gate(tmp_path / "out", "--impl", "sglang:paged", "--path", tmp_path), str(tmp_path))


def test_an_engine_that_is_none_is_refused_in_one_line(tmp_path):
    refused(gate(tmp_path, "--tier", "kernel", "--impl", "nonsense"), "no engine is called 'nonsense'")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gate", "--level", "nonsense"], "'--level'"),
        (["gate", "--budget", "nonsense"], "'--budget'"),
        (["gate", "--tier", "nonsense"], "'--tier'"),
        (["gate", "--seed", "-1"], "'--seed'"),
        (["gate", "--seed", "x"], "'--seed'"),
        (["gate", "--workers", "0"], "'--workers'"),
        (["gate", "--accepted", "/nowhere/accepted.toml"], "'--accepted'"),
        (["gate", "--nonsense"], "--nonsense"),
        (["gate", "nonsense"], "nonsense"),
        (["doctor"], "'--impl'"),
        (["explain"], "CODE"),
        (["list", "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_options_are_said_in_one_line_behind_the_usage(arguments, says):
    result = kvassay(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[-1].lower().startswith(("error: ", "kvassay: "))
    assert says.lower() in lines[-1].lower()
    assert "Traceback" not in result.output


@pytest.mark.parametrize("place", ["file", "below a file"])
def test_an_output_folder_that_can_not_be_written_is_refused_in_one_line(tmp_path, place):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "below" if place != "file" else tmp_path / "file" / "."
    result = gate(out, "--impl", "token")
    assert result.exit_code == 2
    assert "--out" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output


def test_explain_of_an_unknown_code_is_refused_in_one_line():
    refused(kvassay("explain", "NONSENSE"), "no code is called 'NONSENSE'; there are UNIQUE, RANGE")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[accepted", "accepted.toml"),
        ('[[accepted]]\nexpires = 2999-01-01\ncode = "TYPE"\n', "give a reason"),
        ('[[accepted]]\nreason = "known"\ncode = "TYPE"\n', "give expires"),
    ],
)
def test_a_broken_accepted_file_is_refused_in_one_line(tmp_path, text, says):
    path = tmp_path / "accepted.toml"
    path.write_text(text)
    refused(gate(tmp_path, "--impl", FAULTY, "--accepted", path), says)


# -- what a run says and leaves ------------------------------------------------------------------------


def schema_of(document):
    assert set(document) >= {"schema", "verdict", "runs"}
    assert document["schema"] == 1
    assert document["verdict"] in ("pass", "fail", "incomplete", "error")
    for run in document["runs"]:
        for key, kind in {
            "subject": str, "level": str, "budget": str, "seed": int, "verdict": str, "operations": int, "cases": int,
            "seconds": float, "findings": list, "not_claimed": list, "coverage": dict,
        }.items():  # fmt: skip
            assert type(run[key]) is kind, key
        for finding in run["findings"]:
            for key in ("code", "kind", "operation", "summary", "case"):
                assert type(finding[key]) is str, key
            assert type(finding["length"]) is int
            assert finding["minimal"] in (None, True, False)
    return document


def test_a_sound_subject_ends_with_0(tmp_path):
    result = gate(tmp_path, "--impl", "token", "--json")
    assert result.exit_code == 0, result.output
    whole = schema_of(json.loads(result.stdout))
    assert (whole["verdict"], [run["level"] for run in whole["runs"]]) == ("pass", ["parity", "hardened"])
    assert all(run["operations"] > 1000 and run["findings"] == [] for run in whole["runs"])
    assert json.loads((tmp_path / "report.json").read_text()) == whole
    suites = ET.parse(tmp_path / "junit.xml").getroot()
    assert [(suite.get("failures"), suite.get("errors")) for suite in suites] == [("0", "0")] * 2
    assert all(int(suite.get("tests")) == len(suite) > 0 for suite in suites)
    assert list((tmp_path / "cases").iterdir()) == []


@pytest.fixture
def found(tmp_path):
    result = gate(tmp_path, "--impl", "tests.planted:exhaustion_raises", "--json", seed=1)
    return result, json.loads(result.stdout), tmp_path


def test_a_finding_ends_with_1_and_its_case_shows_it_again(found):
    result, whole, out = found
    assert result.exit_code == 1
    run = schema_of(whole)["runs"][0]
    assert (whole["verdict"], run["verdict"], run["seed"], run["budget"]) == ("fail", "fail", 1, "quick")
    assert {finding["code"] for finding in run["findings"]} == {"EXHAUST"}
    subject = local("tests.planted:exhaustion_raises")
    for finding in run["findings"]:
        file = casefile.read(out / finding["case"])
        assert (file.subject, file.level, file.seed) == (run["subject"], run["level"], 1)
        assert finding["length"] == len(file.case.operations)
        assert judged(subject, file.case, file.level).violation == file.finding
    assert {f"cases/{path.name}" for path in (out / "cases").glob("*.json")} == {
        f["case"] for f in run["findings"]
    }
    assert len(list((out / "cases").glob("*.py"))) == 2 * len(run["findings"])  # a script, and a test

    suite = ET.parse(out / "junit.xml").getroot()[0]
    failures = suite.findall("testcase/failure")
    assert len(failures) == int(suite.get("failures")) > 0
    assert {failure.get("type") for failure in failures} == {"EXHAUST"}
    broken = {(p["name"], p["shard"]) for p in run["properties"] if not p["holds"]}
    assert ("sequences", 0) in broken
    assert len(suite) == len(run["properties"])


def accepting(tmp_path, expires, *more):
    path = tmp_path / "accepted.toml"
    path.write_text(f'[[accepted]]\nreason = "we live with it"\nexpires = {expires}\ncode = "TYPE"\n')
    return gate(tmp_path / "out", "--impl", FAULTY, "--accepted", path, *more)


def test_accepted_findings_are_listed_and_end_with_0(tmp_path):
    result = accepting(tmp_path, "2999-01-01", "--json")
    assert result.exit_code == 0
    run = json.loads(result.stdout)["runs"][0]
    assert run["verdict"] == "pass"
    assert {(f["code"], f["accepted"]) for f in run["findings"]} == {("TYPE", "we live with it")}
    assert "accepted: we live with it" in result.stderr
    assert ET.parse(tmp_path / "out" / "junit.xml").getroot()[0].get("failures") == "0"


def test_findings_whose_day_has_passed_count_and_people_get_their_words(tmp_path):
    result = accepting(tmp_path, "2020-01-01")
    assert result.exit_code == 1
    assert "accepted" not in result.stdout
    assert "TYPE (fault)" in result.stdout
    assert "the answer to alloc 1 for drain is int32, and int64 is promised" in result.stdout
    assert "seed 0" in result.stdout
    assert FAULTY in result.stdout
    case = next(line.split()[-1] for line in result.stdout.splitlines() if line.endswith(".json"))
    assert casefile.read(case).finding.code == "TYPE"


# -- undecided -----------------------------------------------------------------------------------------


def undecided(result, out, verdict):
    assert result.exit_code == 3, result.output
    whole = json.loads((out / "report.json").read_text())
    assert whole["verdict"] == verdict
    ET.parse(out / "junit.xml")
    return whole["runs"]


def test_a_run_in_which_nothing_was_checked_ends_with_3(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz.run, "plan_of", lambda subject, budget, level: [])
    runs = undecided(gate(tmp_path, "--impl", "token"), tmp_path, "incomplete")
    assert [run["verdict"] for run in runs] == ["incomplete"] * 2


def test_a_harness_that_breaks_ends_with_3(tmp_path, monkeypatch):
    def breaks(subject, level, run_seed, count, tally, avoid):
        raise ZeroDivisionError("the harness")

    monkeypatch.setitem(CHECKS, "fixed slots", breaks)
    runs = undecided(gate(tmp_path, "--impl", "token", "--level", "contract"), tmp_path, "error")
    assert "the harness" in runs[0]["error"]
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]
    assert (suite.get("errors"), len(suite.findall("testcase/error"))) == ("1", 1)


@pytest.mark.parametrize("alive", range(5))
def test_a_worker_that_dies_ends_with_3(tmp_path, monkeypatch, alive):
    """As a process pool does it: what is under way fails, and nothing more is taken."""

    class Dies(Here):
        def submit(self, function, *arguments):
            if self.submitted > max(alive, 1):
                raise BrokenProcessPool("a child process terminated")
            if self.submitted == alive:
                self.submitted += 1
                future = Future()
                future.set_exception(BrokenProcessPool("a child process terminated"))
                return future
            return super().submit(function, *arguments)

    monkeypatch.setattr(fuzz.run, "ProcessPoolExecutor", Dies)
    runs = undecided(gate(tmp_path, "--impl", "token"), tmp_path, "error")
    assert any("a worker process died" in run["error"] for run in runs)
    assert all(run["verdict"] == "error" for run in runs)


# -- the canary ----------------------------------------------------------------------------------------


def test_a_run_says_how_its_canary_was_found(tmp_path):
    result = gate(tmp_path, "--impl", "token", "--level", "contract")
    assert result.exit_code == 0
    said = next(line for line in result.stdout.splitlines() if line.startswith("canary: found after "))
    assert f"canary: {json.loads((tmp_path / 'report.json').read_text())['canary']}" == said


@pytest.mark.parametrize("options", [["--impl", "token"], ["--tier", "kernel", "--impl", "torch"]])
def test_a_canary_that_is_sound_ends_with_3(tmp_path, monkeypatch, options):
    patch = fuzz.canary.CANARY.fault
    sound = replace(fuzz.canary.CANARY, fault=replace(patch, new=patch.old))
    monkeypatch.setattr(fuzz.canary, "CANARY", sound)
    monkeypatch.setitem(CATALOGUE, "canary", sound)
    result = gate(tmp_path, *options)
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith("kvassay: the gate is broken: its canary")
    whole = json.loads((tmp_path / "report.json").read_text())
    assert (whole["verdict"], whole["runs"]) == ("error", [])
    assert whole["canary"].startswith("not found in ")
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]
    assert (suite.get("errors"), len(suite.findall("testcase/error"))) == ("1", 1)


def test_a_canary_found_for_another_reason_ends_with_3(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz.canary, "CANARY", replace(fuzz.canary.CANARY, breaks="DATA"))
    assert gate(tmp_path, "--impl", "token").exit_code == 3


def test_the_canary_is_found_whatever_the_seed():
    for seed in range(20):
        for kernel_tier in (False, True):
            assert fuzz.canary.look_for_canary(kernel_tier, seed).found


# -- defects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "level"), [("F12", "contract"), ("other-end", "parity"), ("F03", "hardened")]
)
def test_a_defect_is_judged_at_its_own_level_and_found(tmp_path, name, level):
    result = gate(tmp_path, "--impl", f"defect:{name}", "--json", budget="quick")
    assert result.exit_code == 1, result.output
    (run,) = json.loads(result.stdout)["runs"]
    assert (run["subject"], run["level"]) == (f"defect:{name}", level)
    assert run["findings"]


# -- the other commands --------------------------------------------------------------------------------


def test_list_names_everything():
    whole = json.loads(kvassay("list", "--json").stdout)
    assert {"token", "paged", "ascend", "swa", "sglang:PART"} <= set(whole["subjects"])
    assert set(whole["properties"]) == set(CHECKS)
    assert set(whole["codes"]) == set(CODES)
    assert set(whole["defects"]) == {f"defect:{name}" for name in CATALOGUE}
    assert all(text for table in whole.values() for text in table.values())
    assert "ALIGN" in kvassay("list").stdout


@pytest.mark.parametrize("code", CODES)
def test_explain_says_what_holds_and_why(code):
    result = kvassay("explain", code.lower())
    assert result.exit_code == 0
    assert CODES[code].asserts in result.stdout
    assert CODES[code].matters in result.stdout


@pytest.mark.parametrize("name", ["token", "paged", "swa", "paged[pages=100]", "swa[page_size=1]"])
def test_doctor_of_a_sound_subject_ends_with_0(name):
    result = kvassay("doctor", "--impl", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "sound"


def test_doctor_of_a_faulty_subject_ends_with_1(monkeypatch):
    monkeypatch.setattr("impl.names.resolve", fuzz.run.resolve)
    looks = {look.method: look for look in fuzz.doctor.examine(local("tests.planted:copies_other_rows"))}
    assert {method for method, look in looks.items() if not look.sound} == {"load_cpu_copy"}
    result = kvassay("doctor", "--impl", FAULTY)
    assert result.exit_code == 1
    assert "alloc                  the answer to alloc" in result.stdout


# -- as people start it --------------------------------------------------------------------------------


def started(command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_a_planted_engine_in_processes_of_its_own(tmp_path):
    command = [sys.executable, "-c", "from fuzz.cli import main; main()", "gate", "--tier", "kernel"]
    options = [
        "--impl",
        "tests.planted:WritesBeforeOutput",
        "--budget",
        "quick",
        "--seed",
        "0",
        "--workers",
        "1",
    ]
    done = started([*command, *options, "--out", tmp_path, "--json"], REPOSITORY)
    assert done.returncode == 1, done.stderr
    run = schema_of(json.loads(done.stdout))["runs"][0]
    assert (run["tier"], run["findings"][0]["code"]) == ("kernel", "GUARD")
    assert json.loads((tmp_path / run["findings"][0]["case"]).read_text())["dtype"] == "int64"


def test_the_console_script_works_in_a_repository_with_packages_of_our_names(tmp_path):
    for package in ("impl", "fuzz", "oracle", "properties"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('somebody else')\n")
    (tmp_path / "mymodule.py").write_text(
        "import torch\n"
        "from impl.subject import kv_pools, own\n"
        "from impl.token import TokenAllocator\n\n\n"
        "def factory(config):\n"
        "    pool, _ = kv_pools(config, 'cpu')\n"
        "    return TokenAllocator(config.size, torch.float32, 'cpu', pool, config.need_sort)\n\n\n"
        "factory.kind, factory.traits = 'token', own('token').claims\n"
    )
    names = ["--impl", "paged", "--impl", "mymodule:factory"]
    options = ["--level", "contract", "--budget", "quick", "--seed", "0", "--workers", "1", "--json"]
    done = started([KVASSAY, "gate", *names, *options], tmp_path)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["subject"], run["verdict"]) for run in runs] == [
        ("paged", "pass"),
        ("mymodule:factory", "pass"),
    ]
    assert (tmp_path / "kvassay-out" / "report.json").exists()
    assert "mymodule:factory: budget quick" in done.stderr
