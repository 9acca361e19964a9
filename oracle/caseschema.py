"""The JSON Schema of case files, made from what the decoder reads: `python -m oracle.caseschema` prints it.

`docs/case.schema.json` is its output; a test compares the two.
"""

from __future__ import annotations

import json
from inspect import Parameter
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from oracle import casefile
from oracle.batch import Batch
from oracle.codes import LEVELS
from oracle.ops import Config
from oracle.records import CHOICES, FIELDS, NUMBERS, OPERATIONS, RECORDS
from oracle.traits import Traits
from oracle.verdict import Observation, Violation

_PLAIN = {str: "string", int: "integer", bool: "boolean", NoneType: "null"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def schema() -> dict[str, Any]:
    """The schema of both kinds of document: a case, and a batch of the kernel tier."""
    operation = {"oneOf": [_record(kind, {"op": {"const": name}}) for name, kind in OPERATIONS.items()]}
    operations = {"type": "array", "items": {"$ref": "#/$defs/operation"}}
    answers = {"type": "array", "items": {"$ref": "#/$defs/answer"}}
    first = {"schema": {"const": casefile.SCHEMA}}
    about = {key: _hint(hint) for key, hint in casefile.ABOUT.items()}
    about["level"] = {"enum": ["", *LEVELS]}
    finding = {"$ref": "#/$defs/finding"}
    case = {
        **first, "kind": {"const": casefile.KIND}, **about, "versions": _TEXTS, "pool": {"$ref": "#/$defs/pool"},
        "operations": operations, "relation": {"type": "string"}, "other": operations, "finding": finding,
        "claims": {"$ref": "#/$defs/claims"}, "answers": answers, "other_answers": answers,
    }  # fmt: skip
    batch = {
        **first, "kind": {"const": casefile.BATCH_KIND}, "engine": {"type": "string"},
        "dtype": {"enum": list(casefile.DTYPES)}, "note": {"type": "string"}, "versions": _TEXTS,
        "batch": _record(Batch), "finding": finding,
    }  # fmt: skip
    whole = _object(case, ["schema", "kind", "pool", "operations"])
    whole["dependentRequired"] = {"relation": ["other"], "other": ["relation"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvassay case file, schema {casefile.SCHEMA}",
        "oneOf": [whole, _object(batch, ["schema", "kind", "batch"])],
        "$defs": {
            "numbers": {
                "description": "numbers in order: 4..7 12 0x3 stands for 4, 5, 6, 7, 12, 0, 0, 0",
                "type": "string",
                "pattern": r"^\s*(-?\d{1,18}(\.\.-?\d{1,18}|x\d{1,18})?(\s+|$))*$",
            },
            "pool": _record(Config),
            "operation": operation,
            "finding": _record(Violation),
            "claims": _record(Traits),
            "answer": _record(Observation),
        },
    }


def _record(kind: type, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    properties = dict(extra or {})
    needed = list(properties)
    for name, (hint, default) in FIELDS[kind].items():
        choices = CHOICES.get((kind, name))
        properties[name] = _chosen(hint, choices) if choices else _hint(hint)
        if default is Parameter.empty:
            needed.append(name)
    return _object(properties, needed)


def _object(properties: dict[str, Any], needed: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _chosen(hint: Any, choices: tuple[str, ...]) -> dict[str, Any]:
    if get_origin(hint) is frozenset:
        return {"type": "array", "items": {"enum": list(choices)}}
    return {"enum": list(choices)}


def _hint(hint: Any) -> dict[str, Any]:
    if isinstance(hint, UnionType):
        options = [_hint(option) for option in get_args(hint)]
        names = [option.get("type") for option in options]
        return {"type": names} if all(len(o) == 1 and "type" in o for o in options) else {"anyOf": options}
    if hint == NUMBERS:
        return {"$ref": "#/$defs/numbers"}
    if hint in RECORDS:
        return _record(hint)
    if get_origin(hint) in (tuple, frozenset):
        return {"type": "array", "items": _hint(get_args(hint)[0])}
    return _TEXTS if get_origin(hint) is dict else {"type": _PLAIN[hint]}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=1))
