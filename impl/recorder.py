"""Writes what a live allocator is asked and answers into a trace that survives the process."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path

from oracle.rawcall import Header, RawCall, Runs, Start, files_of, header_line, line_of


class Recorder:
    """A trace being written: one line for each call that came back, in the file before the next call begins.

    limit: bytes of calls after which the file is rotated away to `path.1`, `path.2`, … (inside a group twice as many);
    keep: how many of those stay (0: all). windows: reads which pages have a window half, for the head of the next
    file. FileExistsError where there is a trace already. A process that dies leaves every whole line.
    """

    def __init__(
        self,
        path: str | Path,
        header: Header,
        limit: int = 64 << 20,
        keep: int = 0,
        windows: Callable[[], Runs | None] = lambda: None,
    ) -> None:
        self.path = Path(path)
        if self.path.exists() or any(self.path.parent.glob(f"{glob.escape(self.path.name)}.[0-9]*")):
            raise FileExistsError(f"{self.path}: there is a trace already; give another path")
        self.limit, self.keep = limit, keep
        self._header, self._process, self._windows = header, os.getpid(), windows
        self._file = -1
        self._size = 0
        self._grouped = header.start.group
        self._saved: dict[str, bool] = {}  # whether a group was open, by snapshot
        self._open(header)

    def heard(self, call: RawCall) -> None:
        """Write one call."""
        if os.getpid() != self._process or self._file < 0:
            return  # a forked child has an allocator of its own
        if call.outcome == "done":
            call = self._in_group(call)
        line = line_of(call).encode()
        self._write(line)
        self._size += len(line)
        # Inside a group a new file can't say what waits for its end; one that stays open is no reason to wait.
        if self._size >= self.limit * (1 + self._grouped):
            self._rotate(call)

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _in_group(self, call: RawCall) -> RawCall:
        """Keep in mind whether a group is open behind a call; the call, saying so where only a snapshot tells."""
        match call.method:
            case "free_group_begin" | "free_group_end" | "clear":
                self._grouped = call.method == "free_group_begin"
            case "backup_state":
                self._saved[call.name] = self._grouped
            case "restore_state":
                self._grouped = self._saved.get(call.name, False)
                return call._replace(group=self._grouped)
        return call

    def _rotate(self, last: RawCall) -> None:
        part = self._header.part
        self.close()
        os.replace(self.path, f"{self.path}.{part}")
        if self.keep:
            for old in files_of(self.path)[: -self.keep]:
                old.unlink()
        free = last.free if last.full is None else last.full
        start = Start(free, last.window, self._windows(), self._grouped)
        self._header = self._header._replace(part=part + 1, start=start)
        self._open(self._header)

    def _open(self, header: Header) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = 0
        self._write(header_line(header).encode())

    def _write(self, line: bytes) -> None:
        # No buffer of ours: what write() took is in the file even if this process is killed the next moment.
        while line:
            line = line[os.write(self._file, line) :]
