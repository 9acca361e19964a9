"""A case in the terminal: a line for each operation, with the pool as characters."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from fuzz.film import Answer, Film, Held, owners_of
from fuzz.show import Shown
from oracle.numbers import packed
from oracle.ops import config_sentence, sentence
from oracle.verdict import Violation

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")
WIDE = 44  # columns for the operation
CELLS = 96  # slots that a line of text shows; larger pools are shown page by page


def lines(what: Shown) -> Iterator[Text]:
    """A line for each operation: what it took or gave, and the pool as characters behind it."""
    owners = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(owners_of(what.films))}
    yield Text(f"{what.subject or 'a case'} on a {config_sentence(what.file.case.config)}", "bold")
    for each in what.films:
        if each.name:
            yield Text(f"{each.name}:", "bold")
        yield from _film_lines(each, owners)
    yield from verdict(what.violation)


def verdict(violation: Violation | None) -> Iterator[Text]:
    """What is wrong, if anything."""
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
