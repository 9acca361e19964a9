"""Judging what a live allocator answered, call by call: the same ledger and judge, without a plan."""

from __future__ import annotations

from typing import NamedTuple

from oracle.judge import Judge
from oracle.ops import Config, sentence
from oracle.rawcall import RawCall, numbers_of
from oracle.traits import RULES, Traits
from oracle.translate import Translated, Translator, Untranslatable
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall

FORGET_EVERY = 1 << 16  # calls


class Followed(NamedTuple):
    """What came of one call. translated: None where nothing could be said of it; violation: what was wrong."""

    translated: Translated | None
    violation: Violation | None = None


class Follower:
    """Follows one allocator. `over` says why nothing more is judged, until the allocator is cleared.

    free, swa_free: pages free at the first call; None for a new allocator. ValueError where window halves are
    gone already, since nobody can say of which pages.
    """

    def __init__(
        self, config: Config, traits: Traits, free: int | None = None, swa_free: int | None = None
    ) -> None:
        if free is not None and swa_free is not None and config.pages - free != config.swa_pages - swa_free:
            raise ValueError("window halves of held pages were given up before: begin with an idle pool")
        self.config, self.traits = config, traits
        self.calls = 0
        self.over = ""
        self.translator = Translator(config, traits, free, swa_free)
        self._judge = Judge(config, traits)

    def follow(self, call: RawCall) -> Followed:
        """Judge the next call."""
        number, self.calls = self.calls, self.calls + 1
        if self.over:
            if call.method != "clear" or call.outcome == "raised":
                return Followed(None)
            self.over = ""
            self.translator = Translator(self.config, self.traits)
            self._judge = Judge(self.config, self.traits)
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
            self._judge.know(page.uid, page.page, page.name)
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
        if number % FORGET_EVERY == FORGET_EVERY - 1:
            self._judge.forget()
        return Followed(translated)
