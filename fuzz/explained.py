"""Mutants that live, and why: survivors with a reason, and changes that are proven to make no difference."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from impl.errors import SubjectError

EXPLAINED = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True, slots=True)
class Explained:
    """One change, and why it lives.

    function: `module:qualified.name`. Of our own source, which moves, text is the line, and before and after are
    as the mutant prints them; which: of several in the function that read alike, from 1, or 0 for all. Of a release, which stays as it is and is not quoted here, subject is
    `sglang@VERSION`, and spot is the change's place (`Mutant.spot`).
    proven: nobody can tell it from the original, so it does not count. Otherwise it counts as a survivor.
    """

    function: str
    reason: str
    text: str = ""
    before: str = ""
    after: str = ""
    subject: str = ""
    spot: str = ""
    which: int = 0
    proven: bool = False

    @property
    def key(self) -> tuple[str | int, ...]:
        """What it is about."""
        if self.subject:
            return self.subject, self.function, self.spot
        return self.function, self.text, self.before, self.after, self.which

    def __str__(self) -> str:
        return f"{self.function}: " + (self.spot or f"{self.before} -> {self.after}")


_FIELDS = {
    "mutant": frozenset({"function", "text", "before", "after", "reason"}),
    "release": frozenset({"subject", "function", "spots", "reason"}),
}


def read_explained(path: Path) -> list[Explained]:
    """A TOML file with a table `[[mutant]]` for each change of our own, and `[[release]]` for several of a release.

    SubjectError says where it is wrong.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SubjectError(f"{path}: {error}") from error
    read = []
    for table, fields in _FIELDS.items():
        for number, entry in enumerate(document.get(table, []), 1):
            if set(entry) - {"proven", "which"} != fields or not str(entry["reason"]).strip():
                raise SubjectError(
                    f"{path}: [[{table}]] {number} has to have {', '.join(sorted(fields))}, and no more than which "
                    "and proven beside them"
                )
            spots = entry.pop("spots", [""])
            read += [Explained(**entry, spot=spot) for spot in spots]
    return read
