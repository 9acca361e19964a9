"""How plain data is written as JSON and read back strictly: every error names its place."""

from __future__ import annotations

import json
import os
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from oracle import ops
from oracle.batch import Batch
from oracle.codes import CODES
from oracle.numbers import packed, unpacked
from oracle.ops import METHODS, Config, Operation
from oracle.traits import ALWAYS, OPTIONAL, RULES, Dialect, Traits
from oracle.verdict import Observation, Violation

TRACE = "kvassay trace"  # the kind of the files of `oracle.rawcall`, which can be of any size
LARGEST = 256 << 20  # bytes of a case file
NAMED = 12  # names that an error lists
NUMBERS = tuple[int, ...]  # written as text, see `oracle.numbers`


class CaseError(ValueError):
    """A document that is no case; the message names the place and what is wrong there."""


OPERATIONS = {name: kind for kind, name in METHODS.items()}
RECORDS = {Config, ops.Grow, ops.Part, Violation, Observation, Traits, Dialect, Batch, *METHODS}
MERGES = ("bound", "exact", "loose", "always")
CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (Config, "kind"): ops.KINDS,
    (ops.Alloc, "flaw"): ("", "whole"),
    (ops.Extend, "flaw"): ("", *ops.EXTEND_FLAWS),
    (ops.Decode, "flaw"): ("", *ops.DECODE_FLAWS),
    (ops.Restore, "flaw"): ("", "snapshot"),
    (ops.Free, "flaw"): ("", *ops.FREE_FLAWS),
    (Violation, "code"): tuple(CODES),
    (Violation, "kind"): ("fault", "misuse"),
    (Observation, "outcome"): ("slots", "none", "done", "raised", "crashed", "odd"),
    (Traits, "operations"): tuple(sorted(ALWAYS | OPTIONAL)),
    (Traits, "undefined"): tuple(RULES),
    (Dialect, "merge_extend"): MERGES,
    (Dialect, "merge_decode"): MERGES,
}
_WORDS: dict[Any, str] = {
    str: "a string",
    int: "a whole number",
    bool: "true or false",
    NoneType: "null",
    NUMBERS: "numbers as text, such as 4..7 12",
    tuple: "a list",
    frozenset: "a list of strings",
    dict: "an object of strings",
}


def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """Type and default (`Parameter.empty`: none) of each field of a dataclass or a named tuple."""
    hints = get_type_hints(kind)
    made = {}
    for name, field in signature(kind).parameters.items():
        default = field.default
        if get_origin(hints[name]) is dict:
            default = {}  # a factory's default hides behind a marker
        made[name] = hints[name], default
    return made


FIELDS = {kind: _fields(kind) for kind in RECORDS}


# -- writing -------------------------------------------------------------------------------------------


def plain(value: Any, hint: Any = None) -> Any:
    """Plain dicts, lists and texts, without what is as it is by default."""
    if type(value) in RECORDS:
        entries = ((name, getattr(value, name), *about) for name, about in FIELDS[type(value)].items())
        return {name: plain(entry, hint) for name, entry, hint, default in entries if entry != default}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        if NUMBERS in options:
            return packed(value)
        inner = next((get_args(option)[0] for option in options if get_origin(option) is tuple), None)
        return [plain(item, inner) for item in value]
    return dict(value) if isinstance(value, dict) else value


def written(operation: Operation) -> dict[str, Any]:
    """An operation, with the name under which case files have it."""
    return {"op": METHODS[type(operation)], **plain(operation)}


def text_of(document: dict[str, Any], one_a_line: tuple[str, ...]) -> str:
    """A document as text: a line for each entry, and one for each item of the lists that are named."""
    lines = []
    for key, value in document.items():
        text = _json(value)
        if key in one_a_line and value:
            text = "[\n" + ",\n".join(f"    {_json(item)}" for item in value) + "\n  ]"
        lines.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_text(path: str | Path, text: str) -> None:
    """Write a file; whoever reads at the same time sees the old one or the new one, whole."""
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        # Half a surrogate pair (in an error message, say) has no UTF-8, and its backslash form is its JSON.
        part.write_bytes(text.encode("utf-8", "backslashreplace"))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- reading -------------------------------------------------------------------------------------------


def document_of(text: str) -> object:
    """The JSON of a text. CaseError where it is broken, or where an object has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise CaseError(f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except CaseError:
        raise
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise CaseError(f"not JSON that can be read: {error}") from None


def read_text(path: str | Path) -> str:
    """The text of a file. OSError where there is none, CaseError where it can be no case."""
    with open(path, "rb") as file:
        text = file.read(200)
        if TRACE.encode() in text:
            raise CaseError("is a trace, and no case yet: `kvassay shrink` makes one of it")
        if text.startswith(b"\x1f\x8b"):
            raise CaseError("is compressed by gzip: gunzip it first")
        if os.fstat(file.fileno()).st_size > LARGEST:
            raise CaseError(f"is larger than {LARGEST >> 20} MB, and neither a case nor a trace")
        text += file.read()
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaseError(f"not UTF-8: byte {error.start}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CaseError(f"an object has the key {_json(twice)} twice")
    return made


def operations(value: object, place: str) -> tuple[Operation, ...]:
    """A list of operations."""
    if not isinstance(value, list):
        raise wrong(place, "a list", value)
    return tuple(_operation(item, f"{place}[{index}]") for index, item in enumerate(value))


def _operation(value: object, place: str) -> Operation:
    if not isinstance(value, dict):
        raise wrong(place, "an object", value)
    name = one_of(tuple(OPERATIONS), required(value, "op", place), f"{place}.op")
    rest = {key: entry for key, entry in value.items() if key != "op"}
    made: Operation = record(OPERATIONS[name], rest, place, name)
    return made


def record(kind: type, value: object, place: str, called: str = "") -> Any:
    """An object of a dataclass or a named tuple, from the entries that differ from the default."""
    if not isinstance(value, dict):
        raise wrong(place, "an object", value)
    table = FIELDS[kind]
    no_others(value, tuple(table), place, called or "it")
    made = {}
    for name, (hint, default) in table.items():
        if name not in value and default is not Parameter.empty:
            continue
        made[name] = value_of(hint, required(value, name, place), f"{place}.{name}")
        if (kind, name) in CHOICES:
            chosen = made[name] if isinstance(made[name], frozenset) else (made[name],)
            for each in chosen:
                one_of(CHOICES[kind, name], each, f"{place}.{name}")
    try:
        return kind(**made)
    except ValueError as error:
        raise CaseError(f"{place}: {error}") from None


def value_of(hint: Any, value: Any, place: str) -> Any:
    """A value of a type as annotations have it: no coercion, and a bool is no number."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    for option in options:
        if option in RECORDS and (isinstance(value, dict) or len(options) == 1):
            return record(option, value, place)
        if option == NUMBERS:
            if isinstance(value, str):
                return _numbers(value, place)
        elif get_origin(option) is tuple and isinstance(value, list):
            inner = get_args(option)[0]
            return tuple(value_of(inner, item, f"{place}[{index}]") for index, item in enumerate(value))
        elif get_origin(option) is frozenset and isinstance(value, list):
            return frozenset(value_of(str, item, f"{place}[{index}]") for index, item in enumerate(value))
        elif get_origin(option) is dict and isinstance(value, dict):
            return {name: value_of(str, text, f"{place}.{name}") for name, text in value.items()}
        elif type(value) is option:
            return value
    raise wrong(place, " or ".join(_word(option) for option in options), value)


def _word(option: Any) -> str:
    return _WORDS[NUMBERS] if option == NUMBERS else _WORDS.get(get_origin(option) or option, "an object")


def _numbers(value: str, place: str) -> tuple[int, ...]:
    try:
        return unpacked(value)
    except ValueError as error:
        raise CaseError(f"{place}: {error}") from None


def required(value: dict[str, Any], key: str, place: str = "") -> Any:
    """An entry that has to be there."""
    if key not in value:
        raise CaseError(f"{place}.{key}: is missing".lstrip("."))
    return value[key]


def no_others(value: dict[str, Any], known: tuple[str, ...], place: str, called: str) -> None:
    """CaseError where there is an entry that is not known."""
    for key in value:
        if key not in known:
            where = f"{place}: " if place else ""
            raise CaseError(f"{where}unknown key {_json(key)} ({called} has {', '.join(known) or 'none'})")


def one_of(known: tuple[str, ...], value: Any, place: str) -> str:
    """A name of a list."""
    if not isinstance(value, str) or value not in known:
        names = ", ".join([name for name in known if name][:NAMED]) + (
            ", …" if len(known) > NAMED + 1 else ""
        )
        raise CaseError(f"{place}: must be one of {names}, is {_shown(value)}")
    return value


def wrong(place: str, wanted: str, value: object) -> CaseError:
    """The error for a value that is not what a place wants."""
    return CaseError(f"{place}: must be {wanted}, is {_shown(value)}")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."
