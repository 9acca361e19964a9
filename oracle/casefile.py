"""How a case is written down: a JSON document that a person can read and edit, read back strictly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from oracle import ops
from oracle.codes import CODES, LEVELS
from oracle.ops import METHODS, Case, Config, Operation
from oracle.verdict import Observation, Violation

SCHEMA = 1
NAMED = 12  # names that an error lists
KIND = "kvassay case"


class CaseError(ValueError):
    """A document that is no case; the message names the place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A case and what is known of it.

    subject, level, seed, versions: the run that it comes from; note: anything, for people. answers: what the
    subject answered, step by step. finding: what was wrong. A finding that compares two runs has the name of
    the `relation` and the `other` operations, which run on the same pool.
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
    answers: tuple[Observation, ...] = ()


_ABOUT: dict[str, Any] = {"subject": str, "level": str, "seed": int | str | None, "note": str}
_KEYS = (
    *("schema", "kind", *_ABOUT, "versions", "pool"),
    *("operations", "relation", "other", "finding", "answers"),
)
_ONE_A_LINE = ("operations", "other", "answers")
_OPERATIONS = {name: kind for kind, name in METHODS.items()}
_RECORDS = {Config, ops.Grow, ops.Part, Violation, Observation, *METHODS}
_CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (Config, "kind"): ops.KINDS,
    (ops.Alloc, "flaw"): ("", "whole"),
    (ops.Extend, "flaw"): ("", *ops.EXTEND_FLAWS),
    (ops.Decode, "flaw"): ("", *ops.DECODE_FLAWS),
    (ops.Restore, "flaw"): ("", "snapshot"),
    (ops.Free, "flaw"): ("", *ops.FREE_FLAWS),
    (Violation, "code"): tuple(CODES),
    (Violation, "kind"): ("fault", "misuse"),
    (Observation, "outcome"): ("slots", "none", "done", "raised", "crashed", "odd"),
}
_WORDS: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    NoneType: "null",
    tuple: "a list",
}


# -- writing -------------------------------------------------------------------------------------------


def encode(file: CaseFile) -> dict[str, Any]:
    """The document: plain dicts and lists, without what is as it is by default."""
    document: dict[str, Any] = {"schema": SCHEMA, "kind": KIND}
    for key in _ABOUT:
        value = getattr(file, key)
        if value not in ("", None):
            document[key] = value
    if file.versions:
        document["versions"] = dict(file.versions)
    document["pool"] = _plain(file.case.config)
    document["operations"] = [_written(operation) for operation in file.case.operations]
    if file.relation or file.other is not None:
        document["relation"] = file.relation
        document["other"] = [_written(operation) for operation in file.other or ()]
    if file.finding is not None:
        document["finding"] = _plain(file.finding)
    if file.answers:
        document["answers"] = _plain(file.answers)
    return document


def dumps(file: CaseFile) -> str:
    """The document as text, one operation and one answer a line."""
    lines = []
    for key, value in encode(file).items():
        text = _json(value)
        if key in _ONE_A_LINE and value:
            text = "[\n" + ",\n".join(f"    {_json(item)}" for item in value) + "\n  ]"
        lines.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: str | Path, file: CaseFile) -> None:
    """Write a case file; whoever reads at the same time sees the old one or the new one, whole."""
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # Half a surrogate pair (in an error message, say) has no UTF-8, and its backslash form is its JSON.
        part.write_bytes(dumps(file).encode("utf-8", "backslashreplace"))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _written(operation: Operation) -> dict[str, Any]:
    return {"op": METHODS[type(operation)], **_plain(operation)}


def _plain(value: Any) -> Any:
    if type(value) in _RECORDS:
        table = _FIELDS[type(value)].items()
        entries = ((name, getattr(value, name), default) for name, (_, default) in table)
        return {name: _plain(entry) for name, entry, default in entries if entry != default}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """Type and default (`Parameter.empty`: none) of each field of a dataclass or a named tuple."""
    hints = get_type_hints(kind)
    return {name: (hints[name], field.default) for name, field in signature(kind).parameters.items()}


_FIELDS = {kind: _fields(kind) for kind in _RECORDS}


# -- reading -------------------------------------------------------------------------------------------


def decode(document: object) -> CaseFile:
    """The case file of a document. CaseError, with the place, where it is not exactly one."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise CaseError(f'not a kvassay case: there is no "kind": "{KIND}"')
    schema = _value(int, _required(document, "schema"), "schema")
    if schema > SCHEMA:
        raise CaseError(f"written by a newer kvassay: schema {schema}, this one reads {SCHEMA}")
    if schema < 1:
        raise CaseError(f"schema: is {schema}, and the first was 1")
    _no_others(document, _KEYS, "", "a case")
    about = {key: _value(kind, document[key], key) for key, kind in _ABOUT.items() if key in document}
    if "level" in about:
        _one_of(("", *LEVELS), about["level"], "level")
    versions = document.get("versions", {})
    if not isinstance(versions, dict):
        raise _wrong("versions", "an object", versions)
    if ("relation" in document) != ("other" in document):
        raise CaseError("relation and other: one is there without the other one")
    return CaseFile(
        Case(
            _record(Config, _required(document, "pool"), "pool"),
            _operations(_required(document, "operations"), "operations"),
        ),
        versions={name: _value(str, text, f"versions.{name}") for name, text in versions.items()},
        relation=_value(str, document.get("relation", ""), "relation"),
        other=_operations(document["other"], "other") if "other" in document else None,
        finding=_record(Violation, document["finding"], "finding") if "finding" in document else None,
        answers=_value(tuple[Observation, ...], document.get("answers", []), "answers"),
        **about,
    )


def loads(text: str) -> CaseFile:
    """The case file of a text. CaseError where it is broken."""
    try:
        document = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise CaseError(f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except CaseError:
        raise
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise CaseError(f"not JSON that can be read: {error}") from None
    return decode(document)


def read(path: str | Path) -> CaseFile:
    """The case file at a path. OSError where there is none, CaseError (with the path) where it is broken."""
    try:
        return loads(Path(path).read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CaseError(f"{path}: not UTF-8: byte {error.start}") from None
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CaseError(f"an object has the key {_json(twice)} twice")
    return made


def _operations(value: object, place: str) -> tuple[Operation, ...]:
    if not isinstance(value, list):
        raise _wrong(place, "a list", value)
    return tuple(_operation(item, f"{place}[{index}]") for index, item in enumerate(value))


def _operation(value: object, place: str) -> Operation:
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    name = _one_of(tuple(_OPERATIONS), _required(value, "op", place), f"{place}.op")
    rest = {key: entry for key, entry in value.items() if key != "op"}
    made: Operation = _record(_OPERATIONS[name], rest, place, name)
    return made


def _record(kind: type, value: object, place: str, called: str = "") -> Any:
    """An object of a dataclass or a named tuple, from the entries that differ from the default."""
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    table = _FIELDS[kind]
    _no_others(value, tuple(table), place, called or "it")
    made = {}
    for name, (hint, default) in table.items():
        if name not in value and default is not Parameter.empty:
            continue
        made[name] = _value(hint, _required(value, name, place), f"{place}.{name}")
        if (kind, name) in _CHOICES:
            _one_of(_CHOICES[kind, name], made[name], f"{place}.{name}")
    try:
        return kind(**made)
    except ValueError as error:
        raise CaseError(f"{place}: {error}") from None


def _value(hint: Any, value: Any, place: str) -> Any:
    """A value of a type as annotations have it: no coercion, and a bool is no number."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for option in options:
        if option in _RECORDS:
            return _record(option, value, place)
        if get_origin(option) is tuple and isinstance(value, list):
            inner = get_args(option)[0]
            return tuple(_value(inner, item, f"{place}[{index}]") for index, item in enumerate(value))
        if type(value) is option:
            return value
    raise _wrong(place, " or ".join(_WORDS[get_origin(option) or option] for option in options), value)


def _required(value: dict[str, Any], key: str, place: str = "") -> Any:
    if key not in value:
        raise CaseError(f"{place}.{key}: is missing".lstrip("."))
    return value[key]


def _no_others(value: dict[str, Any], known: tuple[str, ...], place: str, called: str) -> None:
    for key in value:
        if key not in known:
            where = f"{place}: " if place else ""
            raise CaseError(f"{where}unknown key {_json(key)} ({called} has {', '.join(known) or 'none'})")


def _one_of(known: tuple[str, ...], value: Any, place: str) -> str:
    if not isinstance(value, str) or value not in known:
        names = ", ".join([name for name in known if name][:NAMED]) + (
            ", …" if len(known) > NAMED + 1 else ""
        )
        raise CaseError(f"{place}: must be one of {names}, is {_shown(value)}")
    return value


def _wrong(place: str, wanted: str, value: object) -> CaseError:
    return CaseError(f"{place}: must be {wanted}, is {_shown(value)}")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
