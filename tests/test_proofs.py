"""Is each claim about the kernels' arithmetic proven, and refuted as soon as the formula is another one?"""

import inspect

import pytest

pytest.importorskip("z3", reason="needs z3 (the extra 'prove')")
pytest.importorskip("triton", reason="the claims are about kernels")

import torch

from impl import kernels, proofs, triton_engine
from impl.ascend import AscendAllocator
from impl.base import MOST_PAGE
from impl.paged import PagedAllocator
from impl.proofs import Formulas, refuted


@pytest.mark.parametrize("claim", proofs.CLAIMS, ids=lambda claim: claim.__name__)
def test_claim_holds_for_all_numbers(claim):
    assert refuted(claim()) is None


@pytest.mark.parametrize(
    ("claim", "wrong"),
    [
        (proofs.held_rounds_up, Formulas(round_up=0)),
        (proofs.held_rounds_up, Formulas(round_up=2)),
        (proofs.old_page_is_the_last_locations, Formulas(round_up=2)),
        (proofs.new_pages_are_reserved, Formulas(held_back=1)),
        (proofs.new_pages_are_reserved, Formulas(held_back=-1)),
        (proofs.chunk_finds_the_page, Formulas(held_back=1)),
        (proofs.chunks_tile_the_tokens, Formulas(chunk_shift=1)),
        (proofs.shares_tile_the_tokens, Formulas(chunk_shift=1)),
    ],
)
def test_a_wrong_formula_is_refuted(claim, wrong):
    assert refuted(claim(wrong)) is not None


def test_tokens_of_one_page_differ_because_pages_are_distinct():
    claim = proofs.tokens_of_one_page_differ()
    claim.holds = proofs.z3.Not(claim.holds)
    assert refuted(claim) is not None


def test_sums_fit_in_32_bits_up_to_the_longest_extend_and_no_further():
    assert refuted(proofs.sums_fit()) is None
    assert refuted(proofs.sums_fit(kernels.MOST_TOKENS + (1 << 13))) is not None


def test_lanes_fit_in_32_bits_up_to_the_largest_page_of_a_pool():
    assert refuted(proofs.lanes_fit(MOST_PAGE)) is None
    assert refuted(proofs.lanes_fit(MOST_PAGE + (1 << 13))) is not None


def test_the_formulas_are_those_of_the_kernels():
    """What is claimed about is written in the text of the kernels."""
    text = inspect.getsource(kernels) + inspect.getsource(triton_engine)
    for formula in (
        "held = (prefix + PAGE - 1) // PAGE",
        "pages_ptr = free_ptr + (page_start + first // PAGE - held)",
        "offset = shift + k",
        "last_loc + 1 + k0 + k, page * PAGE + offset % PAGE",
        "k0 = tl.where(p < bs, 0, (p - bs + 1) * CHUNK - token_start)",
        "programs = bs + (total - 1) // chunk",
        "low = tl.program_id(0) * SHARE",
        "begin = tl.maximum(low - token_start, 0)",
        "end = tl.minimum(grow, low + SHARE - token_start)",
    ):
        assert formula in text


@pytest.mark.parametrize("cls", [PagedAllocator, AscendAllocator])
def test_slots_fit_their_dtype_in_the_largest_pool_that_a_constructor_takes(cls):
    most = torch.iinfo(cls.index_dtype).max
    assert refuted(proofs.slots_fit(most)) is None
    assert refuted(proofs.slots_fit(most, unlisted=0)) is not None
    page_size = 1 << 29
    pages = most // page_size - 1
    if cls is AscendAllocator:
        assert cls(pages * page_size, page_size, torch.float16, "cpu", None, False).num_pages == pages
    with pytest.raises(ValueError, match="more than"):
        cls((pages + 1) * page_size, page_size, torch.float16, "cpu", None, False)
