"""Is each kind of wrong kernel found by the emulator, with its line, and its right twin clean?"""

import inspect

import pytest
import torch
import triton
import triton.language as tl

from impl.emulator.dtypes import Unsupported
from impl.emulator.fresh import WatchedTorch, mark_fresh
from impl.emulator.launch import Emulator


def numbers(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def run(kernel, grid, *arguments, undefined=True, answer=None, **constants):
    """What an emulator finds in one launch."""
    emulator = Emulator(undefined)
    emulator.kernel(kernel)[grid](*arguments, **constants)
    return emulator.take(answer)


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(at for at, line in enumerate(lines) if text in line)


# -- outside -------------------------------------------------------------------------------------------


@triton.jit
def copy(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.store(out_ptr + i, x, mask=i < n)


def test_a_load_within_the_tensor_is_clean():
    out = torch.zeros(3, dtype=torch.int64)
    assert run(copy, (1,), numbers(5, 6, 7), out, 3, BLOCK=4) == ""
    assert out.tolist() == [5, 6, 7]


def test_a_load_past_the_end_names_kernel_line_argument_index_and_size():
    out = torch.zeros(4, dtype=torch.int64)
    line = line_of(copy, "tl.load")
    assert run(copy, (1,), numbers(5, 6, 7), out, 4, BLOCK=4) == (
        f"out-of-bounds load: copy, test_emulator.py:{line} `x = tl.load(x_ptr + i, mask=i < n, other=0)`, "
        "program 0: loads x_ptr[3] in lane 3, and x_ptr has 3 element(s)"
    )


def test_memory_behind_a_slice_is_not_the_slice():
    whole = torch.arange(8)
    out = torch.zeros(4, dtype=torch.int64)
    assert run(copy, (1,), whole[2:5], out, 4, BLOCK=4).startswith("out-of-bounds load")
    assert run(copy, (1,), whole[2:6], out, 4, BLOCK=4) == ""


def test_a_store_past_the_end_is_dropped_and_the_rest_goes_on():
    whole = torch.zeros(6, dtype=torch.int64)
    found = run(copy, (1,), numbers(5, 6, 7, 8), whole[1:4], 4, BLOCK=4)
    assert found.startswith("out-of-bounds store")
    assert "stores out_ptr[3] in lane 3, and out_ptr has 3 element(s)" in found
    assert whole.tolist() == [0, 5, 6, 7, 0, 0]


@triton.jit
def first_before(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr - 1))


def test_before_the_start_is_outside_too():
    assert "loads x_ptr[-1], and x_ptr has 2 element(s)" in run(
        first_before, (1,), torch.arange(3)[1:], numbers(0)
    )


@triton.jit
def shift(x_ptr, out_ptr, by):
    i = tl.arange(0, 4) - by
    tl.store(out_ptr + i, tl.load(x_ptr + i))


def test_a_lane_before_the_start_is_outside_of_a_load_and_of_a_store():
    x, out = torch.arange(1, 5), torch.zeros(4, dtype=torch.int64)
    emulator = Emulator()
    emulator.kernel(shift)[(1,)](x, out, 1)
    assert "loads x_ptr[-1] in lane 0" in emulator.found["out-of-bounds load"]
    assert "stores out_ptr[-1] in lane 0" in emulator.found["out-of-bounds store"]
    assert out.tolist() == [1, 2, 3, 0]
    assert run(shift, (1,), x, out, 0) == ""


def test_an_empty_tensor_has_no_element():
    empty = torch.empty(0, dtype=torch.int64)
    assert "loads x_ptr[0]" in run(copy, (1,), empty, numbers(0), 1, BLOCK=1)


# -- lanes that nothing filled -------------------------------------------------------------------------


@triton.jit
def total(x_ptr, out_ptr, n, BLOCK: tl.constexpr, FILL: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0) if FILL else tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr, tl.sum(x * 2))


def test_a_sum_over_lanes_that_a_mask_leaves_open():
    x, out = numbers(1, 2, 3), numbers(0)
    found = run(total, (1,), x, out, 3, BLOCK=4, FILL=False)
    assert found.startswith("undefined lane: total")
    assert f":{line_of(total, 'tl.sum')} `" in found
    assert f"from test_emulator.py:{line_of(total, 'tl.load')} `" in found
    assert "which loads x_ptr in enabled lanes alone" in found
    assert run(total, (1,), x, out, 3, BLOCK=4, FILL=True) == ""
    assert run(total, (1,), x[:2], out, 2, BLOCK=2, FILL=False) == ""  # no lane is off


def test_the_switch_fills_open_lanes_with_zeros_as_the_interpreter_does():
    out = numbers(0)
    assert run(total, (1,), numbers(1, 2, 3), out, 3, undefined=False, BLOCK=4, FILL=False) == ""
    assert out.tolist() == [12]


@triton.jit
def use_open_lane(x_ptr, out_ptr, n, HOW: tl.constexpr):
    i = tl.arange(0, 4)
    x = tl.load(x_ptr + i, mask=i < n)
    if HOW == "store":
        tl.store(out_ptr + i, x)
    if HOW == "address":
        tl.store(out_ptr + x, 1)
    if HOW == "mask":
        tl.store(out_ptr + i, 1, mask=x > 0)
    if HOW == "load":
        tl.store(out_ptr + i, tl.load(x_ptr + x % 2, mask=i < 4, other=0))
    if HOW == "cumsum":
        tl.store(out_ptr + i, tl.cumsum(x), mask=i <= n)
    if HOW == "cumsum before":
        tl.store(out_ptr + i, tl.cumsum(x), mask=i < n)
    if HOW == "sum of rows":
        rows = tl.sum(x[:, None] + i[None, :], axis=1)
        tl.store(out_ptr + i, rows, mask=i < n)
    if HOW == "sum of columns":
        tl.store(out_ptr + i, tl.sum(x[:, None] + i[None, :], axis=0), mask=i < n)
    if HOW == "branch" and tl.load(x_ptr + n, mask=n < 2) > 1:
        tl.store(out_ptr + i, 1)
    if HOW == "masked store":
        tl.store(out_ptr + i, x + 1, mask=i < n)
    if HOW == "other side":
        tl.store(out_ptr + i, tl.where(i < n, x, -1))
    if HOW == "same side":
        tl.store(out_ptr + i, tl.where(i < n, -1, x))


@pytest.mark.parametrize(
    ("how", "use"),
    [
        ("store", "stores into out_ptr"), ("address", "stores out_ptr at"), ("mask", "is masked by"),
        ("load", "loads x_ptr at"), ("cumsum", "stores into out_ptr"), ("branch", "branches on"),
        ("same side", "stores into out_ptr"), ("sum of columns", "stores into out_ptr"),
    ],
)  # fmt: skip
def test_each_use_of_an_open_lane_is_found(how, use):
    found = run(use_open_lane, (1,), numbers(0, 1, 2, 3), torch.zeros(4, dtype=torch.int64), 2, HOW=how)
    assert found.startswith("undefined lane")
    assert f": {use} a lane from" in found


@pytest.mark.parametrize("how", ["masked store", "other side", "cumsum before", "sum of rows"])
def test_an_open_lane_that_nobody_uses_is_clean(how):
    assert run(use_open_lane, (1,), numbers(0, 1, 2, 3), torch.zeros(4, dtype=torch.int64), 2, HOW=how) == ""


# -- memory that nothing wrote -------------------------------------------------------------------------


@triton.jit
def twice(scratch_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(scratch_ptr + i, i * 2, mask=i < n)
    tl.store(out_ptr + i, tl.load(scratch_ptr + i))


def test_memory_that_nothing_wrote_is_found_when_it_is_used():
    out = torch.zeros(4, dtype=torch.int64)
    scratch = WatchedTorch().empty(4, dtype=torch.int64)
    found = run(twice, (1,), scratch, out, 3, BLOCK=4)
    assert found.startswith("unwritten memory")
    assert "which loads scratch_ptr[3], which nothing has written" in found
    assert run(twice, (1,), WatchedTorch().empty(4, dtype=torch.int64), out, 4, BLOCK=4) == ""


def test_what_torch_wrote_counts_as_written():
    scratch = WatchedTorch().empty(4, dtype=torch.int64)
    scratch[1:].fill_(7)
    assert run(twice, (1,), scratch, torch.zeros(4, dtype=torch.int64), 3, BLOCK=4) == ""


def test_what_an_earlier_launch_wrote_counts_as_written():
    scratch, out = WatchedTorch().empty(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert run(copy, (1,), torch.arange(4), scratch, 4, BLOCK=4) == ""
    assert run(twice, (1,), scratch, out, 0, BLOCK=4) == ""


@pytest.mark.parametrize(("count", "first"), [(2, 2), (0, 0), (4, None)])
def test_an_answer_that_is_not_filled(count, first):
    out = WatchedTorch().empty(4, dtype=torch.int64)
    found = run(copy, (1,), torch.arange(4), out, count, answer=out, BLOCK=4)
    assert found == (
        ""
        if first is None
        else f"unwritten memory: nothing has written element {first} of the 4 that are given"
    )


def test_a_view_of_an_answer_knows_its_place():
    whole = mark_fresh(torch.empty(6, dtype=torch.int64))
    assert run(copy, (1,), torch.arange(2), whole[4:], 2, answer=whole[4:], BLOCK=2) == ""
    assert "element 3 of the 5" in run(copy, (1,), torch.arange(3), whole[:3], 3, answer=whole[:5], BLOCK=4)


# -- one place, two writers ----------------------------------------------------------------------------


@triton.jit
def scatter(at_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(at_ptr + i), i)


def test_two_lanes_that_write_one_place():
    out = torch.zeros(4, dtype=torch.int64)
    assert "two lanes of one store write out_ptr[1]" in run(scatter, (1,), numbers(0, 1, 1, 2), out, BLOCK=4)
    assert run(scatter, (1,), numbers(3, 1, 0, 2), out, BLOCK=4) == ""
    many = torch.arange(128)
    many[100] = many[70]
    out = torch.zeros(128, dtype=torch.int64)
    assert "two lanes of one store write out_ptr[70]" in run(scatter, (1,), many, out, BLOCK=128)
    assert out[70] == 100
    two = torch.cat((many, many + 128))
    out = torch.zeros(256, dtype=torch.int64)
    assert "two lanes of one store write out_ptr[70]" in run(scatter, (2,), two, out, BLOCK=128)


@triton.jit
def flags(x_ptr, out_ptr, n):
    x = tl.load(x_ptr)
    tl.store(out_ptr, x > 2, mask=n > 0)
    tl.store(out_ptr + 1, x > 2, mask=n > 1)


def test_a_flag_that_is_masked_off_stays_as_it_was():
    out = torch.zeros(2, dtype=torch.bool)
    assert run(flags, (1,), numbers(3), out, 1) == ""
    assert out.tolist() == [True, False]


def test_two_programs_that_write_one_place():
    out = torch.zeros(4, dtype=torch.int64)
    found = run(scatter, (2,), numbers(0, 1, 2, 1), out, BLOCK=2)
    assert found.startswith("write race")
    assert "program 1: writes out_ptr[1], which another program of the launch has written" in found
    assert run(scatter, (2,), numbers(3, 1, 0, 2), out, BLOCK=2) == ""


@triton.jit
def count(out_ptr, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_add(out_ptr, 1)
    else:
        tl.store(out_ptr, tl.load(out_ptr) + 1)


def test_atomic_updates_are_no_race():
    out = numbers(0)
    assert run(count, (5,), out, ATOMIC=True) == ""
    assert out.tolist() == [5]
    assert run(count, (5,), out, ATOMIC=False).startswith("write race")


@triton.jit
def overwrite(out_ptr):
    tl.store(out_ptr + tl.arange(0, 4), 1)
    tl.store(out_ptr + tl.arange(0, 4), 2)


def test_a_program_may_write_a_place_again():
    assert run(overwrite, (1,), torch.zeros(4, dtype=torch.int32)) == ""


# -- integers that wrap --------------------------------------------------------------------------------


@triton.jit
def slots(page_ptr, out_ptr, page_size, WIDE: tl.constexpr):
    i = tl.arange(0, 2)
    page = tl.load(page_ptr + i)
    if WIDE:
        page = page.to(tl.int64)
    tl.store(out_ptr + i, page * page_size)


def test_a_product_that_wraps_in_its_type():
    pages, out = numbers(3, 1 << 26, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    found = run(slots, (1,), pages, out, 64, WIDE=False)
    assert found.startswith("integer wrap: slots")
    assert f"which computes a int32 * to {1 << 32} in lane 1" in found
    assert out.tolist() == [192, 0]
    assert run(slots, (1,), pages, out, 64, WIDE=True) == ""
    assert out.tolist() == [192, 1 << 32]


def test_a_store_that_narrows_what_does_not_fit():
    pages = numbers(3, 1 << 26, dtype=torch.int32)
    found = run(slots, (1,), pages, torch.zeros(2, dtype=torch.int32), 64, WIDE=True)
    assert f"narrows int64 to int32 to {1 << 32} in lane 1" in found


def test_a_lane_that_wraps_and_is_not_used_is_clean():
    assert run(masked_product, (1,), numbers(3, 1 << 62), torch.zeros(2, dtype=torch.int64), 1) == ""
    assert run(masked_product, (1,), numbers(3, 1 << 62), torch.zeros(2, dtype=torch.int64), 2) != ""


@triton.jit
def masked_product(x_ptr, out_ptr, n):
    i = tl.arange(0, 2)
    tl.store(out_ptr + i, tl.load(x_ptr + i) * 4, mask=i < n)


@triton.jit
def divide(x_ptr, y_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr) // tl.load(y_ptr))


def test_a_division_by_zero_has_no_result():
    assert run(divide, (1,), numbers(7), numbers(0), numbers(1)).startswith("undefined result")
    assert run(divide, (1,), numbers(7), numbers(2), numbers(1)) == ""


# -- findings ------------------------------------------------------------------------------------------


def test_the_first_finding_is_told_and_then_forgotten():
    emulator = Emulator()
    out = torch.zeros(2, dtype=torch.int64)
    emulator.kernel(scatter)[(2,)](numbers(0, 1, 9, 1), out, BLOCK=2)
    assert list(emulator.found) == ["out-of-bounds store", "write race"]
    assert emulator.take().startswith("out-of-bounds store")
    assert emulator.take() == ""


@triton.jit
def helper(x_ptr, i):
    return tl.load(x_ptr + i)


@triton.jit
def calls_helper(x_ptr, out_ptr):
    tl.store(out_ptr, helper(x_ptr, 1))


def test_a_helper_is_emulated_and_its_line_is_named():
    out = numbers(0)
    assert run(calls_helper, (1,), numbers(4, 5), out) == ""
    assert out.tolist() == [5]
    found = run(calls_helper, (1,), numbers(4), out)
    assert f"calls_helper, test_emulator.py:{line_of(helper, 'return')} `return tl.load" in found


# -- launches ------------------------------------------------------------------------------------------


@triton.jit
def where_am_i(out_ptr, WIDTH: tl.constexpr = 2):
    x, y = tl.program_id(0), tl.program_id(1)
    tl.store(out_ptr + y * WIDTH + x, x + 10 * y + 100 * tl.num_programs(1))


@pytest.mark.parametrize("grid", [(2, 3), lambda meta: (meta["WIDTH"], 3)])
def test_grids(grid):
    out = torch.zeros(6, dtype=torch.int64)
    assert run(where_am_i, grid, out, num_warps=1) == ""
    assert out.tolist() == [300, 301, 310, 311, 320, 321]


def test_arguments_that_are_missing_unknown_or_no_integers_are_refused():
    with pytest.raises(TypeError, match="copy: missing a required argument: 'n'"):
        run(copy, (1,), numbers(1), numbers(0), BLOCK=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'BLOKC'"):
        run(copy, (1,), numbers(1), numbers(0), 1, BLOCK=1, BLOKC=1)
    with pytest.raises(Unsupported, match=r"x_ptr holds torch\.float32"):
        run(copy, (1,), torch.zeros(1), numbers(0), 1, BLOCK=1)
    with pytest.raises(Unsupported, match="n is a float"):
        run(copy, (1,), numbers(1), numbers(0), 1.5, BLOCK=1)


@triton.jit
def dots(x_ptr):
    tl.dot(x_ptr, x_ptr)


@triton.jit
def odd_range(x_ptr):
    tl.arange(0, 3)


def test_what_is_not_emulated_says_so():
    with pytest.raises(Unsupported, match=r"tl\.dot is not emulated"):
        run(dots, (1,), numbers(1))
    with pytest.raises(ValueError, match="power of two"):
        run(odd_range, (1,), numbers(1))
    run(copy, (1,), numbers(1), numbers(1), 1, BLOCK=4, num_warps=4)
    for warps in (0, 5):
        with pytest.raises(ValueError, match=f"copy: num_warps is a power of two, not {warps}"):
            run(copy, (1,), numbers(1), numbers(1), 1, BLOCK=4, num_warps=warps)


@triton.jit
def axes(x_ptr, AXIS: tl.constexpr, HOW: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 4))
    if HOW == "sum":
        tl.store(x_ptr, tl.sum(x, AXIS))
    else:
        tl.store(x_ptr + tl.arange(0, 4), tl.cumsum(x, AXIS))


@pytest.mark.parametrize("how", ["sum", "cumsum"])
def test_an_axis_that_a_block_lacks_is_refused(how):
    x = numbers(1, 2, 3, 4)
    assert run(axes, (1,), x, AXIS=0, HOW=how) == ""
    assert int(x[0]) == {"sum": 10, "cumsum": 1}[how]
    with pytest.raises(ValueError, match="axis 1 is out of bounds"):
        run(axes, (1,), x, AXIS=1, HOW=how)


@triton.jit
def narrow_by(x_ptr, out_ptr, BY: tl.constexpr):
    i = tl.arange(0, 4)
    tl.store(out_ptr + i, tl.load(x_ptr + i) % BY)


def test_a_number_that_the_type_of_a_block_does_not_hold_is_refused():
    x, out = torch.arange(4, dtype=torch.int8), torch.zeros(4, dtype=torch.int8)
    assert run(narrow_by, (1,), x, out, BY=3) == ""
    with pytest.raises(ValueError, match="128 is out of range for int8"):
        run(narrow_by, (1,), x, out, BY=128)
