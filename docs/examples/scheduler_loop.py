"""A loop like SGLang's scheduler around a paged allocator of a real release, with a bug in the caller.

    TRITON_INTERPRET=1 python docs/examples/scheduler_loop.py [VERSION] [--sound] [--trace PATH]

Requests are admitted behind a cached prefix, decode one token a step, finish, and are retracted when the pool
runs out. `release_request` has the bug: it frees a request's page in two calls, which gives the page back
twice. With --sound it frees all at once. The allocator is the release's own class, and is checked while it runs.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from impl import sglang
from impl.live import check, record, report_of

PAGE_SIZE, PAGES = 4, 16
PROMPTS = (9, 6, 11, 7, 13, 5, 10)
LONGEST = 18  # tokens at which a request finishes


@dataclass(eq=False)
class Request:
    """A running request: slots of all of its tokens, of which the first `cached` belong to the prefix cache."""

    slots: torch.Tensor
    cached: int = 0


class Scheduler:
    """Admits, decodes, finishes and retracts, a step at a time."""

    def __init__(self, allocator: object, sound: bool) -> None:
        self.allocator, self.sound = allocator, sound
        self.running: list[Request] = []
        self.waiting = list(PROMPTS)
        self.prefix = torch.empty(0, dtype=torch.int64)

    def step(self) -> bool:
        """One step; whether there is more to do."""
        if self.waiting:
            self.admit(self.waiting[0])
        self.decode()
        for request in [r for r in self.running if len(r.slots) >= LONGEST]:
            self.running.remove(request)
            self.release_request(request)
        return bool(self.waiting or self.running)

    def admit(self, tokens: int) -> None:
        """Prefill of a prompt behind what is cached; the first prompt's whole pages become the cache."""
        cached = len(self.prefix)
        total = cached + tokens
        last = self.prefix[-1:] if cached else torch.tensor([-1])
        slots = self.allocator.alloc_extend(torch.tensor([cached]), torch.tensor([total]), last, tokens)
        if slots is None:
            return
        self.waiting.pop(0)
        request = Request(torch.cat((self.prefix, slots)), cached)
        if not cached:
            self.prefix = request.slots[: total // PAGE_SIZE * PAGE_SIZE].clone()
            request.cached = len(self.prefix)
        self.running.append(request)

    def decode(self) -> None:
        """One more token for all that run; the youngest is retracted while they do not fit."""
        while self.running:
            lengths = torch.tensor([len(r.slots) + 1 for r in self.running])
            last = torch.stack([r.slots[-1] for r in self.running])
            slots = self.allocator.alloc_decode(lengths, last)
            if slots is not None:
                for request, slot in zip(self.running, slots, strict=True):
                    request.slots = torch.cat((request.slots, slot[None]))
                return
            self.retract()

    def retract(self) -> None:
        """The youngest request gives back what it holds, and waits again."""
        request = self.running.pop()
        self.waiting.append(len(request.slots) - request.cached)
        self.allocator.free(request.slots[request.cached :])

    def release_request(self, request: Request) -> None:
        """A finished request gives back its own slots. The bug: in two calls, which meet inside a page."""
        own = request.slots[request.cached :]
        if self.sound:
            self.allocator.free(own)
            return
        middle = len(own) // PAGE_SIZE * PAGE_SIZE + 1 if len(own) % PAGE_SIZE > 1 else len(own)
        self.free_prompt(own[:middle])
        self.free_output(own[middle:])

    def free_prompt(self, slots: torch.Tensor) -> None:
        """The first call."""
        self.allocator.free(slots)

    def free_output(self, slots: torch.Tensor) -> None:
        """The second call."""
        self.allocator.free(slots)


def main() -> int:
    """Run the loop; 1 where the check found something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default="0.4.10.post2")
    parser.add_argument("--sound", action="store_true", help="without the bug")
    parser.add_argument("--trace", help="write a trace there as well")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    release = sglang.load(sglang.fetch(arguments.version))
    allocator = sglang.build(release, "paged", size=PAGES * PAGE_SIZE, page_size=PAGE_SIZE, engine="triton")
    allocator = check(allocator)
    if arguments.trace:
        allocator = record(allocator, arguments.trace)
    scheduler = Scheduler(allocator, arguments.sound)
    steps = 1
    while scheduler.step() and steps < 60:
        steps += 1
    report = report_of(allocator)
    print(f"{steps} steps, {report.calls} calls, {len(report.findings)} finding(s)")
    for leak in report.leaks() if not report.findings else ():
        print(f"still held: {leak.slots} slots, taken at {leak.site}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
