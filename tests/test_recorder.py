"""Does a trace survive what happens to processes and files, and does a broken one say where?"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fuzz.trace_case import case_of
from impl.live import detach, record
from impl.names import local
from impl.token import TokenAllocator
from oracle.ops import Config
from oracle.rawcall import (
    Header,
    RawCall,
    Start,
    Trace,
    TraceError,
    call_of,
    header_line,
    line_of,
    numbers_of,
    runs_of,
)
from oracle.traits import ALWAYS, OPTIONAL, Traits
from properties.judged import first_violation
from tests.test_tap import paged, token

ROOT = Path(__file__).parents[1]
HEADER = header_line(Header(Config("token", 8), "token", Start(8)))
ALLOC = line_of(RawCall("alloc", size=2, outcome="slots", answer=((1, 2),), free=6))


@pytest.mark.parametrize(
    "numbers", [(), (4,), (4, 5, 6), (4, 5, 9, 8, 7), (3, 3, 3), (-2, -1, 0), tuple(range(99))]
)
def test_runs_are_the_numbers(numbers):
    assert numbers_of(runs_of(numbers)) == numbers


@pytest.mark.parametrize(
    "call",
    [
        RawCall("alloc", size=-1, outcome="raised", error="ValueError", free=3),
        RawCall("alloc", size=2.0, outcome="none"),
        RawCall(
            "alloc_extend",
            prefix=(0, 4),
            seq=(3, 9),
            last=(-1, 7),
            total=8,
            outcome="slots",
            answer=((4, 8),),
        ),
        RawCall("free", slots=((9, 1), (4, 2))),
        RawCall("alloc_extend", prefix=(0,), seq=(3,), last=(-1,), total=3, new_pages=1, outcome="none"),
        RawCall("backup_state", name="S1", free=1, full=2, window=3),
        RawCall("other", name="resize", error="ValueError", outcome="raised"),
    ],
)
def test_a_line_is_read_back_as_it_was(call):
    assert call_of(line_of(call), "") == call


def test_a_trace_holds_numbers_and_error_types_alone(tmp_path):
    class Secret(TokenAllocator):
        def alloc(self, need_size):
            raise ValueError("the prompt is: sesame")

    allocator = record(Secret(8, torch.float32, "cpu", None, False), tmp_path / "t")
    with pytest.raises(ValueError, match="sesame"):
        allocator.alloc(1)
    text = (tmp_path / "t").read_text()
    assert "sesame" not in text
    assert json.loads(text.splitlines()[1]) == {"op": "alloc", "size": 1, "raised": "ValueError", "free": 8}


def test_a_killed_process_leaves_every_call_that_came_back(tmp_path):
    program = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        import torch
        from impl.live import record
        from impl.token import TokenAllocator
        allocator = record(TokenAllocator(64, torch.float32, "cpu", None, False), {str(tmp_path / "t")!r})
        count = 0
        while True:
            slots = allocator.alloc(1 + count % 5)
            allocator.free(slots)
            count += 1
            if count == 200:
                print(count, flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"200\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    trace = Trace(tmp_path / "t")
    calls = list(trace.calls())
    assert len(calls) >= 400
    assert [call.method for call in calls[:400]] == ["alloc", "free"] * 200
    assert trace.header.subject == "token"
    told = case_of(tmp_path / "t", Traits(ALWAYS | OPTIONAL))
    assert (told.calls, told.recorded, told.stopped) == (len(calls), None, "")
    assert first_violation(local("token"), told.case, "contract") is None


def test_a_line_that_was_cut_off_is_left_out_with_a_note(tmp_path):
    (tmp_path / "t").write_text(HEADER + ALLOC + ALLOC[:20])
    trace = Trace(tmp_path / "t")
    assert len(list(trace.calls())) == 1
    assert "line 3: was cut off" in trace.notes[0]


def recorded_in_parts(folder, keep):
    allocator = record(paged(), folder / "t", limit=700, keep=keep)
    for _ in range(30):
        allocator.free(allocator.alloc(8))
    detach(allocator)


def test_rotated_files_are_one_trace(tmp_path):
    recorded_in_parts(tmp_path, keep=0)
    trace = Trace(tmp_path / "t")
    assert len(trace.files) > 3
    # Behind 700 bytes of calls a new one is begun.
    assert all(700 <= file.stat().st_size < 1000 for file in trace.files[:-1])
    assert len(list(trace.calls())) == 60


def test_only_the_last_files_are_kept_and_the_first_of_them_says_how_full_the_pool_was(tmp_path):
    recorded_in_parts(tmp_path, keep=2)
    trace = Trace(tmp_path / "t")
    assert len(trace.files) == 3
    assert trace.header.part > 1
    assert trace.header.start.free in (24, 32)
    assert "are not read" in trace.notes[0]
    assert 0 < len(list(trace.calls())) < 60


def test_a_file_ends_outside_of_groups(tmp_path):
    allocator = record(paged(), tmp_path / "t", limit=600)
    for _ in range(12):
        slots = allocator.alloc(8)
        allocator.free_group_begin()
        allocator.free(slots[:4])
        allocator.free(slots[4:])
        allocator.free_group_end()
    detach(allocator)
    files = Trace(tmp_path / "t").files
    assert len(files) > 2
    assert all(json.loads(file.read_text().splitlines()[0])["free"] in (24, 32) for file in files)
    for file in files:
        lines = [json.loads(line)["op"] for line in file.read_text().splitlines()[1:]]
        assert lines.count("free_group_begin") == lines.count("free_group_end")


def test_a_trace_is_never_written_over(tmp_path):
    record(token(), tmp_path / "t")
    with pytest.raises(FileExistsError, match="another path"):
        record(token(), tmp_path / "t")
    record(token(), tmp_path / "{pid}")
    assert (tmp_path / str(os.getpid())).exists()


BROKEN = {
    "": "line 1: the file is empty",
    "{}\n": "line 1: not a kvassay trace",
    "no JSON\n": "line 1: not JSON",
    HEADER.replace('"schema": 2', '"schema": 9'): "line 1: has schema 9",
    HEADER.replace('"kind": "token"', '"kind": "tokens"'): "line 1: pool.kind",
    HEADER.replace('"subject"', '"sub"'): "line 1: sub: is unknown",
    HEADER + "[1]\n": "line 2: is no JSON object",
    HEADER + ALLOC + '{"op":"allocate"}\n': "line 3: op: unknown operation 'allocate'",
    HEADER + '{"op":"alloc"}\n': "line 2: size: is missing",
    HEADER + '{"op":"free","slots":[4]}\n': "line 2: slots: is no list",
    HEADER + '{"op":"free","slots":[[4,0]]}\n': "line 2: slots: a run has at least one number",
    HEADER + '{"op":"free","slots":[[4,true]]}\n': "line 2: slots: True is no whole number",
    HEADER + '{"op":"free","color":1}\n': "line 2: color: unknown key",
    HEADER + "\xff\n": "line 2: not JSON",
    HEADER + '{"op":"alloc","size":2,"got":[[\n' + ALLOC: "line 2: not JSON",
}


@pytest.mark.parametrize(("text", "says"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_broken_trace_says_where(text, says, tmp_path):
    (tmp_path / "t").write_text(text)
    with pytest.raises(TraceError) as caught:
        list(Trace(tmp_path / "t").calls())
    assert says in str(caught.value)
    assert str(tmp_path / "t") in str(caught.value)


def test_a_missing_part_is_missed(tmp_path):
    recorded_in_parts(tmp_path, keep=0)
    (tmp_path / "t.2").unlink()
    with pytest.raises(TraceError, match="part 2 is missing"):
        list(Trace(tmp_path / "t").calls())
