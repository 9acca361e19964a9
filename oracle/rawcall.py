"""A call of a live allocator by slot number, as plain data, and the line of a trace that holds it.

A trace is a text file of JSON lines: a header, then one line for each call that came back. It holds sizes,
lengths, slot numbers and error types; no tokens and no text.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from oracle import casefile, records
from oracle.ops import Case, Config

SCHEMA = 2
READ = (1, 2)  # 1 says nothing of groups and window halves at the head of a file
KIND = records.TRACE
LONGEST_LINE = 16 << 20  # characters; a longer line is no call of ours
MOST_SLOTS = 1 << 24  # that one call names

Runs: TypeAlias = tuple[
    tuple[int, int], ...
]  # first number and count of each run of rising numbers, in order


class TraceError(ValueError):
    """A file that is no trace, or is broken; the message names file and line."""


class RawCall(NamedTuple):
    """One call that came back.

    method: its name at the allocator; size: of an alloc; prefix, seq, last: lengths and last locations of a
    batch (a decode has no prefix), total, new_pages: its extend_num_tokens and num_new_pages. slots: what is freed. name: of a snapshot,
    empty where nobody knows it, or of the method of an `other`; group: whether a restore opened a group again. outcome: `slots`, `none`, `done`, `raised`, `odd`; error: its type.
    free, full, window: slots that the allocator said it has afterwards, in all and by SWA pool.
    """

    method: str
    size: int | float | None = None
    prefix: tuple[int, ...] = ()
    seq: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    total: int | None = None
    new_pages: int | None = None
    slots: Runs = ()
    name: str = ""
    group: bool = False
    outcome: str = "done"
    answer: Runs = ()
    error: str = ""
    free: int | None = None
    full: int | None = None
    window: int | None = None


class Start(NamedTuple):
    """How a pool is when the first call comes.

    free, window: slots free in it (and in its window); None for a new allocator. windows: the pages whose window
    half is held, None where nobody knows. group: whether a group of frees is open.
    """

    free: int | None = None
    window: int | None = None
    windows: Runs | None = None
    group: bool = False


NEW = Start()


class Header(NamedTuple):
    """What stands on top of each file of a trace.

    subject: its name at `kvassay --impl`, or empty. start: the pool when the file was begun. part: which of the
    trace's files it is, from 1. made_by: class and version.
    """

    pool: Config
    subject: str = ""
    start: Start = NEW
    part: int = 1
    made_by: str = ""


def runs_of(numbers: Iterable[int]) -> Runs:
    """Numbers as runs of rising ones, in the order given."""
    runs: list[tuple[int, int]] = []
    first = count = 0
    for number in numbers:
        if count and number == first + count:
            count += 1
        else:
            if count:
                runs.append((first, count))
            first, count = number, 1
    if count:
        runs.append((first, count))
    return tuple(runs)


def numbers_of(runs: Runs) -> tuple[int, ...]:
    """The numbers of runs, one by one."""
    if len(runs) == 1:
        first, count = runs[0]
        return tuple(range(first, first + count))
    return tuple(chain.from_iterable(range(first, first + count) for first, count in runs))


# -- writing -------------------------------------------------------------------------------------------


def header_line(header: Header) -> str:
    """The first line of a file."""
    pool = casefile.encode(casefile.CaseFile(Case(header.pool, ())))["pool"]
    document: dict[str, Any] = {"kind": KIND, "schema": SCHEMA, "pool": pool, "part": header.part}
    document |= {"subject": header.subject, "made_by": header.made_by, **header.start._asdict()}
    said = {
        key: value
        for key, value in document.items()
        if value is not None and value is not False and value != ""
    }
    return json.dumps(said) + "\n"


def line_of(call: RawCall) -> str:
    """The line of a call: what is as it is by default is left out."""
    # Written by hand: a list of numbers is its own JSON, and `json.dumps` takes three times as long.
    words = [f'{{"op":"{call.method}"']
    if call.size is not None:
        words.append(f'"size":{json.dumps(call.size)}')
    for key in ("prefix", "seq", "last"):
        numbers = getattr(call, key)
        if numbers:
            words.append(f'"{key}":{list(numbers)}')
    for key in ("total", "new_pages"):
        number = getattr(call, key)
        if number is not None:
            words.append(f'"{key}":{number}')
    if call.slots:
        words.append(f'"slots":{list(map(list, call.slots))}')
    if call.name:
        words.append(f'"name":{json.dumps(call.name)}')
    if call.group:
        words.append('"group":true')
    if call.outcome == "slots":
        words.append(f'"got":{list(map(list, call.answer))}')
    elif call.outcome == "none":
        words.append('"got":null')
    elif call.outcome != "done":
        words.append(f'"{call.outcome}":{json.dumps(call.error)}')
    for key in ("free", "full", "window"):
        number = getattr(call, key)
        if number is not None:
            words.append(f'"{key}":{number}')
    return ",".join(words).replace(" ", "") + "}\n"


# -- reading -------------------------------------------------------------------------------------------


class Trace:
    """A trace on disk, read line by line: it may be larger than memory.

    path: its last file; those that were rotated away before (`path.1`, `path.2`, …) are read first. `size`,
    `read`: characters, in all and so far. After reading, `notes` says what was passed over. TraceError names file
    and line where one is broken.
    """

    def __init__(self, path: str | Path) -> None:
        self.files = files_of(Path(path))
        self.size, self.read = sum(file.stat().st_size for file in self.files), 0
        self.notes: list[str] = []
        self.header = self._header(self.files[0])
        if self.header.part > 1:
            self.notes.append(
                f"{self.files[0]} is part {self.header.part} of its trace: those before it are not read, and what they gave"
                " is known only by what is said of it later"
            )

    def calls(self) -> Iterator[RawCall]:
        """Every call, in order."""
        part = self.header.part
        taken: set[str] = set()
        for place, path in enumerate(self.files):
            header = self._header(path)
            if header.part != part + place:
                raise TraceError(f"{path}: line 1: is part {header.part}, and part {part + place} is missing")
            if header.pool != self.header.pool:
                raise TraceError(f"{path}: line 1: is of another pool than {self.files[0]}")
            for number, line in _lines(path):
                self.read += len(line)
                if number > 1:
                    call = self._call(path, number, line)
                    if call is None:
                        continue
                    if call.method == "backup_state":
                        taken.add(call.name)
                    elif (
                        call.method == "restore_state" and call.name and call.name not in taken and part == 1
                    ):
                        raise TraceError(
                            f"{path}: line {number}: name: no line before takes a snapshot {call.name!r}"
                        )
                    yield call

    def _header(self, path: Path) -> Header:
        for _, line in _lines(path):
            return _header_of(line, f"{path}: line 1")
        raise TraceError(f"{path}: line 1: the file is empty")

    def _call(self, path: Path, number: int, line: str) -> RawCall | None:
        if not line.endswith("\n"):
            # Lines are written whole, the end of the line last: so this call never came back.
            self.notes.append(f"{path}: line {number}: was cut off while it was written, and is left out")
            return None
        try:
            return call_of(line, f"{path}: line {number}")
        except TraceError as error:
            before = f" (`head -n {number - 1}` of the file is a trace again)" if number > 2 else ""
            raise TraceError(f"{error}{before}") from None


def is_trace(path: str | Path) -> bool:
    """Whether a file begins as a trace does. TraceError where there is none that can be read twice."""
    with open(files_of(Path(path))[0], "rb") as file:
        return KIND.encode() in file.read(200)


def files_of(path: Path) -> list[Path]:
    """The files of a trace, oldest first. TraceError where there are none."""
    if path.exists() and not path.is_file():
        raise TraceError(f"{path}: is no file, and is read more than once: write it to one first")
    rotated = [
        p for p in path.parent.glob(f"{glob.escape(path.name)}.*") if p.name[len(path.name) + 1 :].isdigit()
    ]
    files = sorted(rotated, key=lambda p: int(p.suffix[1:])) + ([path] if path.exists() else [])
    if not files:
        raise TraceError(f"{path}: there is no such file")
    return files


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise TraceError(f"{path}: line {number}: is too long for one call")
                yield number, line
    except UnicodeDecodeError:
        raise TraceError(f"{path}: line {number + 1}: is no text") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None


def _header_of(line: str, place: str) -> Header:
    document = _object(line, place)
    if document.pop("kind", None) != KIND:
        raise TraceError(f'{place}: not a kvassay trace: there is no "kind": "{KIND}"')
    schema = document.pop("schema", None)
    if schema not in READ:
        raise TraceError(
            f"{place}: has schema {schema}, and this kvassay reads {' and '.join(map(str, READ))}"
        )
    kinds: dict[str, Any] = {
        "subject": str, "free": int, "window": int, "part": int, "made_by": str, "windows": list, "group": bool,
    }  # fmt: skip
    for key, value in document.items():
        if key != "pool" and (key not in kinds or type(value) is not kinds[key]):
            raise TraceError(f"{place}: {key}: is unknown, or no {kinds.get(key, object).__name__}")
    start = Start(*(document.pop(key, default) for key, default in NEW._asdict().items()))
    if start.windows is not None:
        start = start._replace(windows=_runs(start.windows, f"{place}: windows"))
    try:
        # A pool is read as strictly as in a case file.
        empty = {"schema": casefile.SCHEMA, "kind": casefile.KIND, "operations": []}
        pool = casefile.decode({**empty, "pool": document.pop("pool", None)}).case.config
    except casefile.CaseError as error:
        raise TraceError(f"{place}: {error}") from None
    return Header(pool, start=start, **document)


METHODS = frozenset(
    {
        "alloc", "alloc_extend", "alloc_decode", "free", "free_swa", "free_group_begin", "free_group_end",
        "merge_and_sort_free", "backup_state", "restore_state", "clear", "other",
    }
)  # fmt: skip


def call_of(line: str, place: str) -> RawCall:
    """The call of a line. TraceError, with the place, where it is none."""
    document = _object(line, place)
    method = document.pop("op", None)
    if method not in METHODS:
        raise TraceError(f"{place}: op: unknown operation {method!r}")
    made: dict[str, Any] = {"method": method}
    for key, value in document.items():
        where = f"{place}: {key}"
        match key:
            case "prefix" | "seq" | "last":
                made[key] = tuple(_number(item, where) for item in _list(value, where))
            case "slots":
                made[key] = _runs(value, where)
            case "got":
                made["outcome"] = "none" if value is None else "slots"
                made["answer"] = () if value is None else _runs(value, where)
            case "raised" | "odd":
                made["outcome"], made["error"] = key, _text(value, where)
            case "name":
                made[key] = _text(value, where)
            case "group" if isinstance(value, bool):
                made[key] = value
            case "size" if isinstance(value, float):
                made[key] = value
            case "size" | "total" | "new_pages" | "free" | "full" | "window":
                made[key] = _number(value, where)
            case _:
                raise TraceError(f"{where}: unknown key")
    if method == "alloc" and "size" not in made:
        raise TraceError(f"{place}: size: is missing")
    return RawCall(**made)


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{place}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise TraceError(f"{place}: is no JSON object")
    return document


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise TraceError(f"{place}: is no list")
    return value


def _number(value: object, place: str) -> int:
    if type(value) is not int:
        raise TraceError(f"{place}: {value!r:.40} is no whole number")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise TraceError(f"{place}: is no text")
    return value


def _runs(value: object, place: str) -> Runs:
    runs = []
    named = 0
    for item in _list(value, place):
        pair = _list(item, place)
        if len(pair) != 2:
            raise TraceError(f"{place}: a run is a first number and a count")
        first, count = (_number(entry, place) for entry in pair)
        if count < 1:
            raise TraceError(f"{place}: a run has at least one number")
        named += count
        runs.append((first, count))
    if named > MOST_SLOTS:
        raise TraceError(f"{place}: {named:,} slots are more than a call has")
    return tuple(runs)
