"""How much of what is reachable do seeded sequences try? The floors of `properties.coverage` stand a little below."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from impl.names import OWN, local
from properties.cases import generate_planned, typical_config
from properties.coverage import FLOORS, reachable
from properties.judged import judged
from properties.sources import SeededSource

LEVEL = "hardened"


def shares(name: str, seeds: int, sequences: int) -> list[float]:
    """The share that each seed's sequences try, on one subject."""
    subject = local(name)
    of = reachable(subject.space, subject.traits(typical_config(subject.space, LEVEL)))
    found = []
    for seed in range(seeds):
        tried: Counter[str] = Counter()
        for number in range(sequences):
            source = SeededSource(f"coverage/{seed}/{number}")
            case, steps = generate_planned(source, subject.space, subject.traits, LEVEL)
            tried.update(judged(subject, case, LEVEL, steps=steps).points())
        found.append(len(of & tried.keys()) / len(of))
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--impl", action="append", metavar="SUBJECT", help="default: " + ", ".join(OWN))
    parser.add_argument("--largest", type=int, default=1000, help="no more sequences a seed than this")
    options = parser.parse_args()
    table = Table(title="Share of the reachable points that was tried, worst and median seed")
    for column in ("subject", "sequences", "seeds", "worst", "median", "floor"):
        table.add_column(column, justify="left" if column == "subject" else "right")
    for name in options.impl or OWN:
        for sequences, floor in sorted(FLOORS):
            if sequences <= options.largest:
                found = sorted(shares(name, options.seeds, sequences))
                worst, median = found[0], found[len(found) // 2]
                table.add_row(
                    name, f"{sequences:,}", str(len(found)), f"{worst:.1%}", f"{median:.1%}", f"{floor:.0%}"
                )
    Console().print(table)


if __name__ == "__main__":
    main()
