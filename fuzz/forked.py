"""Processes: workers that start afresh, and a function in a forked copy of this one, whose damage is gone with it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
PATIENCE = 20
MEMORY = 8 << 30  # bytes of address space above what is mapped already


class Ended(NamedTuple, Generic[T]):
    """How it ended. fate: `answered`, `died` (with a signal or without an answer) or `hung`."""

    fate: str
    value: T | None
    why: str = ""


def in_fork(work: Callable[[], T], timeout: float) -> Ended[T]:
    """What `work` returns, pickled across. It is killed after `timeout` seconds of its own time, which a busy
    machine does not shorten, or PATIENCE times as many by the clock.

    Fork copies one thread: the caller must not need others (torch is set to one thread in our workers).
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _serve(work, writer)
    os.close(writer)
    chunks: list[bytes] = []
    deadline = time.monotonic() + PATIENCE * timeout
    hung = False
    while True:
        ready, _, _ = select.select([reader], [], [], min(timeout, 1.0))
        if not ready:
            if _seconds_of(child) < timeout and time.monotonic() < deadline:
                continue
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        chunks.append(chunk)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if hung:
        return Ended("hung", None, f"no answer in {timeout:.0f} s")
    if not chunks:
        killed = os.WIFSIGNALED(status)
        how = (
            signal.Signals(os.WTERMSIG(status)).name
            if killed
            else f"exit code {os.waitstatus_to_exitcode(status)}"
        )
        return Ended("died", None, how)
    value = pickle.loads(b"".join(chunks))
    if isinstance(value, BaseException):
        raise value
    return Ended("answered", value)


def _seconds_of(process: int) -> float:
    """The time that a process of ours, not yet waited for, has had on a core, in seconds."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _serve(work: Callable[[], T], writer: int) -> None:
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY if soft < 0 else soft, hard))
        try:
            answer: object = work()
        except Exception as error:
            answer = error
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
    finally:
        os._exit(0)


def spawned() -> BaseContext:
    """Workers start afresh, with nothing of the caller's."""
    return multiprocessing.get_context("spawn")
