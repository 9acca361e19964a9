"""Draws what `bench/gpu.py` kept: device times of both, and the floor, on a logarithmic scale, as an SVG."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

WIDTH, LEFT, ROW, TOP = 760, 190, 30, 70
COLOURS = {"theirs": "#9aa5b1", "ours": "#1f6feb", "floor": "#d29922"}


def across(value: float, low: float, high: float) -> float:
    """Where a number of microseconds lies from left to right."""
    return LEFT + (WIDTH - LEFT - 90) * math.log(value / low) / math.log(high / low)


def drawn(found: dict[str, Any], page_size: int) -> str:
    """The text of the picture."""
    rows = [
        r
        for r in found["rows"]
        if r.get("clock") == "device" and r["page_size"] == page_size and "theirs" in r
    ]
    low = min(r["floor"] for r in rows) / 1.5
    high = max(r["theirs"] for r in rows) * 1.3
    height = TOP + ROW * len(rows) + 30
    title = f"Extend and decode on {found['device']}: SGLang {found['sglang']} and kvassay, microseconds, page size {page_size}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/><text x="10" y="22" font-size="14">{title}</text>',
    ]
    for number, (name, colour) in enumerate(COLOURS.items()):
        label = {"theirs": f"SGLang {found['sglang']}", "ours": "kvassay", "floor": "floor"}[name]
        parts.append(f'<rect x="{LEFT + 150 * number}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 150 * number + 18}" y="45">{label}</text>')
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        x = across(10**power, low, high)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 22}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#666">{10**power:g}</text>'
        )
    for number, row in enumerate(rows):
        y = TOP + ROW * number
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{row["what"]}</text>')
        for name, top in (("theirs", y), ("ours", y + 11)):
            wide = across(row[name], low, high) - LEFT
            parts.append(
                f'<rect x="{LEFT}" y="{top}" width="{wide:.1f}" height="10" fill="{COLOURS[name]}"/>'
            )
        floor = across(row["floor"], low, high)
        parts.append(
            f'<line x1="{floor:.1f}" x2="{floor:.1f}" y1="{y}" y2="{y + 21}" stroke="{COLOURS["floor"]}" stroke-width="2"/>'
        )
        end = across(max(row["theirs"], row["ours"]), low, high)
        parts.append(f'<text x="{end + 5:.1f}" y="{y + 15}" fill="#444">{row["ratio"]:.1f} x</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """From a file of results to a picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, help="what bench/gpu.py --out wrote")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument("--page-size", type=int, default=16)
    arguments = parser.parse_args()
    arguments.picture.write_text(drawn(json.loads(arguments.results.read_text()), arguments.page_size))


if __name__ == "__main__":
    main()
