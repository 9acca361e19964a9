"""What a run leaves: a table for people, `report.json`, JUnit XML, and a case file for each finding."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import xml.etree.ElementTree as ET
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fuzz import handover
from fuzz.canary import Canary
from fuzz.constructors import NoHandover
from fuzz.findings import Finding
from fuzz.run import KERNEL, Options, RunReport
from impl.errors import SubjectError
from oracle import casefile
from oracle.ops import config_sentence, sentence
from properties.checks import CHECKS
from properties.coverage import Coverage

SCHEMA = 1
EXIT = {"pass": 0, "fail": 1, "error": 3, "incomplete": 3}
WORST = ("error", "fail", "incomplete", "pass")


def verdict_of(reports: list[RunReport]) -> str:
    """The worst of all runs; a run of nothing is incomplete."""
    verdicts = {report.verdict for report in reports}
    return next((verdict for verdict in WORST if verdict in verdicts), "incomplete")


def versions() -> dict[str, str]:
    """The versions that a report names."""
    found = {"python": platform.python_version()}
    for package in ("kvassay", "torch", "triton", "hypothesis", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def document(reports: list[RunReport], options: Options, canary: Canary) -> dict[str, Any]:
    """The run as one JSON document (see DESIGN.md, The command line)."""
    return {
        "schema": SCHEMA,
        "verdict": verdict_of(reports) if canary.found else "error",
        "canary": str(canary),
        "versions": versions(),
        "runs": [_run(report, options) for report in reports],
    }


def _run(report: RunReport, options: Options) -> dict[str, Any]:
    target = report.target
    return {
        "subject": target.name,
        "about": report.about,
        "tier": target.tier,
        "level": target.level,
        "budget": options.budget,
        "seed": options.seed,
        "device": options.device,
        "verdict": report.verdict,
        "error": report.error,
        "operations": report.operations,
        "cases": report.cases,
        "seconds": round(report.seconds, 2),
        "findings": [finding_document(finding) for finding in report.findings],
        "not_claimed": report.not_claimed,
        "properties": [
            {
                "name": str(result.task.check),
                "shard": result.task.shard,
                "cases": result.cases,
                "operations": result.operations,
                "seconds": round(result.seconds, 2),
                "holds": not result.findings,
                "stopped_at": result.stopped_at,
                "left_out": sorted(result.avoid),
            }
            for result in report.results
        ],
        "coverage": _coverage(report.coverage),
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "share": round(coverage.share, 4),
        "floor": coverage.floor,
        "reachable": len(coverage.of),
        "missing": coverage.missing,
        "tried": dict(sorted(coverage.tried.items())),
    }


def finding_document(finding: Finding) -> dict[str, Any]:
    """One finding, as a report has it."""
    violation = finding.violation
    return {
        "code": violation.code,
        "kind": violation.kind,
        "operation": violation.operation,
        "summary": violation.summary,
        "symptom": violation.symptom,
        "rule": violation.rule,
        "property": finding.check,
        "case": f"cases/{case_name(finding)}",
        "length": finding.length,
        "minimal": finding.minimal,
        "steered_round": finding.steered,
        "accepted": finding.accepted,
        "fingerprint": finding.fingerprint,
    }


def case_name(finding: Finding) -> str:
    """The file name of a finding's case: readable, and the same in every run that finds the fault."""
    subject = re.sub(r"[^a-zA-Z0-9.]+", "-", finding.subject).strip("-")
    violation = finding.violation
    return f"{subject}-{finding.level}-{violation.code}-{violation.operation}-{finding.fingerprint}.json"


def write_all(root: Path, reports: list[RunReport], options: Options, whole: dict[str, Any]) -> None:
    """Everything that a run leaves, below `root`; each file is whole or not there."""
    (root / "cases").mkdir(parents=True, exist_ok=True)
    for report in reports:
        for finding in report.findings:
            casefile.write(root / "cases" / case_name(finding), case_file(finding, options.seed))
    broken = "" if reports else f"nothing was judged: canary {whole['canary']}"
    _write(root / "junit.xml", junit(reports, broken))
    _write(root / "report.json", json.dumps(whole, indent=1) + "\n")
    for report in reports:
        for finding in report.findings:
            with suppress(NoHandover, SubjectError):  # `kvassay export` says why there is none
                path = root / "cases" / case_name(finding)
                handover.write(path, case_file(finding, options.seed), options.path)


def case_file(finding: Finding, seed: int) -> casefile.CaseFile | casefile.BatchFile:
    """What is written down of a finding: its case, what the subject answered, and what was wrong."""
    if finding.batch is not None:
        return casefile.BatchFile(
            finding.batch, finding.subject, finding.dtype, versions=versions(), finding=finding.violation
        )
    assert finding.case is not None
    return casefile.CaseFile(
        finding.case,
        subject=finding.subject,
        level=finding.level,
        seed=seed,
        versions=versions(),
        relation=finding.relation,
        other=finding.other,
        finding=finding.violation,
        claims=finding.claims,
        answers=finding.answers,
        other_answers=finding.other_answers,
    )


def _write(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def junit(reports: list[RunReport], broken: str = "") -> str:
    """JUnit XML: a suite for each run, a test case for each property, failures in words.

    broken: why there is no run to tell of, which must not look like a run without failures.
    """
    root = ET.Element("testsuites", name="kvassay")
    if broken:
        suite = ET.SubElement(root, "testsuite", name="the gate itself", tests="1", failures="0", errors="1")
        case = ET.SubElement(suite, "testcase", classname="kvassay", name="canary")
        ET.SubElement(case, "error", message=broken)
    for report in reports:
        target = report.target
        suite = ET.SubElement(root, "testsuite", name=f"{target.name} at {target.level}")
        failures = 0
        for result in report.results:
            name = f"{result.task.check} {result.task.shard}"
            case = ET.SubElement(
                suite, "testcase", classname=f"kvassay.{target.name}.{target.level}", name=name,
                time=f"{result.seconds:.3f}",
            )  # fmt: skip
            bad = [f for f in report.findings if f.check == result.task.check and not f.accepted]
            shown = bad if result.findings else []
            if shown:
                failures += 1
                failure = ET.SubElement(
                    case, "failure", message=_xml(shown[0].violation.summary), type=shown[0].violation.code
                )
                failure.text = _xml("\n\n".join("\n".join(lines_of(f)) for f in shown))
        if report.error:
            case = ET.SubElement(suite, "testcase", classname=f"kvassay.{target.name}", name="the run itself")
            ET.SubElement(case, "error", message=_xml(report.error))
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(failures))
        suite.set("errors", str(int(bool(report.error))))
        suite.set("time", f"{report.seconds:.3f}")
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without the control characters that XML has no way to write."""
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)


def lines_of(finding: Finding) -> list[str]:
    """A finding in a few lines: what is wrong, and the operations that show it."""
    violation = finding.violation
    head = f"{violation.code} ({violation.kind}): {violation.summary}"
    if finding.batch is not None:
        return [head, f"  {finding.batch} as {finding.dtype}"]
    assert finding.case is not None
    lines = [head, f"  on a {config_sentence(finding.case.config)}:"]
    operations = finding.case.operations
    lines += [f"  {at}. {sentence(o)}" for at, o in enumerate(operations, 1)] or [
        "  (no operation is needed)"
    ]
    if violation.index >= len(operations) and violation.kind == "fault":
        lines.append(
            "  and then, as behind every case: the group ends, all is freed, the whole pool is allocated"
        )
    if finding.other is not None:
        lines.append("  against:")
        lines += [f"  {at}. {sentence(o)}" for at, o in enumerate(finding.other, 1)]
    return lines


def print_reports(console: Console, reports: list[RunReport], root: Path) -> None:
    """The table, and below it every finding with its case."""
    table = Table(title="kvassay gate", title_justify="left", header_style="bold")
    for column in (
        "subject",
        "level",
        "properties hold",
        "cases",
        "operations",
        "tried",
        "seconds",
        "verdict",
    ):
        number = column in ("cases", "operations", "tried", "seconds")
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for report in reports:
        checks = dict.fromkeys(result.task.check for result in report.results)
        broken = {finding.check for finding in report.findings if not finding.accepted}
        level = "kernel tier" if report.target.tier == KERNEL else report.target.level
        table.add_row(
            escape(report.target.name), level, f"{len(checks) - len(broken & set(checks))} of {len(checks)}",
            f"{report.cases:,}", f"{report.operations:,}", _tried(report.coverage), f"{report.seconds:.1f}",
            _coloured(report.verdict),
        )  # fmt: skip
    console.print(table)
    for report in reports:
        _print_findings(console, report, root)
    held = [
        check for check in CHECKS if any(r.task.check == check for report in reports for r in report.results)
    ]
    failed = {f.check for report in reports for f in report.findings if not f.accepted}
    holding = ", ".join(check for check in held if check not in failed)
    total = sum(report.operations for report in reports)
    console.print(
        f"\n{total:,} operations judged. Hold everywhere: {holding or 'none'}.",
        highlight=False,
        soft_wrap=True,
    )


def _print_findings(console: Console, report: RunReport, root: Path) -> None:
    """Faults before misuse, short cases before long ones."""
    if report.findings or report.error:
        console.print(
            f"\n[bold]{escape(report.target.name)}[/bold] at {report.target.level}", highlight=False
        )
    if report.error:
        console.print(f"the run broke: {escape(report.error)}", highlight=False, soft_wrap=True)
    elif not report.coverage.enough:
        coverage = report.coverage
        console.print(
            f"\n{escape(report.target.name)} at {report.target.level}: only {_tried(coverage)} of what its cases can "
            f"reach was tried, and {coverage.floor:.0%} is the floor. Missing: {', '.join(coverage.missing[:5])}, …",
            highlight=False,
            soft_wrap=True,
        )
    order = sorted(report.findings, key=lambda f: (bool(f.accepted), f.violation.kind == "misuse", f.length))
    for number, finding in enumerate(order, 1):
        mark = f" (accepted: {finding.accepted})" if finding.accepted else ""
        first, *rest = lines_of(finding)
        where = f"  {root / 'cases' / case_name(finding)}"
        for line in (f"{number}. {first}{mark}", *rest, where, ""):
            console.print(escape(line), highlight=False, soft_wrap=True)


def _tried(coverage: Coverage) -> str:
    return f"{coverage.share:.0%}" if coverage.of else ""


def _coloured(verdict: str) -> str:
    colour = {"pass": "green", "fail": "red"}.get(verdict, "yellow")
    return f"[{colour}]{verdict}[/{colour}]"
