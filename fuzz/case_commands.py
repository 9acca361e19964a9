"""Commands about cases: their arguments. What they do is in `fuzz.replay`, `fuzz.show` and `fuzz.handover`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from fuzz.console import LEVELS, console_for, device_option, json_option, path_option, refuse

if TYPE_CHECKING:
    from fuzz.replay import Replayed

case_argument = click.argument("case", type=click.Path(exists=True, dir_okay=False, path_type=Path))
impl_option = click.option(
    "--impl", default="", metavar="SUBJECT", help="Another subject than the one that the case names."
)
level_option = click.option(
    "--level", type=click.Choice(LEVELS), default=None, help="Default: the level at which it was found."
)
_COLOURS = {"FIXED": "green", "FAILED": "red", "FLAKY": "magenta", "ERROR": "yellow"}


@click.command()
@click.argument("cases", nargs=-1, required=True, metavar="CASE…", type=click.Path(path_type=Path))
@impl_option
@path_option
@device_option
@level_option
@json_option
def replay(
    cases: tuple[Path, ...], impl: str, path: str, device: str, level: str | None, as_json: bool
) -> None:
    """Run cases again: FIXED, FAILED, FLAKY or ERROR for each.

    Each is run twice on a new allocator. FLAKY: the two differ, and the operation where they part is named.
    A case of a relation is run as the relation, a batch of the kernel tier on its engine.

    Exit code: 0 all are FIXED, 1 one is FAILED or FLAKY, 2 bad input, 3 the harness broke; the highest of all.
    """
    from fuzz.replay import exit_code, replay_path
    from fuzz.run import start_worker

    start_worker(device)
    replayed = [replay_path(case, impl, level or "", path, device) for case in _files(cases)]
    if as_json:
        click.echo(json.dumps([entry.document() for entry in replayed], indent=1))
    else:
        console = console_for()
        console.print(_table(replayed))
        for entry in replayed:
            if entry.says:
                text = f"{entry.file}: {entry.says}"
                console.print(text, highlight=False, markup=False, soft_wrap=True)
    raise SystemExit(exit_code(replayed))


def _files(cases: tuple[Path, ...]) -> list[Path]:
    """The files, and those in the folders, by name."""
    found: list[Path] = []
    for case in cases:
        inside = sorted(case.glob("*.json")) if case.is_dir() else [case]
        if not inside:
            refuse(f"{case} holds no case files")
        found += inside
    return found


def _table(replayed: list[Replayed]) -> Table:
    table = Table(title="kvassay replay", title_justify="left", header_style="bold")
    for column in ("case", "subject", "level", "of the file", "now"):
        table.add_column(column)
    table.add_column("", no_wrap=True)
    for entry in replayed:
        now = f"{entry.code} at operation {(entry.index or 0) + 1}" if entry.code else ""
        if entry.same is False:
            now += " (another finding)"
        colour = _COLOURS[entry.state]
        table.add_row(
            escape(Path(entry.file).name), escape(entry.subject), entry.level, entry.expected, now,
            f"[{colour}]{entry.state}[/{colour}]",
        )  # fmt: skip
    return table


@click.command()
@case_argument
@impl_option
@path_option
@device_option
@level_option
@click.option("--text", "as_text", is_flag=True, help="In the terminal: a line for each operation.")
@click.option("--again", is_flag=True, help="Run it, although the file has the answers of its run.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="The page.  [default: CASE.html, here]"
)
def show(
    case: Path, impl: str, path: str, device: str, level: str | None, as_text: bool, again: bool, out: Path | None
) -> None:  # fmt: skip
    """A case as a page to step through: pages and slots by owner, subject and reference side by side.

    The page is one file that loads nothing else. It shows the answers that the case file holds; with --again,
    --impl or --level, or where the file has none, the case is run. A batch of the kernel tier is run on its engine,
    and has lines alone: --text.
    """
    from fuzz.show import page, shown
    from fuzz.show_text import lines
    from impl.errors import SubjectError
    from oracle.casefile import BatchFile, CaseError, read_any

    console = console_for()
    try:
        file = read_any(case)
        if isinstance(file, BatchFile):
            if not as_text:
                refuse(f"{case} is a batch of the kernel tier, which has no page: give --text")
            from fuzz.show_batch import lines as batch_lines  # it runs the engine, and so needs torch

            for line in batch_lines(file, impl, path, device):
                console.print(line, soft_wrap=True, highlight=False)
            return
        what = shown(file, impl, level or "", path, device, again)
    except (CaseError, SubjectError) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")
    if as_text:
        for line in lines(what):
            console.print(line, soft_wrap=True, highlight=False)
        return
    target = out or Path(case.with_suffix(".html").name)
    try:
        target.write_text(page(what), encoding="utf-8")
    except OSError as error:
        refuse(f"{target} can't be written: {error.strerror}")
    click.echo(target)


@click.command()
@case_argument
@path_option
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="The folder.  [default: beside CASE]"
)
def export(case: Path, path: str, out: Path | None) -> None:
    """A case's finding as Python that runs without kvassay: NAME.py, a script, and test_NAME.py, for pytest.

    Both make the allocator by its own constructor, make the calls with real tensors, and fail where the finding
    says. The gate writes them beside each case file.
    """
    from fuzz.constructors import NoHandover
    from fuzz.handover import write
    from impl.errors import SubjectError
    from oracle.casefile import CaseError, read_any

    try:
        file = read_any(case)
        target = (out or case.parent) / case.name
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        written = write(target, file, path)
    except (CaseError, SubjectError, NoHandover) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename} can't be written: {error.strerror}")
    for file_ in written:
        click.echo(file_)
