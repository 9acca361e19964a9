"""Does a mutant change what is executed, and does the gate's verdict on it say the truth?"""

import importlib
import importlib.util
import io
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fuzz.explained import EXPLAINED, Explained, read_explained
from fuzz.forked import in_fork
from fuzz.mutants import (
    LIVES,
    Base,
    End,
    Fate,
    Score,
    _end_of_case,
    _end_of_task,
    _noticed,
    explain,
    fates_of,
    prepare,
    sources_of,
    survivors,
)
from fuzz.mutator import Source
from fuzz.power_report import print_score
from impl.errors import SubjectError
from impl.names import local
from properties.checks import Task
from properties.judged import HarnessError

TEXT = '''"""A module to be changed."""


class Base:
    def size(self):
        return 1


class Counter(Base):
    """Counts."""

    start = 5

    def __init__(self, low: int = 0):
        """Starts."""
        super().__init__()
        self.low = low

    def size(self):
        return super().size() + 1

    @property
    def next(self):
        return self.low + 1

    @staticmethod
    def between(low, value, high):
        if low <= value < high:
            return True
        raise ValueError(f"{value + 1} is not in {low}..{high}")


def idle(x):
    x = x
    return between(max(x, 1), 2, 3) if x else -x


def between(low, value, high):
    return Counter.between(low, value, high)


def ready(flag):
    if flag.ready:
        return "yes" and (0, 0)
    return None
'''


@pytest.fixture
def module(tmp_path: Path):
    path = tmp_path / "changed_here.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("changed_here", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def mutants_of(module):
    source = Source.of(module)
    return source, source.mutants(frozenset(source.functions))


def test_all_kinds_of_change_and_nothing_in_texts(module):
    source, mutants = mutants_of(module)
    changes = {(m.function, m.before, m.after) for m in mutants}
    assert {
        ("Counter.between", "low <= value < high", "low < value < high"),
        ("Counter.size", "super().size() + 1", "super().size() - 1"),
        ("Counter.next", "1", "2"),
        ("Counter.__init__", "self.low = low", "(dropped)"),
        ("Counter.between", "raise ValueError(f'{value + 1} is not in {low}..{high}')", "(dropped)"),
        ("between", "Counter.between(low, value, high)", "Counter.between(value, low, high)"),
        ("idle", "-x", "x"),
        ("idle", "between(max(x, 1), 2, 3) if x else -x", "-x if x else between(max(x, 1), 2, 3)"),
        ("ready", "flag.ready", "not flag.ready"),
        ("ready", "'yes' and (0, 0)", "'yes' or (0, 0)"),
        ("Counter.between", "True", "False"),
    } <= changes
    assert not any(m.before == "max(x, 1)" for m in mutants)  # says the same either way
    assert not any(
        m.before == "value + 1" or (m.before == "0" and m.function == "Counter.__init__") for m in mutants
    )
    assert all(m.text in TEXT and TEXT.splitlines()[m.line - 1].strip() == m.text for m in mutants)
    assert len({(m.module, m.place) for m in mutants}) == len(mutants)
    assert set(source.functions) >= {"Counter.size", "Counter.next", "Counter.between", "idle"}


@pytest.mark.parametrize(
    ("function", "after", "behaviour"),
    [
        ("Counter.size", "super().size() - 1", lambda m: m.Counter().size() == 0),
        ("Counter.next", "self.low - 1", lambda m: m.Counter(5).next == 4),
        ("Counter.between", "low < value < high", lambda m: _raises(m.between, 2, 2, 3)),
        ("between", "Counter.between(value, low, high)", lambda m: _raises(m.between, 1, 2, 3)),
    ],
)
def test_a_mutant_is_what_is_executed_from_then_on(module, function, after, behaviour):
    source, mutants = mutants_of(module)
    assert not behaviour(module)
    assert source.apply(next(m for m in mutants if (m.function, m.after) == (function, after)))
    assert behaviour(module)


def _raises(function, *arguments):
    try:
        function(*arguments)
    except ValueError:
        return True
    return False


def test_every_mutant_of_ours_changes_the_bytecode_or_is_told(module):
    source, mutants = mutants_of(module)
    originals = {name: f.__code__ for name, f in source.functions.items()}
    for mutant in mutants:
        changed = source.apply(mutant)
        function = source.functions[mutant.function]
        assert changed == (function.__code__ is not originals[mutant.function])
        function.__code__ = originals[mutant.function]


def test_what_a_fork_does_stays_there():
    box = []
    assert in_fork(lambda: box.append(1) or "done", 10).value == "done"
    assert box == []
    assert in_fork(lambda: os.kill(os.getpid(), signal.SIGSEGV), 10)[::2] == ("died", "SIGSEGV")
    assert in_fork(lambda: time.sleep(600), 0.1).fate == "hung"
    assert in_fork(lambda: any(iter(int, 1)), 0.3).fate == "hung"
    assert in_fork(lambda: time.sleep(0.5), 0.1).fate == "answered"  # it waited, and was no longer on a core
    with pytest.raises(KeyError):
        in_fork(lambda: {}["no"], 10)


def test_kernels_are_changed_too_wherever_their_engine_is():
    modules = [source.module for source in sources_of(local("swa[engine=emulator]"))]
    assert modules == [
        "impl.base", "impl.free_kernel", "impl.free_many_kernels", "impl.kernels", "impl.paged", "impl.pages",
        "impl.swa", "impl.triton_engine",
    ]  # fmt: skip


def test_the_gate_kills_what_it_can_see_and_nothing_else():
    prepared = prepare("token", "quick", 1)
    assert "impl.base:PoolAllocator.alloc" not in prepared.undriven
    assert "impl.base:BaseAllocator.alloc_decode" in prepared.undriven
    wanted = {
        ("PoolAllocator._drop_head", "self._free_list.drop(pages)", "(dropped)"): "finding",
        (
            "PoolAllocator.merge_and_sort_free",
            "self.release_pages = self.free_pages.new_empty(0)",
            "(dropped)",
        ): "finding",
        ("BaseAllocator.__init__", "self.need_sort = need_sort", "(dropped)"): "finding",
        (
            "BaseAllocator.__init__",
            "1 <= self.page_size <= min(self.size, MOST_PAGE)",
            "1 < self.page_size <= min(self.size, MOST_PAGE)",
        ): "broke",
        ("refuse", "8", "9"): "survived",
    }
    chosen = [m for m in prepared.mutants if (m.function, m.before, m.after) in wanted]
    assert len(chosen) == len(wanted)
    for fate in fates_of(prepared, chosen, "quick", 1):
        mutant = fate.mutant
        expected = wanted[mutant.function, mutant.before, mutant.after]
        assert fate.fate in (expected, "broke") if expected == "finding" else fate.fate == expected, str(fate)


@pytest.mark.parametrize("name", ["token", "defect:canary"])
def test_what_ends_as_it_did_without_the_change_is_not_noticed(name):
    subject = local(name)
    task = Task(name, "sequences", 0, 40)
    end = _end_of_task(task, subject, "contract", 1, frozenset())
    assert (end is None) == (name == "token")
    cases = tuple(_end_of_case(subject, "contract", 1, number) for number in range(40))
    assert any(cases) == (name != "token")

    def noticed(tasks, cases):
        base = Base("contract", frozenset(), tasks, cases)
        return _noticed(subject, [base], {"contract": [task]}, 1)

    assert noticed((end,), cases) == LIVES
    assert noticed((end and end._replace(says="other words"),), cases) == LIVES
    other = End(("GROUP", "fault"), 3, "GROUP: one page is there twice")
    assert noticed((other,), cases)[0] == "finding"
    fate, by = noticed((end,), (*cases[:39], other))
    assert (fate, by.startswith("case 39 at contract")) == ("finding", True)


def test_a_subject_that_is_told_from_itself_is_no_subject(monkeypatch):
    monkeypatch.setattr("fuzz.mutants.plan_of", lambda *_: [])
    assert prepare("token", "quick", 1).mutants == ()  # nothing was driven
    monkeypatch.setattr("fuzz.mutants._noticed", lambda *_: ("finding", "UNIQUE: by chance"))
    with pytest.raises(HarnessError, match="told from itself"):
        prepare("token", "quick", 1)


def test_the_modules_of_a_subject_are_its_own():
    assert {s.module for s in sources_of(local("swa"))} >= {
        "impl.base",
        "impl.swa",
        "impl.paged",
        "impl.torch_engine",
    }


def test_reasons_are_for_survivors_and_proofs_leave_the_score(module):
    _, mutants = mutants_of(module)
    first, second, third = mutants[:3]
    score = Score([Fate(first, "survived"), Fate(second, "survived"), Fate(third, "finding")])
    assert score.share == pytest.approx(1 / 3)

    def entry(mutant, proven):
        function = f"{mutant.module}:{mutant.function}"
        return Explained(function, "why", mutant.text, mutant.before, mutant.after, proven=proven)

    better, stale = explain(score, [entry(first, True), entry(second, False)])
    assert better.share == pytest.approx(1 / 2)
    assert [fate.reason for fate in survivors(better)] == ["why"]
    assert stale == []


def test_the_report_has_the_score_its_denominator_and_every_survivor_with_its_reason(module):
    _, mutants = mutants_of(module)
    a, b, c, d, e, f = mutants[:6]
    score = Score(
        [
            Fate(a, "survived", reason="tolerated"), Fate(b, "survived"), Fate(c, "equivalent", reason="the same"),
            Fate(d, "finding"), Fate(e, "hung"), Fate(f, "same"),
        ],
        ["changed_here:idle"],
    )  # fmt: skip
    console = Console(record=True, width=40, file=io.StringIO())
    print_score(console, score)
    assert console.export_text().splitlines() == [
        "survived, 1: no reason is known", f"    {b}",
        "survived, 1: tolerated", f"    {a}",
        "equivalent, 1: the same", f"    {c}",
        "never driven: changed_here:idle",
        "",
        "2 of 4 mutants killed: 50.0% (1 finding, 1 hung), in 0 s. Left out: 1 proven equivalent, 1 with the same "
        "bytecode, 1 functions that are never driven.",
    ]  # fmt: skip


def test_reasons_for_a_release_are_for_that_release_and_name_places(module):
    _, mutants = mutants_of(module)
    assert [m.spot for m in mutants if m.function == "Counter.size"] == ["20.1", "20.2"]
    mutant = next(m for m in mutants if m.spot == "20.2")
    score = Score([Fate(mutant, "survived", subject="sglang@1.0:paged")])
    function = "changed_here:Counter.size"
    here, elsewhere = (Explained(function, "why", subject=f"sglang@{v}", spot="20.2") for v in ("1.0", "2.0"))
    assert [fate.reason for fate in survivors(explain(score, [elsewhere, here])[0])] == ["why"]
    better, stale = explain(score, [elsewhere])
    assert ([fate.reason for fate in survivors(better)], stale) == ([""], [])
    assert explain(score, [elsewhere], whole=True)[1] == [elsewhere]


def test_the_projects_own_reasons_are_for_changes_that_there_are():
    known = {entry for entry in read_explained(EXPLAINED) if not entry.subject}
    assert known
    fates = []
    for name in sorted({entry.function.partition(":")[0] for entry in known}):
        source = Source.of(importlib.import_module(name))
        fates += [Fate(mutant, "survived") for mutant in source.mutants(frozenset(source.functions))]
    assert explain(Score(fates), list(known), whole=True)[1] == []


def test_of_changes_that_read_alike_one_can_be_meant(module):
    _, mutants = mutants_of(module)
    alike = [m for m in mutants if (m.function, m.before, m.after) == ("ready", "0", "1")]
    assert [m.which for m in alike] == [1, 2]
    score = Score([Fate(m, "survived") for m in alike])
    second = Explained("changed_here:ready", "why", alike[0].text, "0", "1", which=2)
    assert [fate.reason for fate in survivors(explain(score, [second])[0])] == ["", "why"]
    both = replace(second, which=0)
    assert [fate.reason for fate in survivors(explain(score, [both])[0])] == ["why", "why"]


def test_a_reason_that_fits_no_mutant_is_told_unless_its_function_was_not_driven(module):
    _, (mutant, *_) = mutants_of(module)
    gone = Explained("changed_here:idle", "why", text="nothing", before="a", after="b")
    assert explain(Score([Fate(mutant, "finding")]), [gone])[1] == [gone]
    assert explain(Score([Fate(mutant, "finding")], ["changed_here:idle"]), [gone])[1] == []
    assert explain(Score([Fate(mutant, "finding")], ["changed_here:idle"]), [gone], whole=True)[1] == [gone]


def test_the_projects_own_reasons_can_be_read_and_bad_ones_not(tmp_path):
    assert all(entry.reason for entry in read_explained(EXPLAINED))
    file = tmp_path / "explained.toml"
    whole = '[[release]]\nsubject = "sglang@1.0"\nfunction = "a:b"\nspots = ["3.1", "3.2"]\nreason = "why"\n'
    file.write_text(whole)
    assert [str(entry) for entry in read_explained(file)] == ["a:b: 3.1", "a:b: 3.2"]
    for text, said in {
        '[[mutant]]\nfunction = "a:b"\n': r"\[\[mutant\]\] 1 has to have after, before",
        whole + whole.replace('reason = "why"', 'reason = " "'): r"\[\[release\]\] 2 has to have",
        whole + "line = 3\n": r"\[\[release\]\] 1 has to have",
    }.items():
        file.write_text(text)
        with pytest.raises(SubjectError, match=said):
            read_explained(file)
