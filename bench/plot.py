"""Draws what `bench/gpu.py` kept, on a logarithmic scale: device times of both, the seed's design, and the floor.

Needs the extra `plot`.
"""

# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure


def drawn(found: dict[str, Any], page_size: int) -> Figure:
    """A bar a side for each operation, with the ratio behind it, and a line at the floor."""
    rows = [r for r in found["rows"] if r.get("page_size") == page_size and "theirs" in r and "floor" in r]
    figure = Figure(figsize=(8, 0.34 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    theirs, ours, floor = ([row[key] for row in rows] for key in ("theirs", "ours", "floor"))
    axes.barh(
        [place - 0.2 for place in places], theirs, 0.4, color="#9aa5b1", label=f"SGLang {found['sglang']}"
    )
    mine = axes.barh([place + 0.2 for place in places], ours, 0.4, color="#1f6feb", label="kvassay")
    axes.bar_label(mine, [f"{row['ratio']:.1f} x" for row in rows], padding=4)
    seed = [(row["seed"], place) for place, row in enumerate(rows) if "seed" in row]
    axes.plot(*zip(*seed, strict=True), "d", color="#8250df", markersize=4, label="the seed's design")
    axes.vlines(floor, [p - 0.4 for p in places], [p + 0.4 for p in places], "#d29922", label="floor")
    axes.set(
        xscale="log", ylim=(len(rows) - 0.4, -0.6), xlabel=f"µs on {found['device']}, page size {page_size}"
    )
    axes.set_yticks(places, [row["what"] for row in rows])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.22))  # where the bars are short
    return figure


def main() -> None:
    """From a file of results to a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="what bench/gpu.py --out wrote")
    parser.add_argument("picture", type=Path, help="the file to write, an SVG or PNG")
    parser.add_argument("--page-size", type=int, default=16)
    arguments = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "kvassay"  # the same numbers make the same file
    figure = drawn(json.loads(arguments.results.read_text()), arguments.page_size)
    figure.savefig(arguments.picture, metadata={"Date": None} if arguments.picture.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
