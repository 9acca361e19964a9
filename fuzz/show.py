"""A case as a picture: one HTML page that needs nothing else, or a few lines in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, cast

import jinja2
from rich.text import Text

from fuzz.film import Answer, Film, Held, document, film, owners_of
from oracle.casefile import CaseError, CaseFile
from oracle.numbers import packed
from oracle.ops import config_sentence, sentence
from oracle.verdict import Violation

if TYPE_CHECKING:
    from impl.subject import Subject

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")
WIDE = 44  # columns for the operation
CELLS = 96  # slots that a line of text shows; larger pools are shown page by page
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
    file, count = what.file, len(what.file.case.operations)
    meta = [("subject", what.subject or "unknown"), ("level", what.level or "contract")]
    if what.violation is not None and what.violation.kind == "misuse":
        meta.append(("kind", "misuse"))
    meta.append(("on a", config_sentence(file.case.config)))
    meta.append(("operations", f"{count:,}"))
    if file.relation:
        meta.append(("relation", file.relation))
    return [*meta, ("answers", what.source.removeprefix("answers "))]


# -- the terminal --------------------------------------------------------------------------------------


def lines(what: Shown) -> Iterator[Text]:
    """A line for each operation: what it took or gave, and the pool as characters behind it."""
    owners = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(owners_of(what.films))}
    yield Text(f"{what.subject or 'a case'} on a {config_sentence(what.file.case.config)}", "bold")
    for each in what.films:
        if each.name:
            yield Text(f"{each.name}:", "bold")
        yield from _film_lines(each, owners)
    yield from _verdict(what.violation)


def _verdict(violation: Violation | None) -> Iterator[Text]:
    if violation is None:
        yield Text("every promise holds", "green")
    else:
        head = f"{violation.code} ({violation.kind}): "
        yield Text.assemble((head, "bold red"), violation.summary)


def _film_lines(each: Film, owners: dict[str, str]) -> Iterator[Text]:
    config = each.case.config
    held: dict[int, Held] = {}
    page_of: dict[int, int] = {}
    window_of: dict[int, int] = {}
    asked = [sentence(frame.step.operation) for frame in each.frames]
    wide = min(max(map(len, asked), default=0), WIDE)
    for number, (frame, text) in enumerate(zip(each.frames, asked, strict=True), 1):
        for uid, now in frame.changes.items():
            if now is None:
                held.pop(uid, None)
            else:
                held[uid] = now
        fresh = [uid for uid, _, _ in frame.step.fresh]
        page_of.update(zip(fresh, frame.subject.pages, strict=False))
        window_of.update(zip(fresh, frame.subject.windows, strict=False))
        bad = each.violation is not None and number == len(each.frames)
        status = frame.step.status
        line = Text()
        line.append(f"{'·' if frame.step.probe else number:>5} ", "dim")
        line.append(f"{text:{wide}}  ", "bold red" if bad else "dim" if status == "skip" else "")
        marked = {*each.marks.pages, *each.marks.lost, *each.marks.doubled} if bad else set()
        line.append_text(_map(config.pages, config.page_size, _placed(held, page_of), owners, marked))
        if config.swa_pages:
            inside = {uid: entry for uid, entry in held.items() if entry.window != "gone"}
            marked = set(each.marks.windows) if bad else set()
            line.append(" ")
            placed = _placed(inside, window_of)
            line.append_text(_map(config.swa_pages, config.page_size, placed, owners, marked))
        left, right = _answer(frame.subject, status), _answer(frame.reference, status)
        line.append(f"  {left}")
        if right != left:
            line.append(f"  (reference: {right})", "dim")
        yield line


def _placed(held: dict[int, Held], page_of: dict[int, int]) -> dict[int, Held]:
    return {page_of[uid]: entry for uid, entry in held.items() if uid in page_of}


def _answer(answer: Answer, status: str) -> str:
    seen = answer.seen
    if status == "skip":
        return "skipped"
    if seen.outcome in ("raised", "crashed", "odd"):
        return "refuses" if seen.error == "refused" else f"{seen.outcome} {seen.error}"
    if seen.outcome == "slots":
        return f"took {packed(seen.slots) or 'nothing'}"
    if seen.outcome == "none":
        return "None"
    return f"gave {packed(answer.freed)}" if answer.freed else "done"


def _map(pages: int, size: int, held: dict[int, Held], owners: dict[str, str], marked: set[int]) -> Text:
    """A character for each slot: its owner's letter, small where it is only reserved, ~ where it waits, . if free.

    Of larger pools a character for each page.
    """
    line = Text("[")
    whole = pages * size <= CELLS
    for number in range(1, (pages if whole else min(pages, CELLS)) + 1):
        style = "bold white on red" if number in marked else ""
        if whole and number > 1 and size > 1:
            line.append("|", "dim")
        for offset in range(size if whole else 1):
            line.append(*_slot(held.get(number), offset, owners, style))
    return line.append("]" if whole or pages <= CELLS else "…]")


def _slot(entry: Held | None, offset: int, owners: dict[str, str], style: str) -> tuple[str, str]:
    if entry is None:
        return ".", style or "dim"
    colour = style or owners[entry.owner]
    if entry.wait == "all" or offset in (entry.wait or ()):
        return "~", colour
    letter = entry.owner[:1] or "?"
    return (letter.upper() if offset < entry.live else letter.lower()), colour
