"""Documents that an older kvassay wrote, made into today's: one step for each schema since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracle.numbers import packed
from oracle.records import CaseError, required, value_of

SCHEMA = 2


def migrated(document: dict[str, Any]) -> dict[str, Any]:
    """The document in today's schema. CaseError where it has none, or one that is newer than this kvassay.

    What is wrong in an old document stays wrong, for the decoder to name.
    """
    schema = value_of(int, required(document, "schema"), "schema")
    if schema > SCHEMA:
        raise CaseError(f"written by a newer kvassay: schema {schema}, this one reads {SCHEMA}")
    if schema < 1:
        raise CaseError(f"schema: is {schema}, and the first was 1")
    for step in range(schema, SCHEMA):
        document = {**_STEPS[step](document), "schema": step + 1}
    return document


def _to_2(document: dict[str, Any]) -> dict[str, Any]:
    """Numbers became text (`oracle.numbers`), the slot of -1 a sentence, and the finding of a batch a whole one."""
    new = dict(document)
    if isinstance(document.get("answers"), list):
        new["answers"] = [_answer(answer) for answer in document["answers"]]
    batch, finding = document.get("batch"), document.get("finding")
    if isinstance(batch, dict):
        new["batch"] = _texts(batch, ("prefix", "seq", "last", "free"))
        if isinstance(finding, dict):
            method = "alloc_decode" if batch.get("decode") else "alloc_extend"
            new["finding"] = {"kind": "fault", "index": 0, "operation": method, **finding}
    return new


def _answer(value: Any) -> Any:
    new = _texts(value, ("slots", "mapping", "lists"))
    if isinstance(new, dict) and type(new.get("nowhere")) is int:
        nowhere = new.pop("nowhere")
        if nowhere != -1:
            new["mismapped"] = f"-1, which stands for no slot, maps to {nowhere}"
    return new


def _texts(value: Any, keys: tuple[str, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _text(entry) if key in keys else entry for key, entry in value.items()}


def _text(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if value and all(isinstance(item, list) for item in value):
        return [_text(item) for item in value]
    return packed(value) if all(type(item) is int for item in value) else value


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _to_2}
