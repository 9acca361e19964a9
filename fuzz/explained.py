"""Mutants that live, and why: survivors with a reason, and changes that are proven to make no difference."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from impl.errors import SubjectError

EXPLAINED = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True, slots=True)
class Explained:
    """One change. function: `module:qualified.name`; text: the line; before, after: as the mutant prints them.

    proven: nobody can tell it from the original, so it does not count. Otherwise it counts as a survivor.
    """

    function: str
    text: str
    before: str
    after: str
    reason: str
    proven: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is about."""
        return self.function, self.text, self.before, self.after


def read_explained(path: Path) -> list[Explained]:
    """A TOML file with a table `[[mutant]]` for each. SubjectError says where it is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SubjectError(f"{path}: {error}") from error
    known = {field.name for field in fields(Explained)}
    read = []
    for number, entry in enumerate(document.get("mutant", []), 1):
        missing = known - {"proven"} - set(entry)
        if missing or set(entry) - known or not str(entry.get("reason", "")).strip():
            raise SubjectError(
                f"{path}: [[mutant]] {number} has to have {', '.join(sorted(known - {'proven'}))}, and no more"
            )
        read.append(Explained(**entry))
    return read
