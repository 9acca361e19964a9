"""Whether an answer is allowed: the one place that decides, one operation after the other.

The judge binds the subject's own page numbers to the ledger's uids. At contract level it follows the
subject's choice of pages; at parity level every number has to be the reference's; at hardened level misuse
has to be refused. A violation is a sentence with the operations in it.
"""

from __future__ import annotations

from typing import Any

from oracle import ops
from oracle.binding import Binding, numbered
from oracle.codes import LEVELS
from oracle.granted import stray, wrong_gift
from oracle.ops import Config
from oracle.parity import Parity
from oracle.shown import wrong_lists, wrong_mapping, wrong_numbers
from oracle.traits import RULES, Traits
from oracle.verdict import Observation, Problem, Said, Violation, lists_in_words, short, symptom_of
from oracle.world import AllocCall, BatchCall, CopyCall, FreeCall, Run, Slot, StateCall, Step, World, room_in

# Errors that no check raises: what went wrong was met by chance.
_ACCIDENTS = frozenset(
    f"raised {error}"
    for error in ("NameError", "UnboundLocalError", "AttributeError", "IndexError", "KeyError")
)


class Judge:
    """Judges one run of one subject."""

    def __init__(self, config: Config, traits: Traits, level: str = "contract") -> None:
        if level not in LEVELS:
            raise ValueError(f"level is one of {', '.join(LEVELS)}, not {level!r}")
        if level == "parity" and traits.dialect is None:
            raise ValueError("there is no parity level for a subject that claims no exact order")
        self.config, self.traits, self.level = config, traits, level
        self.index = 0
        self._capacity = min(config.pages, config.swa_pages or config.pages)
        self._parity = (
            Parity(config, traits.dialect, traits.swa_now) if level == "parity" and traits.dialect else None
        )
        self._bound = Binding({}, {}, {})
        self._given: dict[int, tuple[int, str]] = {}  # uid -> operation and request
        self._saved: dict[str, tuple[Binding, tuple[tuple[int, ...], ...] | None]] = {}
        self._first_lists: tuple[tuple[int, ...], ...] | None = None
        self._misuse: Step | None = None
        self._noticed = True
        self._over = False  # nothing that follows can be told right from wrong
        self._freed_before = False

    def copy(self) -> Judge:
        """The same, to go on by itself."""
        other: Judge = object.__new__(Judge)
        other.__dict__.update(self.__dict__)
        other._bound, other._given, other._saved = self._bound.copy(), dict(self._given), dict(self._saved)
        other._parity = self._parity.copy() if self._parity is not None else None
        return other

    def renumbered(self, world: World, uids: dict[int, int]) -> Judge:
        """The same for a world whose uids were numbered anew (`oracle.world.renumbered`), and for no other one."""
        other = self.copy()
        other._bound = self._bound.renumbered(uids)
        other._given = {uids[uid]: given for uid, given in self._given.items() if uid in uids}
        other._saved = {
            name: (bound.renumbered(uids), lists)
            for name, (bound, lists) in self._saved.items()
            if name in world.snapshots
        }
        return other

    def state(self, world: World, ghosts: bool) -> list[Any]:
        """All that decides what will be asked in `world` and how it is judged, in page numbers: plain data.

        Requests count under no name and in no order: names are alike, and callers name them in any order.
        ghosts: whether what was freed may be freed again. Where requests with a prefix begin is left out: nobody
        goes on behind them in the cases that this is for (`properties.alphabet`). So are snapshots that the world
        has no more.
        """
        names = sorted(world.snapshots)
        saved = []
        for name in names:
            bound, lists = self._saved[name]
            saved.append((name, lists, numbered(world.snapshots[name], bound, False)))
        parity = self._parity.state(names) if self._parity is not None else None
        return [numbered(world, self._bound, ghosts), saved, self._freed_before, parity]

    def slot(self, slot: Slot) -> int:
        """The number of a symbolic slot."""
        uid, offset = slot
        return self._bound.page[uid] * self.config.page_size + offset if uid else offset

    def page(self, uid: int) -> int:
        """The number of the page that a uid stands for; 0, of padding, for 0."""
        return self._bound.page[uid] if uid else 0

    def slots(self, runs: tuple[Run, ...]) -> list[int]:
        """The numbers of runs of symbolic slots."""
        size = self.config.page_size
        return [
            n
            for uid, low, high in runs
            for n in range(self._bound.page[uid] * size + low, self._bound.page[uid] * size + high)
        ]

    def begin(self, seen: Observation) -> Violation | None:
        """Judge a new allocator before its first operation."""
        self._first_lists = seen.lists
        world = World(self.config.pages, self.config.swa_pages)
        problem = self._shown(world, seen, "CLEAR")
        if problem is None and seen.tensor:
            problem = "TYPE", f"of a new allocator {seen.tensor}"
        if problem is None and seen.outcome in ("raised", "crashed"):
            problem = "CLEAR", f"a new allocator could not be made: {seen.error}"
        if problem is None and seen.misbuilt and self.level == "hardened":
            problem = "REJECT", seen.misbuilt
        return Violation(problem[0], "fault", 0, "__init__", problem[1]) if problem else None

    def check(self, step: Step, seen: Observation) -> Violation | None:
        """Judge the answer to one operation of the plan; None when it is allowed."""
        index, self.index = self.index, self.index + 1
        if step.status == "skip" or (self._over and seen.outcome != "crashed"):
            return None
        if step.status == "misuse":
            self._misuse, self._noticed = step, seen.outcome == "raised"
        problem = self._surroundings(step, seen)
        if problem is None:
            problem = self._refusal(step, seen) if step.status == "misuse" else self._answer(step, seen)
        if problem is None and not self._over:
            problem = self._state(step, seen)
        if problem is None and self._parity is not None and step.status == "legal":
            problem = self._parity.compare(step, seen, self.slot, self.slots)
        if problem is None:
            return None
        code, sentence = problem
        wrong = self._misuse
        if wrong is None:
            method = ops.name_of(step.operation)
            return Violation(code, "fault", index, method, sentence, symptom_of(seen) + _situation(step))
        asked = f"{ops.sentence(wrong.operation)} breaks a rule ({RULES[wrong.rule]})"
        fate = "is refused, but" if self._noticed else "is not refused, and"
        symptom = "refused" if self._noticed else "accepted"
        return self._misused(code, index, f"{asked}, {fate} then: {sentence}", symptom)

    def end(self) -> Violation | None:
        """Judge what only the end shows: misuse that nobody noticed, where it has to be refused."""
        wrong = self._misuse
        if wrong is None or self._noticed or self.level != "hardened":
            return None
        asked = f"{ops.sentence(wrong.operation)} breaks a rule ({RULES[wrong.rule]})"
        return self._misused("REJECT", self.index - 1, f"{asked} and is not refused", "accepted")

    # -- a live allocator, which was there before the judge and stays for ever -------------------------

    def know(self, uid: int, page: int, name: str, snapshots: tuple[str, ...]) -> None:
        """Somebody held a page before the judge came, and at these snapshots."""
        for bound in (self._bound, *(self._saved[name][0] for name in snapshots)):
            bound.owner[page] = uid
            bound.page[uid] = page
        self._given[uid] = self.index, name

    def settle(self) -> None:
        """Misuse was refused and has changed nothing: what follows is judged by itself."""
        self._misuse, self._noticed, self._over = None, True, False

    def forget(self) -> None:
        """Drop what is known of pages that neither somebody nor a snapshot holds: there is no end to them."""
        held = [self._bound, *(bound for bound, _ in self._saved.values())]
        keep = {uid for bound in held for uid in bound.owner.values()}
        self._given = {uid: given for uid, given in self._given.items() if uid in keep}
        for bound in held:
            for uid in bound.page.keys() - keep:
                del bound.page[uid]

    def _misused(self, code: str, index: int, summary: str, symptom: str) -> Violation:
        wrong = self._misuse
        assert wrong is not None
        return Violation(code, "misuse", index, ops.name_of(wrong.operation), summary, symptom, wrong.rule)

    # -- one operation ---------------------------------------------------------------------------------

    def _surroundings(self, step: Step, seen: Observation) -> Problem:
        """What does not depend on the operation: the process lives, and nothing around it changed."""
        if not (seen.guard or seen.disturbed or seen.damaged or seen.outcome == "crashed"):
            return None
        asked = ops.sentence(step.operation)
        if seen.outcome == "crashed":
            return "GUARD", f"the subject's process died at: {asked} ({seen.error})"
        if seen.guard:
            return "GUARD", f"{seen.guard}, at: {asked}"
        if seen.disturbed:
            return "ALIAS", f"{seen.disturbed}, at: {asked}"
        return "DATA", f"{seen.damaged}, at: {asked}"

    def _refusal(self, step: Step, seen: Observation) -> Problem:
        """Misuse: an error is right. What an answer gave away is judged by itself, and ends the case."""
        if seen.outcome == "odd":
            return "TYPE", f"answered with {seen.error}"
        if self.level == "hardened" and self._by_chance(step, seen):
            return "REJECT", f"what refuses it is no check, but {seen.error}"
        if isinstance(step.call, AllocCall | BatchCall) and seen.outcome == "slots":
            self._over = True
            return wrong_gift(self.config, step, seen, self._bound, self._given)
        if seen.outcome == "done":
            # Whether indices of the wrong type were understood can't be told from outside. Slots named twice
            # in one call may come back once: that is no harm, and nothing more can be asked of this world.
            self._over = step.rule in ("dtype", "shape", "tensor", "device") or (
                step.after is not step.before and self._freed_once(step, seen)
            )
        return None

    def _by_chance(self, step: Step, seen: Observation) -> bool:
        """Whether an error is none that a check raises."""
        symptom, claimed = symptom_of(seen), self.traits.errors
        if symptom in _ACCIDENTS or seen.outcome != "raised" or not claimed:
            return symptom in _ACCIDENTS
        # A nested group is about no argument.
        return step.rule != "nested group" and symptom.removeprefix("raised ") not in claimed

    def _freed_once(self, step: Step, seen: Observation) -> bool:
        if step.before.group is not None:
            return True
        kept = self._bound
        self._bound = kept.copy()
        for uid in step.back:
            self._release(uid)
        problem = self._counted(step.after, seen, "")
        self._bound = kept
        return problem is None

    def _answer(self, step: Step, seen: Observation) -> Problem:
        call = step.call
        if isinstance(call, (AllocCall, BatchCall)):
            return self._allocation(step, call, seen)
        if seen.outcome == "raised":
            if isinstance(call, StateCall) and call.method == "free_group_end" and step.before.group is None:
                return None
            code = "DATA" if isinstance(call, CopyCall) else _context(step) or "CONSERVE"
            return code, f"{Said(step.operation)} is legal and raised {seen.error}"
        if isinstance(call, StateCall):
            return self._state_call(step, call, seen)
        for uid in step.back:
            self._release(uid)
        return None

    def _state_call(self, step: Step, call: StateCall, seen: Observation) -> Problem:
        match call.method:
            case "backup_state":
                self._saved[call.name] = self._bound.copy(), seen.lists
            case "restore_state":
                bound, lists = self._saved[call.name]
                self._bound = bound.copy()
                if lists is not None and seen.lists is not None and lists != seen.lists:
                    return (
                        "RESTORE",
                        f"{lists_in_words(lists)} when {call.name} was saved, and now {lists_in_words(seen.lists)}",
                    )
            case "clear":
                self._bound = Binding({}, {}, {})
                if (
                    self._first_lists is not None
                    and seen.lists is not None
                    and self._first_lists != seen.lists
                ):
                    return (
                        "CLEAR",
                        f"{lists_in_words(self._first_lists)} in a new allocator, and after clear {lists_in_words(seen.lists)}",
                    )
            case "free_group_end":
                for uid in step.back:
                    self._release(uid)
        return None

    def _release(self, uid: int) -> None:
        self._freed_before = True
        self._bound.owner.pop(self._bound.page[uid], None)
        self._bound.window.pop(uid, None)

    def _allocation(self, step: Step, call: AllocCall | BatchCall, seen: Observation) -> Problem:
        asked, size = Said(step.operation), self.config.page_size
        room = room_in(self.config, step.before)
        if seen.outcome == "raised":
            fate = "fits" if step.fits else "does not fit"
            return "EXHAUST", f"{asked} {fate} ({room} page(s) are free) and raised {seen.error}"
        if seen.outcome == "odd":
            return "TYPE", f"{asked} answered with {seen.error}"
        if not step.fits:
            if seen.outcome == "none":
                return None
            return "EXHAUST", f"{asked} does not fit ({room} page(s) are free), and got {short(seen.slots)}"
        if seen.outcome == "none":
            if self._freed_before and len(step.fresh) == self._capacity:
                return "REUSE", f"everything was freed, and {asked}, the whole pool, got None"
            return "EXHAUST", f"{asked} fits ({room} page(s) are free), and got None"
        if seen.tensor:
            return "TYPE", f"the answer to {asked} {seen.tensor}"
        if len(seen.slots) != step.tokens:
            return "EXHAUST", f"{asked} asks for {step.tokens} slot(s), and got {len(seen.slots)}"
        if seen.forecast is not None and seen.forecast < len(step.fresh):
            return "EXHAUST", f"{asked} takes {len(step.fresh)} page(s), and the forecast was {seen.forecast}"
        for uid, offset, place, count in step.grown:
            first = self._bound.page[uid] * size + offset
            got = seen.slots[place : place + count]
            if got != tuple(range(first, first + count)):
                wanted = short(tuple(range(first, first + count)))
                return stray(self.config, got) or (
                    "ALIGN",
                    f"{asked} goes on inside a page at {wanted}, and got {short(got)}",
                )
        end = (self.config.pages + 1) * size
        for uid, place, count in step.fresh:
            first = seen.slots[place]
            got = seen.slots[place : place + count]
            if first % size or not size <= first < end or got != tuple(range(first, first + count)):
                return stray(self.config, got) or (
                    "ALIGN",
                    f"{asked} begins a page with {short(got)}, which is no page from its first slot on",
                )
            problem = self._claim(step, uid, first // size)
            if problem:
                return problem
        return None

    def _claim(self, step: Step, uid: int, page: int) -> Problem:
        """Bind a page that was just handed out, unless somebody has it."""
        name = self._receiver(step, uid)
        other = self._bound.owner.get(page)
        if other is not None:
            operation, holder = self._given[other]
            if step.before.group is not None and (
                other in step.before.group.pages or other in step.before.group.parts
            ):
                return (
                    "GROUP",
                    f"page {page} was handed out to {name} while {holder}'s free of it waits for the end of a group",
                )
            if operation + 1 == self.index:
                return "UNIQUE", f"operation {self.index} gave page {page} twice, to {holder} and to {name}"
            return (
                "UNIQUE",
                f"page {page} has two owners: operation {operation + 1} gave it to {holder}, operation {self.index} to {name}",
            )
        self._bound.owner[page] = uid
        self._bound.page[uid] = page
        self._given[uid] = self.index - 1, name
        return None

    def _receiver(self, step: Step, uid: int) -> str:
        if isinstance(step.operation, ops.Alloc):
            return step.operation.request
        for name, request in step.after.requests.items():
            if uid in request.pages:
                return name
        return "?"

    # -- the state after it ----------------------------------------------------------------------------

    def _state(self, step: Step, seen: Observation) -> Problem:
        world = step.after if step.status == "legal" else step.before
        refused = seen.outcome == "raised" or not step.fits
        code = (
            ""
            if self._misuse is not None and not refused
            else _context(step) or ("ATOMIC" if refused else "")
        )
        return self._shown(world, seen, code)

    def _shown(self, world: World, seen: Observation, code: str) -> Problem:
        return self._counted(world, seen, code) or wrong_mapping(self.config, world, seen, self._bound)

    def _counted(self, world: World, seen: Observation, code: str) -> Problem:
        """What it shows without its mapping."""
        return wrong_numbers(self.config, world, seen, code) or wrong_lists(
            self.config, world, seen, code, self._bound, self._given
        )


def _situation(step: Step) -> str:
    """What sets two faults of one method apart although they look alike."""
    if not step.fits:
        return ", no fit"
    if isinstance(step.operation, ops.GroupEnd) and step.before.group is None:
        return ", no group"
    return ""


def _context(step: Step) -> str:
    """The promise that an operation's state changes come under, where it has one of its own."""
    match step.operation:
        case ops.GroupBegin() | ops.GroupEnd():
            return "GROUP"
        case ops.Backup() | ops.Restore():
            return "RESTORE"
        case ops.Clear():
            return "CLEAR"
        case _:
            in_group = isinstance(step.call, FreeCall) and step.before.group is not None
            return "GROUP" if in_group else ""
