"""`kvassay power`: arguments in, exit code out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from fuzz.console import json_option, refuse

if TYPE_CHECKING:
    from fuzz.power import Hunt

FOUND = 1
PAGE = """# {title}

What `{command}` printed{where}.

```
{text}```
"""


@click.command()
@click.argument("defects", nargs=-1, metavar="[DEFECT]...")
@click.option(
    "--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Seeds 1 to N for each defect."
)
@click.option(
    "--budget",
    type=click.Choice(("quick", "ci", "nightly")),
    default=None,
    help="Cases to find it in. Default: ci, and quick for mutants.",
)
@click.option(
    "--alone/--no-alone", default=True, show_default=True, help="Also each property by itself, with seed 1."
)
@click.option(
    "--mutants",
    multiple=True,
    metavar="SUBJECT",
    help="Instead: change SUBJECT's own source, one place at a time, and see whether the gate notices; may be repeated.",
)
@click.option(
    "--explained",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file of survivors with reasons, and of what is proven equivalent. Default: the project's own.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the mutants' gate."
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=None, help="Processes. Default: as many as cores."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write what is printed here, as Markdown."
)
@json_option
def power(
    defects: tuple[str, ...], seeds: int, budget: str | None, alone: bool, mutants: tuple[str, ...],
    explained: Path | None, seed: int, workers: int | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """The suite against what it must catch: known DEFECTs (all of them), or small changes to a subject's source.

    Exit code: 0 all caught (mutants: every survivor has a reason), 1 not, 2 bad usage or input.
    """
    from impl.errors import SubjectError

    try:
        if mutants:
            if defects:
                raise click.UsageError("name defects or --mutants, not both")
            good, whole = _mutants(mutants, budget or "quick", seed, workers, explained, out, as_json)
        else:
            good, whole = _defects(defects, seeds, budget or "ci", alone, workers, out, as_json)
    except SubjectError as error:
        refuse(str(error))
    if as_json:
        click.echo(json.dumps(whole, indent=1))
    raise SystemExit(0 if good else FOUND)


def _defects(
    ids: tuple[str, ...],
    seeds: int,
    budget: str,
    alone: bool,
    workers: int | None,
    out: Path | None,
    quiet: bool,
) -> tuple[bool, object]:
    from fuzz.power import hunt_all
    from fuzz.power_report import document, print_summary
    from fuzz.run import default_workers

    console = Console(stderr=True, emoji=False)
    done = 0

    def progress(hunt: Hunt) -> None:
        nonlocal done
        done += 1
        console.print(f"{done} hunted: {hunt.defect.id}", highlight=False)

    summary = hunt_all(ids, seeds, budget, alone, workers or default_workers(), progress)
    printed = _printed(quiet, out)
    print_summary(printed, summary)
    _page(
        out,
        printed,
        "The suite against the known defects",
        f"kvassay power --seeds {seeds} --budget {budget}",
    )
    return not summary.missed, document(summary, budget)


def _mutants(
    subjects: tuple[str, ...], budget: str, seed: int, workers: int | None, file: Path | None, out: Path | None,
    quiet: bool,
) -> tuple[bool, object]:  # fmt: skip
    from fuzz.explained import EXPLAINED, read_explained
    from fuzz.mutants import explain, mutate, survivors
    from fuzz.power_report import print_score, score_document
    from fuzz.run import default_workers

    console = Console(stderr=True, emoji=False)
    known = read_explained(file or EXPLAINED)
    raw = mutate(
        subjects,
        budget,
        seed,
        workers or default_workers(),
        lambda line: console.print(line, highlight=False),
    )
    score, stale = explain(raw, known, whole=file is not None)
    printed = _printed(quiet, out)
    print_score(printed, score)
    for entry in stale:
        printed.print(f"explained, but there is no such mutant: {entry}", highlight=False, soft_wrap=True)
    command = " ".join(("kvassay power", *(f"--mutants {name}" for name in subjects)))
    _page(out, printed, "Small changes that the gate notices", command)
    good = not stale and all(fate.reason for fate in survivors(score))
    return good, score_document(score)


def _printed(quiet: bool, out: Path | None) -> Console:
    """Where the tables go: wide enough for them where there is no terminal."""
    width = None if Console(stderr=quiet).is_terminal else 150
    return Console(
        emoji=False, record=out is not None, width=width, stderr=quiet, quiet=quiet and out is None
    )


def _page(out: Path | None, console: Console, title: str, command: str) -> None:
    if out is None:
        return
    import platform

    text = "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"
    where = f", with Python {platform.python_version()} on {platform.machine()}"
    out.write_text(PAGE.format(title=title, command=command, where=where, text=text), encoding="utf-8")
