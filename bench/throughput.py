"""How many operations a second are judged on one core, by where they come from, next to the generator alone."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from hypothesis import seed
from hypothesis.stateful import run_state_machine_as_test
from rich.console import Console
from rich.table import Table

from impl.names import OWN, local
from impl.subject import Space, Subject
from properties.cases import generate_planned
from properties.checks import quiet
from properties.judged import judged
from properties.machines import machine_for
from properties.sources import SeededSource
from properties.workload import NONE

LEVEL = "contract"
PEER = "generator alone"
MACHINE_EXAMPLES = 10  # in one call of the state machine
SLICES = 8  # sources take turns, so that a slow minute of the machine slows them all
WARM_UP = 0.3  # seconds; imports and first calls are no part of a rate

Batch = Callable[[int], int]  # number of the batch -> operations that it judged


@dataclass(frozen=True, slots=True)
class Rate:
    """Operations of one source on one subject, and the processor time that they took."""

    subject: str
    source: str
    operations: int
    seconds: float
    wall: float

    @property
    def per_second(self) -> float:
        """Operations a second of processor time."""
        return self.operations / self.seconds if self.seconds else 0.0


class Clock:
    """Adds up what one source judged and how long it took, slice by slice."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._number = batch, 0
        self.operations, self.seconds, self.wall = 0, 0.0, 0.0

    def run(self, seconds: float, count: bool = True) -> None:
        """Batch after batch for `seconds`; a warm-up does not count."""
        wall, processor = time.perf_counter(), time.process_time()
        judged_now = 0
        while time.perf_counter() - wall < seconds:
            judged_now += self._batch(self._number)
            self._number += 1
        if count:
            self.operations += judged_now
            self.seconds += time.process_time() - processor
            self.wall += time.perf_counter() - wall


def generator_alone(subject: Subject, space: Space) -> Batch:
    """The peer: the same cases made and planned by generator and ledger, and given to nobody."""

    def batch(number: int) -> int:
        _, steps = generate_planned(SeededSource(f"bench/{number}"), space, subject.traits, LEVEL)
        return sum(step.call is not None for step in steps)

    return batch


def seeded(subject: Subject, space: Space) -> Batch:
    """Cases from a seed, judged whole."""

    def batch(number: int) -> int:
        case, steps = generate_planned(SeededSource(f"bench/{number}"), space, subject.traits, LEVEL)
        outcome = judged(subject, case, LEVEL, steps=steps)
        if outcome.violation is not None:
            raise SystemExit(f"{subject.name} breaks a promise, so there is no rate: {outcome.violation}")
        return outcome.operations

    return batch


def state_machine(subject: Subject) -> Batch:
    """The Hypothesis state machine, judged step by step."""

    def batch(number: int) -> int:
        machine = seed(number)(machine_for(subject, LEVEL, NONE))
        run_state_machine_as_test(machine, settings=quiet(MACHINE_EXAMPLES))
        return machine.asked

    return batch


def rates(name: str, seconds: float) -> list[Rate]:
    """All sources on one subject; the peer first."""
    subject = local(name)
    space = subject.space
    sources = {
        PEER: generator_alone(subject, space),
        "seeded": seeded(subject, space),
        "seeded, small": seeded(subject, replace(space, small=True)),
        "state machine": state_machine(subject),
    }
    clocks = {source: Clock(batch) for source, batch in sources.items()}
    for clock in clocks.values():
        clock.run(min(WARM_UP, seconds), count=False)
    for _ in range(SLICES):
        for clock in clocks.values():
            clock.run(seconds / SLICES)
    return [Rate(name, source, c.operations, c.seconds, c.wall) for source, c in clocks.items()]


def show(found: list[Rate]) -> None:
    """A table, with each rate as a share of the peer's on the same subject."""
    table = Table(title="Checked operations a second of processor time, on one core")
    for column in ("subject", "source"):
        table.add_column(column, no_wrap=True)
    for column in ("judged", "a second", "µs each", "to peer"):
        table.add_column(column, justify="right", no_wrap=True)
    peer = 0.0
    for rate in found:
        alone = rate.source == PEER
        peer = rate.per_second if alone else peer
        table.add_row(
            rate.subject.replace("[", "\\["),
            rate.source,
            f"{rate.operations:,}",
            f"{rate.per_second:,.0f}",
            f"{1e6 / rate.per_second:,.1f}" if rate.operations else "",
            "peer" if alone else f"{rate.per_second / peer:.2f}",
            end_section=rate.source == "state machine",
        )
    console = Console()
    console.print(table)
    busy = sum(r.seconds for r in found) / sum(r.wall for r in found)
    console.print(
        f"Python {platform.python_version()}, torch {torch.__version__}; the core was ours {busy:.0%} of the time."
    )


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="for each source on each subject (default 3)"
    )
    parser.add_argument("--impl", action="append", metavar="SUBJECT", help=f"default: {', '.join(OWN)}")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    arguments = parser.parse_args()
    if arguments.seconds <= 0:
        parser.error("--seconds is more than 0")
    torch.set_num_threads(1)
    found = [rate for name in arguments.impl or OWN for rate in rates(name, arguments.seconds)]
    if arguments.json:
        print(
            json.dumps(
                {"schema": 1, "rates": [{**asdict(r), "per_second": r.per_second} for r in found]}, indent=2
            )
        )
    else:
        show(found)


if __name__ == "__main__":
    main()
