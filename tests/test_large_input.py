"""Is a trace of any size read in the memory of a small one, and is what is no case refused before it is read whole?"""

import gc
import gzip
import os
import tracemalloc

import pytest
from click.testing import CliRunner

import fuzz.trace_case as trace_case
from fuzz.cli import main
from fuzz.trace_case import case_of
from impl.live import detach, record
from impl.names import local
from oracle import follow, records
from oracle.ops import Config
from oracle.rawcall import MOST_SLOTS, Header, RawCall, Trace, TraceError, header_line, line_of
from oracle.traits import ALWAYS, OPTIONAL, Traits
from properties.judged import first_violation

ANY = Traits(ALWAYS | OPTIONAL)
POOL = Config("paged", 16, 4)
HEADER = header_line(Header(POOL, "paged"))


def body(folder):
    """The lines of a loop that ends with an idle pool, so that they may follow each other any number of times."""
    allocator = record(local("paged").make(POOL).allocator, folder / "loop")
    for size in (4, 12, 20, 8):
        held = [allocator.alloc(size) for _ in range(3)]
        for slots in held:
            allocator.free(slots) if slots is not None else None
    detach(allocator)
    return (folder / "loop").read_text().splitlines(keepends=True)[1:]


def most_held(path, kept=None):
    """Bytes that reading a trace held at most. Looked at where nothing waits to be freed: Python keeps free tuples by
    the thousand."""
    sizes = []
    follow_call = follow.Follower.follow

    def watched(self, call):
        if self.calls % 300 == 0:
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        return follow_call(self, call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow.Follower, "follow", watched)
        tracemalloc.start()
        try:
            case_of(path, ANY) if kept is None else case_of(path, ANY, kept=kept)
        finally:
            tracemalloc.stop()
    return max(sizes)


def test_memory_does_not_grow_with_the_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "FORGET_EVERY", 100)
    lines = "".join(body(tmp_path))
    paths = tmp_path / "short", tmp_path / "long"
    for path, times in zip(paths, (40, 240), strict=True):
        path.write_text(HEADER + lines * times)
    case_of(paths[0], ANY, kept=200)  # what is made once
    short, long = (most_held(path, kept=200) for path in paths)
    assert long < 1.5 * short
    assert most_held(paths[1]) > 4 * long  # where nothing is let go


def test_a_line_is_read_when_its_call_is_asked_for(tmp_path):
    (tmp_path / "t").write_text(HEADER + "".join(body(tmp_path)) * 4000)
    trace = Trace(tmp_path / "t")
    for _ in range(100):
        next(trace.calls())
    assert trace.read < trace.size / 100


def test_how_much_of_it_is_read_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_case, "TOLD", 100)
    lines = body(tmp_path)
    (tmp_path / "t").write_text(HEADER + "".join(lines) * 20)
    said = []
    case_of(tmp_path / "t", ANY, said.append)
    calls = [int(text.split(" ")[0]) for text in said]
    percents = [int(text.split(" ")[-5]) for text in said]
    whole = 20 * len(lines)
    assert calls == list(range(100, whole, 100))
    assert all(abs(percent - 100 * count / whole) < 3 for count, percent in zip(calls, percents, strict=True))


def test_what_is_let_go_ends_outside_of_a_group(tmp_path):
    allocator = record(local("paged").make(POOL).allocator, tmp_path / "t")
    kept = allocator.alloc(4)
    for _ in range(50):
        slots = allocator.alloc(8)
        allocator.free_group_begin()
        for page in slots.split(4):
            allocator.free(page)
        allocator.free_group_end()
    allocator.free(kept)
    detach(allocator)
    for most in range(20, 26):
        told = case_of(tmp_path / "t", ANY, kept=most)
        names = [type(operation).__name__ for operation in told.case.operations]
        assert names.count("GroupBegin") == names.count("GroupEnd") > 0
        assert len(names) < 80
        assert first_violation(local("paged"), told.case, "contract") is None


def test_a_large_batch_counts_for_more(tmp_path):
    count = 64
    decode = RawCall(
        "alloc_extend",
        prefix=(0,) * count,
        seq=(0,) * count,
        last=(-1,) * count,
        total=0,
        outcome="slots",
        free=64,
    )
    (tmp_path / "t").write_text(HEADER + line_of(decode) * 1000)
    told = case_of(tmp_path / "t", ANY, kept=1700)
    assert len(told.case.operations) <= 200


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", ["replay", "show", "export"])
def test_a_trace_is_told_apart_from_a_case(command, tmp_path):
    (tmp_path / "t").write_text(HEADER)
    run = invoke(command, tmp_path / "t")
    assert run.exit_code == 2
    assert "is a trace, and no case yet: `kvassay shrink`" in run.output


@pytest.mark.parametrize("command", ["replay", "show", "export", "shrink"])
def test_what_is_too_large_or_packed_is_refused_by_its_head(command, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LARGEST", 1 << 20)
    (tmp_path / "large").write_bytes(b"{" * ((1 << 20) + 1))
    (tmp_path / "packed").write_bytes(gzip.compress(HEADER.encode()))
    for name, says in {"large": "is larger than 1 MB", "packed": "gunzip it first"}.items():
        run = invoke(command, tmp_path / name)
        assert run.exit_code == 2
        assert says in run.output


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "t")
    run = invoke("shrink", tmp_path / "t")
    assert run.exit_code == 2
    assert "write it to one first" in run.output


def test_a_call_of_more_slots_than_any_is_refused(tmp_path):
    half = [1, MOST_SLOTS // 2 + 1]
    (tmp_path / "t").write_text(HEADER + f'{{"op":"free","slots":[{half},{half}]}}\n')
    with pytest.raises(TraceError, match="line 2: slots: 16,777,218 slots are more than a call has"):
        list(Trace(tmp_path / "t").calls())


def test_a_broken_line_says_how_much_is_whole(tmp_path):
    (tmp_path / "t").write_text(HEADER + "".join(body(tmp_path)[:3]) + '{"op":\n')
    with pytest.raises(TraceError, match=r"line 5: not JSON: .*`head -n 4` of the file is a trace again"):
        list(Trace(tmp_path / "t").calls())


def test_brackets_in_a_name_are_no_pattern(tmp_path):
    allocator = record(local("paged").make(POOL).allocator, tmp_path / "t[1]", limit=60)
    for _ in range(3):
        allocator.free(allocator.alloc(4))
    detach(allocator)
    assert len(list(Trace(tmp_path / "t[1]").calls())) == 6
    with pytest.raises(FileExistsError):
        record(local("paged").make(POOL).allocator, tmp_path / "t[1]")
