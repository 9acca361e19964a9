"""Does a mutant change what is executed, and does the gate's verdict on it say the truth?"""

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest

from fuzz.explained import EXPLAINED, Explained, read_explained
from fuzz.forked import in_fork
from fuzz.mutants import Fate, Score, explain, fates_of, prepare, sources_of, survivors
from fuzz.mutator import Source
from impl.errors import SubjectError
from impl.names import local

TEXT = '''"""A module to be changed."""


class Base:
    def size(self):
        return 1


class Counter(Base):
    """Counts."""

    start = 5

    def __init__(self, low: int = 0):
        """Starts."""
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
    return between(x, 2, 3) if x else -x


def between(low, value, high):
    return Counter.between(low, value, high)


def ready(flag):
    if flag.ready:
        return "yes" and 0
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
        ("idle", "between(x, 2, 3) if x else -x", "-x if x else between(x, 2, 3)"),
        ("ready", "flag.ready", "not flag.ready"),
        ("ready", "'yes' and 0", "'yes' or 0"),
        ("Counter.between", "True", "False"),
    } <= changes
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
    assert in_fork(lambda: time.sleep(60), 0.3).fate == "hung"
    with pytest.raises(KeyError):
        in_fork(lambda: {}["no"], 10)


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
            "1 <= self.page_size <= self.size",
            "1 < self.page_size <= self.size",
        ): "broke",
        ("refuse", "8", "9"): "survived",
    }
    chosen = [m for m in prepared.mutants if (m.function, m.before, m.after) in wanted]
    assert len(chosen) == len(wanted)
    for fate in fates_of(prepared, chosen, "quick", 1):
        mutant = fate.mutant
        expected = wanted[mutant.function, mutant.before, mutant.after]
        assert fate.fate in (expected, "broke") if expected == "finding" else fate.fate == expected, str(fate)


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
        return Explained(
            f"{mutant.module}:{mutant.function}", mutant.text, mutant.before, mutant.after, "why", proven
        )

    better, stale = explain(score, [entry(first, True), entry(second, False)])
    assert better.share == pytest.approx(1 / 2)
    assert [fate.reason for fate in survivors(better)] == ["why"]
    assert stale == []
    gone = Explained("changed_here:idle", "nothing", "a", "b", "why")
    assert explain(score, [gone])[1] == [gone]


def test_the_projects_own_reasons_can_be_read_and_bad_ones_not(tmp_path):
    assert all(entry.reason for entry in read_explained(EXPLAINED))
    bad = tmp_path / "bad.toml"
    bad.write_text('[[mutant]]\nfunction = "a:b"\n')
    with pytest.raises(SubjectError, match=r"\[\[mutant\]\] 1 has to have"):
        read_explained(bad)
