"""Judging what a live allocator answered, call by call: the same ledger and judge, without a plan."""

from __future__ import annotations

from typing import NamedTuple

from oracle.judge import Judge
from oracle.ops import Config, sentence
from oracle.rawcall import NEW, RawCall, Start, numbers_of
from oracle.traits import RULES, Traits
from oracle.translate import Translated, Translator, Untranslatable
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall

FORGET_EVERY = 1 << 16  # pages handed out


class Followed(NamedTuple):
    """What came of one call.

    translated: None where nothing could be said of it; violation: what was wrong. anew: nothing of what went
    before counts any more: the call left a pool of which the counts alone are known.
    """

    translated: Translated | None
    violation: Violation | None = None
    anew: bool = False


class Follower:
    """Follows one allocator. `over` says why nothing more is judged, until the allocator is cleared.

    start: how the first call found the pool. ValueError where window halves were gone and nobody says of which pages.
    """

    def __init__(self, config: Config, traits: Traits, start: Start = NEW) -> None:
        self.config, self.traits = config, traits
        self.calls = 0
        self.over = ""
        self._grouped = start.group
        self._handed_out = 0
        self._begin(start)

    def _begin(self, start: Start) -> None:
        size = self.config.page_size
        free, swa_free = (None if slots is None else slots // size for slots in (start.free, start.window))
        windows = None
        if free is not None and swa_free is not None:
            held, halves = self.config.pages - free, self.config.swa_pages - swa_free
            if held != halves:
                if start.windows is None:
                    raise ValueError(
                        "window halves of held pages were given up before, and nothing says of which:"
                        " begin with an idle pool"
                    )
                windows = frozenset(numbers_of(start.windows))
        self.translator = Translator(self.config, self.traits, free, swa_free, windows)
        self._judge = Judge(self.config, self.traits)

    def follow(self, call: RawCall) -> Followed:
        """Judge the next call."""
        number, self.calls = self.calls, self.calls + 1
        if self.over:
            if call.method != "clear" or call.outcome == "raised":
                return Followed(None)
            self.over = ""
            self._begin(NEW)
        if self._grouped:
            self._grouped = call.method not in ("free_group_end", "clear") or call.outcome == "raised"
            return self._anew(call)
        if call.method == "restore_state" and call.outcome == "done" and not self.translator.knows(call.name):
            self._grouped = call.group
            return self._anew(call)
        if call.method == "other" and call.outcome == "raised":
            return Followed(None)
        adopted = len(self.translator.adopted)
        try:
            translated = self.translator.translate(call)
        except Untranslatable as error:
            self.over = str(error)
            return Followed(None)
        self._judge.index = number
        for page in self.translator.adopted[adopted:]:
            self._judge.know(page.uid, page.page, page.name, page.snapshots)
        step = translated.step
        if step.status == "skip":
            if call.outcome == "slots" or call.method == "free":
                self.over = f"{call.method} makes no sense to the ledger here"
            return Followed(None)
        answer = numbers_of(call.answer)
        seen = Observation(
            call.outcome, answer, call.error, available=call.free, full=call.full, window=call.window
        )
        violation = self._judge.check(step, seen)
        refused = step.status == "misuse" and call.outcome in ("raised", "none")
        if violation is None and step.status == "misuse" and not refused:
            summary = f"{sentence(step.operation)} breaks a rule ({RULES[step.rule]}) and is not refused"
            violation = Violation("REJECT", "misuse", number, call.method, summary, "accepted", step.rule)
        if violation is not None:
            self.over = "something was wrong"
            return Followed(translated, violation)
        if refused:
            self._judge.settle()
        elif not isinstance(step.call, AllocCall | BatchCall) or call.outcome == "slots":
            self.translator.apply(translated, answer)
        self._handed_out += len(step.fresh)
        # Forgetting costs what is held: of a full pool it waits until as much has gone through it.
        if self._handed_out > max(FORGET_EVERY, len(self.translator.held)):
            self._judge.forget()
            self._handed_out = 0
        return Followed(translated)

    def _anew(self, call: RawCall) -> Followed:
        """Go on behind a call of which the counts that it left are all that is known, once no group is open."""
        try:
            if not self._grouped:
                self._begin(Start(call.free if call.full is None else call.full, call.window))
        except ValueError as error:
            self.over = str(error)
        return Followed(None, anew=not self.over)
