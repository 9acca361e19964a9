"""Is one fault one finding, under one name, and are only those accepted that their owner means?"""

import datetime
from dataclasses import replace

import pytest

from fuzz.findings import Accepted, AcceptedError, Finding, accept, distinct, read_accepted
from oracle.batch import Batch
from oracle.ops import Alloc, Case, Config, Merge
from oracle.verdict import Violation

DAY = datetime.date(2030, 1, 31)
FAULT = Violation("EXHAUST", "fault", 3, "alloc", "alloc 4 does not fit, and raised", "raised IndexError")
MISUSE = Violation("CONSERVE", "misuse", 1, "free", "free again", "accepted", "twice")


def finding(violation=FAULT, length=2, **more):
    case = Case(Config("token", 1), (Alloc("A", 1),) + (Merge(),) * (length - 1))
    return Finding(
        **{"subject": "s", "level": "contract", "check": "sequences", "violation": violation, "case": case}
        | more
    )


def test_fingerprint_is_what_it_was_and_does_not_hang_on_the_case():
    assert finding().fingerprint == "e132a4f0"
    assert (
        finding(replace(FAULT, index=9, summary="other words"), length=7, check="fixed slots").fingerprint
        == "e132a4f0"
    )


@pytest.mark.parametrize(
    "other",
    [
        finding(subject="t"),
        finding(level="parity"),
        finding(replace(FAULT, code="ATOMIC")),
        finding(replace(FAULT, operation="alloc_extend")),
        finding(replace(FAULT, symptom="none")),
        finding(MISUSE),
    ],
)
def test_fingerprint_tells_faults_apart(other):
    assert other.fingerprint != finding().fingerprint


def test_how_harm_shows_after_misuse_makes_no_other_finding():
    assert finding(replace(MISUSE, code="UNIQUE")).fingerprint == finding(MISUSE).fingerprint
    assert finding(replace(MISUSE, code="REJECT")).fingerprint != finding(MISUSE).fingerprint
    assert finding(replace(MISUSE, rule="foreign")).fingerprint != finding(MISUSE).fingerprint


def test_length_counts_operations_or_requests():
    batch = Batch(4, (0, 0), (1, 1), (-1, -1), (1, 2))
    assert (finding(length=3).length, finding(case=None, batch=batch).length, finding(case=None).length) == (
        3,
        2,
        0,
    )


def test_distinct_keeps_the_shortest_case_and_the_first_place():
    long, short = finding(length=5, check="sequences"), finding(length=2, check="relation clear", cases=3)
    other = finding(MISUSE)
    assert distinct([long, other, short]) == [replace(short, check="sequences", cases=4), other]
    assert distinct([short, other, long]) == [replace(short, cases=4), other]
    assert distinct([]) == []


def test_distinct_leaves_subjects_and_levels_apart():
    apart = [finding(), finding(subject="t"), finding(level="parity")]
    assert distinct(apart) == apart


def written(tmp_path, text):
    path = tmp_path / "accepted.toml"
    path.write_text(text)
    return path


def test_accepted_file_is_read(tmp_path):
    text = '[[accepted]]\nreason = "known"\nexpires = 2030-01-31\ncode = "EXHAUST"\nsymptom = "raised IndexError"\n'
    assert read_accepted(written(tmp_path, text)) == [
        Accepted("known", DAY, code="EXHAUST", symptom="raised IndexError")
    ]
    assert read_accepted(written(tmp_path, "")) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[accepted", "accepted.toml: "),
        ("x = 1", "it holds [[accepted]] tables and nothing else"),
        ("accepted = 3", "it holds [[accepted]] tables and nothing else"),
        ("accepted = [3]", "it holds [[accepted]] tables and nothing else"),
        ('[[accepted]]\nexpires = 2030-01-31\ncode = "TYPE"', "[[accepted]] 1: give a reason"),
        ('[[accepted]]\nreason = " "\nexpires = 2030-01-31\ncode = "TYPE"', "give a reason"),
        ('[[accepted]]\nreason = 3\nexpires = 2030-01-31\ncode = "TYPE"', "give a reason"),
        ('[[accepted]]\nreason = "r"\ncode = "TYPE"', "give expires, a day such as 2027-01-31"),
        ('[[accepted]]\nreason = "r"\nexpires = "2030-01-31"\ncode = "TYPE"', "give expires"),
        ('[[accepted]]\nreason = "r"\nexpires = 2030-01-31T00:00:00\ncode = "TYPE"', "give expires"),
        ('[[accepted]]\nreason = "r"\nexpires = 2030-01-31', "say what is accepted"),
        ('[[accepted]]\nreason = "r"\nexpires = 2030-01-31\nsubject = "paged"', "say what is accepted"),
        ('[[accepted]]\nreason = "r"\nexpires = 2030-01-31\ncode = 3', "code is a text"),
        (
            '[[accepted]]\nreason = "r"\nexpires = 2030-01-31\ncoed = "TYPE"',
            "no key 'coed'; there are code, expires",
        ),
    ],
)
def test_accepted_file_that_is_broken_is_one_clear_line(tmp_path, text, says):
    with pytest.raises(AcceptedError) as error:
        read_accepted(written(tmp_path, text))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_accepted_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(AcceptedError, match="No such file"):
        read_accepted(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(AcceptedError, match=r"bytes\.toml"):
        read_accepted(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("entry", "covered"),
    [
        (Accepted("known", DAY, code="EXHAUST"), True),
        (Accepted("known", DAY, code="EXHAUST", subject="s", kind="fault", operation="alloc"), True),
        (Accepted("known", DAY, symptom="raised IndexError"), True),
        (Accepted("known", DAY, code="EXHAUST", subject="t"), False),
        (Accepted("known", DAY, code="EXHAUST", kind="misuse"), False),
        (Accepted("known", DAY, code="EXHAUST", operation="free"), False),
        (Accepted("known", DAY, symptom="none"), False),
        (Accepted("known", DAY, rule="twice"), False),
        (Accepted("known", DAY, code="TYPE"), False),
        (Accepted("known", DAY - datetime.timedelta(1), code="EXHAUST"), False),
    ],
)
def test_accepted_covers_what_is_meant_until_its_day(entry, covered):
    assert [f.accepted for f in accept([finding()], [entry], DAY)] == ["known" if covered else ""]


def test_the_first_entry_that_covers_gives_the_reason():
    entries = [
        Accepted("no", DAY, code="TYPE"),
        Accepted("one", DAY, code="EXHAUST"),
        Accepted("two", DAY, kind="fault"),
    ]
    assert [f.accepted for f in accept([finding(), finding(MISUSE)], entries, DAY)] == ["one", ""]
