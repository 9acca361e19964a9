"""What comes back to a list of pages, in what order, and what of it waits for the device: by every engine."""

import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from impl.ascend import AscendAllocator
from impl.paged import PagedAllocator
from impl.pages import PageList, Place
from impl.state import State
from impl.swa import SwaAllocator
from impl.token import TokenAllocator
from impl.torch_engine import TorchEngine
from tests.kernel_engines import emulated_engine, triton_engine, triton_engine_of_large_frees

MOST = 3000  # more than one sum of the kernel's marks
WAITS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "is_nonzero", "item", "equal")


@pytest.fixture(params=[TorchEngine, triton_engine, triton_engine_of_large_frees, emulated_engine])
def engine(request):
    return request.param()


def slots_of(pages, page_size, rng):
    """Slots of pages, some with their last ones missing, some pages in two runs."""
    runs = [[page * page_size + k for k in range(rng.randint(1, page_size))] for page in pages]
    cut = [(run[:1], run[1:]) for run in runs]
    parts = [part for pair in cut for part in pair if part]
    rng.shuffle(parts)
    return [slot for part in parts for slot in part]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_distinct_pages_come_back_sorted_and_first(engine, page_size, dtype):
    rng = random.Random(page_size)
    pages = list(range(1, MOST + 1))
    rng.shuffle(pages)
    listed = PageList.of(torch.tensor(pages[:40], dtype=dtype), MOST)
    expected, at = pages[:40], 40
    for count in (1, 2, 33, 70):
        back, at = pages[at : at + count], at + count
        engine.put_before(torch.tensor(slots_of(back, page_size, rng)), listed, page_size)
        expected = sorted(back) + expected
        if count != 2:  # once after two frees in a row
            assert listed.listed.tolist() == expected
            assert listed.listed.dtype == dtype
        taken = listed.head(3).tolist()
        listed.drop(3)
        assert taken == expected[:3]
        expected = expected[3:]
    assert len(listed) == len(expected)
    emulator = getattr(engine, "emulator", None)
    assert emulator is None or emulator.take() == ""


def test_pages_that_fall_are_listed_and_leave_no_marks():
    """On the emulator a free of so few takes several rounds of everything."""
    engine = emulated_engine()
    pages = [2999, 2000, 1500, 1499, 700, 640, 600, 33, 32, 31, 5, 1]
    listed = PageList.of(torch.tensor([7]), MOST)
    for again in range(2):
        engine.put_before(torch.tensor(pages), listed, 1)
        assert listed.listed.tolist() == [*sorted(pages), 7], again
        assert engine.compared()[0] == []
        listed.drop(len(pages))


def test_what_is_no_page_of_the_pool_is_left_out(engine):
    listed = PageList.of(torch.tensor([7]), 8)
    engine.put_before(torch.tensor([3, 4, 0, 1, 9 * 4, 1 << 40, -4, 5 * 4, 4]), listed, 4)
    assert listed.listed.tolist() == [1, 5, 7]


def test_more_than_there_is_room_for_stays_inside_the_memory(engine):
    listed = PageList.of(torch.arange(1, 9), 8)  # nothing of it was taken, and six come back
    memory = listed.memory.clone()
    engine.put_before(torch.arange(1, 7) * 4, listed, 4)
    assert listed.listed[-8:].tolist() == memory[1:].tolist()


def test_a_length_is_read_back_once_and_only_if_it_is_asked_for():
    listed = PageList.of(torch.tensor([7, 8]), 8)
    TorchEngine().put_before(torch.tensor([4, 8]), listed, 4)
    with Recorded() as seen:
        assert listed.least == 2
        assert listed.head(2).tolist() == [1, 2]
        listed.drop(1)
        assert listed.least == 1  # of the two that were there; what came back is known to the device
    assert not seen.waits
    with Recorded() as seen:
        assert [len(listed), len(listed), listed.start] == [3, 3, listed.start]
    assert len(seen.waits) == 1
    TorchEngine().put_before(torch.tensor([12]), listed, 4)
    with Recorded() as seen:
        assert listed.least == 3
    assert not seen.waits


def test_pages_come_back_before_a_list_that_has_moved():
    listed = PageList.of(torch.arange(1, 5), 4)
    memory = listed.memory
    listed.drop(1)
    listed.append(torch.tensor([1]))
    assert listed.memory is not memory
    listed.drop(2)
    TorchEngine().put_before(torch.tensor([3]), listed, 1)
    assert listed.listed.tolist() == [3, 4, 1]


def test_word_may_come_after_pages_were_taken():
    word = []
    place = Place(5, torch.device("cpu"))
    place.move(torch.tensor([3]), lambda: word[0] if word else None)
    place.shift(2)
    assert place.known is None
    word.append(3)
    assert place.known == int(place) == 5
    place.shift(1)
    assert place.known == 6


def test_word_of_a_free_is_heard_without_a_wait(engine):
    if isinstance(engine, TorchEngine):
        pytest.skip("leaves no word")
    listed, other = PageList.of(torch.tensor([7, 8]), 8), PageList.of(torch.tensor([8]), 8)
    engine.put_before(torch.tensor([4, 8]), listed, 4)
    with Recorded() as seen:
        assert (listed.least, len(listed)) == (4, 4)
    assert not seen.waits
    engine.put_before(torch.tensor([16, 12]), listed, 4)
    engine.put_before(torch.tensor([28]), other, 4)  # overwrites what was left for the first list
    with Recorded() as seen:
        assert listed.head(6).tolist() == [3, 4, 1, 2, 7, 8]
        assert other.listed.tolist() == [7, 8]
    assert not seen.waits
    with Recorded() as seen:
        assert len(listed) == 6
    assert len(seen.waits) == 1


def test_a_token_window_takes_back_what_is_mapped_once_and_in_order():
    window = TokenAllocator(20, torch.float16, "cpu", None, False, debug=False)
    expected = list(range(1, 21))
    rng = random.Random(3)
    for _ in range(60):
        count = rng.randint(1, 6)
        assert window.alloc(count).tolist() == expected[:count]
        back = [slot for slot in expected[:count] for _ in range(rng.randint(1, 2))]
        rng.shuffle(back)
        window.put_mapped(torch.tensor([slot for pair in zip(back, [0] * 20, strict=False) for slot in pair]))
        expected = [*expected[count:], *dict.fromkeys(back)]
        assert window._free_list.least <= 20 == window.available_size()
    assert window.free_pages.tolist() == expected


def test_a_list_that_grows_behind_keeps_its_order():
    listed = PageList.of(torch.arange(1, 5), 4)
    expected = [1, 2, 3, 4]
    for number in range(50):
        assert listed.head(2).tolist() == expected[:2]
        back = expected[1::-1]
        listed.drop(2)
        listed.append(torch.tensor(back))
        expected = expected[2:] + back
        assert listed.listed.tolist() == expected, number


def test_a_list_that_has_moved_has_room_for_all_others_before_it(engine):
    """Where it lies in its memory is no part of what explorers compare, so it must make no difference."""
    listed = PageList.of(torch.arange(1, 5), 4)
    memory = listed.memory
    for _ in range(9):
        listed.drop(2)
        assert listed.compared()[0][-1]
        listed.append(torch.tensor([1, 2]))
    assert listed.memory is not memory
    listed.drop(4)
    engine.put_before(torch.tensor([4, 3, 2, 1]), listed, 1)
    assert listed.listed.tolist() == [1, 2, 3, 4]


class Recorded(TorchDispatchMode):
    """The operators that run, and those that a GPU would have to be waited for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        indices = args[1] if name.startswith("index") and isinstance(args[1], list | tuple) else ()
        if any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices):
            name = "nonzero of " + name
        self.names.append(name)
        return function(*args, **(kwargs or {}))

    @property
    def waits(self):
        return [
            name for name in self.names if name.lstrip("_").startswith(tuple(w.lstrip("_") for w in WAITS))
        ]


def pool(cls, page_size, need_sort=False):
    sizes = (1200, 1200, page_size) if cls is SwaAllocator else (1200, page_size)
    return cls(
        *(sizes[:1] if cls is TokenAllocator else sizes), torch.float16, "cpu", None, need_sort, debug=False
    )


@pytest.mark.parametrize(
    ("cls", "page_size", "need_sort"),
    [
        (TokenAllocator, 1, False),
        (PagedAllocator, 4, False),
        (PagedAllocator, 4, True),
        (AscendAllocator, 3, False),
        (SwaAllocator, 4, False),
        (SwaAllocator, 1, False),
        (SwaAllocator, 1, True),
    ],
)
def test_nothing_waits_for_the_device_while_there_is_enough(cls, page_size, need_sort):
    allocator = pool(cls, page_size, need_sort)
    total = allocator.available_size()
    with Recorded() as seen:
        for _ in range(3):
            held = [allocator.alloc(4 * page_size)]
            if cls is SwaAllocator:
                allocator.free_swa(held[0][:2])
            if page_size > 1:
                zeros, seq, last = torch.zeros(2).long(), torch.tensor([9, 5]), torch.tensor([-1, -1])
                held.append(allocator.alloc_extend(zeros, zeros, seq, seq, last, 14))
                ones = torch.ones(2).long()
                held.append(allocator.alloc_decode(ones, ones, last))
            allocator.free_group_begin()
            for slots in held[1:]:
                allocator.free(slots)
            allocator.free_group_end()
            allocator.free(held[0])
    assert seen.names
    assert not seen.waits
    assert allocator.available_size() == total


def test_the_recorder_sees_what_waits():
    x = torch.arange(3)
    for wait in (
        lambda: x[x > 1],
        lambda: int(x[0]),
        lambda: torch.unique(x),
        lambda: x.nonzero(),
        lambda: bool((x > 9).any()),
    ):
        with Recorded() as seen:
            wait()
        assert seen.waits


def test_lists_that_answer_alike_are_one_state():
    fresh, moved = PageList.of(torch.tensor([2, 3]), 8), PageList.of(torch.tensor([5, 2, 3]), 8)
    moved.drop(1)  # page 5 lies before the list still
    late = PageList.of(torch.tensor([3]), 8)
    TorchEngine().put_before(torch.tensor([2]), late, 1)
    other, full = PageList.of(torch.tensor([3, 2]), 8), PageList.of(torch.tensor([2, 3]), 8)
    full = PageList(full.memory[6:].clone(), 1, 3, 8)
    assert State((fresh,)).value == State((moved,)).value == State((late,)).value
    assert late.first.known is None  # asking did not change it
    assert State((fresh,)).value != State((other,)).value
    assert State((fresh,)).value != State((full,)).value  # no room for the other six


def test_marks_that_a_free_left_are_state():
    engine = emulated_engine()
    engine.put_before(torch.tensor([4]), PageList.of(torch.tensor([7, 8]), 8), 4)
    clean = State((engine.compared(),)).value
    (scratch,) = engine._scratch.values()
    scratch.marks[0] = 2
    assert State((engine.compared(),)).value != clean
