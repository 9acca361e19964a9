"""How a campaign goes on behind a fault that it knows: which shape of step to leave out.

One shallow fault would kill most long cases and hide the others. Of the shapes that the shrunk case shows, the
rarest one without which the fault is gone is left out of everything generated afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oracle.ops import Case
from oracle.plan import plan
from oracle.traits import Traits
from properties.shapes import config_shapes, shapes


def candidates(case: Case, traits: Traits, frequency: Callable[[str], int]) -> list[str]:
    """Shapes of a shrunk case, rarest first, that could be left out to steer round its fault."""
    found: dict[str, None] = {}
    for step in plan(case, traits):
        if not step.probe:
            found.update(dict.fromkeys(shapes(step, case.config)))
    found.update(dict.fromkeys(config_shapes(case.config)))
    return sorted(found, key=lambda shape: (frequency(shape), shape))


def steer_round(
    shapes_of_case: Iterable[str], avoid: frozenset[str], still_there: Callable[[frozenset[str]], bool]
) -> frozenset[str] | None:
    """`avoid` with one shape more, such that the fault is gone; None where no single shape does that.

    still_there: whether the fault still shows up among new cases that leave out these shapes.
    """
    for shape in shapes_of_case:
        wider = avoid | {shape}
        if shape not in avoid and not still_there(wider):
            return wider
    return None
