"""Does kvassay power say what was caught, by whom and how short, and does it fail where something was not?"""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from fuzz.cli import main
from fuzz.power import Catch, Hunt, Summary, hunt
from fuzz.power_report import document, print_summary
from impl.defects.catalogue import CATALOGUE


def catch(check="sequences", seconds=1.0, length=3, least=3, key=("UNIQUE",)):
    return Catch(check, "UNIQUE", 100, 5, seconds, length, least, key)


def hunted(runs, alone=None, defect="F37"):
    return Hunt(CATALOGUE[defect], dict(enumerate(runs, 1)), alone or {})


def test_a_defect_that_one_seed_lets_through_is_missed():
    summary = Summary((hunted([catch(), None]), hunted([catch()], defect="F12")))
    assert summary.missed == ["F37"]
    assert document(summary, "ci")["missed"] == ["F37"]


def test_times_are_of_all_first_findings():
    summary = Summary((hunted([catch(seconds=1.0), catch(seconds=3.0)]), hunted([catch(seconds=8.0)])))
    assert (summary.median_seconds, summary.worst_seconds) == (3.0, 8.0)


def test_the_minimum_is_proven_or_known_by_hand():
    by_hand = CATALOGUE["F37"].shortest
    proven, unproven = catch(length=by_hand + 2, least=by_hand + 2), catch(length=by_hand + 2, least=1)
    assert [hunted([each]).over(each) for each in (proven, unproven)] == [0, 2]
    assert hunted([unproven, proven]).worst is unproven
    assert hunted([None]).worst is None
    longer = catch(length=by_hand + 3, least=by_hand + 3)
    assert hunted([proven, longer]).worst is longer


def test_shrunk_cases_are_counted_by_how_far_they_are_over_their_own_findings_minimum():
    least = CATALOGUE["F37"].shortest
    made = {
        "proven": catch(length=least + 2, least=least + 2, key=("A", "", "a")),
        "by hand": catch(length=least, least=1, key=("B", "", "")),
        "one": catch(length=least + 1, least=1, key=("C", "", "")),
        "more": catch(length=least + 2, least=1, key=("B", "", "b")),
        "unknown": catch(length=least + 2, least=1, key=("D", "", "d")),
    }
    witness = catch(length=least, least=1, key=("B", "", "b"))
    whole = Summary((hunted([*made.values(), witness]),))
    kinds = {kind: [each for _, each in catches] for kind, catches in whole.shrunk().items()}
    assert kinds == {kind: [each] for kind, each in made.items()} | {"by hand": [made["by hand"], witness]}
    assert document(whole, "ci")["shrunk"] == {kind: len(catches) for kind, catches in kinds.items()}
    text = io.StringIO()
    print_summary(Console(file=text, width=200), whole)
    text = text.getvalue()
    said = "Of 6 shrunk cases 3 are the shortest of their findings (1 proven on their pools, 2 by hand), "
    assert said + "1 one operation over it at most, 1 more; of 1 that is not known." in text
    assert f"longer: F37 with seed 4, UNIQUE at b: {least + 2} operations, {least} at least" in text
    assert f"not known: F37 with seed 5, UNIQUE at d: {least + 2} operations, {least} at least" in text


def test_a_property_is_needed_where_it_alone_catches():
    alone = {"sequences": None, "misuse": catch("misuse"), "fixed slots": None}
    summary = Summary((hunted([catch()], alone), hunted([catch()], alone | {"fixed slots": catch()}, "F12")))
    assert summary.needed_by("misuse") == ["F37"]
    assert summary.needed_by("fixed slots") == []
    assert [summary.caught_by(check) for check in summary.checks] == [0, 2, 1]


def test_a_hunt_shrinks_what_it_finds():
    found = hunt("F12", seeds=1, budget="ci", alone=False)
    assert found.always
    assert found.over(found.runs[1]) <= 1
    assert found.runs[1].key[0] == found.runs[1].code
    assert found.runs[1].code in CATALOGUE["F12"].codes


def test_the_command_prints_json_and_the_exit_code(tmp_path):
    page = tmp_path / "power.md"
    run = CliRunner().invoke(
        main,
        ["power", "canary", "--seeds", "1", "--no-alone", "--json", "--workers", "1", "--out", str(page)],
    )
    assert run.exit_code == 0, run.output
    whole = json.loads(run.stdout)
    assert whole["defects"][0]["runs"]["1"]["length"] == 1
    assert "1 of 1 defects caught" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["F99"], "no defect is called 'F99'"),
        (["F12", "--mutants", "token"], "name defects or --mutants"),
        (["--mutants", "nothing"], "no subject is called 'nothing'"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    run = CliRunner().invoke(main, ["power", *arguments])
    assert run.exit_code == 2
    assert message in run.output
