"""The command line: arguments in, exit code out. What a command does lives in its own module.

Modules that need torch are imported when a command needs them, so that `explain` works without it.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from fuzz.case_commands import export, replay, show
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
from fuzz.explore_command import explore
from fuzz.power_command import power
from fuzz.shrink_command import shrink

if TYPE_CHECKING:
    from fuzz.campaign import TaskResult
    from fuzz.run import RunReport

BUDGETS = ("quick", "ci", "nightly")

impl_option = click.option(
    "--impl",
    "impls",
    multiple=True,
    metavar="SUBJECT",
    help="What to judge; may be repeated (see `kvassay list`).",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="kvassay")
def main() -> None:
    """Judge the KV-cache pool allocators of LLM serving engines against a reference."""


main.add_command(explore)
main.add_command(shrink)
main.add_command(replay)
main.add_command(show)
main.add_command(export)
main.add_command(power)


@main.command()
@impl_option
@path_option
@device_option
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default=None,
    help="Default: contract; the project's own at parity and hardened.",
)
@click.option(
    "--budget",
    type=click.Choice(BUDGETS),
    default="ci",
    show_default=True,
    help="How many cases; never how many seconds.",
)
@click.option(
    "--tier",
    type=click.Choice(("allocator", "kernel")),
    default="allocator",
    help="kernel: SUBJECT is an index engine (torch, triton, emulator, or anybody's).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=None,
    help="Makes the run: the same seed does the same. Default: drawn and printed.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Processes. Default: as many as cores. Decides nothing but time.",
)
@click.option(
    "--accepted",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file of findings that you live with.",
)
@out_option
@json_option
def gate(
    impls: tuple[str, ...], path: str, device: str, level: str | None, budget: str, tier: str,
    seed: int | None, workers: int | None, accepted: Path | None, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """The pre-merge gate; without --impl it judges the project's own allocators.

    First of all it looks for a fault that nothing can miss (defect:canary); a gate that misses it is broken.

    Exit code: 0 all properties hold, 1 a finding, 2 bad usage or input, 3 undecided.
    """
    import secrets

    from fuzz.canary import look_for_canary
    from fuzz.findings import AcceptedError, read_accepted
    from fuzz.report import EXIT, document, print_reports, write_all
    from fuzz.run import KERNEL, Options, default_workers, run, targets_for
    from impl.errors import SubjectError

    console = console_for(as_json)
    try:
        options = Options(
            targets=targets_for(impls, level or "", tier, device),
            budget=budget,
            seed=secrets.randbelow(1_000_000) if seed is None else seed,
            workers=workers or default_workers(),
            device=device,
            path=path,
            accepted=tuple(read_accepted(accepted)) if accepted else (),
        )
        writable(out)
        reports = []
        names = ", ".join(dict.fromkeys(target.name for target in options.targets))
        console.print(
            f"kvassay gate of {names}: budget {budget}, seed {options.seed}, {options.workers} worker(s)",
            highlight=False,
            markup=False,
        )
        canary = look_for_canary(all(target.tier == KERNEL for target in options.targets), options.seed)
        console.print(f"canary: {canary}", highlight=False)
        with _Progress(console) as progress:
            # A gate that misses its canary says nothing about anybody.
            for report in run(options, progress.update) if canary.found else ():
                progress.done(report)
                reports.append(report)
    except (SubjectError, AcceptedError) as error:
        refuse(str(error))
    except Exception as error:
        # Nothing is known about any subject now, which is not the same as a finding.
        traceback.print_exc()
        click.echo(f"kvassay: the harness broke: {type(error).__name__}: {error}", err=True)
        raise SystemExit(UNDECIDED) from error
    order = {target: place for place, target in enumerate(options.targets)}
    reports.sort(key=lambda report: order[report.target])
    whole = document(reports, options, canary)
    write_all(out, reports, options, whole)
    if canary.found:
        print_reports(console, reports, out)
    else:
        click.echo(
            f"kvassay: the gate is broken: its canary, a fault that nothing can miss, was {canary}", err=True
        )
    if as_json:
        click.echo(json.dumps(whole, indent=1))
    raise SystemExit(EXIT[whole["verdict"]])


class _Progress:
    """What goes on while a run goes on: a line that moves in a terminal, a line a subject elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("starting …") if console.is_terminal else None

    def __enter__(self) -> _Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, report: RunReport, result: TaskResult | None) -> None:
        """A task is done."""
        if self._status is not None:
            task = f"{result.task.check} {result.task.shard}" if result is not None else "planned"
            done = f"{len(report.results)} of {report.planned}"
            self._status.update(
                f"{_plain(report.target.name)} ({report.target.level}): {done}, {report.operations:,} operations ({task})"
            )

    def done(self, report: RunReport) -> None:
        """A subject is done."""
        target = report.target
        self._console.print(
            f"{target.name} at {target.level}: {report.verdict}, {report.operations:,} operations, "
            f"{len(report.findings)} finding(s), {report.seconds:.1f} s",
            highlight=False, markup=False,
        )  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


@main.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def list_(as_json: bool) -> None:
    """What there is: subjects, properties, codes and levels."""
    from impl.defects.catalogue import CATALOGUE
    from impl.engines import OWN_ENGINES
    from impl.names import DEFECT, GROUP, OWN, plug_ins
    from oracle.codes import CODES
    from properties.checks import CHECKS

    subjects = {
        **OWN,
        f"{DEFECT}ID": "one of our own with a known fault, from the table of defects below",
        "sglang:PART": "the SGLang that is installed, or --path to a working tree; PART is token, paged, ascend or swa",
        "sglang@VERSION:PART": "a release of SGLang, fetched from the package index into a cache",
        "package.module:factory": "any function that makes an allocator (see impl/factory.py)",
        **{name: f"added by {point.value} (entry point group {GROUP})" for name, point in plug_ins().items()},
    }
    engines = OWN_ENGINES | {
        f"{DEFECT}ID": "one with a known fault in its arithmetic",
        "package.module:engine": "any extend and decode",
    }
    properties = {name: (check.__doc__ or "").strip() for name, check in CHECKS.items()}
    whole: dict[str, dict[str, str]] = {
        "subjects": subjects,
        "engines (--tier kernel)": engines,
        "defects": {f"{DEFECT}{defect.id}": defect.about for defect in CATALOGUE.values()},
        "properties": properties,
        "codes": {name: code.asserts for name, code in CODES.items()},
    }
    if as_json:
        click.echo(json.dumps(whole, indent=1))
        return
    console = console_for()
    for title, entries in whole.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column()
        for name, text in entries.items():
            table.add_row(_plain(name), _plain(text))
        console.print(table, "")


@main.command()
@click.argument("code")
def explain(code: str) -> None:
    """What a CODE means: what is asserted, why it matters, and at which level."""
    from oracle.codes import CODES

    known = CODES.get(code.upper())
    if known is None:
        refuse(f"no code is called {code!r}; there are {', '.join(CODES)}")
    click.echo(
        f"{known.name} (asserted at {known.level} level{' and above' if known.level == 'contract' else ''})\n"
    )
    click.echo(f"  What holds: {known.asserts}\n  Without it: {known.matters}")


@main.command()
@click.option("--impl", required=True, metavar="SUBJECT", help="The subject whose adapter is looked at.")
@path_option
@device_option
def doctor(impl: str, path: str, device: str) -> None:
    """Whether an adapter is sound: every method that the subject claims, called once and judged."""
    from fuzz.doctor import examine
    from impl.errors import SubjectError
    from impl.names import resolve

    console = console_for()
    try:
        subject = resolve(impl, path, device)
        console.print(f"{subject.name}: {subject.about}", highlight=False, markup=False, soft_wrap=True)
        space = subject.space
        console.print(
            f"  kind {space.kind}, page sizes {space.page_sizes}, need_sort {space.need_sort}",
            highlight=False,
            markup=False,
        )
        looks = examine(subject)
        subject.close()
    except SubjectError as error:
        refuse(str(error))
    for look in looks:
        console.print(f"  {look.method:22} {look.state}", highlight=False, markup=False, soft_wrap=True)
    sound = all(look.sound for look in looks)
    console.print("sound" if sound else "not sound: the lines above that are not ok say what is wrong")
    raise SystemExit(0 if sound else 1)
