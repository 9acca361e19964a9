"""What does an argument look like that breaks a rule?"""

from __future__ import annotations

from typing import Any

import torch


def spoil(given: dict[str, Any], flaw: str, first: int) -> None:
    """Spoils the argument of a batch that a flaw names: else seq_lens and its mirror."""
    rule, _, argument = flaw.partition(" of ")
    if rule == "mirror":
        # The device says less than the mirror, so that what was counted is enough for what is written.
        given[argument][first] += 1 if argument == "prefix_lens" else -1
    elif rule in ("lengths", "dtype", "shape", "tensor", "device"):
        for name in [argument] if argument else ["seq_lens", "seq_lens_cpu"]:
            if name in given:
                given[name] = spoilt(given[name], rule)


def spoilt(tensor: torch.Tensor, rule: str) -> Any:
    """A tensor that is wrong in what a rule speaks of."""
    match rule:
        case "lengths":
            return tensor[:-1]
        case "dtype":
            return tensor.float()
        case "shape":
            return tensor[None]
        case "device":
            return tensor.to("meta")  # the one other device that every machine has
    return tensor.tolist()
