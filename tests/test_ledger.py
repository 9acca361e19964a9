from __future__ import annotations

import random
from dataclasses import replace

import pytest

from impl.subject import OWN, own
from oracle.ledger import Ledger
from oracle.ops import (
    Alloc,
    Backup,
    Case,
    Clear,
    Config,
    CopyIn,
    CopyOut,
    Cut,
    Decode,
    Extend,
    Free,
    FreeSwa,
    GroupBegin,
    GroupEnd,
    Grow,
    Operation,
    Part,
    Restore,
)
from oracle.plan import plan
from oracle.traits import RULES, SEED_PAGED, Traits
from oracle.world import BatchCall, FreeCall, Group, Slot, Step
from properties.cases import generate, generate_misuse
from properties.sources import SeededSource
from properties.workload import KINDS_OF_MISUSE

PAGED = Config("paged", 4, 4)
SWA = Config("swa", 4, 4, swa_pages=2)
TRAITS = Traits(dialect=SEED_PAGED)


def steps_of(*operations: Operation, config: Config = PAGED, traits: Traits = TRAITS) -> list[Step]:
    ledger, steps = Ledger(config, traits), []
    world = ledger.start()
    for operation in operations:
        steps.append(ledger.step(world, operation))
        world = steps[-1].after
    return steps


def last(*operations: Operation, config: Config = PAGED, traits: Traits = TRAITS) -> Step:
    return steps_of(*operations, config=config, traits=traits)[-1]


def batch(step: Step) -> BatchCall:
    assert isinstance(step.call, BatchCall)
    return step.call


def freed(step: Step) -> list[Slot]:
    assert isinstance(step.call, FreeCall)
    return [(uid, k) for uid, low, high in step.call.runs for k in range(low, high)]


def extend(name: str, tokens: int, prefix: str = "") -> Extend:
    return Extend((Grow(name, tokens, prefix),))


def free(*names: str) -> Free:
    return Free(tuple(Part(name) for name in names))


def part(name: str, start: int, stop: int | None = None) -> Free:
    return Free((Part(name, start, stop),))


SIX = extend("A", 6)  # pages 1 and 2 of four, two slots of the second


# -- growing -------------------------------------------------------------------------------------------


def test_extend_says_which_pages_are_new_and_which_grow() -> None:
    step = last(SIX, Extend((Grow("B", 3), Grow("A", 3), Grow("C", 0))))
    assert (step.status, step.fits, step.tokens, step.after.free) == ("legal", True, 6, 0)
    assert step.fresh == ((3, 0, 3), (4, 5, 1))
    assert step.grown == ((2, 2, 3, 2),)
    assert set(step.after.requests) == {"A", "B"}


def test_extend_that_needs_one_page_too_many_changes_nothing() -> None:
    step = last(SIX, Extend((Grow("B", 8), Grow("A", 3))))
    assert (step.status, step.fits, step.fresh) == ("legal", False, ())
    assert step.after == step.before


def test_prefix_hit_starts_behind_whole_pages_of_another() -> None:
    step = last(SIX, extend("B", 2, prefix="A"))
    assert batch(step) == BatchCall((4,), (6,), ((1, 3),), decode=False)
    assert step.fresh == ((3, 0, 2),)
    third = last(SIX, extend("B", 2, prefix="A"), extend("C", 1, prefix="B"))
    assert batch(third).last == ((1, 3),)


def test_two_requests_share_a_last_location_that_may_be_dead() -> None:
    operations = SIX, extend("B", 4, prefix="A"), free("A"), extend("C", 1, prefix="B")
    assert batch(last(*operations)).last == ((3, 3),)
    assert last(SIX, extend("B", 4, prefix="A"), free("A")).after.requests["B"].last == (1, 3)


def test_prefix_of_less_than_a_page_or_of_nobody_is_none() -> None:
    assert batch(last(extend("A", 3), extend("B", 1, prefix="A"))).prefix == (0,)
    assert batch(last(extend("B", 1, prefix="X"))).last == ((0, -1),)


def test_cut_inside_a_page_and_regrown_gives_the_same_slots() -> None:
    steps = steps_of(SIX, Cut("A", 1), Decode(("A",)))
    assert steps[1].call is None
    assert steps[1].after.free == 2
    assert steps[2].grown == ((2, 1, 0, 1),)
    assert batch(steps[2]).last == ((2, 0),)


def test_cut_across_a_page_frees_what_holds_none_of_the_rest() -> None:
    step = last(SIX, Cut("A", 3))
    assert step.call == FreeCall(((2, 0, 2),))
    assert step.back == (2,)
    assert step.after.requests["A"].length == 3
    assert last(SIX, Cut("A", 99)).after.requests == {}


def test_pools_of_single_slots_do_not_extend_except_paged_ones() -> None:
    statuses = [
        last(Decode(("A",)), config=config).status
        for config in (Config("token", 2), Config("swa", 2, 1, 2), Config("paged", 2, 1))
    ]
    assert statuses == ["skip", "skip", "legal"]


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_request_named_twice(tokens: int) -> None:
    grow = Grow("A", tokens)
    inside = last(SIX, Extend((grow, grow)))
    assert (inside.status, inside.rule) == (("misuse", "one owner") if tokens else ("legal", ""))
    assert last(extend("A", 4), Extend((grow, grow))).status == ("skip" if tokens else "legal")
    # A row that does not grow owns nothing in its batch.
    assert last(SIX, Extend((Grow("A", 0), grow))).status == "legal"


def test_alloc_appends_at_a_page_end_only() -> None:
    assert last(Alloc("A", 4), Alloc("A", 8)).after.requests["A"].length == 12
    assert last(SIX, Alloc("A", 4)).status == "skip"
    assert last(Alloc("A", 0)).after == last(Alloc("A", 0)).before


@pytest.mark.parametrize("size", [-1, -4])
def test_negative_size_is_misuse(size: int) -> None:
    assert last(Alloc("A", size)).rule == "negative"


def test_unaligned_size_is_misuse() -> None:
    assert last(Alloc("A", 6)).rule == "unaligned"


# -- freeing -------------------------------------------------------------------------------------------


def test_free_gives_back_whole_pages_and_ends_the_request() -> None:
    step = last(SIX, free("A"))
    assert step.call == FreeCall(((1, 0, 4), (2, 0, 2)))
    assert (step.back, step.after.free, step.after.requests) == ((1, 2), 4, {})


def test_freeing_a_tail_of_whole_pages_shortens_the_request() -> None:
    step = last(SIX, part("A", 4))
    assert (step.status, step.back, step.after.requests["A"].length) == ("legal", (2,), 4)


def test_freeing_a_head_leaves_a_hole() -> None:
    steps = steps_of(SIX, part("A", 0, 4), Decode(("A",)), free("A"))
    assert steps[1].after.requests["A"].pages == (0, 2)
    assert steps[2].grown == ((2, 2, 0, 1),)
    assert steps[3].call == FreeCall(((2, 0, 3),))


def test_the_head_of_a_page_freed_alone_counts_as_a_cut() -> None:
    step = last(extend("A", 4), part("A", 0, 2))
    assert (step.status, step.back, step.after.free) == ("legal", (1,), 4)
    assert last(extend("A", 4), part("A", 0, 2), free("A")).status == "skip"


@pytest.mark.parametrize(("start", "stop"), [(1, None), (2, None), (1, 3), (5, None)])
def test_a_part_above_a_live_slot_is_misuse(start: int, stop: int | None) -> None:
    step = last(SIX, part("A", start, stop))
    assert (step.status, step.rule) == ("misuse", "part of a page")
    assert step.after == step.before


def test_the_same_part_twice_in_one_free_is_misuse() -> None:
    assert last(SIX, free("A", "A")).rule == "twice"
    assert last(SIX, Free((Part("A", 0, 2), Part("A", 1)))).rule == "twice"


def test_a_free_of_nothing_is_legal_and_of_nobody_meaningless() -> None:
    assert last(Free(())).status == "legal"
    assert last(free("A")).status == "skip"
    assert last(SIX, free("A", "X")).back == (1, 2)


@pytest.mark.parametrize(
    ("flaw", "rule"),
    [("padding", "padding"), ("foreign", "foreign"), ("negative", "foreign")],
)
def test_frees_of_what_was_never_given(flaw: str, rule: str) -> None:
    assert last(Free((), flaw)).rule == rule


def test_a_free_by_indices_of_another_type_names_live_slots() -> None:
    step = last(SIX, Free((Part("A"),), "dtype"))
    assert (step.rule, len(freed(step))) == ("dtype", 6)
    assert last(SIX, Free((Part("B"),), "dtype")).status == "skip"


def test_double_free_is_misuse_until_a_page_is_handed_out_then_meaningless() -> None:
    again = Free((Part("A"),), "again")
    assert last(SIX, free("A"), again).rule == "twice"
    assert freed(last(SIX, free("A"), again)) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
    assert last(SIX, free("A"), extend("B", 1), again).status == "skip"
    assert last(SIX, extend("B", 1), free("A"), Decode(("B",)), again).rule == "twice"
    assert last(SIX, again).status == "skip"
    assert last(SIX, free("A"), Clear(), again).status == "skip"


def test_a_page_freed_by_its_head_is_a_ghost_whole() -> None:
    step = last(extend("A", 4), part("A", 0, 2), Free((Part("A", 2),), "again"))
    assert (step.rule, freed(step)) == ("twice", [(1, 2), (1, 3)])


# -- groups --------------------------------------------------------------------------------------------


def test_frees_in_a_group_count_at_its_end() -> None:
    steps = steps_of(SIX, GroupBegin(), free("A"), extend("B", 12), GroupEnd(), extend("B", 12))
    assert [s.after.free for s in steps] == [2, 2, 2, 2, 4, 1]
    assert [s.fits for s in steps] == [True, True, True, False, True, True]
    assert steps[4].back == (1, 2)


def test_parts_of_a_page_in_any_order_within_a_group() -> None:
    steps = steps_of(SIX, GroupBegin(), part("A", 2), part("A", 0, 2), GroupEnd())
    assert [s.status for s in steps] == ["legal"] * 5
    assert steps[2].after.group == Group((2,), {1: 0b1100})
    assert steps[3].after.group == Group((2, 1))
    assert steps[4].after.free == 4


def test_a_group_that_leaves_a_live_slot_below_is_misuse_at_its_end() -> None:
    step = last(SIX, GroupBegin(), part("A", 2, 4), GroupEnd())
    assert (step.status, step.rule) == ("misuse", "part of a page")
    head = last(SIX, GroupBegin(), part("A", 0, 2), GroupEnd())
    assert (head.status, head.back, head.after.requests["A"].pages) == ("legal", (1,), (0, 2))


def test_a_pending_part_is_not_freed_again_by_its_name_but_as_a_ghost() -> None:
    operations = SIX, GroupBegin(), part("A", 0, 2), free("A")
    assert freed(last(*operations)) == [(1, 2), (1, 3), (2, 0), (2, 1)]
    assert last(SIX, GroupBegin(), part("A", 0, 2), Free((Part("A"),), "again")).rule == "twice"


def test_growth_in_a_page_that_is_partly_pending_is_meaningless() -> None:
    assert last(SIX, GroupBegin(), part("A", 4, 5), Decode(("A",))).status == "skip"
    assert last(SIX, GroupBegin(), part("A", 0, 1), Decode(("A",))).status == "legal"
    assert last(SIX, GroupBegin(), part("A", 0, 1), Cut("A", 1)).status == "skip"


def test_nested_begin_is_misuse_and_an_end_alone_changes_nothing() -> None:
    assert last(GroupBegin(), GroupBegin()).rule == "nested group"
    assert last(GroupEnd()).after == last(GroupEnd()).before
    assert last(GroupEnd()).status == "legal"


# -- snapshots and clear -------------------------------------------------------------------------------


def test_restore_brings_back_the_freed_and_voids_the_later() -> None:
    steps = steps_of(SIX, Backup("S"), free("A"), extend("B", 1), Restore("S"), Decode(("A", "B")))
    assert set(steps[4].after.requests) == {"A"}
    assert steps[4].after.free == 2
    assert steps[5].grown == ((2, 2, 0, 1),)
    assert steps[5].fresh == ((4, 1, 1),)  # uid 3 was the later B's, and is never given again


def test_restore_brings_back_an_open_group_and_a_length_more_than_once() -> None:
    operations: tuple[Operation, ...] = (SIX, extend("B", 1), GroupBegin(), part("B", 0), Backup("S"))
    once = (*operations, GroupEnd(), extend("A", 5), Restore("S"))
    assert last(*once).after.group == Group((3,))
    assert last(*once).after.requests["A"].length == 6
    assert last(*once, Clear(), Restore("S")).after.group == Group((3,))
    assert last(*once, GroupEnd()).after.free == 2


def test_restore_closes_a_later_group_and_clear_voids_handles_not_snapshots() -> None:
    assert last(SIX, Backup("S"), GroupBegin(), free("A"), Restore("S")).after.group is None
    cleared = last(SIX, Backup("S"), GroupBegin(), free("A"), Clear()).after
    assert (cleared.free, cleared.requests, cleared.group, set(cleared.snapshots)) == (4, {}, None, {"S"})
    assert last(Restore("S")).status == "skip"


def test_copies_go_back_into_as_many_tokens() -> None:
    config = replace(PAGED, data=True)
    copied = SIX, CopyOut("A"), free("A")
    assert last(*copied, SIX, CopyIn("A"), config=config).status == "legal"
    assert last(*copied, extend("A", 5), CopyIn("A"), config=config).status == "skip"
    assert last(SIX, CopyOut("A")).status == "skip"


# -- sliding window ------------------------------------------------------------------------------------


def test_swa_fit_is_decided_in_both_pools() -> None:
    step = last(Alloc("A", 8), Alloc("B", 4), config=SWA)
    assert (step.fits, step.before.free, step.before.swa_free) == (False, 2, 0)
    given_up = last(Alloc("A", 8), FreeSwa((Part("A"),)), Alloc("B", 8), config=SWA)
    assert (given_up.fits, given_up.after.free, given_up.after.swa_free) == (True, 0, 0)


def test_free_swa_of_one_token_gives_up_the_page_once() -> None:
    one = FreeSwa((Part("A", 1, 2),))
    steps = steps_of(SIX, one, one, FreeSwa((Part("A"),)), free("A"), config=SWA)
    assert [s.after.swa_free for s in steps] == [0, 1, 1, 2, 2]
    assert steps[4].after.free == 4
    assert steps[4].after.gone == frozenset()


def test_free_swa_in_a_group_counts_at_its_end_unless_claimed_at_once() -> None:
    operations = SIX, GroupBegin(), FreeSwa((Part("A"),)), GroupEnd()
    assert [s.after.swa_free for s in steps_of(*operations, config=SWA)] == [0, 0, 0, 2]
    now = replace(TRAITS, swa_now=True)
    assert [s.after.swa_free for s in steps_of(*operations, config=SWA, traits=now)] == [0, 0, 2, 2]
    both = SIX, GroupBegin(), FreeSwa((Part("A"),)), free("A"), GroupEnd()
    assert last(*both, config=SWA).after[:2] == (4, 2)


@pytest.mark.parametrize("group", [(), (GroupBegin(),)])
def test_growth_in_a_page_whose_window_is_gone_is_misuse(group: tuple[Operation, ...]) -> None:
    assert last(SIX, *group, FreeSwa((Part("A", 5),)), Decode(("A",)), config=SWA).rule == "swa gone"
    assert last(SIX, *group, FreeSwa((Part("A", 0, 4),)), Decode(("A",)), config=SWA).status == "legal"


def test_restore_brings_back_the_window() -> None:
    operations = SIX, Backup("S"), FreeSwa((Part("A"),)), Restore("S")
    assert (last(*operations, config=SWA).after.swa_free, last(*operations, config=SWA).after.gone) == (
        0,
        frozenset(),
    )


# -- generated cases -----------------------------------------------------------------------------------


def generated(part: str, count: int, level: str = "hardened") -> list[Case]:
    subject = own(part, engine="" if part == "token" else "torch")
    return [
        generate(SeededSource(f"{part} {seed}"), subject.space, subject.traits, level)
        for seed in range(count)
    ]


@pytest.mark.parametrize("name", OWN)
def test_every_subsequence_of_a_case_is_a_case(name: str) -> None:
    rng = random.Random(name)
    for case in generated(name, 50):
        for share in (1.0, 0.9, 0.5):
            kept = tuple(operation for operation in case.operations if rng.random() < share)
            for step in plan(Case(case.config, kept), TRAITS):
                for free_pages, capacity in (
                    (step.after.free, case.config.pages),
                    (step.after.swa_free, case.config.swa_pages),
                ):
                    assert 0 <= free_pages <= capacity
                assert step.status in ("legal", "misuse", "skip")
                assert (step.rule in RULES) == (step.status == "misuse")
                held = {uid for r in step.after.requests.values() for uid in r.pages if uid}
                held |= set(step.after.group.pages) if step.after.group else set()
                assert len(held) + step.after.free == case.config.pages
                assert all(r.pages and r.pages[-1] for r in step.after.requests.values())


def test_generated_cases_reach_the_rules() -> None:
    seen = {step.rule for name in OWN for case in generated(name, 100) for step in plan(case, TRAITS)}
    for name in OWN:
        subject = own(name)
        for number in range(2 * len(KINDS_OF_MISUSE)):
            source = SeededSource(f"{name} {number}")
            _, steps = generate_misuse(number, source, subject.space, subject.traits, "hardened")
            seen.update(step.rule for step in steps)
    assert seen - {""} == RULES.keys()
