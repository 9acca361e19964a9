"""A subject in a process of its own: when it dies there, that is an answer and not the end of the run.

The process loads the subject once and then forks a worker, which serves cases until it dies; the next one is
forked from the loaded state, in milliseconds. A case crosses whole: its operations go over, the worker makes
the same plan from them, and one observation for each step comes back.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from impl.errors import SubjectError
from oracle.batch import Batch
from oracle.ops import Case, Config
from oracle.plan import plan
from oracle.traits import Traits
from oracle.verdict import Observation
from oracle.world import NOWHERE, BatchCall, Step

if TYPE_CHECKING:
    from impl.session import Session

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT = 300.0
ANSWER_TIMEOUT = 120.0
SUBJECT_FAILED, RETIRED = 2, 75
LAUNCH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from impl.child import main; main()"


@dataclass(slots=True)
class Descriptor:
    """What the process says of the subject that it loaded."""

    about: str
    space: Any
    share: float


class Child:
    """A process that has loaded what a name stands for: `tier` is `allocator` or `kernel`."""

    def __init__(self, name: str, tier: str, path: str = "", device: str = "cpu") -> None:
        self.name, self.device = name, device
        self._tier, self._path = tier, path
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._errors: IO[bytes] | None = None
        self._serial = 0

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        if self._errors is not None:
            self._errors.close()
        self._process, self._connection, self._errors = None, None, None

    def _call(self, *request: Any) -> Any:
        kind, value = self._receive(self._send(*request), START_TIMEOUT)
        if kind == "answer":
            return value
        self.close()
        raise SubjectError(value if kind == "failed" else f"{self.name}: its process died ({value})")

    def _send(self, *request: Any) -> int:
        """Ask; the serial number is on all that comes back for it."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._connection is not None
        self._serial += 1
        self._connection.send((self._serial, *request))
        return self._serial

    def _observation(self, serial: int) -> Observation:
        kind, value = self._receive(serial)
        if kind == "failed":
            raise SubjectError(value)
        if kind == "died":
            return Observation("crashed", error=value)
        assert isinstance(value, Observation)
        return value

    def _receive(self, serial: int, timeout: float = ANSWER_TIMEOUT) -> tuple[str, Any]:
        """The next message about a request; what an abandoned run still had to say is passed over."""
        assert self._connection is not None
        try:
            while self._connection.poll(timeout):
                about, kind, value = self._connection.recv()
                if about == serial:
                    return kind, value
        except (EOFError, OSError):
            last = self._last_words()
            self.close()
            return "died", last
        self.close()
        return "died", f"no answer in {timeout:.0f} s"

    def _last_words(self) -> str:
        if self._errors is None:
            return "it left no message"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no message"

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # -P: the folder that we were started in may have an `impl` of its own.
        command = [
            sys.executable,
            "-P",
            "-c",
            LAUNCH,
            str(theirs.fileno()),
            self._tier,
            self.name,
            self._path,
            self.device,
        ]
        environment = dict(os.environ, TRITON_INTERPRET="1") if self.device == "cpu" else dict(os.environ)
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL, stderr=self._errors,
            env=environment, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self._connection = Connection(ours.detach())


class ChildSubject(Child):
    """An allocator, driven in another process. Made with a name that `impl.names.local` understands."""

    def __init__(self, name: str, path: str = "", device: str = "cpu") -> None:
        super().__init__(name, "allocator", path, device)
        described = self._call("describe")
        self.about, self.space, self.share = described.about, described.space, described.share
        self._claims: dict[Config, Traits] = {}

    def traits(self, config: Config) -> Traits:
        """What is claimed of the allocator with this pool."""
        if config not in self._claims:
            self._claims[config] = self._call("traits", config)
        return self._claims[config]

    def open(self, config: Config) -> ChildDriver:
        """A new allocator in the process, to be driven step by step."""
        return ChildDriver(self, config)

    def run(self, case: Case, steps: Sequence[Step]) -> Iterator[Observation]:
        """A new allocator's first look, then its answer to each step; they are all made at once."""
        serial = self._send("run", case)
        for _ in range(1 + len(steps)):
            seen = self._observation(serial)
            yield seen
            if seen.outcome == "crashed":
                return

    def there(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function(subject, *arguments)` gives over there; both it and its answer cross by pickle.

        What it raises over there is raised here. DiedError where the process dies of it.
        """
        kind, value = self._receive(self._send("there", function, arguments), START_TIMEOUT)
        if kind == "answer":
            return value  # type: ignore[no-any-return]
        if kind == "raised":
            raise value
        raise DiedError(value) if kind == "died" else SubjectError(value)


class DiedError(Exception):
    """The process of a subject died; the message says how."""


class ChildEngine(Child):
    """An index engine, run in another process. Made with a name that `impl.engines.local_engine` understands."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        super().__init__(name, "kernel", device=device)
        described = self._call("describe")
        self.about, self.share = described.about, described.share

    def run_batch(self, batch: Batch, dtype: str) -> Observation:
        """Run one batch between guard zones, over there."""
        return self._observation(self._send("batch", batch, dtype))


class ChildDriver:
    """One run in a child process, step by step."""

    def __init__(self, subject: ChildSubject, config: Config) -> None:
        self._subject = subject
        self._opened = subject._send("open", config)

    def begin(self) -> Observation:
        """What a new allocator shows."""
        return self._subject._observation(self._opened)

    def apply(self, step: Step, following: Step | None = None) -> Observation:
        """The answer to one step. following: the one behind it, where it is known."""
        # The worlds stay here: a session looks at the steps alone.
        bare = [one and one._replace(before=NOWHERE, after=NOWHERE) for one in (step, following)]
        return self._subject._observation(self._subject._send("apply", *bare))


# -- the other side ------------------------------------------------------------------------------------


def main() -> None:
    """Load the subject that the command line names, and serve workers until the parent is gone."""
    tier, name, path, device = sys.argv[2:6]
    connection = Connection(int(sys.argv[1]))
    # Last of all the folder that we were started in, for the user's own modules.
    sys.path.append(os.getcwd())
    import torch

    from impl.engines import local_engine
    from impl.names import local

    torch.set_num_threads(1)  # forking needs a process without threads
    try:
        subject = local_engine(name, device) if tier == "kernel" else local(name, path=path, device=device)
    except Exception as error:
        known = type(error).__name__ == "SubjectError"
        serial, *_ = connection.recv()
        connection.send(
            (serial, "failed", str(error) if known else f"{name}: {type(error).__name__}: {error}")
        )
        os._exit(SUBJECT_FAILED)
    if device != "cpu":
        worker = Worker(connection, subject, mmap.mmap(-1, 8))
        worker.retired = True
        while worker.retired:  # a process that has used a GPU can't fork, so this one goes on
            worker.retired = False
            worker.serve()
        return
    current = mmap.mmap(-1, 8)
    while True:
        pid = os.fork()
        if not pid:
            worker = Worker(connection, subject, current)
            worker.serve()
            os._exit(RETIRED if worker.retired else 0)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == RETIRED:
            continue
        if not os.WIFSIGNALED(status):
            os._exit(os.waitstatus_to_exitcode(status))
        serial = int.from_bytes(current[:8], "little")
        connection.send((serial, "died", f"signal {signal.Signals(os.WTERMSIG(status)).name}"))


class Worker:
    """Serves requests until it dies or the parent is gone.

    current: memory shared with the process that forks workers, for the serial number of the request at hand.
    """

    def __init__(self, connection: Connection, subject: Any, current: mmap.mmap) -> None:
        self._connection, self._subject, self._current = connection, subject, current
        self._driver: Session | None = None
        self._serial = 0
        self.retired = False

    def serve(self) -> None:
        """One request after the other."""
        while not self.retired:
            try:
                self._serial, what, *arguments = self._connection.recv()
                self._current[:8] = self._serial.to_bytes(8, "little")
                self._answer(what, arguments)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return
            except Exception as error:
                known = type(error).__name__ == "SubjectError"
                self._say(
                    "failed",
                    str(error) if known else f"{self._subject.name}: {type(error).__name__}: {error}",
                )

    def _say(self, kind: str, value: object) -> None:
        self._connection.send((self._serial, kind, value))

    def _answer(self, what: str, arguments: list[Any]) -> None:
        subject = self._subject
        match what:
            case "describe":
                self._say("answer", Descriptor(subject.about, getattr(subject, "space", None), subject.share))
            case "batch":
                self._say("seen", subject.run_batch(*arguments))
            case "traits":
                self._say("answer", subject.traits(arguments[0]))
            case "open":
                self._driver = subject.open(arguments[0])
                self._say("seen", self._driver.begin())
            case "apply" if self._driver is not None:
                self._say("seen", self._driver.apply(*arguments))
            case "run":
                case_ = arguments[0]
                steps = plan(case_, subject.traits(case_.config))
                for seen in subject.run(case_, steps):
                    self._say("seen", seen)
                if any(step.status == "misuse" and isinstance(step.call, BatchCall) for step in steps):
                    # A kernel that was misled may have written anywhere in this process: the next case gets
                    # a new one, or it would answer for this one.
                    self.retired = True
            case "there":
                function, values = arguments
                try:
                    answer = function(subject, *values)
                except Exception as error:
                    self._say("raised", error)
                else:
                    self._say("answer", answer)
            case _:
                raise ValueError(f"unknown request {what!r}")
