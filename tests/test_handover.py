"""Do hand-overs fail where the case fails, with the finding's sentence, and hold on a sound allocator?"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fuzz.cli import main
from fuzz.constructors import NoHandover, maker_of
from fuzz.handover import pytest_function, script, write
from impl.defects.catalogue import defect
from impl.engines import local_engine
from impl.names import local
from impl.paged import PagedAllocator
from impl.sglang_fetch import fetch
from impl.torch_engine import TorchEngine
from oracle import casefile
from oracle.batch import Batch
from oracle.casefile import BatchFile, CaseFile
from oracle.ops import Alloc, Case, Config
from oracle.traits import Traits
from properties.judged import judged
from properties.kernels import check_batch

REPOSITORY = Path(__file__).parent.parent
REGRESSIONS = REPOSITORY / "regressions"
OURS = [path for path in sorted(REGRESSIONS.glob("*.json")) if not path.stem.startswith("sglang")]
SGLANG = [path for path in sorted(REGRESSIONS.glob("sglang*.json")) if "swa" not in path.stem]


def on_sound(text, file):
    """The same lines with the sound allocator that the defect was planted into."""
    part = defect(file.subject.partition(":")[2]).part
    assert text.count(f'local("{file.subject}")') >= 1
    return text.replace(f'local("{file.subject}")', f'local("{part}")')


def run(text):
    """The sentence with which a hand-over fails; None where it holds."""
    names = {"__name__": "handed over"}
    exec(compile(text, "handover", "exec"), names)
    function = next(value for name, value in names.items() if name.startswith("test_"))
    try:
        function()
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_a_script_says_what_the_finding_says(path):
    file = casefile.read(path)
    text = script(file)
    assert run(text) == file.finding.summary
    assert run(on_sound(text, file)) is None


def test_slots_are_taken_from_answers_and_not_written_down():
    turned = 0
    for path in OURS:
        file = casefile.read(path)
        made = f'local("{file.subject}").make(pool).allocator'
        text = script(file)
        if file.case.config.kind == "swa" or file.level == "parity" or text.count(made) != 1:
            continue  # two pools in step, numbers that are claimed, or two runs
        turn = "\n    allocator.free_pages = allocator.free_pages.flip(0)"
        assert run(on_sound(text.replace(made, made + turn), file)) is None
        turned += 1
    assert turned > 10


@pytest.mark.parametrize("name", ["answer", "class", "a request", "1", "ä", "", "held"])
def test_a_request_may_have_any_name(name):
    text = (REGRESSIONS / "F35.json").read_text()
    file = casefile.loads(text.replace('"request": "A"', f'"request": "{name}"'))
    assert run(script(file)) == file.finding.summary
    assert run(on_sound(script(file), file)) is None


# -- as processes --------------------------------------------------------------------------------------


def python(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False,
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    """Hand-overs of several faults, and of their sound twins, in two folders."""
    root = tmp_path_factory.mktemp("handed")
    for name in ("F26", "F22", "F35", "group-reverses", "copy-other-rows", "F05"):
        file = casefile.read(REGRESSIONS / f"{name}.json")
        for folder, change in (("faulty", lambda text, _: text), ("sound", on_sound)):
            (root / folder).mkdir(exist_ok=True)
            for target in write(root / folder / f"{name}.json", file):
                target.write_text(change(target.read_text(), file))
    return root


def test_scripts_fail_as_processes_and_hold_on_the_sound_twin(handed):
    for target in sorted((handed / "faulty").glob("[!t]*.py")):
        done = python(target)
        assert done.returncode == 1, (target, done.stderr)
        assert "AssertionError: " in done.stderr
        if target.stem in ("F26", "F22"):
            assert python(handed / "sound" / target.name).stdout == "holds\n"


def test_pytest_functions_fail_and_hold_on_the_sound_twin(handed):
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", handed, "-c", os.devnull)
    done = python(*options, handed / "faulty")
    assert done.returncode == 1
    assert "6 failed" in done.stdout
    done = python(*options, handed / "sound")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


# -- releases ------------------------------------------------------------------------------------------

LOADED = """
import os, runpy, sys
os.environ["TRITON_INTERPRET"] = "1"
from impl import sglang
sglang.load(sglang.fetch(sys.argv[1]))  # what a machine with all of SGLang's dependencies does by importing it
runpy.run_path(sys.argv[2], run_name="__main__")
"""


@pytest.mark.network
@pytest.mark.parametrize("path", SGLANG, ids=lambda path: path.stem)
def test_a_release_fails_in_its_own_words(path, tmp_path):
    file = casefile.read(path)
    version = file.subject.partition("@")[2].partition(":")[0]
    fetch(version)
    target, _ = write(tmp_path / path.name, file)
    text = target.read_text()
    assert "kvassay" not in text.partition('"""\n')[2]
    assert "impl" not in text
    done = python("-c", LOADED, version, target)
    if file.finding.code == "GUARD":
        assert done.returncode < 0, done.stderr  # it reads past the free list, where nobody may read
    else:
        assert done.returncode == 1
        assert file.finding.summary in done.stderr


# -- the kernel tier -----------------------------------------------------------------------------------


class SkipsFirst(TorchEngine):
    """Every answer begins one slot too far."""

    def extend(self, prefix_lens, seq_lens, last_loc, free_pages, out, page_size):
        super().extend(prefix_lens, seq_lens, last_loc, free_pages, out, page_size)
        out[:1] += 1


def test_a_batch_is_handed_over():
    batch = Batch(4, (0, 3), (2, 9), (-1, 6), (9, 2, 7))
    name = "tests.test_handover:SkipsFirst"
    finding = check_batch(local_engine(name), batch, "int32")
    file = BatchFile(batch, name, "int32", finding=finding)
    assert run(script(file)) == finding.summary
    assert run(script(replace(file, engine="torch"))) is None
    with pytest.raises(NoHandover, match="no line of Python for engine emulator"):
        script(replace(file, engine="emulator"))


@pytest.mark.parametrize(
    ("engine", "batch"),
    [
        ("ReadsPastFreeList", Batch(2, (1, 0), (5, 2), (2, -1), (4, 2, 7))),
        ("WritesBeforeOutput", Batch(2, (1,), (2,), (2,), ())),
        ("LeavesLaneUnwritten", Batch(2, (1,), (2,), (2,), (), decode=True)),
    ],
)
def test_what_an_engine_does_outside_its_arguments_is_handed_over(engine, batch):
    name = f"tests.planted:{engine}"
    finding = check_batch(local_engine(name), batch, "int64")
    assert finding.code == "GUARD"
    file = BatchFile(batch, name, "int64", finding=finding)
    assert run(script(file)) == finding.summary
    assert run(script(replace(file, engine="torch"))) is None


# -- what can't be handed over -------------------------------------------------------------------------

PLAIN = CaseFile(Case(Config("token", 2), (Alloc("A", 1),)), "token")


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (PLAIN, "it holds no finding"),
        (replace(casefile.read(REGRESSIONS / "F37.json"), answers=()), "it holds no answers"),
        (replace(casefile.read(REGRESSIONS / "F37.json"), subject="a b:c"), "no name that Python can import"),
    ],
)
def test_what_cannot_be_handed_over_is_said(file, says):
    with pytest.raises(NoHandover, match=says):
        script(file)
    with pytest.raises(NoHandover, match=says):
        pytest_function(file)


class MetByChance(PagedAllocator):
    """A size that is no multiple of the page size is met by torch."""

    def _pages_of(self, need_size):
        torch.empty(need_size).view(-1, self.page_size)
        return super()._pages_of(need_size)


def met_by_chance(config):
    return MetByChance(config.size, config.page_size, torch.float32, "cpu", None, False, debug=config.debug)


met_by_chance.traits = Traits(errors=frozenset({"ValueError"}))


def test_an_error_of_another_kind_than_is_claimed_is_handed_over():
    file = CaseFile(
        Case(Config("paged", 2, 2, debug=True), (Alloc("A", 3),)), "tests.test_handover:met_by_chance"
    )
    outcome = judged(local(file.subject), file.case, "hardened", keep=True)
    assert "no check, but RuntimeError" in outcome.violation.summary
    claims = met_by_chance.traits
    file = replace(file, level="hardened", finding=outcome.violation, claims=claims, answers=outcome.answers)
    text = script(file)
    assert run(text) == outcome.violation.summary
    assert run(text.replace("met_by_chance(pool)", "met_by_chance.__globals__['sound'](pool)")) is None


def sound(config):
    return PagedAllocator(
        config.size, config.page_size, torch.float32, "cpu", None, False, debug=config.debug
    )


def test_what_a_constructor_says_to_other_pools_is_not_handed_over():
    file = CaseFile(
        Case(Config("paged", 1, debug=True), ()), "defect:page-of-none", "hardened", claims=Traits()
    )
    finding = judged(local(file.subject), file.case, file.level).violation
    assert finding.code == "REJECT"
    with pytest.raises(NoHandover, match="asked by kvassay alone"):
        script(replace(file, finding=finding))


@pytest.mark.parametrize("name", ["token", "paged", "ascend", "swa", "paged[engine=triton]"])
def test_our_own_are_made_by_their_constructors(name):
    kind = "paged" if name == "ascend" else name.partition("[")[0]
    size = 1 if kind == "token" else 2
    config = Config(kind, 4, size, swa_pages=3 if kind == "swa" else 0)
    maker = maker_of(name, config)
    assert not any("oracle" in line or "names" in line for line in maker.imports)
    names = {}
    lines = ["import torch", *maker.imports, *maker.setup, f"allocator = {maker.call}"]
    exec("\n".join(lines), names)
    assert names["allocator"].size == config.size


def test_export_writes_both_and_says_where(tmp_path):
    result = CliRunner().invoke(main, ["export", str(REGRESSIONS / "F37.json"), "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == [str(tmp_path / "F37.py"), str(tmp_path / "test_F37.py")]
    casefile.write(tmp_path / "plain.json", PLAIN)
    result = CliRunner().invoke(main, ["export", str(tmp_path / "plain.json")])
    assert result.exit_code == 2
    assert result.stderr == "kvassay: it holds no finding: there is nothing to assert\n"
