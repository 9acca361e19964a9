"""A case as a picture: one HTML page that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

import jinja2

from fuzz.film import SIDES, Answer, Film, Held, film, owners_of
from oracle.casefile import CaseError, CaseFile
from oracle.numbers import packed
from oracle.ops import Config, config_sentence, sentence
from oracle.traits import RULES
from oracle.verdict import Observation, Violation

if TYPE_CHECKING:
    from impl.subject import Subject

NAMES = ("one way", "the other way")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page or a text is made of. source: where the answers come from, in words."""

    file: CaseFile
    subject: str
    level: str
    films: tuple[Film, ...]
    violation: Violation | None
    source: str


def shown(
    file: CaseFile, impl: str = "", level: str = "", tree: str = "", device: str = "cpu", again: bool = False
) -> Shown:
    """The case as the file's own answers have it, or run again: where it has none, with `again`, on another impl."""
    if not (impl or level or again) and file.claims is not None and file.answers:
        made = _recorded(file)
        return Shown(file, file.subject, file.level, made, file.finding, "answers of the file")
    name, chosen = impl or file.subject, level or file.level or "contract"
    if not name:
        raise CaseError("it names no subject: give one with --impl")
    from fuzz.replay import check  # what runs a subject needs torch; a file with its answers does not
    from fuzz.run import Options, Target, start_worker, subject_of

    start_worker(device)
    target = Target(name, chosen)
    subject = cast("Subject", subject_of(target, Options((target,), device=device, path=tree)))
    check(file, subject, chosen)
    films, violation = _played(file, subject, chosen)
    return Shown(file, name, chosen, films, violation, "run just now")


def _recorded(file: CaseFile) -> tuple[Film, ...]:
    assert file.claims is not None
    if file.other is None:
        return (film(file.case, file.claims, file.answers, file.finding),)
    other = replace(file.case, operations=file.other)
    runs = (file.case, file.answers, file.finding), (other, file.other_answers, None)
    return tuple(
        film(case, file.claims, answers, violation, name)
        for name, (case, answers, violation) in zip(NAMES, runs, strict=True)
    )


def _played(file: CaseFile, subject: Subject, level: str) -> tuple[tuple[Film, ...], Violation | None]:
    from properties.judged import judged
    from properties.relations import comparable, compare_runs, runs_of_file

    traits = subject.traits(file.case.config)
    if file.other is None:
        outcome = judged(subject, file.case, level, keep=True)
        return (film(file.case, traits, outcome.answers, outcome.violation),), outcome.violation
    runs = runs_of_file(file.relation, file.case, replace(file.case, operations=file.other))
    if not comparable(subject, runs):
        raise CaseError(f"the two runs of relation {file.relation} can't be compared on {subject.name}")
    violation, first, second = compare_runs(subject, runs, level)
    own = None if second.violation is not None and first.violation is None else violation
    films = (
        film(runs.left, traits, first.answers, own, NAMES[0]),
        film(runs.right, traits, second.answers, second.violation, NAMES[1]),
    )
    return films, violation


# -- the page ------------------------------------------------------------------------------------------


def page(what: Shown) -> str:
    """The case as one HTML document: no network, no other file."""
    config, violation = what.file.case.config, what.violation
    owners = owners_of(what.films)
    data = {
        "pool": asdict(config),
        "subject": what.subject,
        "owners": owners,
        "runs": [document(each, owners) for each in what.films],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    source = files("fuzz").joinpath("show.html.j2").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(source)
    return template.render(
        data=text,
        code=violation.code if violation else "",
        summary=violation.summary if violation else "",
        subject=what.subject,
        meta=_meta(what),
    )


def _meta(what: Shown) -> list[tuple[str, str]]:
    file, length, violation = what.file, len(what.file.case.operations), what.violation
    count = f"{length:,}"
    if violation is not None and file.other is None and violation.index + 1 < length:
        count = f"{violation.index + 1:,} of {count}, up to the finding"
    meta = [("subject", what.subject or "unknown"), ("level", what.level or "contract")]
    if violation is not None and violation.kind == "misuse":
        meta.append(("kind", "misuse"))
    meta.append(("on a", config_sentence(file.case.config)))
    meta.append(("operations", count))
    if file.relation:
        meta.append(("relation", file.relation))
    return [*meta, ("answers", what.source.removeprefix("answers "))]


def document(each: Film, owners: Sequence[str]) -> dict[str, Any]:
    """A film as JSON, as short as it gets: what is empty is left out, numbers are `oracle.numbers` texts."""
    places = {name: at for at, name in enumerate(owners)}
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    steps = []
    before: dict[str, Observation | None] = dict.fromkeys(SIDES)
    for frame in each.frames:
        step = frame.step
        entry: dict[str, Any] = {"t": sentence(step.operation)}
        if step.status != "legal":
            entry["s"] = step.status
        if step.rule:
            entry["r"] = RULES[step.rule]
        entry |= _kept(
            {
                "p": int(step.probe),
                "q": int(frame.group),
                "n": step.fresh[0][0] if step.fresh else 0,
                "u": [_change(uid, held, places) for uid, held in frame.changes.items()],
            }
        )
        steps.append(entry)
        for side in SIDES:
            answer: Answer = getattr(frame, side)
            sides[side].append(_side(answer, before[side], each.case.config))
            if answer.seen.lists is not None:
                before[side] = answer.seen
    violation = each.violation
    return {
        "name": each.name,
        "steps": steps,
        "sides": sides,
        "operations": len(each.case.operations),
        "violation": None
        if violation is None
        else {
            "at": min(violation.index, max(len(steps) - 1, 0)),
            "code": violation.code,
            "kind": violation.kind,
            "summary": violation.summary,
            "pages": list(each.marks.pages),
            "windows": list(each.marks.windows),
            "slots": list(each.marks.slots),
            "lost": list(each.marks.lost),
            "doubled": list(each.marks.doubled),
        },
    }


def _kept(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value not in (0, "", [], None)}


_WINDOW = {"": 0, "waits": 1, "gone": 2}


def _change(uid: int, held: Held | None, places: dict[str, int]) -> list[Any]:
    if held is None:
        return [uid]
    wait = 1 if held.wait == "all" else list(held.wait) if held.wait else 0
    entry = [uid, places[held.owner], held.live, wait, _WINDOW[held.window]]
    while entry[-1] == 0 and len(entry) > 3:
        entry.pop()
    return entry


def _side(answer: Answer, before: Observation | None, config: Config) -> dict[str, Any]:
    seen = answer.seen
    entry = _kept(
        {
            "o": seen.outcome if seen.outcome != "done" else "",
            "e": seen.error or seen.tensor or seen.guard or seen.disturbed or seen.damaged,
            "g": packed(seen.slots),
            "f": packed(answer.freed),
            "k": packed(answer.pages),
            "w": packed(answer.windows),
        }
    )
    if seen.available is not None:
        entry["a"] = seen.available
    if seen.full is not None:
        entry["b"] = [seen.full, seen.window]
    if seen.lists is not None and (before is None or before.lists != seen.lists):
        entry["l"] = [packed(listed) for listed in seen.lists]
    if seen.mapping is not None and (before is None or before.mapping != seen.mapping):
        entry["m"] = packed(_page_rows(seen.mapping, config))
    return entry


def _page_rows(mapping: tuple[int, ...], config: Config) -> Iterator[int]:
    """The window page that each page's first mapped slot has, 0 where none is mapped."""
    size = config.page_size
    for page in range(config.pages + 1):
        row = [slot for slot in mapping[page * size : (page + 1) * size] if slot > 0]
        yield row[0] // size if row else 0
