"""Does a name give the subject that it names, and what is wrong with it one clear line?"""

import pytest

import impl.names
from impl.child import ChildSubject
from impl.errors import SubjectError
from impl.names import OWN, Name, imported, local, parse, plug_ins, resolve
from impl.subject import KV_SLOTS, LocalSubject
from oracle.ops import Config
from properties.cases import draw_config
from properties.sources import SeededSource
from tests.planted import frees_twice

ONE_LINE = r"^[^\n]*$"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("token", Name("token", {})),
        ("paged[]", Name("paged", {})),
        (
            " paged [ page_size = 16 , need_sort = TRUE ] ",
            Name("paged", {"page_size": 16, "need_sort": True}),
        ),
        ("swa[pages=8,swa_pages=4,spare=0]", Name("swa", {"pages": 8, "swa_pages": 4, "spare": 0})),
        ("paged[need_sort=no,]", Name("paged", {"need_sort": False})),
        ("paged[engine=triton]", Name("paged", {}, "triton")),
        ("sglang@0.5.2:paged[page_size=64]", Name("sglang@0.5.2:paged", {"page_size": 64})),
        ("my.module:factory", Name("my.module:factory", {})),
    ],
)
def test_parse(name, parsed):
    assert parse(name) == parsed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is no subject's name"),
        ("paged[", "is no subject's name"),
        ("paged]", "is no subject's name"),
        ("paged[page_size=4]x", "is no subject's name"),
        ("[page_size=4]", "is no subject's name"),
        ("paged[page_size]", "write name=value"),
        ("paged[page_size=]", "write name=value"),
        ("paged[page_size=x]", "page_size is a whole number, not 'x'"),
        ("paged[page_size=-4]", "page_size is a whole number, not '-4'"),
        ("paged[need_sort=maybe]", "need_sort is true or false, not 'maybe'"),
        ("paged[colour=red]", "no parameter 'colour'; there are page_size,"),
    ],
)
def test_what_is_no_name_is_refused(name, says):
    with pytest.raises(SubjectError, match=ONE_LINE) as error:
        parse(name)
    assert says in str(error.value)


@pytest.mark.parametrize("make", [resolve, local])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nonsense", "no subject is called 'nonsense'; there are token, paged, ascend, swa"),
        ("sglang@0.5.2", "sglang@0.5.2 names no part of SGLang"),
        ("sglang@0.5.2:nonsense", "names no part of SGLang: write sglang@0.5.2:PART"),
        ("sglang:nonsense", "names no part of SGLang: write sglang:PART"),
        ("token[page_size=4]", "token has page size 1"),
        ("token[engine=torch]", "token has no engine"),
        ("paged[engine=abacus]", "engine is torch or triton or emulator, not 'abacus'"),
        ("paged[swa_pages=4]", "paged has no second pool"),
        ("paged[pages=0]", "at least one page"),
        ("paged[page_size=0]", "at least one page of at least one slot"),
        ("token[spare=1]", "spare is what is left behind the last whole page"),
        ("paged[page_size=4,spare=4]", "spare is what is left behind the last whole page"),
    ],
)
def test_what_names_nothing_is_refused(make, name, says):
    with pytest.raises(SubjectError, match=ONE_LINE) as error:
        make(name)
    assert says in str(error.value)


@pytest.mark.parametrize("name", OWN)
def test_our_own_are_made_here(name):
    subject = resolve(name)
    assert isinstance(subject, LocalSubject)
    assert subject.name == name
    assert subject.space.kind == ("paged" if name == "ascend" else name)


@pytest.mark.parametrize(
    ("parameters", "fixed"),
    [
        ("page_size=2,need_sort=true,pages=5", {"page_size": 2, "need_sort": True, "pages": 5}),
        ("page_size=1", {"page_size": 1}),
        ("spare=3", {"spare": 3}),
        ("pages=2000", {"pages": 2000}),
    ],
)
def test_parameters_fix_the_pools_and_what_is_drawn_goes_with_them(parameters, fixed):
    space = resolve(f"paged[{parameters}]").space
    drawn = [draw_config(SeededSource(seed), space, "contract") for seed in range(60)]
    assert all(getattr(config, key) == value for config in drawn for key, value in fixed.items())
    assert len(set(drawn)) > 5
    assert not any(config.data and config.size > KV_SLOTS for config in drawn)


def test_path_goes_with_sglang_only():
    for name in ("paged", "sglang@0.5.2:paged", "tests.planted:dies"):
        with pytest.raises(SubjectError, match="--path goes with sglang:PART"):
            resolve(name, path="/somewhere")


def test_anybodys_factory_runs_in_a_child_and_here_where_asked():
    subject = resolve("tests.planted:second_end[pages=2]")
    assert isinstance(subject, ChildSubject)
    assert subject.space.fixed == {"pages": 2}
    subject.close()
    here = local("tests.planted:second_end[pages=2]")
    assert isinstance(here, LocalSubject)
    assert here.open(Config("token", 2)).begin().available == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.planted:ENGINES", "tests.planted:ENGINES is a dict"),
        ("tests.planted:nothing", "tests.planted has no 'nothing'"),
        ("no_such_module:factory", "no_such_module can't be imported"),
        ("tests.planted:raises", "raised RuntimeError: no pool today"),
        ("tests.planted:no_allocator", "gave a object without alloc, free"),
    ],
)
def test_what_is_no_factory_is_refused(name, says):
    with pytest.raises(SubjectError, match=ONE_LINE) as error:
        local(name)
    assert says in str(error.value)


def test_a_factory_that_can_not_be_made_so_is_refused():
    with pytest.raises(SubjectError, match="has page size 1"):
        local("tests.planted:second_end[page_size=4]")


class Point:
    def __init__(self, name, loaded):
        self.name, self.loaded, self.value = name, loaded, f"somewhere:{name}"

    def load(self):
        return self.loaded


def test_entry_points_add_names(monkeypatch):
    asked = []

    def points(group):
        asked.append(group)
        return [Point("theirs", frees_twice)]

    monkeypatch.setattr(impl.names, "entry_points", points)
    assert list(plug_ins()) == ["theirs"]
    assert set(asked) == {"kvassay.subjects"}
    subject = local("theirs[page_size=2]")
    assert (subject.name, subject.space.kind, subject.space.fixed) == (
        "theirs[page_size=2]",
        "paged",
        {"page_size": 2},
    )
    with pytest.raises(SubjectError, match=r"no subject is called 'ours'; there are .*, theirs"):
        resolve("ours")


def test_an_entry_point_does_not_take_a_name_of_ours(monkeypatch):
    monkeypatch.setattr(impl.names, "entry_points", lambda group: [Point("token", frees_twice)])
    assert resolve("token").about.startswith("kvassay's own")


def test_imported_says_what_went_wrong(tmp_path, monkeypatch):
    (tmp_path / "planted_broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SubjectError, match="importing planted_broken_module raised ZeroDivisionError"):
        imported("planted_broken_module:factory")
    with pytest.raises(SubjectError, match="can't be imported"):
        imported("planted_no_module:factory")
    with pytest.raises(SubjectError, match="has no 'nothing'"):
        imported("oracle.ops:nothing")
