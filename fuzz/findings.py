"""What a run found: distinct faults, each with its smallest case, and those that their owner has accepted."""

from __future__ import annotations

import datetime
import hashlib
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path

from oracle.batch import Batch
from oracle.ops import Case, Operation
from oracle.traits import Traits
from oracle.verdict import Observation, Violation


@dataclass(frozen=True, slots=True)
class Finding:
    """One distinct fault of one subject.

    case: the smallest case with it; for a relation, `other` are the operations of the second run; for the
    kernel tier, `batch` and `dtype` stand instead. check: the property that found it. cases: how many showed
    it. minimal: whether every shorter case on its pool was tried (`fuzz.minimal`); None where that is out of
    reach. least: operations that a case of it has at least, as far as that is proven. steered: the shape of step
    that was left out afterwards to go on behind it; empty where none did. claims: what the subject claims on the
    case's pool; answers, other_answers: what it answered in both runs.
    """

    subject: str
    level: str
    check: str
    violation: Violation
    case: Case | None = None
    other: tuple[Operation, ...] | None = None
    relation: str = ""
    batch: Batch | None = None
    dtype: str = ""
    cases: int = 1
    minimal: bool | None = None
    least: int = 0
    steered: str = ""
    accepted: str = ""
    claims: Traits | None = None
    answers: tuple[Observation, ...] = ()
    other_answers: tuple[Observation, ...] = ()

    @property
    def length(self) -> int:
        """Operations of the case; requests of a batch."""
        if self.batch is not None:
            return len(self.batch.seq)
        return len(self.case.operations) if self.case is not None else 0

    @property
    def fingerprint(self) -> str:
        """Short name of the fault: the same in every run that finds it in the same way."""
        words = (self.subject, self.level, *self.violation.key)
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def distinct(findings: list[Finding]) -> list[Finding]:
    """Each fault once, with the shortest of its cases, in the order in which they were found."""
    best: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = finding.subject, finding.fingerprint
        known = best.get(key)
        if known is None:
            best[key] = finding
        else:
            shorter = finding if finding.length < known.length else known
            best[key] = replace(shorter, cases=known.cases + finding.cases, check=known.check)
    return list(best.values())


# -- accepted findings ---------------------------------------------------------------------------------


class AcceptedError(ValueError):
    """A file of accepted findings that can't be read; the message names the place."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding that its owner knows and lives with, until a day. Empty fields match anything."""

    reason: str
    expires: datetime.date
    subject: str = ""
    code: str = ""
    kind: str = ""
    operation: str = ""
    symptom: str = ""
    rule: str = ""

    def covers(self, finding: Finding, today: datetime.date) -> bool:
        """Whether the finding is meant, and the day has not passed."""
        violation = finding.violation
        pairs = (
            (self.subject, finding.subject), (self.code, violation.code), (self.kind, violation.kind),
            (self.operation, violation.operation), (self.symptom, violation.symptom), (self.rule, violation.rule),
        )  # fmt: skip
        return today <= self.expires and all(wanted in ("", is_) for wanted, is_ in pairs)


def read_accepted(path: Path) -> list[Accepted]:
    """A TOML file with a table `[[accepted]]` for each. AcceptedError says where it is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AcceptedError(f"{path}: {error}") from error
    entries = document.get("accepted", [])
    if (
        set(document) - {"accepted"}
        or not isinstance(entries, list)
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise AcceptedError(f"{path}: it holds [[accepted]] tables and nothing else")
    known = {f.name for f in fields(Accepted)}
    read: list[Accepted] = []
    for number, entry in enumerate(entries, 1):
        place = f"{path}: [[accepted]] {number}"
        if unknown := sorted(set(entry) - known):
            raise AcceptedError(f"{place}: no key {unknown[0]!r}; there are {', '.join(sorted(known))}")
        if not isinstance(entry.get("reason"), str) or not entry["reason"].strip():
            raise AcceptedError(f"{place}: give a reason")
        if not isinstance(entry.get("expires"), datetime.date) or isinstance(
            entry["expires"], datetime.datetime
        ):
            raise AcceptedError(f"{place}: give expires, a day such as 2027-01-31")
        if not entry.keys() - {"reason", "expires", "subject"}:
            raise AcceptedError(f"{place}: say what is accepted: code, operation, kind, symptom or rule")
        if bad := [key for key in entry if key != "expires" and not isinstance(entry[key], str)]:
            raise AcceptedError(f"{place}: {bad[0]} is a text")
        read.append(Accepted(**entry))
    return read


def accept(findings: list[Finding], entries: list[Accepted], today: datetime.date) -> list[Finding]:
    """The findings, with the reason on those that are accepted."""
    return [
        replace(finding, accepted=next((e.reason for e in entries if e.covers(finding, today)), ""))
        for finding in findings
    ]
