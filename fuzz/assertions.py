"""What a finding says, as an assertion: chosen by what the subject answered, so that it is the finding and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzz.claim import Claim, Late, Lines, asserted, quoted, says
from fuzz.claim_state import available, binding_of, free_and_held, listed, mismapped, state_claim
from fuzz.constructors import NoHandover
from oracle.ops import Case
from oracle.verdict import Observation, Violation
from oracle.world import AllocCall, BatchCall, FreeCall, StateCall, Step, World

if TYPE_CHECKING:
    from fuzz.emitter import Emitter


def claim_of(emitter: Emitter, violation: Violation) -> Claim:
    """What is asserted of the last step that was answered. NoHandover where that can't be said."""
    if not emitter.steps or violation.operation == "__init__":
        return Claim(first=tuple(_new_allocator(emitter, violation)))
    step, seen = emitter.steps[-1], emitter.answers[-1]
    past_the_list = seen.guard.startswith("out-of-bounds load") and "free_page_ptr" in seen.guard
    if seen.outcome == "crashed" or (past_the_list and emitter.maker.fenced):
        return Claim(crashes=True)
    if seen.guard:
        raise NoHandover(
            "what lies outside the arguments shows under the emulator or between guard zones only"
        )
    if seen.disturbed:
        return Claim(asserted(violation, "all(tensor.tolist() == values for tensor, values in kept)"),
                     first=("kept = []",), watches=True)  # fmt: skip
    if seen.damaged:
        return _damaged(emitter, step, violation)
    if step.status == "misuse":
        return _misuse(emitter, step, seen, violation)
    return _legal(emitter, step, seen, violation)


def _new_allocator(emitter: Emitter, violation: Violation) -> Iterator[str]:
    config = emitter.config
    if violation.code == "REJECT":
        raise NoHandover("what a constructor says to other pools is asked by kvassay alone: replay it")
    if violation.code == "MAP":
        yield says(mismapped(violation.summary, emitter.claims.translates), violation)
        return
    name = violation.summary.removeprefix("of a new allocator ").partition(" is ")[0]
    if violation.code == "TYPE" and name.isidentifier():
        right = {
            "size": config.size, "page_size": config.page_size, "num_pages": config.pages,
            "need_sort": config.need_sort, "size_full": config.size, "size_swa": config.swa_pages * config.page_size,
        }  # fmt: skip
        yield says(f"getattr(allocator, {name!r}, None) == {right.get(name)!r}", violation)
        return
    yield says(
        f"allocator.available_size() == {available(emitter, World(config.pages, config.swa_pages))}",
        violation,
    )


BY_ASKING = "(asked for its state)"
ASKED = {
    False: ("allocator.available_size()", "lists()"),
    True: ("allocator.full_available_size()", "allocator.swa_available_size()", "lists()"),
}


def _raises(violation: Violation, asked: tuple[str, ...]) -> Callable[[Lines], Iterator[str]]:
    """asked: what is asked of its state behind the call, where that is what raised."""
    text = quoted(violation.summary)

    def wrap(call: Lines) -> Iterator[str]:
        yield from ("try:", *(f"    {line}" for line in (*call, *asked)), "except Exception as error:")
        yield f"    raise AssertionError({text}) from error"

    return wrap


# -- legal calls ---------------------------------------------------------------------------------------


def _legal(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim:
    if seen.outcome == "raised":
        return Claim(
            wrap=_raises(
                violation, ASKED[emitter.config.kind == "swa"] if seen.error.endswith(BY_ASKING) else ()
            )
        )
    if isinstance(step.call, AllocCall | BatchCall):
        lines = _answer(emitter, step, seen, violation)
        if lines is not None:
            return Claim(lines)
    claim = _state_call(emitter, step, seen, violation)
    if claim is not None:
        return claim
    return state_claim(emitter, step.after, seen, violation) or _parity(emitter, step, seen, violation)


def _answer(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Late | None:
    """What is wrong with the answer of an allocation; None where nothing is."""
    size, got = emitter.config.page_size, seen.slots
    if seen.outcome == "odd":
        return asserted(violation, "isinstance(answer, torch.Tensor)")
    if not step.fits:
        return None if seen.outcome == "none" else asserted(violation, "answer is None")
    if seen.outcome == "none":
        return asserted(violation, "answer is not None")
    if seen.tensor:
        return asserted(violation, _tensor(emitter, seen.tensor, violation))
    if len(got) != step.tokens:
        return asserted(violation, f"answer.numel() == {step.tokens}")
    if seen.forecast is not None and seen.forecast < len(step.fresh):
        call = step.call
        assert isinstance(call, BatchCall)
        forecast = f"allocator.estimated_num_new_pages({len(call.seq)}, {call.total})"
        return asserted(violation, f"{forecast} >= {len(step.fresh)}")
    binding = binding_of(emitter)
    for uid, offset, place, count in step.grown:
        first = binding[uid] * size + offset
        piece = got[place : place + count]
        if piece != tuple(range(first, first + count)):
            return _grown(violation, uid, offset, place, count)
    for _, place, count in step.fresh:
        first = got[place]
        piece = got[place : place + count]
        if any(not size <= slot < (emitter.config.pages + 1) * size for slot in piece):
            return asserted(violation, _inside(emitter, f"answer[{place}:{place + count}]"))
        if first % size or piece != tuple(range(first, first + count)):
            return _fresh(violation, size, place, count)
    pages = [got[place] // size for _, place, _ in step.fresh]
    before = {binding[uid] for uid in _bound_before(emitter)}
    if len(set(pages)) < len(pages) or before.intersection(pages):
        places = [place for _, place, _ in step.fresh]
        return lambda late: _two_owners(late, violation, size, places)
    return None


def _two_owners(emitter: Emitter, violation: Violation, size: int, places: list[int]) -> Lines:
    opened = ", ".join(f"int(answer[{place}]) // {size}" for place in places)
    held = f"set(({emitter.held()} // {size}).tolist())" if emitter.bound else "set()"
    return [
        f"opened, held = [{opened}], {held}",
        says("len({*opened, *held}) == len(opened) + len(held)", violation),
    ]


def _tensor(emitter: Emitter, text: str, violation: Violation) -> str:
    if text.startswith("has shape"):
        return "answer.dim() == 1"
    if text.startswith("is not contiguous"):
        return "answer.is_contiguous()"
    if text.startswith("is on"):
        return 'answer.device.type == "cpu"'
    return f"answer.dtype == torch.{emitter.claims.dtype_of(violation.operation)}"


def _inside(emitter: Emitter, what: str) -> str:
    size = emitter.config.page_size
    return f"all({size} <= slot < {(emitter.config.pages + 1) * size} for slot in {what}.tolist())"


def _grown(violation: Violation, uid: int, offset: int, place: int, count: int) -> Late:
    def late(emitter: Emitter) -> Lines:
        last = emitter.slot((uid, offset - 1))
        right = f"list(range(int({last}) + 1, int({last}) + {1 + count}))"
        return [says(f"answer[{place}:{place + count}].tolist() == {right}", violation)]

    return late


def _fresh(violation: Violation, size: int, place: int, count: int) -> Late:
    lines = [
        f"page = answer[{place}:{place + count}].tolist()",
        says(f"page[0] % {size} == 0 and page == list(range(page[0], page[0] + {count}))", violation),
    ]
    return lambda _: lines


def _bound_before(emitter: Emitter) -> set[int]:
    """The uids that are held, or wait, when the last step is asked."""
    world = emitter.steps[-1].before
    uids = {uid for request in world.requests.values() for uid in request.pages if uid}
    return uids | set((*world.group.pages, *world.group.parts) if world.group is not None else ())


def _state_call(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim | None:
    """RESTORE and CLEAR, where the lists are not what they were."""
    if not isinstance(step.call, StateCall) or seen.lists is None:
        return None
    if step.call.method == "clear" and violation.summary.startswith("free list"):
        return Claim(asserted(violation, "lists() == new"), first=("new = lists()",))
    if step.call.method == "restore_state" and "was saved, and now" in violation.summary:
        name = step.call.name
        saved = max(
            at
            for at, earlier in enumerate(emitter.steps[:-1])
            if isinstance(earlier.call, StateCall) and earlier.call == StateCall("backup_state", name)
        )
        return Claim(asserted(violation, "lists() == then"), kept_at={saved: lambda _: ["then = lists()"]})
    return None


def _parity(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim:
    right = emitter.right[-1]
    if (
        violation.code == "ORDER"
        and isinstance(step.call, AllocCall | BatchCall)
        and seen.slots != right.slots
    ):
        return Claim(asserted(violation, f"answer.tolist() == {list(right.slots)}"))
    if violation.code == "ORDER" and right.lists is not None:
        return Claim(asserted(violation, f"lists() == {[list(listed) for listed in right.lists]}"))
    raise NoHandover(f"there is no line of Python for this {violation.code}: replay it")


# -- K and V -------------------------------------------------------------------------------------------


def _damaged(emitter: Emitter, step: Step, violation: Violation) -> Claim:
    if emitter.config.kind == "swa" or not any(
        "kv = " in line for line in (*emitter.maker.setup, *emitter.maker.after)
    ):
        raise NoHandover("K and V of this subject can't be had without kvassay: replay it")
    call = step.call
    assert isinstance(call, FreeCall)

    def before(late: Emitter) -> Lines:
        runs, stamps = late.stamps(call.runs)
        return [
            "for layer in range(kv.layers):",
            f"    k, v = kv.get_kv(layer, {late.slots(runs)})",
            f"    right = torch.tensor({stamps}, dtype=k.dtype).view(-1, 1, 1).expand(k.shape) * (layer + 1)",
            "    " + says("torch.equal(k, right) and torch.equal(v, -right)", violation),
        ]

    return Claim(before=before, data=True)


# -- misuse --------------------------------------------------------------------------------------------


def _misuse(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim:
    """The call that breaks a rule is the last one: what is wrong with how it was taken."""
    text = quoted(violation.summary)
    if violation.code == "REJECT" and seen.outcome == "raised":
        accidents = "(NameError, AttributeError, IndexError, KeyError)"
        checks = f"({', '.join(sorted(emitter.claims.errors))},)" if emitter.claims.errors else "Exception"

        def by_accident(call: Lines) -> Iterator[str]:
            yield from ("try:", *(f"    {line}" for line in call), f"except {accidents} as error:")
            yield f"    raise AssertionError({text}) from error"
            yield from (f"except {checks}:", "    return  # a check refused it")
            if checks != "Exception":
                yield from ("except Exception as error:", f"    raise AssertionError({text}) from error")
            yield f"raise AssertionError({text})"

        return Claim(wrap=by_accident)
    if violation.code == "REJECT":
        return _not_refused(text)
    gift = isinstance(step.call, AllocCall | BatchCall) and seen.outcome == "slots"
    inner = _gift(emitter, step, seen, violation) if gift else None
    claim = inner or state_claim(emitter, step.before, seen, violation)
    if claim is None:
        raise NoHandover(f"there is no line of Python for this misuse ({violation.rule}): replay it")

    def refused(call: Lines) -> Iterator[str]:
        yield from ("try:", *(f"    {line}" for line in call), "except Exception:")
        yield (
            "    pass  # refused, which is right: then nothing may have changed"
            if inner is None
            else "    return  # refused, which is right"
        )

    return Claim(claim.after, claim.before, refused, claim.first, claim.kept_at)


def _not_refused(text: str) -> Claim:
    """REJECT: the misuse was taken, and nothing came of it up to the end."""

    def wrap(call: Lines) -> Iterator[str]:
        yield from ("try:", *(f"    {line}" for line in call), "except Exception:")
        yield from ("    return  # refused, which is right", f"raise AssertionError({text})")

    return Claim(wrap=wrap)


def _gift(emitter: Emitter, step: Step, seen: Observation, violation: Violation) -> Claim | None:
    """What was handed out to a call that breaks a rule."""
    size, config = emitter.config.page_size, emitter.config
    if "is free: " in violation.summary or "in the free list as well" in violation.summary:
        late: Late = lambda e: free_and_held(e, "free = lists()[0] + lists()[1]", step.before, violation)  # noqa: E731
        twice = listed("free = lists()[0] + lists()[1]", "len(free) == len(set(free))", violation)
        pages = seen.lists[0] + seen.lists[1] if seen.lists is not None else ()
        return Claim(twice if len(set(pages)) < len(pages) else late)
    if "rose to" in violation.summary:
        return Claim(asserted(violation, f"allocator.available_size() <= {available(emitter, step.before)}"))
    if len(seen.slots) != step.tokens:
        return Claim(asserted(violation, f"answer.numel() == {step.tokens}"))
    if any(not size <= slot < (config.pages + 1) * size for slot in seen.slots):
        return Claim(asserted(violation, _inside(emitter, "answer")))
    if len(set(seen.slots)) < len(seen.slots):
        return Claim(asserted(violation, "answer.unique().numel() == answer.numel()"))
    if "was granted, and operation" in violation.summary:
        last = {uid for uid, _ in step.call.last} if isinstance(step.call, BatchCall) else set()

        def owned(late: Emitter) -> Lines:
            held = late.slots((uid, 0, late.count[uid]) for uid in late.bound if uid not in last)
            return [says(f"not torch.isin(answer // {size}, {held} // {size}).any()", violation)]

        return Claim(owned)
    if "available_size() says" in violation.summary:
        given = {slot // size for slot in seen.slots} - set(binding_of(emitter).values())
        what = "full_available_size" if seen.full is not None else "available_size"
        return Claim(asserted(violation, f"allocator.{what}() == {(step.before.free - len(given)) * size}"))
    return None


# -- relations -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """Up to which operation each run goes (places, from 0), and what of it is compared.

    record: an expression, or `slots` for those of all operations from `since` on.
    """

    left: int
    right: int
    record: str
    since: int = 0


def departs(
    left: Case, right: Case, one: Sequence[Observation], other: Sequence[Observation], violation: Violation
) -> Difference:
    """Where two runs differ, and in what."""
    from properties.relations import runs_of_file

    runs = runs_of_file(violation.symptom.removeprefix("relation "), left, right)
    start = len(left.operations) - runs.after, len(right.operations) - runs.after
    if runs.relation.middle == "extends" and violation.index == start[0] - 1:
        several = start[1] - start[0] + 1
        record = "lists()" if "free list" in violation.summary else "slots"
        return Difference(violation.index, start[1] - 1, record, start[1] - several)
    place = violation.index - start[0] + start[1]
    a, b = one[violation.index], other[place]
    if a.outcome != b.outcome:
        record = "answer is None"
    elif (a.available, a.full, a.window) != (b.available, b.full, b.window):
        record = "allocator.available_size()"
        if a.available == b.available:
            record = "(allocator.full_available_size(), allocator.swa_available_size())"
    else:
        record = "answer.tolist()"
    return Difference(violation.index, place, record)
