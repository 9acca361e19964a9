import ctypes
import faulthandler
import os
import signal
import types

import pytest
import torch

from impl.fence import Fence

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a fence is only put up where processes fork")


def allocator(*pages):
    return types.SimpleNamespace(free_pages=torch.tensor(pages, dtype=torch.int64))


def read_in_a_child(address):
    """The signal that ended a process which read eight bytes there; 0 if it lived."""
    pid = os.fork()
    if not pid:
        faulthandler.disable()
        ctypes.c_int64.from_address(address).value  # noqa: B018
        os._exit(0)
    return os.WTERMSIG(os.waitpid(pid, 0)[1])


def test_a_list_keeps_its_entries_and_can_be_read_to_its_end():
    fenced = allocator(3, 1, 2)
    Fence(16).surround(fenced)
    assert fenced.free_pages.tolist() == [3, 1, 2]
    assert read_in_a_child(fenced.free_pages.data_ptr() + 16) == 0


def test_reading_one_entry_behind_the_end_ends_the_process():
    fenced = allocator(3, 1, 2)
    Fence(16).surround(fenced)
    assert read_in_a_child(fenced.free_pages.data_ptr() + 24) == signal.SIGSEGV


def test_a_list_that_was_cut_off_at_its_head_has_the_same_fence():
    fenced = allocator(3, 1, 2)
    fence = Fence(16)
    fence.surround(fenced)
    fenced.free_pages = fenced.free_pages[1:]
    fence.surround(fenced)
    assert fenced.free_pages.tolist() == [1, 2]
    assert read_in_a_child(fenced.free_pages.data_ptr() + 16) == signal.SIGSEGV


def test_both_pools_of_an_swa_allocator_are_fenced():
    swa = types.SimpleNamespace(
        free_pages=None, full_attn_allocator=allocator(1), swa_attn_allocator=allocator(2, 3)
    )
    Fence(16).surround(swa)
    assert read_in_a_child(swa.full_attn_allocator.free_pages.data_ptr() + 8) == signal.SIGSEGV
    assert read_in_a_child(swa.swa_attn_allocator.free_pages.data_ptr() + 16) == signal.SIGSEGV
