"""Is a trace whose beginning is gone read without faults and misuse that were none, and is a real one still found?"""

import json

import pytest

from fuzz.trace_case import case_of
from impl.live import detach, record
from impl.names import local
from impl.session import Session
from oracle.ops import Config, FreeSwa, config_sentence
from oracle.plan import plan
from oracle.rawcall import Header, RawCall, Start, Trace, TraceError, header_line, line_of
from oracle.traits import ALWAYS, OPTIONAL, Traits
from properties.judged import first_violation
from properties.sources import SeededSource
from properties.workload import Workload
from tests.test_tap import paged, swa, token

ANY = Traits(ALWAYS | OPTIONAL)
POOLS = {
    "token": Config("token", 8),
    "paged": Config("paged", 8, 4),
    "swa": Config("swa", 8, 4, swa_pages=6),
}
PAGED = POOLS["paged"]


def recorded(name, path, example, operations=120):
    """A sound program on an allocator of ours, recorded in files of 700 bytes."""
    subject, config = local(name), POOLS[name]
    traits, bench = subject.traits(config), subject.make(config)
    record(bench.allocator, path, subject=name, limit=700)
    workload = Workload(config, traits, SeededSource(f"head/{example}"), misuse=False)
    session, source = Session(config, traits, bench), SeededSource(f"choices/{example}")
    for _ in range(operations):
        if workload.next(source) is not None:
            session.apply(workload.steps[-1])
    detach(bench.allocator)


@pytest.mark.parametrize("name", POOLS)
def test_a_sound_trace_without_its_first_files_holds(name, tmp_path):
    read = 0
    for example in range(6):
        path = tmp_path / str(example)
        recorded(name, path, example)
        for gone in Trace(path).files[:-1]:
            gone.unlink()
            try:
                told = case_of(path, ANY)
            except TraceError as error:
                if "nothing in the trace can be judged" in str(error):
                    continue  # all that is left lies in one group
                raise
            assert told.recorded is None, config_sentence(told.case.config)
            assert first_violation(local(name), told.case, "contract") is None
            read += not told.stopped
    assert read > 20


def written(path, config, start, *calls):
    header = header_line(Header(config, config.kind, start, part=2))
    path.write_text(header + "".join(map(line_of, calls)))
    return case_of(path, ANY)


def free(*slots, left):
    return RawCall("free", slots=slots, free=left)


def test_a_slot_freed_twice_behind_the_head_is_still_found(tmp_path):
    told = written(tmp_path / "t", PAGED, Start(24), free((4, 4), left=28), free((4, 4), left=32))
    assert (told.recorded.rule, told.recorded.index) == ("twice", 1)


def test_a_head_inside_a_group_is_read_from_its_end_on(tmp_path):
    calls = free((4, 4), left=16), RawCall("free_group_end", free=28), free((16, 4), left=32)
    told = written(tmp_path / "t", PAGED, Start(16, group=True), *calls)
    assert (told.recorded, told.stopped) == (None, "")
    assert "the first 2 calls are left out" in told.notes[1]
    unsaid = written(tmp_path / "u", PAGED, Start(16), *calls)
    assert unsaid.recorded.code == "CONSERVE"


def test_a_recorder_says_where_a_group_is_open(tmp_path):
    allocator = record(token(), tmp_path / "t", limit=150)
    slots = allocator.alloc(6)
    allocator.free_group_begin()
    for slot in slots:
        allocator.free(slot[None])
    allocator.free_group_end()
    detach(allocator)
    groups = []
    for file in Trace(tmp_path / "t").files:
        head, *calls = map(json.loads, file.read_text().splitlines())
        groups.append(head.get("group", False))
        if groups[-1]:
            assert calls[0]["op"] in ("free", "free_group_end")
    assert True in groups
    assert False in groups


def test_a_snapshot_of_before_is_a_new_beginning(tmp_path):
    calls = (
        free((4, 4), left=28),
        RawCall("restore_state", name="S3", free=20),
        free((4, 4), left=24),
        free((8, 8), left=32),
    )
    told = written(tmp_path / "t", PAGED, Start(24), *calls)
    assert (told.recorded, told.stopped, len(plan(told.case, ANY)) > 2) == (None, "", True)
    assert "the first 2 calls are left out" in told.notes[1]


def test_a_restore_says_whether_it_opens_a_group_again(tmp_path):
    allocator = record(paged(), tmp_path / "t", limit=1)
    held = allocator.alloc(8)
    allocator.free_group_begin()
    allocator.free(held[:4])
    state = allocator.backup_state()
    allocator.free_group_end()
    allocator.restore_state(state)
    allocator.free_group_end()
    allocator.free(held[4:])
    detach(allocator)
    files = Trace(tmp_path / "t").files
    for file in files[:5]:  # the restore is the first call now
        file.unlink()
    told = case_of(tmp_path / "t", ANY)
    assert (told.calls, told.recorded, told.stopped) == (3, None, "")
    assert "the first 2 calls are left out" in told.notes[1]


def test_a_page_first_spoken_of_behind_a_snapshot_was_held_at_the_snapshot(tmp_path):
    calls = (
        RawCall("backup_state", name="S1", free=24),
        free((4, 4), left=28),
        RawCall("restore_state", name="S1", free=24),
        free((4, 4), left=28),
    )
    assert written(tmp_path / "t", PAGED, Start(24), *calls).recorded is None


def test_a_page_of_before_goes_in_parts_in_one_group(tmp_path):
    calls = (
        RawCall("free_group_begin", free=24),
        free((4, 2), left=24),
        free((6, 1), left=24),
        RawCall("free_group_end", free=28),
    )
    assert written(tmp_path / "t", PAGED, Start(24), *calls).recorded is None


def test_window_halves_that_were_gone_before_are_gone(tmp_path):
    allocator = record(swa(), tmp_path / "t", limit=1)
    held = [allocator.alloc(2) for _ in range(3)]
    allocator.free_swa(held[0])
    held.append(allocator.alloc(2))  # four pages, and the window has three
    for file in Trace(tmp_path / "t").files[:-1]:
        file.unlink()
    allocator.free_swa(held[0])
    allocator.free_swa(held[1])
    allocator.free(held[2])
    detach(allocator)
    trace = Trace(tmp_path / "t")
    assert trace.header.start.windows == ((2, 3),)
    told = case_of(tmp_path / "t", ANY)
    assert (told.calls, told.recorded, told.stopped) == (3, None, "")
    steps = plan(told.case, ANY)
    assert sum(isinstance(step.operation, FreeSwa) for step in steps) == 3
    assert all(step.fits and step.status == "legal" for step in steps)
    assert first_violation(local("swa"), told.case, "contract") is None


def test_a_header_of_schema_1_is_read(tmp_path):
    text = header_line(Header(PAGED, "paged", Start(24))).replace('"schema": 2', '"schema": 1')
    (tmp_path / "t").write_text(text + line_of(free((4, 4), left=28)))
    assert case_of(tmp_path / "t", ANY).recorded is None


def test_a_trace_without_a_call_that_can_be_judged_says_so(tmp_path):
    with pytest.raises(
        TraceError, match="nothing in the trace can be judged: no call in it is outside of a group"
    ):
        written(tmp_path / "t", PAGED, Start(24, group=True), free((4, 4), left=24))
    with pytest.raises(TraceError, match="nothing in the trace can be judged: resize is not understood"):
        written(tmp_path / "u", PAGED, Start(24), RawCall("other", name="resize", free=24))
