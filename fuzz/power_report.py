"""The power of the suite as a table, as JSON, and as a page of the docs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fuzz.mutants import Fate, Score, survivors
from fuzz.power import Catch, Hunt, Summary

WORDS = {True: "yes", False: "NO"}


def document(summary: Summary, budget: str) -> dict[str, Any]:
    """Everything that was measured, as one JSON document."""
    return {
        "schema": 1,
        "budget": budget,
        "defects": [_hunt(hunt) for hunt in summary.hunts],
        "missed": summary.missed,
        "shrunk": {kind: len(catches) for kind, catches in summary.shrunk().items()},
        "median_seconds": round(summary.median_seconds, 3),
        "worst_seconds": round(summary.worst_seconds, 3),
        "properties": {
            check: {"catches": summary.caught_by(check), "alone": summary.needed_by(check)}
            for check in summary.checks
        },
    }


def _hunt(hunt: Hunt) -> dict[str, Any]:
    return {
        "id": hunt.defect.id,
        "about": hunt.defect.about,
        "seen": hunt.defect.seen,
        "level": hunt.defect.level,
        "runs": {str(seed): _catch(catch) for seed, catch in hunt.runs.items()},
        "by_property": {check: _catch(catch) for check, catch in hunt.alone.items()},
    }


def _catch(catch: Catch | None) -> dict[str, Any] | None:
    if catch is None:
        return None
    return {name: getattr(catch, name) for name in (*Catch.__slots__, "proven")}


def print_summary(console: Console, summary: Summary) -> None:
    """One line for each defect, then the properties, then the whole."""
    table = Table(title="Known defects", title_justify="left", header_style="bold", pad_edge=False)
    for column in (
        "defect", "caught", "code", "by", "operations", "worst", "seconds", "worst", "shrunk", "minimum", "machine",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("defect", "caught", "code", "by") else "right")
    for hunt in summary.hunts:
        table.add_row(*_row(hunt))
    console.print(table)
    if summary.checks:
        _print_properties(console, summary)
    caught = len(summary.hunts) - len(summary.missed)
    seeds = len(summary.hunts[0].runs) if summary.hunts else 0
    console.print(
        f"\n{caught} of {len(summary.hunts)} defects caught by each of {seeds} seed(s); first finding after "
        f"{summary.median_seconds:.2f} s in the median, {summary.worst_seconds:.1f} s at worst, on one core.",
        highlight=False,
        soft_wrap=True,
    )
    if summary.catches:
        for line in _shrunk(summary):
            console.print(line, highlight=False, soft_wrap=True)
    for missed in summary.missed:
        console.print(f"[bold]missed[/bold] {escape(missed)}", highlight=False)


def _row(hunt: Hunt) -> list[str]:
    caught, runs = hunt.caught, len(hunt.runs)
    found = f"{len(caught)} of {runs}"
    machine = hunt.alone.get("state machine")
    other = f"{machine.operations:,}" if machine else "-" if hunt.alone else ""
    if not caught:
        return [hunt.defect.id, found, "", "", "", "", "", "", "", "", other]
    worst = hunt.worst
    assert worst is not None
    least = hunt.least(worst)
    # Where it is not reached it is what is proven or known of shorter ones, and not known to be there.
    how = "" if worst.proven else " by hand" if least == worst.length else " or more"
    operations = [catch.operations for catch in caught]
    seconds = [catch.seconds for catch in caught]
    return [
        hunt.defect.id,
        found,
        " ".join(dict.fromkeys(catch.code for catch in caught)),
        ", ".join(dict.fromkeys(catch.check for catch in caught)),
        f"{statistics.median(operations):,.0f}",
        f"{max(operations):,}",
        f"{statistics.median(seconds):.2f}",
        f"{max(seconds):.2f}",
        str(worst.length),
        f"{least}{how}",
        other,
    ]


def _shrunk(summary: Summary) -> list[str]:
    """How far the shrunk cases are over the shortest of their findings, and which of them too far or nobody knows."""
    kinds = summary.shrunk()
    count = {kind: len(catches) for kind, catches in kinds.items()}
    lines = [
        f"Of {len(summary.catches)} shrunk cases {count['proven'] + count['by hand']} are the shortest of their findings "
        f"({count['proven']} proven on their pools, {count['by hand']} by hand), {count['one']} one operation over it at most, "
        f"{count['more']} more; of {count['unknown']} that is not known."
    ]
    for kind, word in (("more", "longer"), ("unknown", "not known")):
        for hunt, catch in kinds[kind]:
            seed = next(seed for seed, other in hunt.runs.items() if other is catch)
            lines.append(
                f"    {word}: {hunt.defect.id} with seed {seed}, {catch.code} at {catch.key[2]}: "
                f"{catch.length} operations, {hunt.least(catch)} at least"
            )
    return lines


def _print_properties(console: Console, summary: Summary) -> None:
    table = Table(
        title="Properties, each by itself", title_justify="left", header_style="bold", pad_edge=False
    )
    for column in ("property", "catches", "operations in the median", "alone"):
        table.add_column(
            column, justify="right" if column in ("catches", "operations in the median") else "left"
        )
    for check in summary.checks:
        catches = [catch.operations for hunt in summary.hunts if (catch := hunt.alone.get(check)) is not None]
        alone = summary.needed_by(check)
        table.add_row(
            check,
            str(len(catches)),
            f"{statistics.median(catches):,.0f}" if catches else "",
            ", ".join(alone) if alone else "no defect needs it",
        )
    console.print(table)


def print_score(console: Console, score: Score) -> None:
    """Survivors and proven equivalents by their reasons, what is never driven, and the score with its denominator."""
    for reason, alike in _by_reason(survivors(score)):
        said = escape(reason) if reason else "[bold]no reason is known[/bold]"
        _print_group(console, f"survived, {len(alike)}: {said}", alike)
    for reason, alike in _by_reason(fate for fate in score.fates if fate.fate == "equivalent"):
        _print_group(console, f"equivalent, {len(alike)}: {escape(reason)}", alike)
    counts = {name: sum(fate.fate == name for fate in score.fates) for name in ("same", "equivalent")}
    for name in score.undriven:
        console.print(f"never driven: {escape(name)}", highlight=False, soft_wrap=True)
    killed = sum(fate.killed for fate in score.counted)
    ways = {
        name: sum(fate.fate == name for fate in score.fates) for name in ("finding", "broke", "died", "hung")
    }
    console.print(
        f"\n{killed} of {len(score.counted)} mutants killed: {score.share:.1%} "
        f"({', '.join(f'{count} {name}' for name, count in ways.items() if count)}), in {score.seconds:.0f} s. "
        f"Left out: {counts['equivalent']} proven equivalent, {counts['same']} with the same bytecode, "
        f"{len(score.undriven)} functions that are never driven.",
        highlight=False,
        soft_wrap=True,
    )


def _by_reason(fates: Iterable[Fate]) -> list[tuple[str, list[Fate]]]:
    """Those with no reason first, else in the order of the source."""
    groups: dict[str, list[Fate]] = {"": []}
    for fate in fates:
        groups.setdefault(fate.reason, []).append(fate)
    return [(reason, alike) for reason, alike in groups.items() if alike]


def _print_group(console: Console, title: str, alike: list[Fate]) -> None:
    console.print(title, highlight=False, soft_wrap=True)
    for fate in alike:
        console.print(f"    {escape(str(fate.mutant))}", highlight=False, soft_wrap=True)


def score_document(score: Score) -> dict[str, Any]:
    """Every mutant and what became of it, as one JSON document."""
    return {
        "schema": 1,
        "score": round(score.share, 4),
        "killed": sum(fate.killed for fate in score.counted),
        "counted": len(score.counted),
        "seconds": round(score.seconds, 1),
        "undriven": score.undriven,
        "mutants": [
            {
                "mutant": str(fate.mutant), "fate": fate.fate, "by": fate.by, "subject": fate.subject,
                "seconds": round(fate.seconds, 2), "reason": fate.reason,
            }
            for fate in score.fates
        ],
    }  # fmt: skip
