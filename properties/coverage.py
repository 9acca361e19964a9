"""What of the space was really tried: pairs of operations, operations and batch shapes in states, kinds of misuse.

A point is a phrase, such as `alloc_extend exact fit, after a restore`. What a subject's cases can reach at all is
listed by rules (`reachable`), so that a share can be told and a floor be asked. Counted are the steps that were
judged; what every case ends with (`Step.probe`) is left out, since it comes without being looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from impl.subject import Space
from oracle.ops import METHODS, Config
from oracle.traits import Traits
from oracle.world import StateCall, Step, World, room_in
from properties.shapes import POSSIBLE, method_of, shapes

START = "the start"
IN_GROUP = ("in an empty group", "frees waiting in a group")
STATES = (
    "nothing held", "no page left", "one page left", "a page partly filled", *IN_GROUP, "after a restore",
    "after a clear",
)  # fmt: skip
WINDOW_STATES = ("the pools differ", "window halves gone")
UNORDERED = "unordered free list"
NEEDS_HELD = ("get_cpu_copy", "load_cpu_copy")

# Shapes that say by themselves in which state they are, or that a state rules out.
_IS_A_STATE = ("empty pool", "in a group")
_RULED_OUT = {
    "exact fit": ("no page left",),
    "no fit, pool not empty": ("no page left",),
    "inside a page": ("nothing held",),
    "of one that stays inside its page": ("nothing held",),
    "of a partly filled page": ("nothing held",),
    "of several pages": ("nothing held",),
    "again": ("nothing held",),
    "after free_swa": ("nothing held",),
    "without a group": IN_GROUP,
    "with nothing freed": ("frees waiting in a group",),
}
_INSIDE_PAGES = (
    "inside a page", "of one that stays inside its page", "of a partly filled page", "a page partly filled"
)  # fmt: skip
_BATCH = (
    "lengths",
    "dtype",
    "shape",
    "tensor",
    "device",
    "negative",
    "last_loc",
    "last page",
    "mirror",
    "swa gone",
)
_MISUSE = {
    "alloc": ("negative", "unaligned", "whole"),
    "alloc_extend": (*_BATCH, "total", "shrinks", "new pages", "one owner"),
    "alloc_decode": _BATCH,
    "free": ("dtype", "shape", "tensor", "device", "part of a page", "twice", "padding", "foreign"),
    "free_group_begin": ("nested group",),
    "free_group_end": ("part of a page",),
    "restore_state": ("snapshot",),
}
_NEEDS_PAGES = frozenset({"unaligned", "last_loc", "last page", "one owner", "part of a page", "swa gone"})

# The share of the reachable points that so many seeded sequences have to try: a little below what the worst seed
# does (bench/coverage.py). Fewer sequences than the least are a sample.
FLOORS = ((10_000, 0.98), (500, 0.92), (100, 0.75))


def points(steps: Sequence[Step], config: Config, unordered: Iterable[int] = ()) -> Iterator[str]:
    """The points of the steps of one case. unordered: places of the steps that met an unordered free list."""
    met = frozenset(unordered)
    before = START
    restored = cleared = False
    for place, step in enumerate(steps):
        call = step.call
        if step.probe or call is None or step.status == "skip":
            continue
        method = method_of(step)
        if step.status == "misuse":
            yield f"misuse {step.rule}: {method}"
            continue
        yield f"{before}, then {method}"
        before = method
        states = list(_states(step.before, config))
        if place in met:
            states.append(UNORDERED)
        if restored:
            states.append("after a restore")
        if cleared:
            states.append("after a clear")
        for shape in shapes(step, config):
            yield shape
            if not shape.endswith(_IS_A_STATE):
                yield from (f"{shape}, {state}" for state in states)
        if isinstance(call, StateCall):
            restored = restored or call.method == "restore_state"
            cleared = cleared or call.method == "clear"


def _states(world: World, config: Config) -> Iterator[str]:
    """The abstract states that a world is in."""
    room = room_in(config, world)
    if not room:
        yield "no page left"
    elif room == 1:
        yield "one page left"
    if not world.requests:
        yield "nothing held"
    if config.swa_pages and world.swa_free != world.free:
        yield "the pools differ"
    if world.gone:
        yield "window halves gone"
    if world.group is not None:
        yield IN_GROUP[bool(world.group.pages or world.group.parts or world.group.swa)]
    if any(r.length % config.page_size for r in world.requests.values()):
        yield "a page partly filled"


def reachable(space: Space, traits: Traits, avoid: frozenset[str] = frozenset()) -> frozenset[str]:
    """The points that cases on these pools can have, without the shapes in `avoid`."""
    paged = space.fixed.get("page_size", max(space.page_sizes)) > 1
    # A first token ends its page only where pages have one slot.
    longer = space.kind == "swa" or min(space.page_sizes) > 1 or space.fixed.get("page_size", 1) > 1
    methods = [
        method
        for method in sorted(set(METHODS.values()) & traits.operations)
        if method not in avoid and not (method in NEEDS_HELD and not space.data)
    ]
    if not paged and space.kind != "paged":
        methods = [method for method in methods if method not in ("alloc_extend", "alloc_decode")]
    states = [*STATES, *(WINDOW_STATES if space.kind == "swa" else ())]
    if False in space.need_sort and traits.dialect is not None and not traits.dialect.always_sorts:
        states.append(UNORDERED)
    found = set(_pairs(methods))
    for method in methods:
        for word in ("", *POSSIBLE.get(method, ())):
            shape = f"{method} {word}".rstrip()
            if shape in avoid or (space.small and word == "of many"):
                continue
            if (not paged and word in _INSIDE_PAGES) or (space.kind != "swa" and word == "after free_swa"):
                continue
            found.add(shape)
            if word in _IS_A_STATE:
                continue
            found.update(
                f"{shape}, {state}"
                for state in states
                if state not in _RULED_OUT.get(word, ())
                and not (method in NEEDS_HELD and state == "nothing held")
                and not (method == "free_group_begin" and state in IN_GROUP)
                and not (not paged and state in _INSIDE_PAGES)
                and not (longer and (shape, state) == ("alloc_decode to a page's end", "nothing held"))
            )
        found.update(
            f"misuse {rule}: {method}"
            for rule in _MISUSE.get(method, ())
            if rule not in traits.undefined
            and f"misuse {rule}: {method}" not in avoid
            and (paged or rule not in _NEEDS_PAGES)
            and (space.kind == "swa" or rule != "swa gone")
        )
    return frozenset(found)


def _pairs(methods: list[str]) -> Iterator[str]:
    for first in (START, *methods):
        for then in methods:
            if first in (START, "clear") and then in (*NEEDS_HELD, *(("restore_state",) * (first == START))):
                continue
            if first == then == "free_group_begin":
                continue
            yield f"{first}, then {then}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what is reachable was tried, and what has to be. floor: None where none is asked."""

    tried: Mapping[str, int] = field(default_factory=dict)
    of: frozenset[str] = frozenset()
    floor: float | None = None

    @property
    def share(self) -> float:
        """The part of the reachable points that was tried at least once."""
        return len(self.of & self.tried.keys()) / len(self.of) if self.of else 1.0

    @property
    def missing(self) -> list[str]:
        """Reachable points that were not tried."""
        return sorted(self.of - self.tried.keys())

    @property
    def enough(self) -> bool:
        """Whether the floor is reached."""
        return self.floor is None or self.share >= self.floor


def floor_for(sequences: int, space: Space) -> float | None:
    """The floor of a run of so many seeded sequences; none on pools whose number of pages is fixed by name."""
    if "pages" in space.fixed or "swa_pages" in space.fixed:
        return None
    return next((share for least, share in FLOORS if sequences >= least), None)
