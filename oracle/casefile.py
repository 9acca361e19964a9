"""How a case is written down: a JSON document that a person can read and edit, read back strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oracle.batch import Batch
from oracle.codes import LEVELS
from oracle.migrations import SCHEMA, migrated
from oracle.ops import Case, Config, Operation
from oracle.records import (
    CaseError,
    document_of,
    no_others,
    one_of,
    operations,
    plain,
    read_text,
    record,
    required,
    text_of,
    value_of,
    write_text,
    written,
    wrong,
)
from oracle.traits import Traits
from oracle.verdict import Observation, Violation

__all__ = (
    "BATCH_KIND", "KIND", "SCHEMA", "BatchFile", "CaseError", "CaseFile", "decode", "decode_any", "dumps", "encode",
    "loads", "loads_any", "read", "read_any", "write",
)  # fmt: skip

KIND = "kvassay case"
BATCH_KIND = "kvassay batch"
DTYPES = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A case and what is known of it.

    subject, level, seed, versions: the run that it comes from; note: anything, for people. claims: what the
    subject claims on this pool. answers: what it answered, one for each step of the plan, up to the one that
    was wrong. finding: what was wrong. A finding that compares two runs has the name of the `relation` and the
    `other` operations, which run on the same pool, with `other_answers`.
    """

    case: Case
    subject: str = ""
    level: str = ""
    seed: int | str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    relation: str = ""
    other: tuple[Operation, ...] | None = None
    finding: Violation | None = None
    claims: Traits | None = None
    answers: tuple[Observation, ...] = ()
    other_answers: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A batch of the kernel tier: what an engine was given, and what was wrong with its answer."""

    batch: Batch
    engine: str = ""
    dtype: str = "int64"
    note: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    finding: Violation | None = None


ABOUT: dict[str, Any] = {"subject": str, "level": str, "seed": int | str | None, "note": str}
KEYS = (
    *("schema", "kind", *ABOUT, "versions", "pool", "operations", "relation", "other", "finding"),
    *("claims", "answers", "other_answers"),
)
BATCH_KEYS = ("schema", "kind", "engine", "dtype", "note", "versions", "batch", "finding")
_ONE_A_LINE = ("operations", "other", "answers", "other_answers")
_ANSWERS = tuple[Observation, ...]


# -- writing -------------------------------------------------------------------------------------------


def encode(file: CaseFile | BatchFile) -> dict[str, Any]:
    """The document: plain dicts and lists, without what is as it is by default."""
    if isinstance(file, BatchFile):
        return _encode_batch(file)
    document: dict[str, Any] = {"schema": SCHEMA, "kind": KIND}
    for key in ABOUT:
        value = getattr(file, key)
        if value not in ("", None):
            document[key] = value
    if file.versions:
        document["versions"] = dict(file.versions)
    document["pool"] = plain(file.case.config)
    document["operations"] = [written(operation) for operation in file.case.operations]
    if file.relation or file.other is not None:
        document["relation"] = file.relation
        document["other"] = [written(operation) for operation in file.other or ()]
    for key in ("finding", "claims"):
        if getattr(file, key) is not None:
            document[key] = plain(getattr(file, key))
    for key in ("answers", "other_answers"):
        if getattr(file, key):
            document[key] = plain(getattr(file, key), _ANSWERS)
    return document


def _encode_batch(file: BatchFile) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": SCHEMA, "kind": BATCH_KIND}
    for key in ("engine", "dtype", "note", "versions"):
        if getattr(file, key):
            value = getattr(file, key)
            document[key] = value if isinstance(value, str) else dict(value)
    document["batch"] = plain(file.batch)
    if file.finding is not None:
        document["finding"] = plain(file.finding)
    return document


def dumps(file: CaseFile | BatchFile) -> str:
    """The document as text, one operation and one answer a line."""
    return text_of(encode(file), _ONE_A_LINE)


def write(path: str | Path, file: CaseFile | BatchFile) -> None:
    """Write a case file; whoever reads at the same time sees the old one or the new one, whole."""
    write_text(path, dumps(file))


# -- reading -------------------------------------------------------------------------------------------


def decode(document: object) -> CaseFile:
    """The case file of a document. CaseError, with the place, where it is not exactly one."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise CaseError(f'not a kvassay case: there is no "kind": "{KIND}"')
    document = migrated(document)
    no_others(document, KEYS, "", "a case")
    about = {key: value_of(kind, document[key], key) for key, kind in ABOUT.items() if key in document}
    if "level" in about:
        one_of(("", *LEVELS), about["level"], "level")
    if ("relation" in document) != ("other" in document):
        raise CaseError("relation and other: one is there without the other one")
    return CaseFile(
        Case(
            record(Config, required(document, "pool"), "pool"),
            operations(required(document, "operations"), "operations"),
        ),
        versions=_versions(document),
        relation=value_of(str, document.get("relation", ""), "relation"),
        other=operations(document["other"], "other") if "other" in document else None,
        finding=_finding(document),
        claims=record(Traits, document["claims"], "claims") if "claims" in document else None,
        answers=value_of(_ANSWERS, document.get("answers", []), "answers"),
        other_answers=value_of(_ANSWERS, document.get("other_answers", []), "other_answers"),
        **about,
    )


def decode_any(document: object) -> CaseFile | BatchFile:
    """The case or the batch of a document. CaseError, with the place, where it is neither."""
    if not isinstance(document, dict) or document.get("kind") != BATCH_KIND:
        return decode(document)
    document = migrated(document)
    no_others(document, BATCH_KEYS, "", "a batch")
    dtype = one_of(DTYPES, document.get("dtype", "int64"), "dtype")
    about = {key: value_of(str, document[key], key) for key in ("engine", "note") if key in document}
    batch = record(Batch, required(document, "batch"), "batch")
    return BatchFile(batch, dtype=dtype, versions=_versions(document), finding=_finding(document), **about)


def _versions(document: dict[str, Any]) -> dict[str, str]:
    versions = document.get("versions", {})
    if not isinstance(versions, dict):
        raise wrong("versions", "an object", versions)
    return {name: value_of(str, text, f"versions.{name}") for name, text in versions.items()}


def _finding(document: dict[str, Any]) -> Violation | None:
    return record(Violation, document["finding"], "finding") if "finding" in document else None


def loads(text: str) -> CaseFile:
    """The case file of a text. CaseError where it is broken."""
    return decode(document_of(text))


def loads_any(text: str) -> CaseFile | BatchFile:
    """The case or batch of a text. CaseError where it is broken."""
    return decode_any(document_of(text))


def read(path: str | Path) -> CaseFile:
    """The case file at a path. OSError where there is none, CaseError (with the path) where it is broken."""
    try:
        return loads(read_text(path))
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def read_any(path: str | Path) -> CaseFile | BatchFile:
    """The case or the batch at a path; errors as in `read`."""
    try:
        return loads_any(read_text(path))
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None
