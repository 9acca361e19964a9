"""Do the production allocators do what SPEC.md says? Expectations by hand, and the engines compared."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from impl.ascend import AscendAllocator
from impl.base import MOST_PAGE
from impl.kvpool import KVPool, SwaKVPool
from impl.paged import PagedAllocator, default_engine
from impl.seed_form import SeedForm
from impl.swa import SwaAllocator
from impl.token import TokenAllocator
from impl.torch_engine import TorchEngine
from tests.kernel_engines import emulated_engine, triton_engine


@pytest.fixture(params=[TorchEngine, triton_engine, emulated_engine])
def engine(request):
    return request.param()


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def token(size=4, need_sort=False, debug=False, kvcache=None):
    return TokenAllocator(size, torch.float16, "cpu", kvcache, need_sort, debug=debug)


def paged(pages=3, page_size=4, need_sort=False, debug=False, engine=None, cls=PagedAllocator, kvcache=None):
    size = pages * page_size
    return cls(size, page_size, torch.float16, "cpu", kvcache, need_sort, engine=engine, debug=debug)


def swa(pages=4, swa_pages=4, page_size=1, need_sort=False, debug=False, engine=None, kvcache=None):
    sizes = (pages * page_size, swa_pages * page_size)
    return SwaAllocator(
        *sizes, page_size, torch.float16, "cpu", kvcache, need_sort, engine=engine, debug=debug
    )


def extend(allocator, prefix, seq, last, **kwargs):
    p, s = ints(*prefix), ints(*seq)
    return allocator.alloc_extend(p, p, s, s, ints(*last), sum(seq) - sum(prefix), **kwargs)


def decode(allocator, seq, last):
    return allocator.alloc_decode(ints(*seq), ints(*seq), ints(*last))


def state(allocator):
    if isinstance(allocator, SwaAllocator):
        pools = (state(allocator.full_attn_allocator), state(allocator.swa_attn_allocator))
        return *pools, allocator.full_to_swa_index_mapping.tolist(), groups(allocator)
    return allocator.free_pages.tolist(), allocator.release_pages.tolist(), groups(allocator)


def groups(allocator):
    return None if allocator._group is None else [(x.slots.tolist(), x.full) for x in allocator._group]


def refused(allocator, call, error=ValueError):
    before = state(allocator)
    with pytest.raises(error, match=r"\.$"):
        call()
    assert state(allocator) == before


EVERY = [
    pytest.param(token, id="token"),
    pytest.param(paged, id="paged"),
    pytest.param(lambda **k: paged(cls=AscendAllocator, **k), id="ascend"),
    pytest.param(swa, id="swa"),
    pytest.param(lambda **k: swa(page_size=2, **k), id="swa-pages"),
]
every = pytest.mark.parametrize("make", EVERY)


# Engines


def slots_of_extend(prefix, seq, last, free, page_size):
    slots, free = [], list(free)
    for p, s, slot in zip(prefix, seq, last, strict=True):
        for pos in range(p, s):
            slot = slot + 1 if pos % page_size else free.pop(0) * page_size
            slots.append(slot)
    return slots


def test_f01_extend_inside_one_page_leaves_its_neighbour_alone(engine):
    allocator = paged(pages=6, engine=engine)
    allocator.free_pages = ints(1, 2, 3)
    assert extend(allocator, [0, 5], [4, 7], [-1, 20]).tolist() == [4, 5, 6, 7, 21, 22]
    assert allocator.free_pages.tolist() == [2, 3]


def test_extend_alone_inside_one_page(engine):
    assert extend(paged(pages=6, engine=engine), [5], [7], [20]).tolist() == [21, 22]


@pytest.mark.parametrize("out_dtype", [torch.int32, torch.int64])
def test_engines_agree_with_the_formula_and_stay_inside_their_arguments(engine, out_dtype):
    rng = random.Random(7)
    for _ in range(40 if isinstance(engine, TorchEngine) else 12):
        page_size = rng.choice([1, 2, 3, 5, 8, 17, 64])
        batch = rng.choice([0, 1, 2, 3, 9, 40])
        prefix = [rng.choice([0, 1, page_size, page_size + 1, rng.randrange(99)]) for _ in range(batch)]
        grow = [rng.choice([0, 0, 1, page_size, rng.randrange(3 * page_size)]) for _ in range(batch)]
        seq = [p + g for p, g in zip(prefix, grow, strict=True)]
        last = [(500 + i) * page_size + (p - 1) % page_size for i, p in enumerate(prefix)]
        need = [-(-s // page_size) + (-p // page_size) for p, s in zip(prefix, seq, strict=True)]
        free = rng.sample(range(1, 10_000), sum(need))
        expected = slots_of_extend(prefix, seq, last, free, page_size)
        got = guarded(engine.extend, [prefix, seq, last], free, len(expected), out_dtype, page_size)
        assert got == expected

        seq = [p + 1 for p in prefix]
        need = sum(p % page_size == 0 for p in prefix)
        expected = slots_of_extend(prefix, seq, last, free := rng.sample(range(1, 99), need), page_size)
        assert guarded(engine.decode, [seq, last], free, batch, out_dtype, page_size) == expected


def guarded(call, vectors, free, total, out_dtype, page_size):
    """Call with each argument between guard values at an odd offset; gives the output."""
    vectors = [ints(-(2**40), *v, -(2**40))[1:-1] for v in vectors]
    free = ints(-77, -77, -77, *free, -77, dtype=out_dtype)[3:-1]
    buffer = torch.full((total + 10,), -9, dtype=out_dtype)
    call(*vectors, free, buffer[5 : 5 + total], page_size)
    assert buffer[:5].tolist() == buffer[5 + total :].tolist() == [-9] * 5
    return buffer[5 : 5 + total].tolist()


def test_more_than_one_tile_of_tokens_and_of_requests(engine):
    seq = [700, 0, 900] + [1] * 600
    out = torch.empty(sum(seq), dtype=torch.int64)
    zeros = [0] * len(seq)
    free = list(range(1, 1000))
    engine.extend(ints(*zeros), ints(*seq), ints(*zeros) - 1, ints(*free), out, 16)
    assert out.tolist() == slots_of_extend(zeros, seq, zeros, free, 16)
    out = torch.empty(len(seq), dtype=torch.int64)
    engine.decode(ints(*zeros) + 1, ints(*zeros) - 1, ints(*free), out, 16)
    assert out.tolist() == [16 * page for page in free[: len(seq)]]


def test_f33_slots_past_int32_do_not_wrap(engine):
    page_size = 2**28
    allocator = paged(pages=20, page_size=page_size, engine=engine)
    allocator.free_pages = ints(20)
    assert extend(allocator, [0], [3], [-1]).tolist() == [20 * page_size + k for k in range(3)]
    assert decode(allocator, [4], [20 * page_size + 2]).tolist() == [20 * page_size + 3]


def test_strided_and_narrow_lengths(engine):
    table = torch.tensor([[0, 4, -1], [5, 7, 20]], dtype=torch.int32)
    prefix, seq, last = table.T
    out = torch.empty(6, dtype=torch.int32)
    engine.extend(prefix, seq, last, ints(1), out, 4)
    assert out.tolist() == [4, 5, 6, 7, 21, 22]


def test_torch_engine_is_the_default_without_a_gpu():
    assert isinstance(default_engine("cpu"), TorchEngine)


def test_allocators_work_where_triton_is_not_installed():
    # None in sys.modules makes every import of it fail.
    program = """
import sys
sys.modules["triton"] = None
import torch, impl.ascend, impl.seed_form, impl.swa
allocator = impl.swa.SwaAllocator(8, 8, 4, torch.float16, "cpu", None, False)
assert allocator.alloc_decode(torch.tensor([1]), torch.tensor([1]), torch.tensor([-1])).tolist() == [4]
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], check=True, timeout=120)


# Token and Paged in exact order


def test_token_is_first_in_first_out():
    allocator = token(4)
    assert allocator.alloc(3).tolist() == [1, 2, 3]
    allocator.free(ints(3, 1))
    assert allocator.free_pages.tolist() == [4, 3, 1]
    assert allocator.alloc(3).tolist() == [4, 3, 1]


def test_token_need_sort_merges_only_when_short():
    allocator = token(4, need_sort=True)
    allocator.alloc(3)
    allocator.free(ints(3, 1))
    assert (allocator.free_pages.tolist(), allocator.release_pages.tolist()) == ([4], [3, 1])
    assert allocator.alloc(1).tolist() == [4]
    assert allocator.alloc(1).tolist() == [1]
    assert state(allocator) == ([3], [], None)


def test_token_does_not_extend():
    with pytest.raises(NotImplementedError):
        extend(token(), [0], [1], [-1])
    with pytest.raises(NotImplementedError):
        decode(token(), [1], [-1])


def test_paged_free_puts_sorted_distinct_pages_first():
    allocator = paged(pages=5)
    slots = allocator.alloc(12)
    allocator.free(torch.cat((slots[8:], slots[:4])))
    assert allocator.free_pages.tolist() == [1, 3, 4, 5]


def test_paged_need_sort_puts_them_before_the_release_list():
    allocator = paged(pages=4, need_sort=True)
    slots = allocator.alloc(12)
    allocator.free(slots[:4])
    allocator.free(slots[8:])
    assert (allocator.free_pages.tolist(), allocator.release_pages.tolist()) == ([4], [3, 1])


def test_extend_merges_by_its_bound_and_decode_by_its_batch():
    allocator = paged(pages=4, need_sort=True)
    allocator.free(allocator.alloc(8))  # lists 3, 4 and 1, 2
    assert extend(allocator, [0], [8], [-1]).tolist() == [*range(12, 20)]
    allocator.clear()
    allocator.free(allocator.alloc(8))
    # Two requests that need a page each; the bound is 2 * ceil(5 / 4) = 4 pages, so the lists merge first.
    assert extend(allocator, [0, 0], [4, 1], [-1, -1]).tolist() == [4, 5, 6, 7, 8]
    allocator.clear()
    slots = allocator.alloc(12)
    allocator.free(slots[:8])
    # Neither request needs more than page 4, but the batch is larger than the free list.
    assert decode(allocator, [1, 3], [-1, 13]).tolist() == [4, 14]
    assert allocator.free_pages.tolist() == [2, 4]


def test_merge_leaves_the_order_alone_when_nothing_is_released():
    allocator = token(3, need_sort=True)
    allocator.free_pages = ints(3, 1, 2)
    assert allocator.alloc(4) is None
    allocator.merge_and_sort_free()
    assert allocator.free_pages.tolist() == [3, 1, 2]


def test_exact_fit_then_exhaustion_changes_nothing(engine):
    allocator = paged(pages=2, page_size=3, engine=engine)
    assert extend(allocator, [0, 0], [3, 2], [-1, -1]).tolist() == [3, 4, 5, 6, 7]
    before = state(allocator)
    assert allocator.alloc(3) is None
    assert extend(allocator, [0], [1], [-1]) is None
    assert decode(allocator, [4], [5]) is None
    assert state(allocator) == before
    assert decode(allocator, [3], [7]).tolist() == [8]


def test_f25_exact_fit_where_only_the_first_needs_a_page(engine):
    allocator = paged(pages=3, engine=engine)
    allocator.alloc(8)
    assert decode(allocator, [5, 6], [7, 8]).tolist() == [12, 9]
    assert decode(allocator, [6, 7], [12, 9]).tolist() == [13, 10]
    assert decode(allocator, [5], [7]) is None


def test_nothing_asked_is_nothing_given_on_a_full_and_on_an_empty_pool(engine):
    allocator = paged(engine=engine)
    for _ in range(2):
        before = state(allocator)
        for got in (
            allocator.alloc(0),
            extend(allocator, [], [], []),
            decode(allocator, [], []),
            extend(allocator, [5, 0], [5, 0], [8, -1]),
        ):
            assert got.tolist() == []
            assert got.dtype == torch.int64
        assert state(allocator) == before
        allocator.alloc(12)


@pytest.mark.parametrize("last", [-1, 3, -5])
def test_any_last_location_at_a_page_end_stands_for_none(engine, last):
    assert extend(paged(engine=engine, debug=True), [0], [2], [last]).tolist() == [4, 5]


def test_remainder_of_size_is_never_handed_out():
    allocator = PagedAllocator(11, 4, torch.float16, "cpu", None, False)
    assert (allocator.size, allocator.num_pages, allocator.available_size()) == (11, 2, 8)
    assert allocator.alloc(8).tolist() == [*range(4, 12)]
    assert allocator.alloc(4) is None


def test_estimate_is_an_upper_bound():
    assert paged().estimated_num_new_pages(3, 5) == 6
    assert token().estimated_num_new_pages(3, 5) == 15


def test_ascend_is_int32_throughout():
    allocator = paged(cls=AscendAllocator, need_sort=True)
    assert isinstance(allocator.engine, TorchEngine)
    slots = allocator.alloc(4)
    allocator.free(slots.long())
    grown = extend(allocator, [0], [9], [-1])
    allocator.free(grown[:4])
    tensors = (slots, grown, decode(allocator, [1], [-1]), allocator.free_pages, allocator.release_pages)
    assert {tensor.dtype for tensor in tensors} == {torch.int32}


# Groups, snapshots, clear, aliases


@every
def test_group_takes_effect_at_its_end(make):
    allocator = make()
    total = allocator.available_size()
    slots = allocator.alloc(total)
    allocator.free_group_begin()
    allocator.free(slots)
    assert allocator.available_size() == 0
    assert allocator.alloc(allocator.page_size) is None
    slots.zero_()
    allocator.free_group_end()
    assert allocator.available_size() == total
    allocator.free_group_end()
    assert allocator.available_size() == total


@every
def test_nested_begin_is_refused_with_nothing_lost(make):
    allocator = make()
    slots = allocator.alloc(allocator.page_size)
    allocator.free_group_begin()
    allocator.free(slots)
    refused(allocator, allocator.free_group_begin, RuntimeError)
    allocator.free_group_end()
    assert allocator.available_size() == allocator.size


@every
def test_clear_inside_a_group_closes_it(make):
    allocator = make()
    new = state(allocator)
    allocator.free_group_begin()
    allocator.free(allocator.alloc(allocator.page_size))
    allocator.clear()
    assert state(allocator) == new
    allocator.free(allocator.alloc(allocator.page_size))
    assert allocator.available_size() == allocator.size


@every
@pytest.mark.parametrize("need_sort", [False, True])
def test_snapshot_covers_an_open_group_and_serves_twice(make, need_sort):
    allocator = make(need_sort=need_sort)
    one, two = allocator.alloc(allocator.page_size), allocator.alloc(allocator.page_size)
    allocator.free_group_begin()
    allocator.free(one)
    snapshot, before = allocator.backup_state(), state(allocator)
    for _ in range(2):
        allocator.free(two)
        allocator.free_group_end()
        allocator.alloc(2 * allocator.page_size)
        allocator.clear()
        allocator.restore_state(snapshot)
        assert state(allocator) == before
    allocator.free_group_end()
    assert allocator.available_size() == allocator.size - allocator.page_size


@every
def test_only_own_snapshots_are_restored(make):
    allocator = make()
    refused(allocator, lambda: allocator.restore_state((ints(1), ints())), TypeError)


@every
def test_results_and_arguments_share_no_memory_with_the_allocator(make):
    allocator = make()
    before = state(allocator)
    snapshot = allocator.backup_state()
    allocator.alloc(2 * allocator.page_size).fill_(99)
    allocator.restore_state(snapshot)
    assert state(allocator) == before

    slots = allocator.alloc(allocator.size)
    allocator.free(slots)
    before = state(allocator)
    slots.fill_(99)
    assert state(allocator) == before
    again = allocator.alloc(allocator.size)
    kept = again.tolist()
    allocator.free(again)
    allocator.merge_and_sort_free()
    allocator.clear()
    assert again.tolist() == kept


@every
def test_empty_free_is_a_no_op_of_any_dtype(make):
    allocator = make(debug=True)
    before = state(allocator)
    allocator.free(torch.empty(0))
    assert state(allocator) == before


# Refusals that need no device value


@every
def test_bad_sizes_are_refused(make):
    allocator = make()
    refused(allocator, lambda: allocator.alloc(-allocator.page_size))
    for size in (1.0, "4", None, True):
        refused(allocator, lambda size=size: allocator.alloc(size), TypeError)
    if allocator.page_size > 1:
        refused(allocator, lambda: allocator.alloc(allocator.page_size + 1))


@every
def test_bad_frees_are_refused(make):
    allocator = make()
    allocator.alloc(allocator.page_size)
    refused(allocator, lambda: allocator.free(torch.tensor([4.0])), TypeError)
    refused(allocator, lambda: allocator.free([4]), TypeError)
    refused(allocator, lambda: allocator.free(ints(4).view(1, 1)))
    refused(allocator, lambda: allocator.free(ints(4).to("meta")))


def bad_batches():
    p, s, last = ints(0, 5), ints(4, 7), ints(-1, 20)
    good = {"prefix_lens": p, "prefix_lens_cpu": p, "seq_lens": s, "seq_lens_cpu": s, "last_loc": last}
    good["extend_num_tokens"] = 6
    for name in ("prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc"):
        yield f"{name} short", good | {name: good[name][:1]}, ValueError
        yield f"{name} two-dimensional", good | {name: good[name].view(2, 1)}, ValueError
        yield f"{name} float", good | {name: good[name].float()}, TypeError
        yield f"{name} elsewhere", good | {name: good[name].to("meta")}, ValueError
        yield f"{name} no tensor", good | {name: [0, 0]}, TypeError
    yield "total too small", good | {"extend_num_tokens": 5}, ValueError
    yield "total negative", good | {"extend_num_tokens": -6}, ValueError
    yield "total no int", good | {"extend_num_tokens": 6.0}, TypeError
    yield "pages", good | {"num_new_pages": 2}, ValueError
    yield "prefix above seq", good | {"prefix_lens_cpu": ints(5, 0)}, ValueError
    yield "prefix negative", good | {"prefix_lens_cpu": ints(-1, 6)}, ValueError


@pytest.mark.parametrize(("change", "arguments", "error"), list(bad_batches()))
def test_bad_batches_are_refused(change, arguments, error):
    allocator = paged(pages=6)
    refused(allocator, lambda: allocator.alloc_extend(**arguments), error)


def test_num_new_pages_that_is_right_is_taken():
    assert extend(paged(pages=6), [0, 5], [4, 7], [-1, 20], num_new_pages=1).numel() == 6


def test_bad_decodes_are_refused():
    allocator = paged(pages=6)
    refused(allocator, lambda: decode(allocator, [0], [-1]))
    refused(allocator, lambda: decode(allocator, [1, 1], [-1]))
    refused(allocator, lambda: allocator.alloc_decode(ints(1), ints(1, 1), ints(-1)))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"pages": 0}, ValueError),
        ({"page_size": 0}, ValueError),
        ({"page_size": -4}, ValueError),
        ({"page_size": 4.0}, TypeError),
        ({"need_sort": 1}, TypeError),
        ({"pages": 2**29, "cls": AscendAllocator}, ValueError),
    ],
)
def test_bad_pools_are_refused(arguments, error):
    with pytest.raises(error, match=r"\.$"):
        paged(**arguments)


def test_debug_mode_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("KVASSAY_DEBUG", "1")
    assert token(debug=None).debug
    monkeypatch.setenv("KVASSAY_DEBUG", "0")
    assert not token(debug=None).debug


# Refusals of debug mode


@every
@pytest.mark.parametrize("need_sort", [False, True])
def test_f02_double_free_is_refused(make, need_sort):
    allocator = make(debug=True, need_sort=need_sort)
    slots = allocator.alloc(allocator.page_size)
    allocator.free(slots)
    refused(allocator, lambda: allocator.free(slots))


@every
def test_f03_f05_padding_foreign_and_repeated_slots_are_refused(make):
    allocator = make(debug=True)
    slots = allocator.alloc(allocator.page_size)
    for bad in (
        ints(0),
        ints(-1),
        ints(999),
        ints(allocator.size + allocator.page_size),
        slots[:1].repeat(2),
    ):
        refused(allocator, lambda bad=bad: allocator.free(bad))
    refused(allocator, lambda: allocator.free(ints(allocator.size)))
    allocator.free(slots)


@every
def test_a_slot_freed_twice_in_one_group_is_refused(make):
    allocator = make(debug=True)
    slots = allocator.alloc(allocator.page_size)
    allocator.free_group_begin()
    allocator.free(slots)
    refused(allocator, lambda: allocator.free(slots))
    allocator.free_group_end()
    assert allocator.available_size() == allocator.size


@pytest.mark.parametrize("make", [paged, lambda **k: swa(page_size=4, **k)], ids=["paged", "swa"])
def test_f11_f12_parts_of_a_page(make):
    allocator = make(debug=True)
    slots = allocator.alloc(4)
    refused(allocator, lambda: allocator.free(slots[2:]))
    refused(allocator, lambda: allocator.free(slots[[0, 1, 3]]))
    allocator.free_group_begin()
    allocator.free(slots[2:])
    refused(allocator, allocator.free_group_end)
    allocator.free(slots[:2])
    allocator.free_group_end()
    assert allocator.available_size() == allocator.size


def test_free_of_a_request_that_was_cut_back():
    allocator = paged(debug=True)
    slots = extend(allocator, [0], [4], [-1])
    allocator.free(slots[:2])
    assert allocator.available_size() == 12


PAGES = [paged, lambda **k: swa(page_size=4, pages=3, **k)]


@pytest.mark.parametrize("make", PAGES, ids=["paged", "swa"])
def test_growth_that_is_not_the_callers_is_refused(make):
    allocator = make(debug=True)
    slots = extend(allocator, [0], [2], [-1])
    assert slots.tolist() == [4, 5]
    refused(allocator, lambda: extend(allocator, [2], [4], [6]))  # misaligned
    refused(allocator, lambda: decode(allocator, [3], [4]))
    refused(allocator, lambda: extend(allocator, [2], [4], [9]))  # a free page
    refused(allocator, lambda: extend(allocator, [2], [4], [1]))  # the padding page
    refused(allocator, lambda: extend(allocator, [2], [4], [401]))
    refused(allocator, lambda: extend(allocator, [2], [4], [-3]))
    refused(allocator, lambda: extend(allocator, [2, 2], [3, 3], [5, 5]))  # one page, two requests
    refused(allocator, lambda: decode(allocator, [3, 3], [5, 5]))
    lens = ints(3)
    refused(allocator, lambda: allocator.alloc_decode(lens, ints(2), ints(5)))
    refused(allocator, lambda: allocator.alloc_extend(lens, ints(2), lens, lens, ints(5), 1))
    allocator.free_group_begin()
    allocator.free(slots)
    refused(allocator, lambda: decode(allocator, [3], [5]))
    allocator.free_group_end()
    refused(allocator, lambda: decode(allocator, [3], [5]))


def test_growth_in_a_released_page_is_refused():
    allocator = paged(debug=True, need_sort=True)
    allocator.free(extend(allocator, [0], [2], [-1]))
    assert allocator.release_pages.tolist() == [1]
    refused(allocator, lambda: decode(allocator, [3], [5]))


@pytest.mark.parametrize("make", PAGES, ids=["paged", "swa"])
def test_two_requests_may_share_a_full_last_page(make):
    allocator = make(debug=True)
    assert extend(allocator, [0], [4], [-1]).tolist() == [4, 5, 6, 7]
    assert decode(allocator, [5, 5], [7, 7]).tolist() == [8, 12]


# SWA


def test_swa_maps_every_slot_and_keeps_minus_one():
    allocator = swa(pages=3, swa_pages=4)
    allocator.swa_attn_allocator.alloc(1)
    slots = allocator.alloc(2)
    translated = allocator.translate_loc_from_full_to_swa(torch.cat((slots, ints(3, -1))))
    assert (translated.tolist(), translated.dtype) == ([2, 3, 0, -1], torch.int32)


def test_swa_attributes():
    kvcache = SwaKVPool(kv(4), kv(3))
    allocator = swa(pages=4, swa_pages=3, kvcache=kvcache)
    assert (allocator.size, allocator.size_full, allocator.size_swa) == (4, 4, 3)
    assert (allocator.available_size(), allocator.full_available_size()) == (3, 4)
    assert allocator.swa_available_size() == 3
    assert kvcache.full_to_swa_index_mapping is allocator.full_to_swa_index_mapping
    assert allocator.get_kvcache() is kvcache
    assert allocator.debug_print() == "#full-attn-available-size: 4, #swa-available-size: 3, "


def test_swa_page_size_one_does_not_extend():
    with pytest.raises(NotImplementedError):
        extend(swa(), [0], [1], [-1])


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("pages", [(4, 2), (2, 4)])
def test_f17_no_fit_in_one_pool_leaves_the_other(page_size, pages):
    allocator = swa(*pages, page_size=page_size, need_sort=True)
    allocator.free(allocator.alloc(page_size))
    before = state(allocator)
    assert allocator.alloc(3 * page_size) is None
    if page_size > 1:
        assert extend(allocator, [0], [5], [-1]) is None
    assert state(allocator) == before
    assert allocator.alloc(2 * page_size).numel() == 2 * page_size


def test_f22_a_stale_entry_frees_nobody_else():
    allocator = swa(pages=3, swa_pages=1)
    mine = allocator.alloc(1)
    allocator.free_swa(mine)
    other = allocator.alloc(1)
    assert allocator.translate_loc_from_full_to_swa(other).tolist() == [1]
    allocator.free_swa(mine)
    assert allocator.swa_available_size() == 0
    allocator.free(mine)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (2, 0)
    assert allocator.translate_loc_from_full_to_swa(other).tolist() == [1]


def test_f23_one_token_gives_up_the_whole_page_once(engine):
    allocator = swa(page_size=4, debug=True, engine=engine)
    slots = extend(allocator, [0], [7], [-1])
    allocator.free_swa(slots[5:6])
    assert allocator.translate_loc_from_full_to_swa(slots).tolist() == [4, 5, 6, 7, 0, 0, 0]
    allocator.free_swa(slots[4:])
    assert allocator.swa_available_size() == 12
    refused(allocator, lambda: decode(allocator, [8], [slots[-1]]))
    allocator.free(slots)
    assert allocator.swa_available_size() == allocator.full_available_size() == 16


def test_entries_of_tokens_that_were_cut_back_go_with_their_page():
    allocator = swa(page_size=4, debug=True)
    slots = extend(allocator, [0], [4], [-1])
    allocator.free(slots[:1])
    assert allocator.full_to_swa_index_mapping[:-1].tolist() == [0] * 20


def test_swa_grows_inside_its_own_page(engine):
    allocator = swa(page_size=4, engine=engine, debug=True)
    allocator.swa_attn_allocator.alloc(4)
    slots = extend(allocator, [0], [2], [-1])
    more = extend(allocator, [2], [5], [slots[-1]])
    one = decode(allocator, [6], [more[-1]])
    every = torch.cat((slots, more, one))
    assert every.tolist() == [4, 5, 6, 7, 8, 9]
    assert allocator.translate_loc_from_full_to_swa(every).tolist() == [8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("last", [7, -1, 8 * 10**9 + 3])
def test_swa_does_not_look_at_a_last_location_that_may_be_dead(last):
    allocator = swa(page_size=4, debug=True)
    allocator.free(extend(allocator, [0], [4], [-1]))
    assert decode(allocator, [5], [last]).tolist() == [4]


def test_swa_group_gives_first_occurrences_in_order():
    allocator = swa()
    slots = allocator.alloc(4)
    allocator.free_group_begin()
    allocator.free_swa(slots[2:])
    allocator.free(slots[[3, 0]])
    assert allocator.available_size() == 0
    assert allocator.translate_loc_from_full_to_swa(slots).tolist() == [1, 2, 3, 4]
    allocator.free_group_end()
    assert allocator.full_attn_allocator.free_pages.tolist() == [4, 1]
    assert allocator.swa_attn_allocator.free_pages.tolist() == [3, 4, 1]
    assert allocator.translate_loc_from_full_to_swa(slots).tolist() == [0, 2, 0, 0]


def test_swa_free_swa_is_refused_for_slots_nobody_holds():
    allocator = swa(debug=True)
    slots = allocator.alloc(1)
    refused(allocator, lambda: allocator.free_swa(ints(0)))
    refused(allocator, lambda: allocator.free_swa(ints(2)))
    allocator.free(slots)
    refused(allocator, lambda: allocator.free_swa(slots))


# KV pools and call forms


def kv(size, page_size=1):
    return KVPool(size, page_size, 2, 3, 4, torch.float16, "cpu")


@pytest.mark.parametrize("make", [token, paged], ids=["token", "paged"])
def test_cpu_copy_moves_bytes_to_other_slots(make):
    pool = kv(16, 4)
    allocator = make(kvcache=pool)
    slots = allocator.alloc(4)
    written = [(torch.randn(4, 3, 4).half(), torch.randn(4, 3, 4).half()) for _ in range(2)]
    for layer, (k, v) in enumerate(written):
        pool.set_kv(layer, slots, k, v)
    copy = allocator.get_cpu_copy(slots)
    allocator.free(slots)
    for buffer in pool.k_buffer + pool.v_buffer:
        buffer.fill_(-1)
    allocator.load_cpu_copy(copy, other := slots.flip(0))
    for layer, pair in enumerate(written):
        for got, expected in zip(pool.get_kv(layer, other), pair, strict=True):
            assert torch.equal(got, expected)


def test_kv_pool_refuses_what_does_not_match():
    pool = kv(8)
    copy = pool.get_cpu_copy(ints(1, 2))
    assert pool.k_buffer[0].shape == (9, 3, 4)
    for call in (
        lambda: pool.load_cpu_copy(copy, ints(1)),
        lambda: pool.load_cpu_copy(copy[:1], ints(1, 2)),
        lambda: pool.set_kv(0, ints(1), *copy[0]),
        lambda: pool.get_cpu_copy(ints(1).view(1, 1)),
    ):
        with pytest.raises(ValueError, match=r"\.$"):
            call()


def test_swa_has_no_cpu_copies():
    for call in (lambda: swa().get_cpu_copy(ints(1)), lambda: swa().load_cpu_copy([], ints(1))):
        with pytest.raises(NotImplementedError):
            call()


def test_seed_form_takes_lengths_on_the_device_alone():
    seed = SeedForm(paged(pages=6))
    assert seed.alloc_extend(ints(0, 5), ints(4, 7), ints(-1, 20), 6).tolist() == [4, 5, 6, 7, 21, 22]
    assert seed.alloc_decode(ints(5), ints(7)).tolist() == [8]
    seed.free(ints(4))
    assert seed.available_size() == 20


# -- limits of size --------------------------------------------------------------------------------------

LARGEST = [  # class, slots that index_dtype can number, page size
    (AscendAllocator, 2**31 - 1, 1),
    (AscendAllocator, 2**31 - 1, 16),
    (AscendAllocator, 2**31 - 1, 3),
    (PagedAllocator, 2**63 - 1, MOST_PAGE),
]


@pytest.mark.parametrize(("cls", "highest", "page_size"), LARGEST)
def test_the_largest_pool_is_made_and_one_page_more_refused(cls, highest, page_size):
    """On the meta device, where tensors have no memory."""
    pages = (highest // page_size) - 1  # slots of page 0 count too
    made = cls(pages * page_size, page_size, torch.float32, "meta", None, False, engine=TorchEngine())
    assert made.num_pages == pages
    with pytest.raises(ValueError, match="can number"):
        cls((pages + 1) * page_size, page_size, torch.float32, "meta", None, False, engine=TorchEngine())


def test_a_page_larger_than_kernels_count_is_refused():
    with pytest.raises(ValueError, match="page_size must lie"):
        PagedAllocator(1 << 40, MOST_PAGE + 1, torch.float32, "meta", None, False, engine=TorchEngine())


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_largest_window_is_made_and_one_page_more_refused(page_size):
    pages = (2**31 - 1) // page_size - 1

    def made(window):
        return SwaAllocator(
            64, window * page_size, page_size, torch.float32, "meta", None, False, engine=TorchEngine()
        )

    assert made(pages).size_swa == pages * page_size
    with pytest.raises(ValueError, match="SWA slots"):
        made(pages + 1)


def test_extend_and_decode_over_two_pools_need_pages():
    one = torch.tensor([1])
    swa = SwaAllocator(4, 4, 1, torch.float32, "cpu", None, False)
    with pytest.raises(NotImplementedError):
        swa.alloc_extend(one - 1, one - 1, one, one, one - 2, 1)
    with pytest.raises(NotImplementedError):
        swa.alloc_decode(one, one, one - 2)
