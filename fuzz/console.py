"""What all commands say and refuse in the same way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

USAGE, UNDECIDED = 2, 3
LEVELS = ("contract", "parity", "hardened")

device_option = click.option(
    "--device", default="cpu", show_default=True, help="Where its tensors live: cpu, cuda, …"
)
path_option = click.option("--path", default="", help="A working tree of SGLang, for sglang:PART.")
out_option = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("kvassay-out"),
    show_default=True,
    help="Where report.json, junit.xml and cases go.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, and nothing else there."
)


def refuse(message: str) -> NoReturn:
    """One clear line, and exit code 2."""
    click.echo(f"kvassay: {' '.join(message.split())}", err=True)
    raise SystemExit(USAGE)


def console_for(stderr: bool = False) -> Console:
    """A console as wide as the terminal; where there is none, wide enough for the tables."""
    console = Console(stderr=stderr, emoji=False)  # module:name: is no emoji
    return console if console.is_terminal else Console(stderr=stderr, width=120, emoji=False)


def writable(out: Path) -> None:
    """Make the folder for what a command leaves; refuse where that can't be."""
    try:
        (out / "cases").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(f"--out {out} can't be written: {error.strerror}")
    if not os.access(out, os.W_OK):
        refuse(f"--out {out} can't be written: choose another folder")
