"""How long does extend and decode take without a kernel language, beside the torch path of a release of SGLang, on a CPU?"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from impl import sglang
from impl.torch_engine import TorchEngine

PAGE, ROUNDS, CALLS = 16, 41, 20
TOKENS = 1000  # new ones a request, about


def timed(run: Callable[[], object]) -> float:
    """Microseconds of one call, of CALLS: of processor time, which neighbours on the machine disturb little."""
    started = time.process_time()
    for _ in range(CALLS):
        run()
    return (time.process_time() - started) * 1e6 / CALLS


def calls(
    bs: int, names: dict[str, Any]
) -> dict[str, tuple[Callable[[], object], Callable[[], object], torch.Tensor]]:
    """For both operations: theirs, ours, and what they write to."""
    rng = random.Random(bs)
    prefix = torch.tensor([rng.randrange(5000) for _ in range(bs)])
    prefix[0] = 5 * PAGE  # one request of a decode opens a page, at least
    seq = prefix + torch.tensor([rng.randrange(1, 2 * TOKENS) for _ in range(bs)])
    last = torch.arange(10, 10 + bs) * PAGE + (prefix - 1) % PAGE
    free = torch.randperm(1 << 16) + 1000
    out, one = torch.empty(int((seq - prefix).sum()), dtype=torch.int64), torch.empty(bs, dtype=torch.int64)
    opened = int((prefix % PAGE == 0).sum())
    decoded, inside = prefix + 1, prefix + 2
    ours, extend, decode = TorchEngine(), names["alloc_extend_naive"], names["alloc_decode_naive"]
    return {
        "extend": (
            lambda: extend(prefix, seq, last, free, out, PAGE, "cpu"),
            lambda: ours.extend(prefix, seq, last, free, out, PAGE), out,
        ),
        "decode": (
            lambda: decode(decoded, last, free, one, PAGE, opened),
            lambda: ours.decode(decoded, last, free[:opened], one, PAGE), one,  # as our allocator calls it
        ),
        "decode inside pages": (
            lambda: decode(inside, last, free, one, PAGE, 0),
            lambda: ours.decode(inside, last, free[:0], one, PAGE), one,
        ),
    }  # fmt: skip


def main() -> int:
    """Print and check; 1 where an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--release", default="0.5.23", metavar="VERSION", help="of SGLang, with a torch path; default 0.5.23"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_threads(1)
    names = sglang.load(sglang.fetch(arguments.release)).cls("paged").alloc_extend.__globals__
    rows, differing = [], 0
    for bs in (1, 8, 64):
        for what, (theirs, ours, out) in calls(bs, names).items():
            theirs()
            wanted = out.clone()
            out.fill_(-7)
            ours()
            differing += not torch.equal(out, wanted)
            taken = [(timed(theirs), timed(ours)) for _ in range(ROUNDS)]
            a, b = (statistics.median(column) for column in zip(*taken, strict=True))
            rows.append({"what": what, "requests": bs, "theirs": a, "ours": b, "ratio": a / b})
    if arguments.json:
        print(json.dumps({"schema": 1, "release": arguments.release, "rows": rows, "differing": differing}))
        return 1 if differing else 0
    for row in rows:
        print(
            "{what:20} {requests:3} request(s)  theirs {theirs:8.1f} us  ours {ours:8.1f} us  {ratio:5.2f} times".format(
                **row
            )
        )
    print(f"{differing} answer(s) differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
