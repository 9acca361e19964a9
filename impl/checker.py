"""Judges a live allocator and its caller while the program runs, and says who owns what."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from impl.stacks import Stacks
from impl.tap import Stop
from oracle.follow import Follower
from oracle.ops import sentence
from oracle.rawcall import RawCall, numbers_of
from oracle.verdict import Violation, short
from oracle.world import FreeCall, Step

logger = logging.getLogger("kvassay")
REMEMBERED = 3  # events of a page


@dataclass(frozen=True, slots=True)
class Site:
    """One call: its number from 1, method, and where it came from: `site` is file and line, `stack` the rest."""

    call: int
    method: str
    site: str
    stack: str


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """What was wrong, and the calls that it lies between, oldest first; the last one is the call that shows it.

    page: the page in question, or None where the finding is about counts alone.
    """

    violation: Violation
    page: int | None
    sites: tuple[Site, ...]

    def __str__(self) -> str:
        lines = [f"{self.violation.code} ({self.violation.kind}): {self.violation.summary}"]
        if self.page is not None and len(self.sites) > 1:
            lines.append(f"page {self.page} is in question between these calls:")
        for site in self.sites:
            lines += [f"call {site.call}, {site.method}, at {site.site}", site.stack]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Leak:
    """Slots that are held, by the stack that took them. calls: numbers of the first few calls that did."""

    slots: int
    pages: int
    calls: tuple[int, ...]
    site: str
    stack: str


class Broken(Stop):
    """Raised at a finding, where that was asked for; `finding` is it."""

    def __init__(self, finding: LiveFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Checker:
    """Judges the calls of one allocator; the report of it.

    The first finding ends the judging, since nobody can say who owns what behind it; a `clear` of the allocator
    begins anew. found, file: where a finding goes besides the log.
    """

    def __init__(
        self,
        follower: Follower,
        found: Callable[[LiveFinding], object] | None = None,
        file: str | Path | None = None,
        raises: bool = False,
        depth: int = 12,
    ) -> None:
        self.findings: list[LiveFinding] = []
        self._follower, self._found, self._file, self._raises = follower, found, file, raises
        self._stacks = Stacks(depth)
        self._size = follower.config.page_size
        # Of each page the last calls that gave or took it: number, method, stack.
        self._events: dict[int, tuple[tuple[int, str, int], ...]] = {}

    @property
    def calls(self) -> int:
        """Calls that were heard."""
        return self._follower.calls

    @property
    def over(self) -> str:
        """Why nothing more is judged; empty while the judging goes on."""
        return self._follower.over

    def heard(self, call: RawCall) -> None:
        """Judge one call."""
        over = self._follower.over
        event = self._follower.calls + 1, call.method, self._stacks.take()
        followed = self._follower.follow(call)
        if followed.violation is not None and followed.translated is not None:
            self._report(followed.violation, followed.translated.step, call, event)
        elif self._follower.over and not over:
            logger.warning("kvassay: the check ends at call %d: %s", event[0], self._follower.over)
        if followed.translated is not None:
            self._note(followed.translated.step, call, event)

    def leaks(self) -> list[Leak]:
        """What is held now, by the stack that took it, most slots first. At idle, all of it is cached or leaked."""
        by_stack: dict[int, list[tuple[int, int]]] = {}
        for page in self._follower.translator.held:
            given = next((e for e in reversed(self._events.get(page, ())) if e[1].startswith("alloc")), None)
            if given is not None:
                by_stack.setdefault(given[2], []).append((given[0], self._live(page)))
        leaks = [
            Leak(
                sum(slots for _, slots in held), len(held), tuple(sorted({call for call, _ in held})[:4]),
                self._stacks.site(stack), self._stacks.text(stack),
            )
            for stack, held in by_stack.items()
        ]  # fmt: skip
        return sorted(leaks, key=lambda leak: (-leak.slots, leak.site))

    def summary(self) -> str:
        """Findings and what is held, as text."""
        lines = [f"{self.calls} call(s) heard, {len(self.findings)} finding(s)"]
        if self.over:
            lines.append(f"nothing is judged any more: {self.over}")
        lines += [str(finding) for finding in self.findings]
        for leak in self.leaks():
            lines += [
                f"{leak.slots} slot(s) on {leak.pages} page(s) are held, taken at {leak.site}",
                leak.stack,
            ]
        return "\n".join(lines)

    def _live(self, page: int) -> int:
        translator = self._follower.translator
        _, name, place = translator.held[page]
        return min(self._size, translator.own_tokens(name) - place * self._size)

    def _note(self, step: Step, call: RawCall, event: tuple[int, str, int]) -> None:
        if call.outcome == "slots":
            answer = numbers_of(call.answer)
            for _, place, _ in step.fresh:
                if place < len(answer):
                    self._remember(answer[place] // self._size, event)
        elif call.slots:
            for page in self._pages(call):
                self._remember(page, event)

    def _remember(self, page: int, event: tuple[int, str, int]) -> None:
        self._events[page] = (*self._events.get(page, ())[-REMEMBERED + 1 :], event)

    def _pages(self, call: RawCall) -> dict[int, None]:
        """The pages that a call names, in order."""
        size = self._size
        runs = call.slots or call.answer
        return dict.fromkeys(
            page for first, count in runs for page in range(first // size, (first + count - 1) // size + 1)
        )

    def _report(self, violation: Violation, step: Step, call: RawCall, event: tuple[int, str, int]) -> None:
        page = self._in_question(violation, step, call)
        before = self._events.get(page, ()) if page is not None else ()
        sites = tuple(
            Site(number, method, self._stacks.site(stack), self._stacks.text(stack))
            for number, method, stack in (*before, event)
        )
        summary = violation.summary.replace(sentence(step.operation), _in_words(call))
        violation = replace(violation, summary=summary)
        finding = LiveFinding(violation, page, sites)
        self.findings.append(finding)
        logger.error("kvassay: %s", finding)
        if self._file is not None:
            with open(self._file, "a", encoding="utf-8") as file:
                file.write(f"{finding}\n\n")
        if self._found is not None:
            self._found(finding)
        if self._raises:
            raise Broken(finding)

    def _in_question(self, violation: Violation, step: Step, call: RawCall) -> int | None:
        """The page that a finding is about."""
        pages, held = self._pages(call), self._follower.translator.held
        if call.outcome == "slots" and violation.code in ("UNIQUE", "GROUP"):
            seen: set[int] = set()
            answer = numbers_of(call.answer)
            for page in (answer[place] // self._size for _, place, _ in step.fresh):
                if page in held or page in seen:
                    return page
                seen.add(page)
        if violation.rule == "twice":
            return next((page for page in pages if page not in held), next(iter(pages), None))
        if violation.rule == "part of a page" and isinstance(step.call, FreeCall):
            starts = {first // self._size for first, _ in call.slots if first % self._size == 0}
            return next((page for page in pages if page not in starts), next(iter(pages), None))
        return next(iter(pages), None) if violation.kind == "misuse" else None


def _in_words(call: RawCall) -> str:
    """A call as its caller would say it: by slot number, since it knows no requests."""
    match call.method:
        case "alloc":
            return f"alloc {call.size}"
        case "alloc_extend":
            return f"alloc_extend of {len(call.seq)} request(s) by {call.total} token(s)"
        case "alloc_decode":
            return f"alloc_decode of {len(call.seq)} request(s)"
        case "free" | "free_swa":
            return f"{call.method} of slots {short(numbers_of(call.slots))}"
    return call.method
