"""`kvassay explore`: its arguments, and what it prints and leaves."""

from __future__ import annotations

import json
import traceback
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from fuzz.console import (
    LEVELS,
    UNDECIDED,
    console_for,
    device_option,
    json_option,
    out_option,
    path_option,
    refuse,
    writable,
)  # fmt: skip

if TYPE_CHECKING:
    from fuzz.explore import Explored
    from fuzz.findings import Finding
    from fuzz.walker import Question
    from impl.subject import Space, Subject


@click.command()
@click.option("--impl", required=True, metavar="SUBJECT", help="What to explore (see `kvassay list`).")
@click.option("--pages", type=click.IntRange(1), default=3, show_default=True, help="Pages of the pool.")
@click.option("--page-size", type=click.IntRange(1), help="Slots of a page.  [default: 2, or the only one]")
@click.option(
    "--swa-pages", type=click.IntRange(1), help="Pages of the window's pool.  [default: --pages - 1]"
)
@click.option("--need-sort", is_flag=True, help="Freed pages wait until they are merged.")
@click.option(
    "--depth", type=click.IntRange(0), help="Operations of a sequence.  [default: until all is seen]"
)
@click.option("--level", type=click.Choice(LEVELS), help="Default: contract; the project's own at parity.")
@click.option(
    "--requests",
    type=click.IntRange(1, 26),
    default=2,
    show_default=True,
    help="How many there are at a time.",
)
@click.option("--snapshot/--no-snapshot", default=True, show_default=True, help="Backup and restore.")
@click.option(
    "--snapshot-age", type=click.IntRange(0), default=1, show_default=True,
    help="Operations until a snapshot is forgotten: between its backup or last restore and the next one.",
)  # fmt: skip
@click.option(
    "--group-frees", type=click.Choice(["one", "whole", "any"]),
    help="What a group collects: one free; behind the first, frees of whole requests; any.  [default: whole; of swa: one]",
)  # fmt: skip
@click.option(
    "--window-frees", type=click.Choice(["first", "any"]), default="first", show_default=True,
    help="Which pages of a request free_swa gives up: its first ones; any run of them.",
)  # fmt: skip
@click.option("--misuse/--no-misuse", default=False, show_default=True, help="Calls that break a rule.")
@click.option("--prefix/--no-prefix", default=False, show_default=True, help="Requests behind others' pages.")
@click.option("--workers", type=click.IntRange(1), help="Processes.  [default: as many as cores]")
@path_option
@device_option
@out_option
@json_option
def explore(
    impl: str, pages: int, page_size: int | None, swa_pages: int | None, need_sort: bool, depth: int | None,
    level: str | None, requests: int, snapshot: bool, snapshot_age: int, group_frees: str | None,
    window_frees: str, misuse: bool, prefix: bool, workers: int | None, path: str, device: str, out: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Every sequence of operations on a small pool, equal states merged.

    Two requests take, grow, share and give back in every way that makes a difference (the module
    properties.alphabet says which); each answer is judged. When no new state comes any more, sequences of any
    length were checked. Each case is the shortest that there is for its finding. The search ends at the first
    depth that has a fault, with all distinct ones of that depth; misuse that harms is listed and does not end it.

    Exit code: 0 nothing is wrong up to the depth, 1 a finding, 2 bad usage or input, 3 undecided.
    """
    from fuzz.explore import Workers
    from fuzz.explore import explore as search
    from fuzz.run import default_workers
    from fuzz.walker import Question
    from impl.child import ChildSubject
    from impl.errors import SubjectError
    from impl.names import OWN, parse, resolve

    console = console_for(as_json)
    processes: list[Subject] = []
    try:
        own = parse(impl).base in OWN
        subject = resolve(impl, path, device)
        processes.append(subject)
        config = _pool(impl, subject.space, pages, page_size, swa_pages, need_sort, level == "hardened")
        level = level or ("parity" if own else "contract")
        if level == "parity" and subject.traits(config).dialect is None:
            refuse(f"{impl} claims no exact order: choose another --level")
        writable(out)
        question = Question(
            config, level, tuple(ascii_uppercase[:requests]), snapshot, snapshot_age, prefix, misuse,
            group_frees or ("one" if config.kind == "swa" else "whole"), window_frees,
        )  # fmt: skip
        count = workers or default_workers()
        if count > 1 or not own:
            processes += [ChildSubject(impl, path, device) for _ in range(count)]
        console.print(
            f"kvassay explore {impl} at {level}: {_pool_words(question)}", highlight=False, markup=False
        )

        def progress(so_far: Explored) -> None:
            console.print(_line(so_far), highlight=False, markup=False)

        result = search(
            subject, question, depth, workers=Workers(processes[1:] or processes), progress=progress
        )
    except SubjectError as error:
        refuse(str(error))
    except Exception as error:
        # Nothing is known about the subject now, which is not the same as a finding.
        traceback.print_exc()
        click.echo(f"kvassay: undecided: {type(error).__name__}: {error}", err=True)
        raise SystemExit(UNDECIDED) from error
    finally:
        for process in processes:
            process.close()
    findings = _findings(impl, level, result, out)
    whole = _document(impl, result, findings)
    (out / "report.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    _print(console, result, findings, out)
    if as_json:
        click.echo(json.dumps(whole, indent=1))
    raise SystemExit(1 if findings else 0)


def _pool(
    impl: str,
    space: Space,
    pages: int,
    page_size: int | None,
    swa_pages: int | None,
    need_sort: bool,
    debug: bool,
) -> Any:
    """The pool that was asked for. Refused where the subject has no such pool."""
    from oracle.ops import Config

    default = 2 if 2 in space.page_sizes else space.page_sizes[0]
    asked: dict[str, Any] = {
        "pages": pages,
        "page_size": page_size or space.fixed.get("page_size", default),
        "need_sort": need_sort or space.fixed.get("need_sort", False),
        "swa_pages": (swa_pages or space.fixed.get("swa_pages", max(pages - 1, 1)))
        if space.kind == "swa"
        else swa_pages or 0,
    }
    asked["pages"] = space.fixed.get("pages", pages)
    for name, value in space.fixed.items():
        if asked.get(name, value) != value:
            refuse(f"{impl} has {name}={value}: leave out what differs")
    if "page_size" not in space.fixed and asked["page_size"] not in space.page_sizes:
        refuse(
            f"{impl} has pages of {', '.join(map(str, space.page_sizes))}, and none of {asked['page_size']}"
        )
    if asked["need_sort"] not in space.need_sort:
        refuse(f"{impl} can't be made with need_sort={asked['need_sort']}")
    try:
        return replace(Config(space.kind, **asked, debug=debug), **dict(space.fixed))
    except ValueError as error:
        refuse(f"{impl}: {error}")


def _pool_words(question: Question) -> str:
    from oracle.ops import config_sentence

    frees = {
        "one": "one free in a group",
        "whole": "behind a group's first free whole requests",
        "any": "any frees in a group",
    }
    extra = (
        frees[question.group_frees],
        *((f"free_swa of {question.window_frees} pages",) if question.config.kind == "swa" else ()),
        f"a snapshot for {question.age} operation(s)" if question.snapshot else "no snapshot",
        "prefixes" if question.prefixes else "no prefixes",
        "misuse" if question.misuse else "no misuse",
    )
    requests = f"{len(question.names)} request(s)"
    return ", ".join((config_sentence(question.config), requests, *extra))


def _line(result: Explored) -> str:
    return f"depth {result.depth}: {result.states:,} states, {result.transitions:,} transitions, {result.seconds:.1f} s"


def _findings(impl: str, level: str, result: Explored, out: Path) -> list[Finding]:
    """The findings, with a case file of each written."""
    from fuzz.findings import Finding
    from fuzz.report import case_name, versions
    from oracle import casefile

    findings = [
        Finding(impl, level, "explore", found.violation, found.case, minimal=True) for found in result.found
    ]
    for finding in findings:
        assert finding.case is not None
        casefile.write(
            out / "cases" / case_name(finding),
            casefile.CaseFile(
                finding.case, subject=impl, level=level, versions=versions(), finding=finding.violation
            ),
        )
    return findings


def _document(impl: str, result: Explored, findings: list[Finding]) -> dict[str, Any]:
    from dataclasses import asdict

    from fuzz.report import SCHEMA, finding_document, versions

    sizes = result.alphabet or [0]
    return {
        "schema": SCHEMA,
        "verdict": "fail" if findings else "pass",
        "versions": versions(),
        "subject": impl,
        "level": result.question.level,
        "pool": asdict(result.question.config),
        "requests": len(result.question.names),
        "snapshot_age": result.question.age if result.question.snapshot else None,
        "group_frees": result.question.group_frees,
        "window_frees": result.question.window_frees,
        "prefixes": result.question.prefixes,
        "misuse": result.question.misuse,
        "copies": result.way,
        "closed": result.closed,
        "depth": result.depth,
        "states": result.states,
        "last_chances": result.last_chances,
        "transitions": result.transitions,
        "calls": result.calls,
        "sequences": result.sequences,
        "alphabet": {"min": min(sizes), "median": median_low(sizes), "max": max(sizes)},
        "seconds": round(result.seconds, 1),
        "processor_seconds": round(result.processor, 1),
        "findings": [finding_document(finding) for finding in findings],
    }


def _print(console: Console, result: Explored, findings: list[Finding], out: Path) -> None:
    from fuzz.report import case_name, lines_of
    from impl.branches import WAYS

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    sizes = result.alphabet or [0]
    restores = f"; in {result.last_chances:,} others a restore" if result.last_chances else ""
    say(f"Operations in a state: {min(sizes)} to {max(sizes)}, {median_low(sizes)} in the median{restores}.")
    say(
        f"The allocator is {WAYS[result.way]}, and answered {result.calls:,} calls: a process asks each once in a state."
    )
    say(
        f"Up to {result.depth} operations there are {result.sequences:,} sequences. Processor: {result.processor:.1f} s."
    )
    kept = "no fault" if findings else "every promise kept"
    faulty = any(finding.violation.kind == "fault" for finding in findings)
    if not faulty:
        end = (
            "Closed: sequences of any length"
            if result.closed
            else f"Sequences of up to {result.depth} operations"
        )
        say(f"{end}, {kept} at level {result.question.level}.")
    for number, finding in enumerate(findings, 1):
        first, *rest = lines_of(finding)
        say(f"\n{number}. {first}")
        for line in (*rest, f"  {out / 'cases' / case_name(finding)}"):
            say(line)
    if findings:
        say("\nNo finding has a shorter case, on this pool and with these operations.")
