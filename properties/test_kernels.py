"""The properties of the kernel tier: `--tier kernel --impl ENGINE` for a bare operator of anybody's."""

from __future__ import annotations

from properties.test_allocators import Holds, of


@of("kernels")
def test_engine_gives_the_references_slots(task: object, holds: Holds) -> None:
    """An engine gives every batch (0 to hundreds of requests) the reference's slots, in int64 and int32, and
    neither reads nor writes outside its arguments: they lie between filled zones, the free list included."""
    holds(task)
