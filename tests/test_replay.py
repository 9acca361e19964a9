"""Does a replay say what is still there, what is not, and what can't be told?"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import fuzz.replay
from fuzz.cli import main
from fuzz.replay import exit_code, replay, replay_path
from impl.subject import LocalSubject, own
from oracle import casefile
from oracle.casefile import CaseFile
from oracle.ops import Alloc, Case, Config, Free, Part
from oracle.verdict import Violation
from properties.judged import HarnessError

REGRESSIONS = Path(__file__).parent.parent / "regressions"
SCHEMA_1 = Path(__file__).parent / "cases" / "schema-1-batch.json"


def kvassay(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_what_is_still_there_has_failed():
    entry = replay_path(REGRESSIONS / "F37.json")
    assert (entry.state, entry.code, entry.same, entry.exit) == ("FAILED", "GROUP", True, 1)
    assert entry.says == casefile.read(REGRESSIONS / "F37.json").finding.summary


def test_what_is_gone_is_fixed():
    entry = replay_path(REGRESSIONS / "F37.json", impl="token")
    assert (entry.state, entry.says, entry.exit, entry.subject) == ("FIXED", "", 0, "token")
    assert entry.operations > 0


def test_another_finding_than_the_file_has_is_said():
    file = casefile.read(REGRESSIONS / "F37.json")
    other = replace(file, finding=replace(file.finding, code="UNIQUE"))
    assert replay(other).same is False


@pytest.mark.parametrize(("name", "sound"), [("group-reverses", "token"), ("rolls", "paged")])
def test_a_case_of_a_relation_replays_as_the_relation(name, sound):
    entry = replay_path(REGRESSIONS / f"{name}.json")
    assert (entry.state, entry.same) == ("FAILED", True)
    assert replay_path(REGRESSIONS / f"{name}.json", impl=sound).state == "FIXED"


def test_a_batch_replays_on_its_engine():
    assert replay_path(SCHEMA_1, impl="torch").state == "FIXED"
    entry = replay_path(SCHEMA_1, impl="tests.planted:WritesBeforeOutput")
    assert (entry.state, entry.code) == ("FAILED", "GUARD")


def test_what_a_constructor_says_to_other_pools_replays_as_the_plain_pool():
    finding = Violation("REJECT", "fault", 0, "__init__", "")
    case = Case(Config("paged", 1, debug=True), ())
    file = CaseFile(case, "defect:page-of-none", "hardened", finding=finding)
    entry = replay(casefile.loads(casefile.dumps(file)))
    assert (entry.state, entry.same, entry.operations) == ("FAILED", True, 0)
    assert entry.says.startswith("a pool in pages of 0 slots cannot be, and was made")
    assert replay(file, impl="paged").state == "FIXED"


# -- flaky ---------------------------------------------------------------------------------------------


def moody(turn):
    """A subject whose every second allocator takes pages from the other end."""
    sound, made = own("paged"), []

    def make(config):
        bench = sound.make(config)
        made.append(bench)
        if len(made) % 2 == 0:
            turn(bench.allocator)
        return bench

    return LocalSubject("moody", "", sound.space, make, lambda c: replace(sound.claims(c), dialect=None))


CASE = CaseFile(
    Case(Config("paged", 3, 2, overwrite=False), (Alloc("A", 2), Free((Part("A"),)))), "moody", "contract"
)


def test_answers_that_differ_are_flaky_and_the_place_is_named(monkeypatch):
    def turn(allocator):
        allocator.free_pages = allocator.free_pages.flip(0)

    monkeypatch.setattr(fuzz.replay, "subject_of", lambda *_: moody(turn))
    entry = replay(CASE)
    assert (entry.state, entry.exit) == ("FLAKY", 1)
    assert entry.says == "two replays part at operation 1 (alloc 2 for A): slots (2, 3) and then (6, 7)"


def test_one_that_fails_only_once_is_flaky_too(monkeypatch):
    def turn(allocator):
        allocator.free = lambda _: None

    monkeypatch.setattr(fuzz.replay, "subject_of", lambda *_: moody(turn))
    entry = replay(CASE)
    assert (entry.state, entry.code, entry.exit) == ("FLAKY", "CONSERVE", 1)
    assert "part at operation 2 (free A): available 6 and then 4" in entry.says


def test_an_address_in_an_error_does_not_make_it_flaky(monkeypatch):
    def fails(allocator):
        raise RuntimeError(f"no pages for {object()!r}")

    sound = own("paged")

    def make(config):
        bench = sound.make(config)
        bench.allocator.alloc = fails
        return bench

    subject = LocalSubject("always", "", sound.space, make, sound.claims)
    monkeypatch.setattr(fuzz.replay, "subject_of", lambda *_: subject)
    assert replay(CASE).state == "FAILED"


# -- what can't be told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"impl": "token"}, "the case has a paged pool, and token is token"),
        ({"impl": "nonsense"}, "no subject is called 'nonsense'"),
        ({"impl": "paged[page_size=4]"}, "the case has pages of 2, and paged[page_size=4] has pages of 4"),
        ({"impl": "defect:group-reverses"}, "the case has a paged pool"),
        ({"impl": "defect:rolls", "level": "parity"}, ""),
    ],
)
def test_a_subject_that_cannot_be_asked_is_an_error(options, says):
    entry = replay(CASE, **options)
    if says:
        assert (entry.state, entry.exit) == ("ERROR", 2)
        assert says in entry.says
    else:
        assert entry.state in ("FIXED", "FAILED", "ERROR")


def test_a_case_that_names_nobody_is_an_error():
    entry = replay(replace(CASE, subject=""))
    assert (entry.state, entry.exit, entry.says) == ("ERROR", 2, "it names no subject: give one with --impl")


def test_a_relation_that_is_not_known_is_an_error():
    file = replace(casefile.read(REGRESSIONS / "rolls.json"), relation="cousins")
    entry = replay(file)
    assert (entry.state, entry.exit) == ("ERROR", 2)
    assert "there is no 'cousins'" in entry.says


def test_a_harness_that_breaks_is_no_verdict(monkeypatch):
    def broken(*_, **__):
        raise HarnessError("out of ideas")

    monkeypatch.setattr(fuzz.replay, "judged", broken)
    entry = replay(CASE, impl="paged")
    assert (entry.state, entry.exit) == ("ERROR", 3)
    assert "the harness broke: HarnessError: out of ideas" in entry.says


def test_the_exit_code_is_the_worst():
    made = {code: replace(replay(replace(CASE, subject="")), exit=code) for code in range(4)}
    assert exit_code([made[0], made[1], made[0]]) == 1
    assert exit_code([made[1], made[3], made[2]]) == 3
    assert exit_code([made[0]]) == 0
    assert exit_code([]) == 2


# -- the command ---------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_each_sentence():
    result = kvassay("replay", REGRESSIONS / "F37.json", REGRESSIONS / "F35.json", "--impl", "token")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("FIXED") == 2
    result = kvassay("replay", REGRESSIONS / "F37.json")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "available_size() says 2 and 1 is right" in result.stdout


def test_the_command_speaks_json(tmp_path):
    (tmp_path / "broken.json").write_text('{"kind": "kvassay case"}')
    result = kvassay("replay", tmp_path, REGRESSIONS / "F37.json", tmp_path / "none.json", "--json")
    assert result.exit_code == 2
    broken, failed, none = json.loads(result.stdout)
    assert (broken["state"], broken["says"]) == ("ERROR", "schema: is missing")
    assert (failed["state"], failed["index"], failed["expected"]) == ("FAILED", 4, "GROUP")
    assert none["state"] == "ERROR"
    assert "No such file" in none["says"]


def test_an_empty_folder_is_refused(tmp_path):
    result = kvassay("replay", tmp_path)
    assert result.exit_code == 2
    assert "holds no case files" in result.stderr
