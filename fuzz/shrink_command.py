"""`kvassay shrink`: arguments in, exit code out."""

from __future__ import annotations

import traceback
from pathlib import Path

import click

from fuzz.console import LEVELS, UNDECIDED, device_option, path_option, refuse


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--impl", default="", metavar="SUBJECT", help="What to replay it on. Default: what the file says."
)
@path_option
@device_option
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default=None,
    help="Default: what the file says, else contract.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Where the case goes. Default: beside FILE, with .shrunk.json at its end.",
)
@click.option("--quiet", is_flag=True, help="No progress on standard error.")
def shrink(
    file: Path, impl: str, path: str, device: str, level: str | None, out: Path | None, quiet: bool
) -> None:
    """The smallest case with the same finding, from FILE: a case, or a trace that `impl.live.record` wrote.

    Exit code: 0 nothing is wrong on SUBJECT, 1 a finding, 2 bad usage or input, 3 the harness broke.
    """
    from fuzz.shrink_file import shrink_file
    from impl.errors import SubjectError
    from oracle.casefile import CaseError, write
    from oracle.ops import config_sentence, sentence
    from oracle.rawcall import TraceError

    def say(text: str) -> None:
        if not quiet:
            click.echo(f"  {text}", err=True)

    out = out or file.with_name(f"{file.name.removesuffix('.json')}.shrunk.json")
    if out.exists() and out.samefile(file):
        refuse(f"--out {out} would write over what is to be shrunk")
    try:
        shrunk = shrink_file(file, impl, path, device, level or "", say)
        if shrunk.file is not None:
            write(out, shrunk.file)
    except (TraceError, CaseError, SubjectError) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename}: {error.strerror}")
    except Exception as error:
        traceback.print_exc()
        click.echo(f"kvassay: the harness broke: {type(error).__name__}: {error}", err=True)
        raise SystemExit(UNDECIDED) from error
    for note in shrunk.notes:
        click.echo(f"note: {note}", err=True)
    violation, found = shrunk.violation, shrunk.file
    if violation is None or found is None:
        click.echo(f"nothing is wrong with it on {shrunk.subject}: {shrunk.came_from:,} operation(s) hold")
        raise SystemExit(0)
    click.echo(f"{violation.code} ({violation.kind}): {violation.summary}")
    if shrunk.runs:
        click.echo(f"  on a {config_sentence(found.case.config)}:")
        for at, operation in enumerate(found.case.operations, 1):
            click.echo(f"  {at}. {sentence(operation)}")
        if not found.case.operations:
            click.echo("  (no operation: what every case ends with shows it)")
        if shrunk.minimal:
            click.echo("  No shorter case on this pool has the finding.")
    else:
        click.echo(f"  in the recording alone: replayed on {shrunk.subject}, nothing is wrong")
    click.echo(f"  {out}")
    raise SystemExit(1)
