"""Does the live check say what is wrong, who did it and where, and nothing where all is well?"""

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from impl.defects.catalogue import CATALOGUE
from impl.live import Broken, check, report_of
from impl.names import local
from impl.paged import PagedAllocator
from impl.session import Session
from impl.token import TokenAllocator
from oracle.follow import Follower
from oracle.ops import Extend, Free, Grow, Part, sentence
from oracle.rawcall import RawCall
from oracle.traits import RULES
from oracle.translate import Translator
from properties.cases import generate_planned
from properties.sources import SeededSource
from tests.test_tap import paged, swa, token

ROOT = Path(__file__).parents[1]


def extend(allocator, prefix, seq, last=(-1,)):
    p, s = torch.tensor(prefix), torch.tensor(seq)
    return allocator.alloc_extend(p, p, s, s, torch.tensor(last), sum(seq) - sum(prefix))


def decode(allocator, seq, last):
    s = torch.tensor(seq)
    return allocator.alloc_decode(s, s, torch.tensor(last))


def slots(*numbers):
    return torch.tensor(numbers)


def rules(allocator):
    return [finding.violation.rule for finding in report_of(allocator).findings]


# -- nothing where all is well -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["token", "paged", "ascend", "swa"])
def test_generated_sequences_on_sound_allocators_are_all_right(name):
    subject = local(name)
    calls = 0
    for example in range(40):
        case, steps = generate_planned(
            SeededSource(f"{name}/{example}"), subject.space, subject.traits, "contract", misuse=False
        )
        bench = subject.make(case.config)
        check(bench.allocator, traits=subject.traits(case.config), raises=True)
        session = Session(case.config, subject.traits(case.config), bench)
        for step in steps:
            assert "Broken" not in session.apply(step).error
        report = report_of(bench.allocator)
        assert report.findings == []
        assert report.over == ""
        calls += report.calls
    assert calls > 200


def test_cutting_back_in_a_page_and_growing_again_is_nobodys_business():
    allocator = check(paged(), raises=True)
    a = extend(allocator, [0], [6])
    assert extend(allocator, [5], [7], [int(a[4])]).tolist() == [9, 10]
    assert decode(allocator, [8], [10]).tolist() == [11]
    allocator.free(slots(*range(4, 12)))
    assert report_of(allocator).leaks() == []


def test_two_requests_behind_one_prefix_are_kept_apart():
    allocator = check(paged(), raises=True)
    extend(allocator, [0], [8])
    b = extend(allocator, [8, 8], [9, 10], [11, 11])
    assert b.tolist() == [12, 16, 17]
    c = decode(allocator, [10, 11], [12, 17])
    allocator.free(torch.cat((b[:1], c[:1])))
    allocator.free(torch.cat((b[1:], c[1:])))
    assert [leak.slots for leak in report_of(allocator).leaks()] == [8]


def test_an_allocator_in_use_is_taken_over_as_it_is():
    allocator = paged()
    held = extend(allocator, [0], [6])
    allocator.alloc(8)
    check(allocator, raises=True)
    assert decode(allocator, [7], [int(held[-1])]).tolist() == [10]
    allocator.free(slots(*range(4, 11)))
    assert allocator.alloc(4 * 6).numel() == 24
    assert allocator.alloc(4) is None
    allocator.free(slots(*range(12, 20)))
    assert report_of(allocator).over == ""


def test_refused_misuse_is_no_finding_and_taints_nothing():
    allocator = check(paged(debug=True), raises=True)
    a = extend(allocator, [0], [6])
    for wrong in (slots(5), slots(0), slots(4, 4), torch.tensor([[4, 5]])):
        with pytest.raises(ValueError, match=r"."):
            allocator.free(wrong)
    with pytest.raises(ValueError, match="multiple"):
        allocator.alloc(3)
    allocator.free(a)
    assert report_of(allocator).over == ""


def test_clear_begins_anew():
    allocator = check(token())
    allocator.free(slots(3))
    assert report_of(allocator).over
    allocator.clear()
    a = allocator.alloc(8)
    assert report_of(allocator).over == ""
    allocator.free(a)
    allocator.free(a[:1])
    assert rules(allocator) == ["twice", "twice"]


# -- what is wrong -------------------------------------------------------------------------------------


def free_head(allocator, a):
    allocator.free(a[:1])


def free_rest(allocator, a):
    allocator.free(a[1:])


def test_two_parts_of_one_page_in_two_calls_name_both_calls():
    allocator = check(paged())
    a = extend(allocator, [0], [3])
    free_head(allocator, a)
    free_rest(allocator, a)
    [finding] = report_of(allocator).findings
    assert finding.page == 1
    assert [site.method for site in finding.sites] == ["alloc_extend", "free", "free"]
    assert [site.site.rpartition(" ")[2] for site in finding.sites] == ["extend", "free_head", "free_rest"]
    assert all(__file__ in site.site for site in finding.sites)
    assert "free of slots [5, 6] breaks a rule (a slot is freed once)" in finding.violation.summary
    assert "in free_rest" in str(finding)


def test_the_tail_of_a_page_alone_is_said_at_once():
    allocator = check(paged())
    a = extend(allocator, [0], [7])
    allocator.free(a[5:])
    [finding] = report_of(allocator).findings
    assert finding.violation.rule == "part of a page"
    assert finding.page == 2
    assert [site.method for site in finding.sites] == ["alloc_extend", "free"]


def misuse_of_padding(allocator):
    allocator.free(slots(0))


def misuse_of_foreign(allocator):
    allocator.free(slots(999))


def misuse_twice(allocator):
    a = allocator.alloc(4)
    allocator.alloc(4)
    allocator.free(a)
    allocator.alloc(4)
    allocator.free(slots(4))
    allocator.free(slots(4))


def misuse_of_never_given(allocator):
    allocator.free(slots(20))


def misuse_of_one_page_by_two(allocator):
    extend(allocator, [0], [2])
    extend(allocator, [2, 2], [3, 3], [5, 5])


def misuse_of_a_lost_page(allocator):
    a = extend(allocator, [0], [2])
    allocator.free(a)
    decode(allocator, [3], [5])


def misuse_of_last_loc(allocator):
    extend(allocator, [0], [2])
    extend(allocator, [2], [3], [4])


MISUSE = {
    "padding": misuse_of_padding,
    "foreign": misuse_of_foreign,
    "twice": misuse_twice,
    "never given": misuse_of_never_given,
    "one owner": misuse_of_one_page_by_two,
    "last page": misuse_of_a_lost_page,
    "last_loc": misuse_of_last_loc,
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_that_is_accepted_is_named_by_its_rule(name):
    allocator = check(paged(debug=False))
    MISUSE[name](allocator)
    rule = "twice" if name == "never given" else name
    assert rules(allocator) == [rule]
    assert RULES[rule] in str(report_of(allocator).findings[0])


def test_a_wrong_count_of_new_pages_is_the_callers():
    class Trusts(PagedAllocator):
        def _extend_need(self, *batch):
            return super()._extend_need(*batch[:-1], None)

    allocator = check(Trusts(32, 4, torch.float32, "cpu", None, False))
    zero, three = torch.tensor([0]), torch.tensor([3])
    allocator.alloc_extend(zero, zero, three, three, torch.tensor([-1]), 3, num_new_pages=2)
    assert rules(allocator) == ["new pages"]


def test_a_page_with_two_owners_names_both_takers():
    allocator = check(CATALOGUE["shared-prefix"].subject().make(local_config()).allocator)
    extend(allocator, [0], [2])
    extend(allocator, [0, 0], [3, 2], [-1, -1])
    [finding] = report_of(allocator).findings
    assert finding.violation.code == "UNIQUE"
    assert finding.violation.kind == "fault"


def local_config():
    from oracle.ops import Config

    return Config("paged", 8, 4)


def test_a_page_given_twice_names_both_calls():
    class Forgets(TokenAllocator):
        def _drop_head(self, pages):
            super()._drop_head(pages)
            if int(pages) == 3:
                self.free_pages = torch.cat((torch.tensor([1]), self.free_pages[1:]))

    def first(allocator):
        return allocator.alloc(2)

    def second(allocator):
        return allocator.alloc(3)

    def third(allocator):
        return allocator.alloc(1)

    allocator = check(Forgets(9, torch.float32, "cpu", None, False))
    first(allocator), second(allocator), third(allocator)
    [finding] = report_of(allocator).findings
    assert finding.violation.code == "UNIQUE"
    assert [site.site.rpartition(" ")[2] for site in finding.sites] == ["first", "third"]
    assert "operation 1 gave it" in finding.violation.summary


@pytest.mark.parametrize(
    "name",
    [
        "repeats-page",
        "F15",
        "F26",
        "F17",
        "counts-waiting",
        "batch-loses-page",
        "F01",
        "F24-exact",
        "two-dimensions",
    ],
)
def test_known_defects_are_seen_live(name):
    defect = CATALOGUE[name]
    subject, codes = defect.subject(), defect.codes
    for example in range(300):
        case, steps = generate_planned(
            SeededSource(f"{name}/{example}"), subject.space, subject.traits, "contract", misuse=False
        )
        bench = subject.make(case.config)
        check(bench.allocator)
        session = Session(case.config, subject.traits(case.config), bench)
        for step in steps:
            session.apply(step)
            if report_of(bench.allocator).findings:
                assert report_of(bench.allocator).findings[0].violation.code in codes
                return
    pytest.fail("nothing was seen")


# -- what becomes of it --------------------------------------------------------------------------------


def test_findings_go_to_log_file_and_callback_and_never_into_the_server(caplog, tmp_path):
    told = []

    def found(finding):
        told.append(finding)
        raise RuntimeError("the callback is broken as well")

    allocator = check(token(), found=found, file=tmp_path / "found.txt")
    with caplog.at_level(logging.ERROR, "kvassay"):
        allocator.free(slots(3))
        assert allocator.alloc(2) is not None
    assert len(told) == 1
    assert "a slot is freed once" in caplog.text
    assert "a slot is freed once" in (tmp_path / "found.txt").read_text()


def test_it_raises_where_it_is_told_to_when_the_call_is_done():
    allocator = check(token(), raises=True)
    with pytest.raises(Broken, match="a slot is freed once"):
        allocator.free(slots(3))
    assert allocator.available_size() == 9


def test_nobody_begins_to_listen_inside_a_group():
    allocator = token()
    allocator.free_group_begin()
    with pytest.raises(RuntimeError, match="a group of frees is open"):
        check(allocator)


def test_a_pool_whose_window_halves_are_gone_is_taken_over_as_its_mapping_has_it():
    allocator = swa()
    held = extend(allocator, [0], [6])
    allocator.free_swa(held[2:4])
    check(allocator)
    allocator.free_swa(held[2:4])
    allocator.free(held)
    assert (report_of(allocator).findings, report_of(allocator).over) == ([], "")


def test_a_pool_whose_window_halves_are_gone_is_not_taken_over_where_the_mapping_says_another_number():
    allocator = swa()
    allocator.free_swa(extend(allocator, [0], [4])[:2])
    allocator.full_to_swa_index_mapping[2:4] = 2
    with pytest.raises(ValueError, match="begin with an idle pool"):
        check(allocator)


def test_leaks_are_listed_by_the_stack_that_took_them():
    def leaky(allocator):
        return extend(allocator, [0], [5])

    allocator = check(paged())
    for _ in range(2):
        leaky(allocator)
    allocator.free(allocator.alloc(4))
    [leak] = report_of(allocator).leaks()
    assert (leak.slots, leak.pages, leak.calls) == (10, 4, (1, 2))
    assert "in leaky" in leak.stack
    assert "10 slot(s) on 4 page(s) are held" in report_of(allocator).summary()


def test_what_nobody_can_follow_ends_the_check_with_a_word(caplog):
    class Resizes(TokenAllocator):
        def resize(self, config):
            return None

    allocator = check(Resizes(8, torch.float32, "cpu", None, False))
    with caplog.at_level(logging.WARNING, "kvassay"):
        allocator.resize(None)
    allocator.free(slots(3))
    assert report_of(allocator).findings == []
    assert "resize is not understood" in caplog.text


def test_a_window_that_was_given_up_is_counted():
    allocator = check(swa(), raises=True)
    a = extend(allocator, [0], [4])
    allocator.free_swa(a[:2])
    allocator.free_swa(a[:2])
    allocator.free(a)
    assert report_of(allocator).leaks() == []


# -- the translation -----------------------------------------------------------------------------------


def translated(translator, **call):
    made = translator.translate(RawCall(**call))
    answer = (
        tuple(range(first := call["answer"][0][0], first + call["answer"][0][1])) if "answer" in call else ()
    )
    translator.apply(made, answer)
    return [sentence(o) for o in (*made.before, made.step.operation)]


def test_calls_by_number_become_operations_by_request():
    from oracle.traits import ALWAYS, OPTIONAL, Traits

    t = Translator(local_config(), Traits(ALWAYS | OPTIONAL))
    got = {"outcome": "slots"}
    assert translated(
        t, method="alloc_extend", prefix=(0,), seq=(6,), last=(-1,), total=6, answer=((4, 6),), **got
    ) == ["extend r1 +6"]
    assert translated(t, method="alloc_decode", seq=(7,), last=(9,), answer=((10, 1),), **got) == [
        "decode r1"
    ]
    assert translated(
        t, method="alloc_extend", prefix=(6,), seq=(8,), last=(9,), total=2, answer=((10, 2),), **got
    ) == ["cut the last 1 of r1", "extend r1 +2"]
    assert translated(
        t, method="alloc_extend", prefix=(8,), seq=(9,), last=(11,), total=1, answer=((12, 1),), **got
    ) == ["extend r2 +1 behind the prefix of r1"]
    assert translated(t, method="free", slots=((8, 4), (4, 4))) == ["free r1[4:], r1[0:4]"]
    assert translated(t, method="free", slots=((12, 1),)) == ["free r2"]


def test_a_double_free_of_pages_that_moved_on_is_a_case_of_its_own():
    config = local_config()
    follower = Follower(config, local("paged").traits(config))
    grow = {"prefix": (0,), "last": (-1,), "outcome": "slots"}
    follower.follow(RawCall("alloc_extend", seq=(4,), total=4, answer=((4, 4),), free=28, **grow))
    follower.follow(RawCall("free", slots=((4, 4),), free=32))
    follower.follow(RawCall("alloc_extend", seq=(3,), total=3, answer=((8, 3),), free=28, **grow))
    last = follower.follow(RawCall("free", slots=((4, 4),), free=32))
    assert last.violation is not None
    assert (last.violation.rule, last.violation.kind) == ("twice", "misuse")
    name = last.translated.step.operation.parts[0].request
    assert last.translated.before == (Extend((Grow(name, 4),)), Free((Part(name),)))


# -- a real release ------------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize("sound", [False, True])
def test_a_scheduler_on_a_real_release_is_told_which_calls_freed_one_page(sound):
    loop = ROOT / "docs" / "examples" / "scheduler_loop.py"
    run = subprocess.run(
        [sys.executable, loop, *(["--sound"] if sound else [])], capture_output=True, text=True, timeout=300
    )
    lines = loop.read_text().splitlines()
    places = [
        f"{loop}:{next(i for i, line in enumerate(lines, 1) if i > start and 'allocator.free(slots)' in line)}"
        for start in (lines.index("    def free_prompt(self, slots: torch.Tensor) -> None:") + 1,
                      lines.index("    def free_output(self, slots: torch.Tensor) -> None:") + 1)
    ]  # fmt: skip
    assert run.returncode == (0 if sound else 1), run.stderr
    for place in places:
        assert (f"free, at {place} in" in run.stderr) is not sound
    assert ("a slot is freed once" in run.stderr) is not sound
