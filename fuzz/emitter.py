"""The lines of one run of a case: its calls, with the variables that hold what the allocator answered."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fuzz.assertions import claim_of
from fuzz.claim import Claim
from fuzz.constructors import Maker
from fuzz.film import film
from oracle.flawed import first_that_grows, new_pages, told
from oracle.ops import Case, rule_of, sentence
from oracle.plan import plan
from oracle.traits import Traits
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall, CopyCall, FreeCall, Run, Slot, StateCall, Step

# Names that the lines use themselves.
TAKEN = frozenset(
    [
        "torch",
        "allocator",
        "answer",
        "ints",
        "joined",
        "lists",
        "pool",
        "kv",
        "kept",
        "given",
        "tensor",
        "values",
        "rows",
        "layer",
        "k",
        "v",
        "right",
        "free",
        "held",
        "opened",
        "page",
        "window",
        "then",
        "new",
        "one",
        "other",
        "first",
        "error",
        "set",
        "list",
        "len",
        "int",
        "all",
        "range",
        "at_edge",
        "stand_in",
    ]
)
WATCHED = 4


@dataclass(slots=True)
class _Place:
    """Where a page's tokens are in the script: in a variable, from a position on."""

    variable: str
    start: int


class Emitter:
    """Writes one run as lines; keeps which variable of the script has which slots."""

    def __init__(
        self,
        case: Case,
        claims: Traits,
        maker: Maker,
        answers: tuple[Observation, ...],
        finding: Violation | None,
    ) -> None:
        self.case, self.config, self.claims, self.maker = case, case.config, claims, maker
        self.finding = finding
        self.steps = plan(case, claims)[: len(answers)]
        if finding is not None and finding.code == "REJECT":  # what comes behind it shows nothing
            ends = (i for i, step in enumerate(self.steps, 1) if step.status == "misuse")
            self.steps = self.steps[: next(ends, 0)]
        self.answers = answers = answers[: len(self.steps)]
        frames = film(case, claims, answers).frames
        self.right = [frame.reference.seen for frame in frames]
        self.place: dict[int, _Place] = {}
        self.count: dict[int, int] = {}  # tokens that a page was given
        self.bound: dict[int, None] = {}  # pages that are held, or wait
        self._saved: dict[str, dict[int, None]] = {}
        self._variable: dict[str, tuple[str, int]] = {}  # request -> variable, its length
        self._used: set[str] = set()
        self._stamps: dict[Slot, int] = {}
        self._copies: dict[str, list[int | None]] = {}
        self._stamp = 0
        self.claim: Claim | None = claim_of(self, finding) if finding is not None else None

    # -- expressions -------------------------------------------------------------------------------------

    def slots(self, runs: Iterable[Run]) -> str:
        """An expression for the slots of runs, in int64: a new tensor, where the caller overwrites what it gave."""
        pieces: list[tuple[str, int, int]] = []
        for uid, low, high in runs:
            place = self.place[uid]
            start, stop = place.start + low, place.start + high
            if pieces and pieces[-1][0] == place.variable and pieces[-1][2] == start:
                pieces[-1] = place.variable, pieces[-1][1], stop
            else:
                pieces.append((place.variable, start, stop))
        lengths = dict(self._variable.values())
        if not pieces:
            return "ints()"
        texts = [
            variable if (start, stop) == (0, lengths.get(variable)) else f"{variable}[{start}:{stop}]"
            for variable, start, stop in pieces
        ]
        return texts[0] if len(texts) == 1 and not self.config.overwrite else f"joined({', '.join(texts)})"

    def slot(self, slot: Slot) -> str:
        """An expression for one slot."""
        uid, offset = slot
        if not uid:
            return str(offset)
        place = self.place[uid]
        return f"{place.variable}[{place.start + offset}]"

    def held(self) -> str:
        """An expression for the slots of all pages that are held."""
        return self.slots((uid, 0, self.count[uid]) for uid in self.bound)

    # -- lines -------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """All steps; the last one, which is wrong, with what is asserted of it."""
        if self.claim is not None and self.claim.first:
            yield from (*self.claim.first, "")
        last = len(self.steps) - 1
        for index, step in enumerate(self.steps):
            text = list(self._step(index, step, index == last))
            if text:
                yield from (*text, "")

    def collecting(self, name: str, record: str, since: int) -> Iterator[str]:
        """All steps, and a record of what came: of the last one, or of all slots that came from `since` on."""
        gathers = record == "slots"
        if gathers:
            yield f"{name} = []"
        last = len(self.steps) - 1
        for index, step in enumerate(self.steps):
            line = f"{name} = {record}" if index == last else ""
            if gathers:
                line = f"{name} += answer.tolist()" if index >= since else ""
            text = list(self._step(index, step, last=False, record=line))
            if index == last:  # what the caller would keep of it is not asked for any more
                text = text[: text.index(line) + 1]
            yield from (*text, "") if text and index < last else text

    def _step(self, index: int, step: Step, last: bool, record: str = "") -> Iterator[str]:
        """One operation. record: a line right behind the call."""
        if step.status == "skip":
            return
        yield f"# {'behind every case:' if step.probe else f'{index + 1}.'} {sentence(step.operation)}"
        if step.call is None:
            yield "# (the caller alone forgets them)"
            return
        claim = self.claim if last else None
        if self.claim is not None and self.claim.crashes and isinstance(step.call, BatchCall):
            yield from self._fence()
        if claim is not None:
            yield from claim.before(self)
        call = list(self._call(step))
        zeroes = self.config.overwrite and call[0].startswith("given = ")
        if claim is not None and claim.wrap is not None:
            yield from claim.wrap(call)
        elif step.status == "misuse":
            yield from ("try:", *(f"    {line}" for line in call))
            yield from ("except Exception:", "    pass  # refused, which is right")
        else:
            yield from call
        if record:
            yield record
        if zeroes:
            yield from ("for tensor in given:  # the caller uses its tensors again", "    tensor.zero_()")
        if claim is not None:
            yield from claim.after(self)
        else:
            yield from self._take(index, step)

    def _fence(self) -> Iterator[str]:
        if not self.maker.fenced:
            return
        pools = ("full_attn_allocator", "swa_attn_allocator") if self.config.kind == "swa" else ("",)
        for name in pools:
            where = f"allocator.{name}" if name else "allocator"
            yield f"{where}.free_pages = at_edge({where}.free_pages)"

    def grows(self, step: Step) -> bool:
        """Whether an answer has slots."""
        return bool(step.fresh or step.grown)

    def _take(self, index: int, step: Step) -> Iterator[str]:
        """What the caller keeps of an answer."""
        call = step.call
        taken = isinstance(call, AllocCall | BatchCall) and self.grows(step) and step.status == "legal"
        if taken:
            yield from self._keep(step)
        if self.claim is not None and index in self.claim.kept_at:
            yield from self.claim.kept_at[index](self)
        if isinstance(call, AllocCall | BatchCall) and step.fits and step.status == "legal":
            if self.config.overwrite and (index + 1) % 2:
                yield "answer.zero_()  # the caller uses that tensor again"
            if self.claim is not None and self.claim.watches and index >= len(self.steps) - 1 - WATCHED:
                yield "kept.append((answer, answer.tolist()))"
        if step.status != "legal":
            return
        for uid in step.back:
            self.bound.pop(uid, None)
        if isinstance(call, StateCall):
            if call.method == "backup_state":
                self._saved[call.name] = dict(self.bound)
            elif call.method == "restore_state" and call.name in self._saved:
                self.bound = dict(self._saved[call.name])
                self._stamps.clear()
            elif call.method == "clear":
                self.bound = {}
                self._stamps.clear()

    def _keep(self, step: Step) -> Iterator[str]:
        """Each request's new slots, behind those that it has."""
        size, place = self.config.page_size, 0
        grown = {uid: (offset, at, count) for uid, offset, at, count in step.grown}
        for name, before, count in _growth(step):
            if not count:
                continue
            request = step.after.requests[name]
            own = before
            variable, length = self._variable.get(name, ("", -1))
            piece = f"answer[{place}:{place + count}]"
            if own and variable and length == own and name in step.before.requests:
                yield f"{variable} = joined({variable}, {piece})"
            elif own and variable:
                fresh = self._new(name)
                yield f"{fresh} = joined({variable}[:{own}], {piece})"
                variable = fresh
            else:
                variable = self._new(name)
                yield f"{variable} = joined({piece})"
            self._variable[name] = variable, own + count
            for page, uid in enumerate(request.pages):
                if uid in grown or any(uid == new for new, _, _ in step.fresh):
                    self.place[uid] = _Place(variable, page * size)
            place += count
        for uid, _, count in step.fresh:
            self.count[uid] = count
            self.bound[uid] = None
        for uid, offset, _, count in step.grown:
            self.count[uid] = offset + count
        if self.claim is not None and self.claim.data:
            yield from self._write(step)

    def _write(self, step: Step) -> Iterator[str]:
        first = self._stamp + 1
        total = sum(c for _, _, c in step.fresh) + sum(c for _, _, _, c in step.grown)
        for uid, place, count in step.fresh:
            self._stamps.update({(uid, k): first + place + k for k in range(count)})
        for uid, offset, place, count in step.grown:
            self._stamps.update({(uid, offset + k): first + place + k for k in range(count)})
        self._stamp += total
        yield f"rows = torch.arange({first}.0, {first + total}.0).view(-1, 1, 1).expand(-1, *kv.k_buffer[0].shape[1:])"
        yield "for layer in range(kv.layers):"
        yield "    kv.set_kv(layer, answer, rows * (layer + 1), -rows * (layer + 1))"

    def stamps(self, runs: Iterable[Run]) -> tuple[list[Run], list[int]]:
        """What was written at runs, where that is known: the runs of it, and the numbers."""
        known = [(uid, k) for uid, low, high in runs for k in range(low, high) if (uid, k) in self._stamps]
        return [(uid, k, k + 1) for uid, k in known], [self._stamps[slot] for slot in known]

    def _new(self, name: str) -> str:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not plain.isidentifier() or keyword.iskeyword(plain) or plain in TAKEN:
            plain = f"r_{plain}"
        made, number = plain, 1
        while made in self._used:
            number += 1
            made = f"{plain}_{number}"
        self._used.add(made)
        return made

    # -- calls -------------------------------------------------------------------------------------------

    def _call(self, step: Step) -> Iterator[str]:
        call = step.call
        if isinstance(call, AllocCall):
            yield f"answer = allocator.alloc({float(call.size) if call.flaw else call.size})"
        elif isinstance(call, BatchCall):
            yield from self._batch(call)
        elif isinstance(call, FreeCall):
            yield from self._free(call)
        elif isinstance(call, CopyCall):
            yield from self._copy(call)
        elif isinstance(call, StateCall):
            yield from self._state(call)

    def _state(self, call: StateCall) -> Iterator[str]:
        if call.method == "backup_state":
            yield f"saved_{_word(call.name)} = allocator.backup_state()"
        elif call.method == "restore_state":
            yield f"allocator.restore_state({'object()' if call.flaw else f'saved_{_word(call.name)}'})"
        else:
            yield f"allocator.{call.method}()"

    def _copy(self, call: CopyCall) -> Iterator[str]:
        slots = self.slots(call.runs)
        each = [(uid, k) for uid, low, high in call.runs for k in range(low, high)]
        if call.load:
            yield f"allocator.load_cpu_copy(copy_{_word(call.name)}, {slots})"
            for slot, stamp in zip(each, self._copies.get(call.name, []), strict=False):
                if stamp is None:
                    self._stamps.pop(slot, None)
                else:
                    self._stamps[slot] = stamp
        else:
            yield f"copy_{_word(call.name)} = allocator.get_cpu_copy({slots})"
            self._copies[call.name] = [self._stamps.get(slot) for slot in each]

    def _given(self, expressions: list[str], call: str) -> Iterator[str]:
        """A call with these tensors; where the caller uses them again, they have a name."""
        if self.config.overwrite:
            listed = ", ".join(expressions) + ("," if len(expressions) == 1 else "")
            yield f"given = ({listed})"
            yield call.format("*given")
        else:
            yield call.format(", ".join(expressions))

    def _free(self, call: FreeCall) -> Iterator[str]:
        size, pages = self.config.page_size, self.config.pages
        match call.flaw:
            case "padding":
                index = f"ints(*range({size}))"
            case "foreign":
                first = (pages + 1) * size
                index = f"ints(*range({first}, {first + size}))"
            case "negative":
                index = f"ints(*range({-size}, 0))"
            case _:
                index = self.slots(call.runs) + _SPOILT.get(call.flaw, "")
        if call.swa:
            yield from self._given([index], "allocator.free_swa({})")
        elif call.gone and self.claims.free_full:
            whole = [run for run in call.runs if run[0] not in call.gone]
            if whole:
                yield from self._given([self.slots(whole)], "allocator.free({})")
            gone = [run for run in call.runs if run[0] in call.gone]
            yield from self._given([self.slots(gone)], "allocator.free_full({})")
        elif call.flaw == "tensor":
            yield f"allocator.free({index})"
        else:
            yield from self._given([index], "allocator.free({})")

    def _batch(self, call: BatchCall) -> Iterator[str]:
        given, total, more = self._arguments(call)
        method = "alloc_decode" if call.decode else "alloc_extend"
        rest = "" if call.decode else f", {total}"
        line = f"answer = allocator.{method}({{}}{rest}{more})"
        if rule_of(call.flaw) == "tensor":
            yield line.format(", ".join(given))
        else:
            yield from self._given(given, line)

    def _arguments(self, call: BatchCall) -> tuple[list[str], int, str]:
        prefix, seq, total = told(call)
        last = [self.slot(slot) for slot in call.last]
        first, more = first_that_grows(call), ""
        device = {"prefix_lens": prefix, "seq_lens": seq}
        match call.flaw:
            case "last_loc":
                last[first] += " + 1"
            case "new pages":
                more = f", num_new_pages={new_pages(call, self.config.page_size)}"
            case "mirror of prefix_lens" | "mirror of seq_lens":
                name = call.flaw.removeprefix("mirror of ")
                device[name] = list(device[name])
                device[name][first] += 1 if name == "prefix_lens" else -1
        names: dict[str, str] = {}
        if not call.decode:
            names["prefix_lens"] = _ints(device["prefix_lens"])
            names["prefix_lens_cpu"] = _ints(prefix)
        names["seq_lens"], names["seq_lens_cpu"] = _ints(device["seq_lens"]), _ints(seq)
        names["last_loc"] = _ints(last)
        if not self.maker.mirrored:
            names = {name: text for name, text in names.items() if not name.endswith("_cpu")}
        rule, _, argument = call.flaw.partition(" of ")
        if rule in _SPOILT:
            for name in [argument] if argument else ["seq_lens", "seq_lens_cpu"]:
                if name in names:
                    names[name] += _SPOILT[rule]
        return list(names.values()), total, more


_SPOILT = {
    "lengths": "[:-1]",
    "dtype": ".float()",
    "shape": "[None]",
    "tensor": ".tolist()",
}


def _ints(values: Iterable[object]) -> str:
    return f"ints({', '.join(map(str, values))})"


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def _growth(step: Step) -> list[tuple[str, int, int]]:
    """Of each request of an allocation: its name, how many tokens of its own it had, and how many come."""
    call = step.call
    requests = step.after.requests
    if isinstance(call, AllocCall):
        name = step.operation.request  # type: ignore[union-attr]
        before = step.before.requests.get(name)
        return [(name, before.length - before.base if before else 0, call.size)]
    assert isinstance(call, BatchCall)
    operation = step.operation
    names = operation.requests if hasattr(operation, "requests") else [g.request for g in operation.batch]  # type: ignore[union-attr]
    made = []
    for name, prefix, seq in zip(names, call.prefix, call.seq, strict=True):
        base = requests[name].base if name in requests else prefix
        made.append((name, prefix - base, seq - prefix))
    return made
