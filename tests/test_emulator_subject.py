"""Does what the emulator finds reach the judge, by its category, and does the run go on behind it?"""

import random
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from fuzz.campaign import campaign
from impl.emulator.engine import EmulatedEngine
from impl.emulator.fresh import mark_fresh
from impl.emulator.launch import Emulator
from impl.engines import LocalEngine
from impl.paged import PagedAllocator
from impl.session import Bench
from impl.subject import Space, own, pool_lists
from impl.torch_engine import TorchEngine
from impl.triton_engine import TritonEngine
from oracle.casefile import CaseFile, dumps, loads
from oracle.ops import Case, Config, Decode, Extend, Grow, config_sentence
from properties.cases import draw_config, generate
from properties.checks import Task
from properties.judged import judged
from properties.kernels import check_batch, draw_batch
from properties.sources import SeededSource


@triton.jit
def decode_by_sums(new_ptr, last_loc_ptr, free_ptr, out_ptr, page_size, N: tl.constexpr):
    """A program a request. It sums up lanes that the mask leaves open: right where they happen to hold 0."""
    request = tl.program_id(0)
    j = tl.arange(0, N)
    index = tl.sum(tl.load(new_ptr + j, mask=j < request))
    if tl.load(new_ptr + request):
        tl.store(out_ptr + request, tl.load(free_ptr + index) * page_size)
    else:
        tl.store(out_ptr + request, tl.load(last_loc_ptr + request) + 1)


class SumsOpenLanes(EmulatedEngine):
    def __init__(self, emulator):
        super().__init__(emulator)
        self._kernel = emulator.kernel(decode_by_sums)

    def decode(self, seq_lens, last_loc, free_pages, out, page_size):
        new = ((seq_lens - 1) % page_size == 0).long()
        self._kernel[(out.numel(),)](new, last_loc, free_pages, out, page_size, N=64)


class ReadsTooFar(EmulatedEngine):
    def decode(self, seq_lens, last_loc, free_pages, out, page_size):
        super().decode(seq_lens, last_loc, free_pages[: seq_lens.numel() - 1], out, page_size)


class LeavesOneOut(EmulatedEngine):
    def decode(self, seq_lens, last_loc, free_pages, out, page_size):
        mark_fresh(out)
        TritonEngine.decode(self, seq_lens[1:], last_loc[1:], free_pages, out[1:], page_size)
        self.emulator.look_at(out)


def subject(engine_class):
    emulator = Emulator()

    def make(config):
        emulator.undefined = config.undefined
        allocator = PagedAllocator(
            config.size, config.page_size, torch.float32, "cpu", None, config.need_sort,
            engine=engine_class(emulator), debug=config.debug,
        )  # fmt: skip
        return Bench(allocator, lists=pool_lists, emulator=emulator)

    space = Space("paged", (1, 2, 4), data=False, undefined=True)
    return replace(own("paged", engine="emulator"), name=engine_class.__name__, make=make, space=space)


def guard(engine_class, *operations, pages=4, undefined=False):
    case = Case(Config("paged", pages, 2, overwrite=False, undefined=undefined), operations)
    violation = judged(subject(engine_class), case, "contract").violation
    return violation and (violation.code, violation.operation, violation.symptom)


AB = Decode(("A", "B"))


def test_two_findings_of_one_method_differ_in_their_symptom():
    assert guard(SumsOpenLanes, AB, undefined=True) == ("GUARD", "alloc_decode", "undefined lane")
    assert guard(ReadsTooFar, AB) == ("GUARD", "alloc_decode", "out-of-bounds load")
    assert guard(EmulatedEngine, AB, undefined=True) is None


def test_open_lanes_are_poison_only_where_the_pool_says_so():
    assert guard(SumsOpenLanes, AB, undefined=False) is None


def test_a_finding_is_that_of_its_own_operation():
    first = Extend((Grow("A", 2), Grow("B", 2)))
    case = Case(Config("paged", 6, 2, overwrite=False), (first, AB, first))
    violation = judged(subject(ReadsTooFar), case, "contract").violation
    assert violation.index == 1
    assert "decode_kernel, kernels.py:" in violation.summary
    assert "loads free_ptr[1]" in violation.summary


def test_the_run_goes_round_open_lanes_and_finds_nothing_else():
    chosen = subject(SumsOpenLanes)
    result = campaign(Task(chosen.name, "sequences", 0, 60), chosen, "contract", 1)
    assert [(f.violation.symptom, f.steered) for f in result.findings] == [
        ("undefined lane", "with undefined lanes")
    ]
    (finding,) = result.findings
    assert finding.case.config.undefined
    assert len(finding.case.operations) == 1
    assert not result.stopped_at


def test_another_finding_is_shrunk_to_a_pool_without_open_lanes():
    chosen = subject(ReadsTooFar)
    result = campaign(Task(chosen.name, "sequences", 0, 30), chosen, "contract", 1)
    assert result.findings[0].violation.symptom.startswith("out-of-bounds load")
    assert not result.findings[0].case.config.undefined


def test_a_case_file_carries_the_switch():
    case = Case(Config("paged", 2, 2, undefined=True), (AB,))
    assert loads(dumps(CaseFile(case))).case == case
    assert "undefined" not in dumps(CaseFile(replace(case, config=replace(case.config, undefined=False))))
    assert "lanes that a load leaves open are poison" in config_sentence(case.config)


def test_subjects_without_an_emulator_draw_what_they_drew():
    plain = Space("paged", (1, 2, 4))
    poisoned = 0
    for seed in range(200):
        one, other = SeededSource(seed), SeededSource(seed)
        without = draw_config(one, plain, "contract")
        one.below(1)  # the draw that is added comes last
        drawn = draw_config(other, replace(plain, undefined=True), "contract")
        assert replace(drawn, undefined=False) == without
        assert one.below(1 << 30) == other.below(1 << 30)
        poisoned += drawn.undefined
        assert not without.undefined
        assert not draw_config(
            SeededSource(seed),
            replace(plain, undefined=True),
            "contract",
            frozenset({"with undefined lanes"}),
        ).undefined
    assert 100 < poisoned < 200


@pytest.mark.parametrize(
    ("engine_class", "category"),
    [
        (SumsOpenLanes, "undefined lane"),
        (ReadsTooFar, "out-of-bounds load"),
        (LeavesOneOut, "unwritten memory"),
    ],
)
def test_the_kernel_tier_finds_it_too(engine_class, category):
    emulator = Emulator()
    engine = LocalEngine("e", "", engine_class(emulator), emulator=emulator)
    batches = (draw_batch(SeededSource(number), 20) for number in range(200))
    found = {v.symptom for v in (check_batch(engine, batch, "int64") for batch in batches) if v}
    assert category in found


def test_a_few_cases_take_every_way_through_the_kernels(monkeypatch):
    """What the gate can't reach it can't judge: a mutant in a second program, or a second round, would live."""
    engine = EmulatedEngine(Emulator())
    ways = set()

    def watched(name):
        launch = getattr(engine, name)

        def call(programs, tensors, numbers, constants, *more):
            if name == "_free":
                ways.add((name, "one round" if numbers[0] <= constants[1] else "several rounds"))
            else:
                ways.add((name, "one program" if programs == 1 else "several programs"))
            launch(programs, tensors, numbers, constants, *more)

        return call

    for name in ("_extend", "_sums", "_shares", "_decode", "_free", "_mark", "_list"):
        monkeypatch.setattr(engine, name, watched(name))
    chosen = own("paged", engine=engine)
    for number in range(100):
        case = generate(SeededSource(number), chosen.space, chosen.traits, "hardened")
        assert judged(chosen, case, "hardened").violation is None
    kernels = ("_extend", "_shares", "_decode", "_list")
    assert ways == {
        *((name, many) for name in kernels for many in ("one program", "several programs")),
        *((name, "several programs") for name in ("_sums", "_mark")),
        ("_free", "one round"), ("_free", "several rounds"),
    }  # fmt: skip


def test_small_batches_take_what_torch_gives():
    """Their last block of requests is seldom full: what is not there takes no token, and no page."""
    engine, rng = EmulatedEngine(Emulator()), random.Random(1)
    for _ in range(300):
        bs, page_size = rng.randint(1, 14), rng.choice((1, 2, 4, 8))
        prefix = torch.tensor([rng.randint(0, 9) for _ in range(bs)])
        seq = prefix + torch.tensor([rng.choice((0, 1, 1, 2, 9)) for _ in range(bs)])
        last = (torch.arange(bs) + 50) * page_size + (prefix - 1) % page_size
        free = torch.tensor(rng.sample(range(100, 300), 200))
        outs = []
        for each in (engine, TorchEngine()):
            outs.append(torch.full((int((seq - prefix).sum()),), -7))
            each.extend(prefix, seq, last, free, outs[-1], page_size)
        assert torch.equal(*outs), (page_size, prefix, seq)
    assert engine.emulator.take() == ""


def test_an_extend_ends_where_the_lengths_are_less_than_was_said():
    """A launch that never ends takes the device with it; a wrong answer does not."""
    prefix, seq = torch.zeros(20).long(), torch.full((20,), 3)
    emulator = Emulator()
    engine = EmulatedEngine(emulator)
    out = torch.empty(20 * 9, dtype=torch.int64)
    engine.extend(prefix, seq, prefix - 1, torch.arange(1, 200), out, 4)
    assert emulator.take().startswith("unwritten memory: ")
