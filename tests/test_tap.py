"""Does a live allocator stay what it is while it is listened to?"""

import copy
import logging
from types import SimpleNamespace

import pytest
import torch

from impl.live import check, detach, record, report_of
from impl.paged import PagedAllocator
from impl.swa import SwaAllocator
from impl.tap import pool_of, tapped
from impl.token import TokenAllocator
from oracle.rawcall import Trace


def token(size=8):
    return TokenAllocator(size, torch.float32, "cpu", None, False)


def paged(pages=8, page_size=4, **more):
    return PagedAllocator(pages * page_size, page_size, torch.float32, "cpu", None, False, **more)


def swa(pages=4, window=3, page_size=2):
    return SwaAllocator(pages * page_size, window * page_size, page_size, torch.float32, "cpu", None, False)


class Heard(list):
    """A listener that keeps what it hears."""

    def heard(self, call):
        self.append(call)


def listened(allocator):
    heard = Heard()
    allocator, tap = tapped(allocator)
    tap.listeners.append(heard)
    return allocator, heard


def test_the_allocator_stays_the_same_object_of_its_class():
    plain = paged()
    allocator, _ = listened(plain)
    assert allocator is plain
    assert isinstance(allocator, PagedAllocator)
    assert type(allocator).__name__ == "PagedAllocator"
    allocator.free_pages, allocator.private = allocator.free_pages[1:], 7
    assert vars(plain)["private"] == 7
    assert allocator.available_size() == 28
    assert allocator._group is None


def test_whoever_held_the_allocator_before_is_heard():
    held_elsewhere = token()
    _, heard = listened(held_elsewhere)
    held_elsewhere.alloc(2)
    assert [call.method for call in heard] == ["alloc"]


def test_answers_and_errors_are_those_of_the_bare_allocator():
    bare, (allocator, heard) = paged(), listened(paged())
    assert allocator.alloc(8).tolist() == bare.alloc(8).tolist()
    assert allocator.alloc(4 * 9) is None
    with pytest.raises(ValueError, match="multiple of page_size"):
        allocator.alloc(3)
    assert [(call.outcome, call.error) for call in heard] == [
        ("slots", ""),
        ("none", ""),
        ("raised", "ValueError"),
    ]
    assert heard[0].answer == ((4, 8),)


def test_what_the_allocator_calls_itself_is_not_heard_twice():
    class Segments(TokenAllocator):
        def free_segment(self, free_index, *, start_pos):
            self.free_group_begin()
            self.free(free_index)
            self.free_group_end()

    allocator, heard = listened(Segments(8, torch.float32, "cpu", None, False))
    allocator.free_segment(allocator.alloc(3), start_pos=0)
    assert [(call.method, call.slots) for call in heard] == [("alloc", ()), ("free", ((1, 3),))]


def test_frees_by_other_names_are_frees():
    class Named(PagedAllocator):
        def free_segments(self, segments):
            for slots, _ in segments:
                self.free(slots)

        def free_page_ids(self, page_ids):
            self.free(page_ids * self.page_size)

        def free_full_segment(self, free_index, *, start_pos):
            self.free(free_index)

    allocator, heard = listened(Named(32, 4, torch.float32, "cpu", None, False))
    a = allocator.alloc(16)
    allocator.free_segments([(a[:4], 0), (a[8:12], 8)])
    allocator.free_page_ids(torch.tensor([2]))
    allocator.free_full_segment(a[12:], start_pos=12)
    freed = [(call.method, call.slots, call.free) for call in heard[1:]]
    assert freed == [("free", ((4, 4), (12, 4)), 24), ("free", ((8, 4),), 28), ("free", ((16, 4),), 32)]


def test_what_is_asked_is_read_before_the_call():
    allocator, heard = listened(token())
    slots = allocator.alloc(3)
    allocator.free_group_begin()
    allocator.free(slots)
    slots.zero_()
    assert heard[-1].slots == ((1, 3),)


def test_parameters_by_other_names_are_read_in_the_usual_order():
    class Renamed(PagedAllocator):
        def alloc_extend(self, prefix, prefix_cpu, seq, *rest):
            return super().alloc_extend(prefix, prefix_cpu, seq, *rest)

    allocator, heard = listened(Renamed(32, 4, torch.float32, "cpu", None, False))
    zero, three = torch.tensor([0]), torch.tensor([3])
    allocator.alloc_extend(zero, zero, three, three, torch.tensor([-1]), 3)
    assert heard[0]._replace(free=None)[:6] == ("alloc_extend", None, (0,), (3,), (-1,), 3)


@pytest.mark.parametrize(("mirrors", "read"), [(False, (7,)), (True, (3,))])
def test_lengths_come_from_the_mirrors_where_that_is_asked_for(mirrors, read):
    class Full(PagedAllocator):
        def alloc_extend(self, *args):
            return None

    heard = Heard()
    allocator, tap = tapped(Full(32, 4, torch.float32, "cpu", None, False), mirrors)
    tap.listeners.append(heard)
    zero = torch.tensor([0])
    allocator.alloc_extend(zero, zero, torch.tensor([7]), torch.tensor([3]), torch.tensor([-1]), 3)
    assert heard[0].seq == read


def test_a_copy_of_the_allocator_is_somebody_else():
    allocator, heard = listened(token())
    other = copy.deepcopy(allocator)
    other.alloc(2)
    assert heard == []
    assert other.available_size() == 6
    assert allocator.available_size() == 8


def test_a_listener_that_breaks_is_dropped_and_the_program_goes_on(caplog):
    class Breaks:
        def heard(self, call):
            raise OSError("disk full")

    allocator, tap = tapped(token())
    tap.listeners.append(Breaks())
    with caplog.at_level(logging.ERROR):
        assert allocator.alloc(2).tolist() == [1, 2]
    assert tap.listeners == []
    assert "disk full" in caplog.text


def test_detached_is_as_it_was(tmp_path):
    plain = token()
    before = type(plain)
    allocator = check(record(plain, tmp_path / "t"))
    allocator.alloc(2)
    assert detach(allocator) is plain
    assert type(plain) is before
    plain.alloc(2)
    assert len(list(Trace(tmp_path / "t").calls())) == 1
    with pytest.raises(LookupError, match="nobody checks"):
        report_of(plain)


def test_an_object_whose_class_is_fixed_gets_a_proxy():
    inner = token()
    fixed = SimpleNamespace(
        alloc=inner.alloc, free=inner.free, clear=inner.clear, available_size=inner.available_size,
        size=8, page_size=1,
    )  # fmt: skip
    allocator, heard = listened(fixed)
    assert allocator is not fixed
    assert isinstance(allocator, SimpleNamespace)
    allocator.free(allocator.alloc(need_size=2))
    allocator.hint = 3
    assert fixed.hint == 3
    assert [(call.method, call.free) for call in heard] == [("alloc", 6), ("free", 8)]
    assert detach(allocator) is fixed


@pytest.mark.parametrize(
    ("made", "words"),
    [(token(), ("token", 8, 1, 0)), (paged(), ("paged", 8, 4, 0)), (swa(), ("swa", 4, 2, 3))],
)
def test_the_pool_is_read_from_the_allocator(made, words):
    pool = pool_of(made)
    assert (pool.kind, pool.pages, pool.page_size, pool.swa_pages) == words
