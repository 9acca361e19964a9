"""Subjects by name: our own, known defects, SGLang releases and checkouts, anybody's factory, and what plug-ins add."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from impl.errors import SubjectError

if TYPE_CHECKING:
    from impl.defects.record import Defect
    from impl.subject import LocalSubject, Subject

OWN = {
    "token": "slots one by one, first in first out",
    "paged": "whole pages; extend and decode on an index engine: paged[engine=torch], triton or emulator",
    "ascend": "paged with torch operators only, in int32",
    "swa": "a full pool and a sliding-window pool in step",
}
SGLANG_PARTS = ("token", "paged", "ascend", "swa")
DEFECT = "defect:"
GROUP = "kvassay.subjects"
NUMBERS = ("page_size", "pages", "swa_pages", "spare")
TRUTH = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Name:
    """A subject's name, taken apart: `base` is what stands before the brackets."""

    base: str
    fixed: dict[str, Any]
    engine: str = ""


def parse(name: str) -> Name:
    """`paged[page_size=16,need_sort=true]`, taken apart. SubjectError where it is not such a name."""
    match = re.fullmatch(r"\s*([^\[\]]+?)\s*(?:\[([^\[\]]*)\])?\s*", name)
    if match is None:
        raise SubjectError(
            f"{name!r} is no subject's name: it looks like paged or paged[page_size=16,need_sort=true]"
        )
    fixed: dict[str, Any] = {}
    engine = ""
    for entry in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        key, equals, value = (piece.strip() for piece in entry.partition("="))
        if not equals or not value:
            raise SubjectError(f"{name}: {entry!r} is no parameter; write name=value")
        if key == "engine":
            engine = value
        elif key == "need_sort":
            if value.lower() not in TRUTH:
                raise SubjectError(f"{name}: need_sort is true or false, not {value!r}")
            fixed[key] = TRUTH[value.lower()]
        elif key in NUMBERS:
            if not value.isdigit():
                raise SubjectError(f"{name}: {key} is a whole number, not {value!r}")
            fixed[key] = int(value)
        else:
            raise SubjectError(
                f"{name}: no parameter {key!r}; there are {', '.join((*NUMBERS, 'need_sort', 'engine'))}"
            )
    return Name(match[1], fixed, engine)


def resolve(name: str, path: str = "", device: str = "cpu") -> Subject:
    """The subject of a name, ready to be driven. Our own run in this process, defects too; all others in a child.

    path: a working tree, for `sglang:part`. SubjectError says what to do where the subject can't be had.
    """
    parsed = parse(name)
    if path and not parsed.base.startswith("sglang:"):
        raise SubjectError(f"--path goes with sglang:PART (a working tree of SGLang), not with {name}")
    _check_part(parsed.base)
    if parsed.base in OWN or (parsed.base.startswith(DEFECT) and not known_defect(parsed.base).deadly):
        return local(name, device=device)
    if ":" not in parsed.base and parsed.base not in plug_ins():
        raise SubjectError(_unknown(name))
    from impl.child import ChildSubject

    return ChildSubject(name, path=path, device=device)


def local(name: str, path: str = "", device: str = "cpu") -> LocalSubject:
    """The same in this process; foreign code is only ever loaded in a child."""
    parsed = parse(name)
    base = parsed.base
    _check_part(base)
    if base in OWN:
        from impl.subject import own

        subject = own(base, device, parsed.engine, name)
    elif base.startswith(DEFECT):
        subject = known_defect(base).subject(name, device, parsed.engine)
    elif base.startswith(("sglang@", "sglang:")):
        from impl.sglang_subject import release_subject

        version, _, part = base.removeprefix("sglang").removeprefix("@").rpartition(":")
        subject = release_subject(name, version, part, parsed.engine, path, device)
    elif base in plug_ins():
        subject = _made(name, plug_ins()[base].load(), device)
    elif ":" in base:
        subject = _made(name, imported(base), device)
    else:
        raise SubjectError(_unknown(name))
    return _fixed(subject, parsed)


def known_defect(base: str) -> Defect:
    """The known defect of `defect:ID`. SubjectError, with what may have been meant, where there is none."""
    from impl.defects.catalogue import defect

    return defect(base.removeprefix(DEFECT))


def plug_ins() -> dict[str, Any]:
    """Subjects that installed packages add, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _check_part(base: str) -> None:
    if base.startswith(("sglang@", "sglang:")):
        part = base.rpartition(":")[2]
        if part not in SGLANG_PARTS or (base.startswith("sglang@") and ":" not in base):
            raise SubjectError(
                f"{base} names no part of SGLang: write {base.partition(':')[0]}:PART, PART being {', '.join(SGLANG_PARTS)}"
            )


def _unknown(name: str) -> str:
    known = ", ".join(
        (*OWN, "defect:ID", "sglang:PART", "sglang@VERSION:PART", "package.module:factory", *plug_ins())
    )
    return f"no subject is called {name!r}; there are {known} (see `kvassay list`)"


def _fixed(subject: LocalSubject, parsed: Name) -> LocalSubject:
    """The subject with the pools that its name asks for."""
    fixed, space = parsed.fixed, subject.space
    if fixed.get("page_size", 1) != 1 and space.page_sizes == (1,):
        raise SubjectError(f"{parsed.base} has page size 1: leave page_size out")
    if fixed.get("need_sort") is not None and fixed["need_sort"] not in space.need_sort:
        raise SubjectError(f"{parsed.base} can't be made with need_sort={fixed['need_sort']}")
    if "swa_pages" in fixed and space.kind != "swa":
        raise SubjectError(f"{parsed.base} has no second pool: leave swa_pages out")
    if min((value for key, value in fixed.items() if key in NUMBERS and key != "spare"), default=1) < 1:
        raise SubjectError(f"{parsed.base}: a pool has at least one page of at least one slot")
    if fixed.get("spare", 0) >= fixed.get("page_size", max(space.page_sizes)):
        raise SubjectError(
            f"{parsed.base}: spare is what is left behind the last whole page: under page_size"
        )
    return replace(subject, space=replace(space, fixed=fixed)) if fixed else subject


def imported(base: str) -> Any:
    """What `package.module:attribute` stands for."""
    module_name, _, attribute = base.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise SubjectError(
            f"{module_name} can't be imported ({error}): is it installed, or in this folder?"
        ) from error
    except Exception as error:
        raise SubjectError(f"importing {module_name} raised {type(error).__name__}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise SubjectError(
            f"{module_name} has no {attribute!r}: name a function that makes an allocator"
        ) from None


def _made(name: str, factory: Any, device: str) -> LocalSubject:
    from impl.factory import factory_subject

    return factory_subject(name, factory, device)
