from __future__ import annotations

import random
from typing import Any

import pytest

from impl.subject import OWN, own
from oracle.batch import Batch, answer, explain_difference
from oracle.ops import Config
from oracle.plan import plan
from oracle.reference import Pool, Reference, SwaReference, ceil_div, reference_for
from oracle.traits import SEED_PAGED, SEED_TOKEN, Dialect, Traits
from oracle.world import AllocCall, BatchCall, FreeCall, StateCall
from properties.cases import generate
from properties.sources import SeededSource

TRAITS = Traits(dialect=SEED_PAGED)


def token(pages: int, need_sort: bool = False) -> Reference:
    return Reference(Config("token", pages, need_sort=need_sort), SEED_TOKEN)


def paged(pages: int, size: int = 4, need_sort: bool = False, dialect: Dialect = SEED_PAGED) -> Reference:
    return Reference(Config("paged", pages, size, need_sort=need_sort), dialect)


def swa(pages: int, window: int, size: int = 1, need_sort: bool = False) -> SwaReference:
    dialect = SEED_TOKEN if size == 1 else SEED_PAGED
    return SwaReference(Config("swa", pages, size, window, need_sort), dialect)


# -- one pool ------------------------------------------------------------------------------------------


def test_token_is_first_in_first_out() -> None:
    pool = token(5)
    assert pool.alloc(3) == [1, 2, 3]
    pool.free([3, 1])
    assert pool.lists() == ([4, 5, 3, 1], [])
    assert pool.alloc(3) == [4, 5, 3]
    assert pool.alloc(2) is None
    assert pool.lists() == ([1], [])


def test_token_with_need_sort_stages_at_the_end_and_merges_when_short() -> None:
    pool = token(4, need_sort=True)
    assert pool.alloc(3) == [1, 2, 3]
    pool.free([3])
    pool.free([2, 1])
    assert pool.lists() == ([4], [3, 2, 1])
    assert pool.alloc(1) == [4]
    assert pool.lists() == ([], [3, 2, 1])
    assert pool.alloc(2) == [1, 2]
    assert pool.lists() == ([3], [])


def test_paged_puts_sorted_distinct_pages_before_the_free_list() -> None:
    pool = paged(4)
    assert pool.alloc(12) == list(range(4, 16))
    pool.free([12, 13, 4, 5, 14])
    assert pool.lists() == ([1, 3, 4], [])
    pool.free([8])
    assert pool.lists() == ([2, 1, 3, 4], [])
    assert pool.alloc(8) == [8, 9, 10, 11, 4, 5, 6, 7]


def test_paged_with_need_sort_puts_them_before_the_release_list() -> None:
    pool = paged(3, need_sort=True)
    pool.alloc(12)
    pool.free([4])
    pool.free([12, 8])
    assert pool.lists() == ([], [2, 3, 1])
    pool.merge()
    assert pool.lists() == ([1, 2, 3], [])


def test_a_merge_without_staged_pages_sorts_nothing() -> None:
    pool = paged(3, need_sort=True)
    pool.pool.free_list = [3, 1]
    assert pool.alloc(12) is None
    pool.merge()
    assert pool.lists() == ([3, 1], [])


def staged(free: list[int], released: list[int], dialect: Dialect = SEED_PAGED) -> Reference:
    pool = paged(9, need_sort=True, dialect=dialect)
    pool.pool.free_list, pool.pool.release_list = free, released
    return pool


@pytest.mark.parametrize(("size", "merged"), [(4, False), (8, True)])
def test_alloc_merges_when_its_exact_need_exceeds_the_free_list(size: int, merged: bool) -> None:
    pool = staged([7], [2])
    pool.alloc(size)
    assert (pool.lists()[1] == []) == merged


def test_extend_merges_by_its_bound_over_the_whole_batch() -> None:
    pool = staged([7, 3, 9], [2])
    # 5 new tokens of 2 requests: 2 * ceil(5 / 4) = 4 pages at most, and 2 in fact
    assert pool.extend([0, 0], [4, 1], [-1, -1]) == [8, 9, 10, 11, 12]
    assert pool.lists() == ([7, 9], [])
    pool = staged([7, 3, 9, 1], [2])
    assert pool.extend([0, 0], [4, 1], [-1, -1]) == [28, 29, 30, 31, 12]
    assert pool.lists() == ([9, 1], [2])


def test_decode_merges_by_batch_size() -> None:
    pool = staged([7], [2])
    assert pool.extend([5, 4], [6, 5], [20, 19], decode=True) == [21, 8]
    pool = staged([7, 3], [2])
    assert pool.extend([5, 4], [6, 5], [20, 19], decode=True) == [21, 28]
    assert pool.lists() == ([3], [2])


@pytest.mark.parametrize(
    ("rule", "decode", "first_merging"),
    # 5 new tokens of two requests, 2 pages in fact; a decode of two, 1 page in fact
    [
        *(("bound", False, 4), ("exact", False, 2), ("loose", False, 4), ("always", False, 9)),
        *(("bound", True, 2), ("exact", True, 1), ("loose", True, 3), ("always", True, 9)),
    ],
)
def test_dialects_differ_in_the_demand_that_merges(rule: str, decode: bool, first_merging: int) -> None:
    dialect = Dialect("other", front=True, staged_front=True, merge_extend=rule, merge_decode=rule)
    batch = ([5, 4], [6, 5], [20, 19]) if decode else ([0, 0], [4, 1], [-1, -1])
    for free in range(1, 8):
        pool = staged(list(range(2, 2 + free)), [1], dialect)
        assert pool.extend(*batch, decode=decode) is not None
        assert (pool.lists()[1] == []) == (free < first_merging)


def test_dialects_differ_in_where_freed_pages_go() -> None:
    staged_behind = Dialect("staged behind", front=True, staged_front=False)
    pool = staged([9], [4], staged_behind)
    pool.free([12, 8])
    assert pool.lists() == ([9], [4, 2, 3])
    pool = paged(3, dialect=Dialect("always sorts", front=True, staged_front=True, always_sorts=True))
    pool.alloc(8)
    pool.free([4])
    assert pool.lists() == ([3], [1])
    assert pool.alloc(8) == [4, 5, 6, 7, 12, 13, 14, 15]


def test_a_merge_before_a_refusal_keeps_every_page() -> None:
    pool = staged([7], [2])
    assert pool.alloc(12) is None
    assert pool.lists() == ([2, 7], [])


def test_extend_inside_a_page_does_not_write_over_its_neighbour() -> None:  # F01
    assert paged(3).extend([0, 5], [4, 7], [-1, 20]) == [4, 5, 6, 7, 21, 22]
    assert paged(3).extend([5], [7], [20]) == [21, 22]


def test_extend_has_three_parts() -> None:
    pool = paged(5)
    assert pool.extend([3], [14], [30]) == [31, *range(4, 12), 12, 13]
    assert pool.extend([4, 2], [5, 4], [99, 33]) == [16, 34, 35]
    assert pool.lists() == ([5], [])


def test_exact_fit_and_one_page_short() -> None:  # F24, F25
    pool = paged(1)
    assert pool.extend([4, 5], [5, 6], [35, 40], decode=True) == [4, 41]
    assert pool.extend([4], [5], [35], decode=True) is None
    assert pool.extend([5], [6], [40], decode=True) == [41]


@pytest.mark.parametrize("need_sort", [False, True])
def test_nothing_asked_is_nothing_given_also_on_an_empty_pool(need_sort: bool) -> None:
    pool = paged(1, need_sort=need_sort)
    for _ in range(2):
        assert pool.alloc(0) == pool.extend([], [], []) == pool.extend([], [], [], decode=True) == []
        assert pool.extend([5], [5], [20]) == []
        pool.free([])
        pool.alloc(4)


def test_a_group_is_one_free_at_its_end() -> None:
    pool = paged(4)
    pool.alloc(16)
    pool.group_begin()
    pool.free([12])
    pool.free([4, 13, 8])
    assert (pool.available(), pool.alloc(4)) == (0, None)
    pool.group_end()
    assert pool.lists() == ([1, 2, 3], [])
    pool.group_end()
    assert pool.available() == 12


def test_clear_in_a_group_closes_it() -> None:
    pool = paged(2, need_sort=True)
    pool.alloc(8)
    pool.free([8])
    pool.group_begin()
    pool.free([4])
    pool.clear()
    assert pool.lists() == ([1, 2], [])
    pool.alloc(4)
    pool.free([4])
    assert pool.lists() == ([2], [1])


def test_restore_brings_back_order_and_open_group_more_than_once() -> None:
    pool = paged(4, need_sort=True)
    pool.alloc(12)
    pool.free([8])
    pool.group_begin()
    pool.free([4])
    state = pool.backup()
    for _ in range(2):
        pool.free([12])
        pool.group_end()
        pool.alloc(16)
        pool.restore(state)
        assert pool.lists() == ([4], [2])
    pool.group_end()
    assert pool.lists() == ([4], [1, 2])


def test_answers_are_the_callers() -> None:
    pool = token(3)
    answer = pool.alloc(2)
    assert answer is not None
    answer.clear()
    pool.free([2, 1])
    assert pool.alloc(3) == [3, 2, 1]


# -- two pools -----------------------------------------------------------------------------------------


def test_swa_takes_from_both_in_step_and_none_where_either_is_short() -> None:
    pool = swa(5, 3)
    assert pool.alloc(2) == [1, 2]
    assert pool.alloc(2) is None
    assert pool.lists() == ([3, 4, 5], [], [3], [])
    assert pool.available() == 1
    assert pool.mapping == {1: 1, 2: 2}


def test_swa_free_swa_then_free() -> None:
    pool = swa(4, 3)
    pool.alloc(3)
    pool.free([2, 1], swa_alone=True)
    assert pool.lists() == ([4], [], [2, 1], [])
    assert pool.mapping == {3: 3}
    pool.free([2], swa_alone=True)
    pool.free([1, 2, 3])
    assert pool.lists() == ([4, 1, 2, 3], [], [2, 1, 3], [])
    assert pool.alloc(2) == [4, 1]
    assert pool.mapping == {4: 2, 1: 1}


def test_swa_free_swa_of_one_token_gives_up_its_page() -> None:
    pool = swa(3, 2, size=4)
    assert pool.extend([0], [6], [-1]) == [4, 5, 6, 7, 8, 9]
    pool.free([5], swa_alone=True)
    assert pool.lists() == ([3], [], [1], [])
    assert pool.mapping == {8: 8, 9: 9}
    assert pool.extend([6], [7], [9], decode=True) == [10]
    assert pool.mapping[10] == 10
    pool.free([4, 5, 6, 7, 8, 9, 10])
    assert pool.lists() == ([1, 2, 3], [], [2, 1], [])


def test_swa_group_restore_and_clear() -> None:
    pool = swa(3, 2, need_sort=True)
    pool.alloc(2)
    pool.group_begin()
    pool.free([1], swa_alone=True)
    pool.free([1])
    state = pool.backup()
    pool.group_end()
    assert pool.lists() == ([3], [1], [], [1])
    pool.restore(state)
    assert pool.lists() == ([3], [], [], [])
    assert pool.mapping == {1: 1, 2: 2}
    pool.group_end()
    assert pool.lists() == ([3], [1], [], [1])
    pool.merge()
    assert pool.lists() == ([1, 3], [], [1], [])
    pool.clear()
    assert (pool.lists(), pool.mapping) == (([1, 2, 3], [], [1, 2], []), {})


# -- against another formulation -----------------------------------------------------------------------


def slot_by_slot(prefix: list[int], seq: list[int], last: list[int], free: list[int], size: int) -> list[int]:
    """Every token alone: the slot behind the one before it, or a new page's first."""
    slots, pages = [], iter(free)
    for p, s, slot in zip(prefix, seq, last, strict=True):
        for k in range(p, s):
            slot = slot + 1 if k % size else next(pages) * size
            slots.append(slot)
    return slots


def random_batch(rng: random.Random) -> Batch:
    size, decode = rng.choice((1, 2, 3, 4, 16)), rng.random() < 0.3
    prefix = [
        rng.choice((0, rng.randrange(4 * size), size * rng.randrange(4))) for _ in range(rng.randrange(6))
    ]
    seq = [p + (1 if decode else rng.choice((0, 1, rng.randrange(4 * size)))) for p in prefix]
    last = [(100 + i) * size + (p - 1) % size if p else -1 for i, p in enumerate(prefix)]
    need = sum(ceil_div(s, size) - ceil_div(p, size) for p, s in zip(prefix, seq, strict=True))
    free = rng.sample(range(1, 90), need + rng.randrange(2))
    return Batch(size, tuple(prefix), tuple(seq), tuple(last), tuple(free), decode)


def test_reference_is_the_rule_slot_by_slot() -> None:
    rng = random.Random(7)
    for _ in range(2000):
        batch = random_batch(rng)
        right = slot_by_slot([*batch.prefix], [*batch.seq], [*batch.last], [*batch.free], batch.page_size)
        assert answer(batch) == right
        assert len(right) == batch.total
        pool = Pool(0, batch.page_size, False, SEED_PAGED)
        pool.free_list = list(batch.free[: max(batch.need - 1, 0)])
        if batch.need:
            assert pool.extend([*batch.prefix], [*batch.seq], [*batch.last], batch.decode) is None
            assert pool.free_list == list(batch.free[: batch.need - 1])


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (0, "request 0's token 3 (in its old page) is 0, and 39 is right"),
        (1, "request 0's token 4 (in a new full page) is 0, and 28 is right"),
        (5, "request 0's token 8 (in its last new page) is 0, and 12 is right"),
        (8, "request 2's token 6 (in its old page) is 0, and 42 is right"),
    ],
)
def test_a_difference_is_explained(place: int, sentence: str) -> None:
    batch = Batch(4, (3, 4, 5), (9, 5, 7), (38, 55, 40), (7, 3, 2), False)
    got = answer(batch)
    assert got == [39, 28, 29, 30, 31, 12, 8, 41, 42]
    got[place] = 0
    assert explain_difference(batch, got) == sentence


def test_no_difference_and_a_wrong_length() -> None:
    batch = Batch(4, (0, 5), (4, 7), (-1, 20), (1, 2, 3), False)
    assert explain_difference(batch, [4, 5, 6, 7, 21, 22]) is None
    assert explain_difference(batch, [4, 5, 6, 7, 21]) == "the answer has 5 slot(s), and 6 is right"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, (), (), (), ()), "at least one slot"),
        ((4, (0,), (1, 2), (-1,), (1,)), "equally long"),
        ((4, (2,), (1,), (5,), (1,)), "request 0 goes from 2 to 1 tokens"),
        ((4, (0, 4), (1, 6), (-1, 7), (1, 2), True), "request 1 goes from 4 to 6 tokens in a decode"),
        ((4, (2,), (3,), (6,), ()), "request 0 has 2 tokens, and its last one can't be at slot 6"),
        ((4, (0,), (5,), (-1,), (1,)), r"needs 2 page\(s\), and 1 are free"),
    ],
)
def test_an_impossible_batch_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batch(*fields)


# -- against the ledger --------------------------------------------------------------------------------


def generated(part: str, count: int) -> Any:
    subject = own(part, engine="" if part == "token" else "torch")
    for seed in range(count):
        yield generate(SeededSource(f"{part} {seed}"), subject.space, subject.traits, "hardened")


@pytest.mark.parametrize("name", OWN)
def test_ledger_and_reference_agree_on_what_fits_and_on_counts(name: str) -> None:
    for case in generated(name, 100):
        config, first = case.config, {0: 0}
        reference, states = reference_for(config, SEED_PAGED), {}
        for step in plan(case, TRAITS):
            if step.status != "legal":
                continue
            answer = None
            match step.call:
                case AllocCall(size):
                    answer = reference.alloc(size)
                case BatchCall(prefix, seq, last_slots, decode):
                    numbers = [first[uid] + k for uid, k in last_slots]
                    answer = reference.extend(list(prefix), list(seq), numbers, decode)
                case FreeCall(runs, swa):
                    slots = [first[uid] + k for uid, low, high in runs for k in range(low, high)]
                    reference.free(slots, *([True] if swa else []))
                case StateCall("backup_state", snapshot):
                    states[snapshot] = reference.backup()
                case StateCall("restore_state", snapshot):
                    reference.restore(states[snapshot])
                case StateCall(method):
                    getattr(
                        reference, {"merge_and_sort_free": "merge"}.get(method, method.removeprefix("free_"))
                    )()
            if isinstance(step.call, AllocCall | BatchCall):
                assert (answer is not None) == step.fits
                assert len(answer or ()) == (step.tokens if step.fits else 0)
                for uid, place, count in step.fresh:
                    assert answer is not None
                    first[uid] = answer[place]
                    assert answer[place : place + count] == list(range(first[uid], first[uid] + count))
                for uid, offset, place, count in step.grown:
                    assert answer is not None
                    assert answer[place] == first[uid] + offset
                    assert answer[place + count - 1] == first[uid] + offset + count - 1
            counts = [step.after.free, step.after.swa_free] if config.swa_pages else [step.after.free]
            lists = reference.lists()
            assert [len(lists[i]) + len(lists[i + 1]) for i in range(0, len(lists), 2)] == counts
