"""Does a long trace come down to the few operations that show its fault, and does broken input say where?"""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import fuzz.shrink_file as shrink_file
from fuzz.cli import main
from fuzz.cut import cut
from fuzz.minimal import shortest
from fuzz.shrink import Shrinker
from fuzz.trace_case import case_of
from impl.defects.catalogue import CATALOGUE
from impl.factory import factory_subject
from impl.live import detach, record
from impl.names import local
from impl.paged import PagedAllocator
from impl.session import Session
from oracle import casefile
from oracle.casefile import CaseFile
from oracle.ledger import Ledger
from oracle.ops import Alloc, Case, Config, Decode, Extend, Free, GroupBegin, GroupEnd, Grow, Merge, Part
from oracle.plan import plan
from oracle.rebuilt import rebuilt
from oracle.traits import ALWAYS, OPTIONAL, Traits
from properties.judged import first_violation, judged
from properties.sources import SeededSource
from properties.workload import Workload
from tests.planted import factory, frees_twice

CALLS = 10_000
FAULTS = (
    "repeats-page", "F37", "F35", "F40-group", "F39", "F15", "F17", "F22", "counts-waiting", "batch-loses-page",
    "F24-exact", "shared-prefix",
)  # fmt: skip
POOLS = {
    "token": Config("token", 8),
    "paged": Config("paged", 8, 4),
    "swa": Config("swa", 8, 4, swa_pages=6),
}
ANY = Traits(ALWAYS | OPTIONAL)


def trace_of(subject, config, path, calls):
    """A trace of `calls` calls: many generated sequences on one allocator, which is cleared between them."""
    traits, bench = subject.traits(config), subject.make(config)
    record(bench.allocator, path, subject=subject.name)
    done = example = 0
    while done < calls:
        workload = Workload(config, traits, SeededSource(f"warm/{example}"), misuse=False)
        session, source = Session(config, traits, bench), SeededSource(f"choices/{example}")
        example += 1
        for _ in range(60):
            if workload.next(source) is None:
                continue
            try:
                session.apply(workload.steps[-1])
            except KeyError:  # it goes on with pages that the broken allocator never gave
                break
            done += 1
        bench.allocator.clear()
    detach(bench.allocator)
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_a_long_trace_shrinks_to_the_minimum_or_one_above(name, tmp_path):
    fault = CATALOGUE[name]
    path = trace_of(fault.subject(), POOLS[fault.part], tmp_path / "t", CALLS)
    shrunk = shrink_file.shrink_file(path)
    assert shrunk.violation.code in fault.codes
    case = shrunk.file.case
    # What the trace shows first may be another finding than the shortest, with a minimum of its own.
    key = shrunk.violation.key
    known = shortest(fault.subject(), case, "contract", key)
    least = known.least if known.proven else fault.shortest
    assert len(case.operations) <= least + 1
    assert judged(fault.subject(), case, "contract").violation.key == shrunk.violation.key


class RareLoss(PagedAllocator):
    """Loses a page when a free gives back several, the highest first and the lowest last."""

    def _put(self, slots):
        pages = slots // self.page_size
        super()._put(slots)
        distinct = torch.unique(pages)
        if (
            len(distinct) >= 2
            and pages[0] == distinct[-1]
            and pages[-1] == distinct[0]
            and self.free_pages.numel()
        ):
            self._drop_head(1)


rare_loss = factory("paged", RareLoss)


def test_a_rare_fault_is_cut_out_of_many_operations(tmp_path, monkeypatch):
    subject = factory_subject("rare", rare_loss, "cpu")
    monkeypatch.setattr(shrink_file, "resolve", lambda *_: subject)
    path = trace_of(subject, Config("paged", 16, 4), tmp_path / "t", CALLS)
    said = []
    first = shrink_file.shrink_file(path, say=said.append)
    assert first.came_from > 50
    assert (
        len(first.file.case.operations) <= 8
    )  # two would do, in an order of parts that a shrinker can't guess
    assert any(line.startswith("cut to the last") for line in said)


def test_a_sound_trace_translates_whole_and_holds(tmp_path):
    for name, config in POOLS.items():
        path = trace_of(local(name), config, tmp_path / name, 2000)
        told = case_of(path, ANY)
        assert (told.recorded, told.stopped) == (None, "")
        steps = plan(told.case, local(name).traits(config))
        assert [step.operation for step in steps if step.status != "legal"] == []
        assert shrink_file.shrink_file(path).file is None


def test_a_trace_longer_than_memory_keeps_its_end(tmp_path):
    path = trace_of(local("paged"), POOLS["paged"], tmp_path / "t", 3000)
    whole, end = case_of(path, ANY), case_of(path, ANY, kept=300)
    assert end.calls == whole.calls
    assert len(end.case.operations) < 700
    assert "stood in for" in end.notes[0]
    assert end.case.operations[-200:] == whole.case.operations[-200:]
    assert first_violation(local("paged"), end.case, "contract") is None


def test_a_trace_begun_in_a_full_pool_fills_it_first(tmp_path):
    bench = local("paged").make(POOLS["paged"])
    held = bench.allocator.alloc(20)
    allocator = record(bench.allocator, tmp_path / "t")
    allocator.free(held[:4])
    assert allocator.alloc(20) is None
    told = case_of(tmp_path / "t", ANY)
    assert told.recorded is None
    assert told.case.operations[0] == Extend((Grow("before", 16), Grow("r1", 4)))
    assert [step.fits for step in plan(told.case, ANY)][:3] == [True, True, False]


def test_the_cut_rebuilds_what_the_end_hangs_on():
    config = Config("paged", 8, 4)
    operations = [Extend((Grow("A", 6), Grow("B", 9)))]
    operations += [op for _ in range(40) for op in (Extend((Grow("C", 3),)), Merge(), Free((Part("C"),)))]
    operations += [Free((Part("B", 0, 4),)), Extend((Grow("A", 1),)), Free((Part("A"),))]
    case = Case(config, tuple(operations))
    asked = []

    def holds(candidate):
        asked.append(candidate)
        frees = [s for s in plan(candidate, ANY) if isinstance(s.operation, Free) and not s.probe]
        return (
            bool(frees) and frees[-1].status == "legal" and frees[-1].tokens == 0 and len(frees[-1].back) == 2
        )

    small = cut(case, ANY, len(operations) - 1, holds, lambda text: None)
    assert small.operations == (Extend((Grow("A", 7),)), Free((Part("A"),)))
    assert len(asked) < 8


def test_a_world_is_rebuilt_with_lengths_and_holes():
    config = Config("swa", 8, 2, swa_pages=8)
    ledger = Ledger(config, ANY)
    world = ledger.start()
    for operation in (Extend((Grow("A", 5), Grow("B", 4))), Free((Part("A", 0, 2),))):
        world = ledger.step(world, operation).after
    again = ledger.start()
    for operation in rebuilt(world, config):
        again = ledger.step(again, operation).after
    assert again.free == world.free
    assert {n: (r.length, [bool(p) for p in r.pages]) for n, r in again.requests.items()} == {
        "A": (5, [False, True, True]), "B": (4, [True, True])
    }  # fmt: skip


# -- what the shrinker could not do --------------------------------------------------------------------


def test_two_operations_that_are_no_neighbours_go_together():
    config = Config("token", 4)
    case = Case(config, (GroupBegin(), Alloc("A", 1), GroupEnd()))

    def holds(candidate):
        kinds = [type(o) for o in candidate.operations]
        return Alloc("A", 1) in candidate.operations and kinds.count(GroupBegin) == kinds.count(GroupEnd)

    assert Shrinker(holds, local("token").space).shrink(case).operations == (Alloc("A", 1),)


def test_neighbours_become_one():
    operations = (Extend((Grow("A", 1),)), Extend((Grow("B", 2),)), Decode(("A",)), Decode(("B",)))

    def holds(candidate):
        end = [s for s in plan(candidate, ANY) if not s.probe]
        decoded = sum(len(s.operation.requests) for s in end if isinstance(s.operation, Decode))
        return decoded == 2 and [r.length for r in end[-1].after.requests.values()] == [2, 3]

    case = Shrinker(holds, local("paged").space).shrink(Case(Config("paged", 4, 4), operations))
    assert case.operations == (Extend((Grow("A", 1), Grow("B", 2))), Decode(("A", "B")))


def test_both_pools_are_lowered_together():
    case = Case(Config("swa", 8, 1, swa_pages=8), (Alloc("A", 1),))
    small = Shrinker(lambda c: c.config.pages == c.config.swa_pages, local("swa").space).shrink(case)
    assert (small.config.pages, small.config.swa_pages) == (1, 1)


def test_a_large_batch_goes_in_halves():
    batch = tuple(Grow(f"R{i}", 1) for i in range(400))
    shrinker = Shrinker(
        lambda c: any(g.request == "R137" for o in c.operations for g in o.batch), local("paged").space
    )
    case = shrinker.shrink(Case(Config("paged", 1), (Extend(batch, "total"),)))
    assert len(case.operations[0].batch) == 1
    assert shrinker.runs < 100


def test_more_requests_than_letters_keep_their_names_apart():
    operations = tuple(Alloc(f"r{i}", 1) for i in range(200))
    shrinker = Shrinker(lambda c: len(c.operations) == 200, local("token").space, limit=60)
    case = shrinker.shrink(Case(Config("token", 300), operations))
    assert len({o.request for o in case.operations}) == 200


# -- the command ---------------------------------------------------------------------------------------


def shrink(*arguments):
    return CliRunner().invoke(main, ["shrink", *map(str, arguments)])


def test_the_command_writes_a_case_that_fails_and_says_what(tmp_path):
    path = trace_of(CATALOGUE["F37"].subject(), POOLS["token"], tmp_path / "t", 2500)
    run = shrink(path)
    assert run.exit_code == 1, run.output
    assert "GROUP (fault)" in run.output
    assert "5. free_group_end" in run.output
    written = casefile.read(tmp_path / "t.shrunk.json")
    assert written.finding.code == "GROUP"
    assert written.subject == "defect:F37"
    for source in (path, tmp_path / "t.shrunk.json"):
        assert shrink(source, "--out", tmp_path / "again.json", "--quiet").exit_code == 1
        assert casefile.read(tmp_path / "again.json").case == written.case


def test_what_holds_on_another_subject_says_so(tmp_path):
    case = Case(Config("token", 4), (Alloc("A", 1),))
    casefile.write(tmp_path / "c.json", CaseFile(case, "token"))
    run = shrink(tmp_path / "c.json", "--impl", "token")
    assert run.exit_code == 0
    assert "nothing is wrong" in run.output


def test_a_fault_that_the_subject_does_not_have_is_kept_as_recorded(tmp_path):
    path = trace_of(CATALOGUE["repeats-page"].subject(), POOLS["paged"], tmp_path / "t", 500)
    run = shrink(path, "--impl", "paged")
    assert run.exit_code == 1
    assert "in the recording alone" in run.output
    assert casefile.read(tmp_path / "t.shrunk.json").finding.code in CATALOGUE["repeats-page"].codes


def test_the_child_process_gives_the_same(tmp_path):
    subject = factory_subject("tests.planted:frees_twice", frees_twice, "cpu")
    run = shrink(trace_of(subject, POOLS["paged"], tmp_path / "t", 300))
    assert run.exit_code == 1, run.output
    here = shrink_file.shrink_file(trace_of(subject, POOLS["paged"], tmp_path / "u", 300))
    assert casefile.read(tmp_path / "t.shrunk.json").case == here.file.case


def broken(tmp_path):
    header = trace_of(local("token"), POOLS["token"], tmp_path / "good", 20).read_text().splitlines(True)[0]
    anonymous = json.dumps({k: v for k, v in json.loads(header).items() if k != "subject"}) + "\n"
    call = '{"op":"alloc","size":1,"got":[[1,1]]}\n'
    pair = CaseFile(Case(Config("token", 4), ()), "token", relation="group", other=())
    return {
        "no such file": (None, "there is no such file"),
        "a folder": (tmp_path, "directory"),
        "rubbish": ("rubbish", "not JSON"),
        "an unknown operation": (header + call + '{"op":"steal"}\n', "line 3: op: unknown operation 'steal'"),
        "a broken line": (header + '{"op":\n' + call, "line 2: not JSON"),
        "a header alone": (header, "no whole call"),
        "a snapshot of later": (
            header + call + '{"op":"restore_state","name":"S1"}\n{"op":"backup_state","name":"S1"}\n',
            "line 3: name: no line before takes a snapshot 'S1'",
        ),
        "another schema": (header.replace('"schema": 2', '"schema": 3'), "line 1: has schema 3"),
        "no subject": (anonymous + call, "give --impl"),
        "a cut-off case": ('{"schema": 1, "kind": "kvassay case", "pool"', "not JSON"),
        "two runs": (casefile.dumps(pair), "compares two runs"),
        "an unknown subject": (header.replace('"token"', '"tokem"').replace('"kind": "tokem"', '"kind": "token"') + call, "tokem"),
    }  # fmt: skip


@pytest.mark.parametrize("what", [
    "no such file", "a folder", "rubbish", "an unknown operation", "a broken line", "a header alone",
    "another schema", "no subject", "a snapshot of later", "a cut-off case", "two runs", "an unknown subject",
])  # fmt: skip
def test_broken_input_says_where_and_writes_nothing(what, tmp_path):
    text, says = broken(tmp_path)[what]
    path = tmp_path / "input"
    if isinstance(text, Path):
        path = text
    elif text is not None:
        path.write_text(text)
    before = sorted(tmp_path.iterdir())
    run = shrink(path)
    assert run.exit_code == 2, run.output
    assert says in run.output
    assert str(path) in run.output or what == "an unknown subject"
    assert sorted(tmp_path.iterdir()) == before


def test_the_input_is_never_written_over(tmp_path):
    casefile.write(tmp_path / "c.json", CaseFile(Case(Config("token", 4), (Alloc("A", 1),)), "token"))
    assert shrink(tmp_path / "c.json", "--out", tmp_path / "c.json").exit_code == 2


def test_it_says_that_no_shorter_case_is_there(tmp_path):
    path = trace_of(CATALOGUE["repeats-page"].subject(), POOLS["paged"], tmp_path / "t", 300)
    assert shrink_file.shrink_file(path).minimal
    assert "No shorter case" in shrink(path).output


# -- what a case says in other words -------------------------------------------------------------------


def test_a_request_cut_back_in_a_group_leaves_nothing_behind(tmp_path):
    """Its caller freed a tail inside a page, which the trace can't tell from a part until the request goes on."""
    allocator = record(local("paged").make(POOLS["paged"]).allocator, tmp_path / "t", subject="paged")
    allocator.free_group_begin()
    held = allocator.alloc(12)
    allocator.free(held[8:])
    allocator.free(held[4:6])
    lengths = torch.tensor([4])
    more = allocator.alloc_decode(lengths, lengths, held[2:3])
    assert allocator.alloc(24) is None
    allocator.free_group_end()
    allocator.free(torch.cat((held[:3], more)))
    assert allocator.available_size() == 32
    detach(allocator)
    steps = [step for step in plan(case_of(tmp_path / "t", ANY).case, ANY) if not step.probe]
    assert [step.operation for step in steps if step.status != "legal"] == []
    assert steps[-1].after.free == 8
