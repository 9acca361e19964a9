from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from impl.subject import OWN, own
from oracle.batch import Batch
from oracle.casefile import (
    BatchFile,
    CaseError,
    CaseFile,
    decode,
    dumps,
    encode,
    loads,
    loads_any,
    read,
    read_any,
    write,
)
from oracle.caseschema import schema
from oracle.numbers import packed, unpacked
from oracle.ops import METHODS, Alloc, Case, Clear, Config, Decode, Extend, Free, Grow, Part
from oracle.plan import plan
from oracle.traits import SEED_PAGED, Traits
from oracle.verdict import Observation, Violation
from properties.cases import generate
from properties.sources import SeededSource

SMALL = CaseFile(
    Case(
        Config("paged", 3, 4),
        (Extend((Grow("A", 6), Grow("B", 1, "A"))), Free((Part("A"), Part("B", 2))), Clear()),
    )
)
FULL = replace(
    SMALL,
    subject="sglang@0.5.2:paged",
    level="parity",
    seed=0,
    versions={"kvassay": "0.1.0", "torch": "2.9"},
    note='Grüße, "quoted"',
    relation="group equals one free",
    other=(Decode(("A",), "last_loc"),),
    finding=Violation("UNIQUE", "misuse", 1, "free", "page 7 has two owners", "slots", "twice"),
    claims=Traits(frozenset({"alloc", "free"}), dtypes={"alloc": "int64"}, swa_now=True, dialect=SEED_PAGED),
    other_answers=(Observation("none", available=0),),
    answers=(
        Observation("slots", (4, 5), available=0, lists=((2,), ()), mapping=(0, 4), forecast=0),
        Observation("raised", error="IndexError: \ud800"),
        Observation("none"),
    ),
)
TEXT = """\
{
  "schema": 2,
  "kind": "kvassay case",
  "pool": {"kind": "paged", "pages": 3, "page_size": 4},
  "operations": [
    {"op": "alloc_extend", "batch": [{"request": "A", "tokens": 6}, {"request": "B", "tokens": 1, "prefix": "A"}]},
    {"op": "free", "parts": [{"request": "A"}, {"request": "B", "start": 2}]},
    {"op": "clear"}
  ]
}
"""


def test_a_case_reads_like_a_review_comment() -> None:
    assert dumps(SMALL) == TEXT
    assert loads(TEXT) == SMALL


def test_everything_comes_back() -> None:
    assert loads(dumps(FULL)) == FULL
    assert decode(encode(FULL)) == FULL
    assert json.loads(dumps(FULL)) == json.loads(json.dumps(encode(FULL)))


@pytest.mark.parametrize("changes", [{"seed": "a text"}, {"other": (), "relation": "r"}, {"versions": {}}])
def test_corners_come_back(changes: dict[str, Any]) -> None:
    file = replace(FULL, **changes)
    assert loads(dumps(file)) == file


def test_an_empty_case_comes_back() -> None:
    empty = CaseFile(Case(Config("token", 1), ()))
    assert loads(dumps(empty)) == empty


@pytest.mark.parametrize("name", OWN)
def test_generated_cases_come_back(name: str) -> None:
    subject = own(name, engine="" if name == "token" else "torch")
    seen: set[str] = set()
    for seed in range(100):
        case = generate(SeededSource(seed), subject.space, subject.traits, "hardened")
        file = CaseFile(case, subject=name, level="hardened", seed=seed)
        text = dumps(file)
        assert loads(text) == file
        assert text.count("\n") == 8 + len(case.operations) + 2 * bool(case.operations)
        traits = subject.traits(case.config)
        assert plan(loads(text).case, traits) == plan(case, traits)
        seen |= {METHODS[type(operation)] for operation in case.operations}
    assert {"alloc", "free", "clear", "backup_state"} <= seen


def test_files_are_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    write(path, SMALL)
    write(str(path), FULL)
    assert read(path) == FULL
    assert [p.name for p in tmp_path.iterdir()] == ["case.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "case.json"
    write(path, SMALL)
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        write(path, FULL)
    assert read(path) == SMALL
    assert [p.name for p in tmp_path.iterdir()] == ["case.json"]


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(b"\xff")
    with pytest.raises(CaseError, match=r"case\.json: not UTF-8: byte 0"):
        read(path)
    path.write_text("[]")
    with pytest.raises(CaseError, match=r"case\.json: not a kvassay case"):
        read(path)
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert read(path) == SMALL
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.json")


def edited(path: str, value: Any) -> dict[str, Any]:
    """FULL's document with one entry changed, or taken out where the value is `...`."""
    document: Any = json.loads(dumps(FULL))
    *way, key = (int(k) if k.isdigit() else k for k in path.split("/"))
    at = document
    for step in way:
        at = at[step]
    if value is ...:
        del at[key]
    else:
        at[key] = value
    return document  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("kind", "a cake", 'not a kvassay case: there is no "kind": "kvassay case"'),
        ("kind", ..., 'not a kvassay case: there is no "kind": "kvassay case"'),
        ("schema", 3, "written by a newer kvassay: schema 3, this one reads 2"),
        ("schema", 0, "schema: is 0, and the first was 1"),
        ("schema", True, "schema: must be a whole number, is true"),
        ("schema", ..., "schema: is missing"),
        ("pool", ..., "pool: is missing"),
        ("pool", [], "pool: must be an object, is []"),
        ("pool/kind", ..., "pool.kind: is missing"),
        ("pool/kind", "ring", 'pool.kind: must be one of token, paged, swa, is "ring"'),
        ("pool/pages", 2.0, "pool.pages: must be a whole number, is 2.0"),
        ("pool/pages", 0, "pool: a pool has at least one page of at least one slot"),
        ("pool/swa_pages", 2, "pool: swa_pages goes with kind swa, and is at least 1 there"),
        ("pool/need_sort", 1, "pool.need_sort: must be true or false, is 1"),
        ("pool/page", 1, 'pool: unknown key "page" (it has kind, pages, page_size'),
        ("operations", ..., "operations: is missing"),
        ("operations", {}, "operations: must be a list, is {}"),
        ("operations/1", "free", 'operations[1]: must be an object, is "free"'),
        ("operations/1/op", ..., "operations[1].op: is missing"),
        ("operations/1/op", "fre", "operations[1].op: must be one of alloc, alloc_extend"),
        ("operations/1/op", None, "is null"),
        ("operations/1/parts", ..., "operations[1].parts: is missing"),
        ("operations/1/parts/1/start", None, "operations[1].parts[1].start: must be a whole number, is null"),
        (
            "operations/1/parts/1/stop",
            "x",
            'operations[1].parts[1].stop: must be a whole number or null, is "x"',
        ),
        ("operations/1/flaw", "odd", "operations[1].flaw: must be one of again, padding"),
        ("operations/0/flaw", "again", "operations[0].flaw: must be one of "),
        ("operations/0/batch", {"request": "A"}, "operations[0].batch: must be a list, is {"),
        ("operations/0/batch/0", "A", 'operations[0].batch[0]: must be an object, is "A"'),
        ("operations/0/batch/0/tokens", "x", 'operations[0].batch[0].tokens: must be a whole number, is "x"'),
        (
            "operations/0/batch/1/tokens",
            False,
            "operations[0].batch[1].tokens: must be a whole number, is false",
        ),
        ("operations/0/batch/1/tokens", ..., "operations[0].batch[1].tokens: is missing"),
        (
            "operations/0/batch/1/size",
            1,
            'operations[0].batch[1]: unknown key "size" (it has request, tokens, prefix)',
        ),
        ("operations/2/size", 1, 'operations[2]: unknown key "size" (clear has none)'),
        ("other/0/requests/0", 1, "other[0].requests[0]: must be a string, is 1"),
        ("other/0/flaw", "x", "other[0].flaw: must be one of lengths, last_loc"),
        ("other", ..., "relation and other: one is there without the other one"),
        ("relation", ..., "relation and other: one is there without the other one"),
        ("relation", 1, "relation: must be a string, is 1"),
        ("seed", 1.5, "seed: must be a whole number or a string or null, is 1.5"),
        ("note", ["x" * 99], "note: must be a string, is [" + '"xxx'),
        ("level", "strict", 'level: must be one of contract, parity, hardened, is "strict"'),
        ("versions", [], "versions: must be an object, is []"),
        ("versions/torch", 2, "versions.torch: must be a string, is 2"),
        ("finding/code", "BAD", "finding.code: must be one of UNIQUE"),
        ("finding/kind", "bug", 'finding.kind: must be one of fault, misuse, is "bug"'),
        ("finding/summary", ..., "finding.summary: is missing"),
        ("answers/0/outcome", "fine", "answers[0].outcome: must be one of slots"),
        ("answers/0/slots", [4, 5], "answers[0].slots: must be numbers as text, such as 4..7 12, is [4, 5]"),
        ("answers/0/slots", "4 x", "answers[0].slots: 'x' is no number, no 4..7 and no 0x3"),
        ("answers/0/slots", "7..4", "answers[0].slots: '7..4' stands for no numbers"),
        ("answers/0/slots", "1x99999999999", "answers[0].slots: '1x99999999999' stands for too many numbers"),
        ("claims/operations/0", "fly", "claims.operations: must be one of alloc, alloc_decode"),
        ("claims/operations", "alloc", 'claims.operations: must be a list of strings, is "alloc"'),
        ("claims/dtypes", ["int32"], 'claims.dtypes: must be an object of strings, is ["int32"]'),
        ("claims/dialect/merge_extend", "never", "claims.dialect.merge_extend: must be one of bound, exact"),
        ("answers/0/lists/0", 5, "answers[0].lists[0]: must be numbers as text, such as 4..7 12, is 5"),
        ("answers/0/lists", 5, "answers[0].lists: must be a list or null, is 5"),
        ("extra", 1, 'unknown key "extra" (a case has schema, kind'),
    ],
)
def test_what_is_no_case_is_refused_with_the_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(CaseError) as caught:
        loads(json.dumps(edited(path, value)))
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "schema" 1\n}', "not JSON: line 2, column 12"),
        ("", "not JSON: line 1, column 1"),
        ("[]", "not a kvassay case"),
        ("1", "not a kvassay case"),
        (TEXT.replace('"pages": 3', '"pages": 3, "pages": 4'), 'an object has the key "pages" twice'),
        (TEXT.replace('"pages": 3', '"pages": NaN'), "pool.pages: must be a whole number, is NaN"),
        (TEXT.replace('"pages": 3', '"pages": ' + "9" * 5000), "not JSON that can be read"),
        ("[" * 100_000, "not JSON that can be read"),
    ],
)
def test_broken_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(CaseError, match=r"^") as caught:
        loads(text)
    assert message in str(caught.value)


def test_alloc_is_written_as_people_write_it() -> None:
    file = CaseFile(Case(Config("token", 2), (Alloc("A", -1),)))
    assert encode(file)["operations"] == [{"op": "alloc", "request": "A", "size": -1}]


# -- numbers -------------------------------------------------------------------------------------------


def test_numbers_come_back_from_their_text() -> None:
    source = SeededSource(1)
    for _ in range(2000):
        numbers = tuple(source.below(6) - 2 for _ in range(source.below(9)))
        assert unpacked(packed(numbers)) == numbers


def test_numbers_read_like_ranges() -> None:
    assert packed([4, 5, 6, 7, 12, 0, 0, 0]) == "4..7 12 0x3"
    assert packed([1, 2, 9, 9, -1]) == "1 2 9 9 -1"


# -- batches -------------------------------------------------------------------------------------------

BATCH = BatchFile(
    Batch(4, (0, 3), (6, 9), (-1, 6), (9, 2, 7, 8)), "torch", "int32", "a note", {"torch": "2.9"},
    Violation("ALIGN", "fault", 0, "alloc_extend", "request 0's token 4 is 9, and 8 is right", "slots"),
)  # fmt: skip


def test_a_batch_comes_back() -> None:
    assert loads_any(dumps(BATCH)) == BATCH
    assert loads_any(dumps(FULL)) == FULL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float"}, 'dtype: must be one of int32, int64, is "float"'),
        ({"batch": {}}, "batch.page_size: is missing"),
        ({"seed": 1}, 'unknown key "seed" (a batch has schema, kind'),
        (
            {"batch": {**encode(BATCH)["batch"], "free": "9"}},
            "batch: the batch needs 4 page(s), and 1 are free",
        ),
    ],
)
def test_what_is_no_batch_is_refused_with_the_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=re.escape(message)):
        loads_any(json.dumps({**encode(BATCH), **changes}))


# -- other schemas -------------------------------------------------------------------------------------

KEPT = Path(__file__).parent / "cases"


def test_a_case_of_schema_1_is_read_as_today() -> None:
    old = read(KEPT / "schema-1.json")
    assert json.loads((KEPT / "schema-1.json").read_text())["schema"] == 1
    assert old.answers[0] == Observation(
        "slots", (2, 3, 4), available=0, full=2, window=0, lists=((3,), (), (), ()),
        mapping=(0, 0, 2, 3, 4, 0, 0, 0), forecast=2,
    )  # fmt: skip
    assert old.finding is not None
    assert old.finding.code == "MAP"
    assert encode(old)["schema"] == 2
    assert loads(dumps(old)) == old


def test_the_slot_of_minus_one_became_a_sentence() -> None:
    document = json.loads((KEPT / "schema-1.json").read_text())
    document["answers"][0]["nowhere"] = 7
    assert decode(document).answers[0].mismapped == "-1, which stands for no slot, maps to 7"
    assert decode(document).answers[1].mismapped == ""


def test_a_batch_of_schema_1_is_read_as_today() -> None:
    old = read_any(KEPT / "schema-1-batch.json")
    assert isinstance(old, BatchFile)
    assert old.batch == Batch(2, (1, 0), (5, 2), (2, -1), (4, 2, 7))
    assert old.finding is not None
    assert (old.finding.kind, old.finding.operation) == ("fault", "alloc_extend")
    assert loads_any(dumps(old)) == old


def test_what_is_wrong_in_an_old_document_is_named_in_its_place() -> None:
    document = json.loads((KEPT / "schema-1.json").read_text())
    document["answers"][0]["slots"] = ["four"]
    with pytest.raises(CaseError, match=r"answers\[0\]\.slots: must be numbers"):
        decode(document)
    document["answers"] = 5
    with pytest.raises(CaseError, match="answers: must be a list, is 5"):
        decode(document)


# -- the published schema ------------------------------------------------------------------------------

PUBLISHED = Path(__file__).parent.parent / "docs" / "case.schema.json"


def test_the_published_schema_is_what_the_decoder_reads() -> None:
    made = json.dumps(schema(), indent=1) + "\n"
    assert PUBLISHED.read_text() == made, "python -m oracle.caseschema > docs/case.schema.json"


def test_what_is_written_keeps_the_published_schema() -> None:
    validator = Draft202012Validator(json.loads(PUBLISHED.read_text()))
    Draft202012Validator.check_schema(schema())
    for file in (SMALL, FULL, BATCH):
        validator.validate(encode(file))
    for name in OWN:
        subject = own(name)
        for seed in range(20):
            case = generate(SeededSource(seed), subject.space, subject.traits, "hardened")
            validator.validate(encode(CaseFile(case, claims=subject.traits(case.config))))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", 1), ("pool/kind", "ring"), ("pool/page", 1), ("operations/1/op", "fre"), ("operations/2/size", 1),
        ("operations/1/parts/1/stop", "x"), ("answers/0/slots", [4]), ("answers/0/slots", "4 x"), ("answers/0/lists", 5),
        ("other", ...), ("finding/code", "BAD"), ("claims/operations/0", "fly"), ("extra", 1), ("level", "strict"),
    ],
)  # fmt: skip
def test_the_published_schema_refuses_what_the_decoder_refuses(path: str, value: Any) -> None:
    document = edited(path, value)
    assert not Draft202012Validator(schema()).is_valid(document)
