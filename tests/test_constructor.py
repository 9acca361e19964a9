"""Is a constructor that takes what cannot be, or refuses what can be, found out? And are others left in peace?"""

from dataclasses import replace

import pytest

from impl.base import MOST_PAGE
from impl.constructor import misbuilt
from impl.factory import factory_subject
from impl.names import local
from impl.subject import OWN, own
from oracle.ops import Case, Config
from oracle.traits import Traits
from properties.judged import judged

ONE = {
    part: Config(
        "paged" if part == "ascend" else part,
        1,
        1 if part == "token" else 2,
        swa_pages=int(part == "swa"),
        debug=True,
    )
    for part in OWN
}


@pytest.mark.parametrize("part", OWN)
@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_our_own_answer_rightly(part, page_size):
    config = replace(ONE[part], page_size=1 if part == "token" else page_size)
    asked = []
    bench = own(part).make(config)

    def build(pool):
        asked.append(pool)
        return bench.build(pool)

    assert misbuilt(build, config, own(part).traits(config)) == ""
    assert len(asked) > (4 if part == "token" else 9)


@pytest.mark.parametrize(
    ("field", "wrong", "says"),
    [
        ("size", -2, "a pool whose size is negative"),
        ("size", 8.0, "a pool whose size is no int"),
        ("size", 1, "a pool whose size is less than a page"),
        ("size", 2**63 - 2, "a pool whose size is a page more than"),
        ("size_swa", -2, "a pool whose size_swa is negative"),
        ("size_swa", 8.0, "a pool whose size_swa is no int"),
        ("size_swa", 1, "a pool whose size_swa is less than a page"),
        ("size_swa", 2**31 - 2, "a pool whose size_swa is a page more than"),
        ("need_sort", 1, "a pool whose need_sort is no bool"),
        ("page_size", 0, "a pool in pages of 0 slots"),
        ("page_size", -1, "a pool in pages of -1 slots"),
        ("page_size", 1.0, "a pool in pages of 1.0 slots"),
        ("page_size", MOST_PAGE + 1, "a pool in pages larger than kernels count"),
    ],
)
def test_each_pool_that_cannot_be_is_asked_for(field, wrong, says):
    config = ONE["swa"]
    make = own("swa").make(config).build

    def build(pool):
        value = getattr(pool, field)
        taken = type(value) is type(wrong) and value == wrong
        return None if taken else make(pool)

    said = misbuilt(build, config, own("swa").traits(config))
    assert said.startswith(says)
    assert " cannot be, and was made: Pool(" in said


@pytest.mark.parametrize(("part", "what"), [("paged", "pool"), ("ascend", "pool"), ("swa", "window")])
def test_the_largest_is_asked_for(part, what):
    config = ONE[part]
    build = own(part).make(config).build

    def narrow(pool):
        if max(pool.size, pool.size_swa) > 1 << 30:
            raise ValueError("too large")
        return build(pool)

    said = misbuilt(narrow, config, own(part).traits(config))
    assert said.startswith(f"the largest {what} can be, and was refused: Pool(")


def test_an_error_that_no_check_raises_is_no_refusal():
    def build(pool):
        return 1 // pool.page_size if pool.page_size == 0 else real(pool)

    config = ONE["paged"]
    real = own("paged").make(config).build
    said = misbuilt(build, config, own("paged").traits(config))
    assert "cannot be, and was met with ZeroDivisionError" in said


@pytest.mark.parametrize("change", [{"pages": 2}, {"debug": False}])
def test_pools_of_one_page_in_debug_mode_are_asked_about_and_no_others(change):
    traits = own("paged").traits(ONE["paged"])
    assert misbuilt(lambda pool: None, replace(ONE["paged"], **change), traits) == ""
    assert misbuilt(lambda pool: None, ONE["paged"], traits) != ""


def test_nothing_is_asked_of_those_who_claim_nothing():
    def takes_all(config):
        return own("paged").make(config).allocator

    assert not Traits().checks_pools
    assert misbuilt(lambda pool: None, ONE["paged"], Traits()) == ""
    subject = factory_subject("takes_all", takes_all, "cpu")
    assert subject.make(ONE["paged"]).build is None
    assert judged(subject, Case(ONE["paged"], ()), "hardened").violation is None


@pytest.mark.parametrize("name", ["page-of-none", "largest-refused"])
def test_a_defect_is_found_on_the_plain_pool_and_at_hardened_level_alone(name):
    subject, case = local(f"defect:{name}"), Case(ONE["paged"], ())
    assert judged(subject, case, "contract").violation is None
    violation = judged(subject, case, "hardened").violation
    assert (violation.code, violation.operation) == ("REJECT", "__init__")
