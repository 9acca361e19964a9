"""Relations between runs: two cases that must come to the same, whatever numbers the subject chooses.

Each relation makes two lists of operations out of three pieces of a generated case, and compares what comes
after the point from which they must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from impl.subject import Space, Subject
from oracle import ops
from oracle.ledger import Ledger
from oracle.ops import Case, Config, Grow, Operation, Part
from oracle.plan import plan
from oracle.traits import Traits
from oracle.verdict import Observation, Violation, lists_in_words, short
from properties.cases import draw_config
from properties.judged import Outcome, judged
from properties.shapes import config_shapes, shapes
from properties.sources import Source, chance
from properties.workload import NAMES, NONE, Workload

Pieces = tuple[tuple[Operation, ...], ...]  # three of them
STATE = (ops.Backup, ops.Restore, ops.CopyOut, ops.CopyIn)
GROUPS = (ops.GroupBegin, ops.GroupEnd)
LAST = "Z"
TRIES = 100


@dataclass(frozen=True, slots=True)
class Relation:
    """Two ways to the same state.

    says: what is asserted. code: the promise that a difference breaks. needs: methods without which it says
    nothing. build: both lists of operations from the pieces; they end with the same ones, the third piece.
    exact: what comes after is compared slot by slot `always`, `ordered` where the subject claims an order, or
    `never`: then only what fits and what is left. middle: what the second piece is made of; of `extends` the
    free list that they leave is compared, and with `same_order` their slots.
    """

    name: str
    says: str
    code: str
    needs: frozenset[str]
    build: Callable[[Pieces], tuple[list[Operation], list[Operation]]]
    exact: str
    middle: str = "any"
    same_order: bool = False
    sorts: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """A relation on one pool, with its pieces; what the shrinker works on."""

    relation: Relation
    config: Config
    pieces: Pieces

    def cases(self) -> tuple[Case, Case]:
        """The two cases."""
        left, right = self.relation.build(self.pieces)
        return Case(self.config, tuple(left)), Case(self.config, tuple(right))

    def runs(self) -> Runs:
        """The two cases, and how many operations they end with together."""
        return Runs(self.relation, *self.cases(), len(self.pieces[2]))


@dataclass(frozen=True, slots=True)
class Runs:
    """The two runs of a relation: their last `after` operations are the same, and are compared."""

    relation: Relation
    left: Case
    right: Case
    after: int


def runs_of_file(name: str, left: Case, right: Case) -> Runs:
    """The runs as a case file has them: what they end with together is what is compared. KeyError: no such name."""
    relation = next((r for r in RELATIONS if r.name == name), None)
    if relation is None:
        raise KeyError(name)
    pairs = zip(reversed(left.operations), reversed(right.operations), strict=False)
    after = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if relation.middle == "extends":  # where the batch has one request, it is the same in both runs
        after = min(after, len(left.operations) - 1, len(right.operations) - 1)
    return Runs(relation, left, right, after)


def _without(operations: Sequence[Operation], kinds: tuple[type, ...]) -> list[Operation]:
    return [operation for operation in operations if not isinstance(operation, kinds)]


def _restore(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, between, after = pieces
    detour = [ops.Backup(LAST), *_without(between, STATE), ops.Restore(LAST)]
    return [*before, *detour, *after], [*before, *after]


def _clear(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, _, after = pieces
    return [*_without(before, STATE), ops.Clear(), *after], list(after)


def _refill(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, _, after = pieces
    used = [*_without(before, (*STATE, *GROUPS)), ops.Free(tuple(Part(name) for name in NAMES)), ops.Merge()]
    return [*used, *after], list(after)


def _group(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, between, after = pieces
    frees = [o for o in between if isinstance(o, ops.Free)]
    at_once = ops.Free(tuple(part for free in frees for part in free.parts))
    start = _without(before, (*GROUPS, *STATE))
    return [*start, ops.GroupBegin(), *frees, ops.GroupEnd(), *after], [*start, at_once, *after]


def _split(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, between, after = pieces
    batch = _merged(between)
    return [*before, ops.Extend(batch), *after], [*before, *(ops.Extend((g,)) for g in batch), *after]


def _permuted(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, between, after = pieces
    batch = _merged(between)
    return [*before, ops.Extend(batch), *after], [*before, ops.Extend(batch[::-1]), *after]


def _shared(pieces: Pieces) -> tuple[list[Operation], list[Operation]]:
    before, between, after = pieces
    batch = tuple(Grow(name, g.tokens, LAST) for name, g in zip(("Y", "X"), _merged(between), strict=False))
    donor = ops.Extend((Grow(LAST, 1),)), *(ops.Extend((Grow(LAST, g.tokens),)) for g in _merged(between))
    start = [*before, *donor]
    return [*start, ops.Extend(batch), *after], [*start, *(ops.Extend((g,)) for g in batch), *after]


def _merged(between: Sequence[Operation]) -> tuple[Grow, ...]:
    """One batch out of all extends, each request once."""
    found: dict[str, Grow] = {}
    for operation in between:
        if isinstance(operation, ops.Extend):
            for item in operation.batch:
                found.setdefault(item.request, Grow(item.request, item.tokens))
    return tuple(found.values())


_EXTEND = frozenset({"alloc_extend"})
RELATIONS = (
    Relation(
        "restore", "Backup, anything, restore: everything after it is answered as without them.",
        "RESTORE", frozenset({"backup_state", "restore_state"}), _restore, "always",
    ),
    Relation("clear", "After clear everything is answered as by a new allocator.", "CLEAR", frozenset(), _clear, "always"),
    Relation(
        "refill", "A pool that was used, drained and merged answers as a new one (with need_sort).",
        "REUSE", frozenset({"merge_and_sort_free"}), _refill, "ordered", sorts=True,
    ),
    Relation(
        "group", "A group of frees leaves what the same frees in one call leave.",
        "GROUP", frozenset(), _group, "ordered", middle="frees",
    ),
    Relation(
        "split", "A batch gets what its requests get one after the other.",
        "CONSERVE", _EXTEND, _split, "never", middle="extends", same_order=True,
    ),
    Relation(
        "permuted", "The order of requests in a batch changes neither whether it fits nor what is left.",
        "CONSERVE", _EXTEND, _permuted, "never", middle="extends",
    ),
    Relation(
        "shared prefix", "Two requests that start behind one shared prefix get slots of their own, together or apart.",
        "UNIQUE", _EXTEND, _shared, "never", middle="extends", same_order=True,
    ),
)  # fmt: skip


def applies(relation: Relation, space: Space, traits: Traits) -> bool:
    """Whether a subject claims what a relation needs, and can be made with a pool on which it says something."""
    if relation.sorts and not space.fixed.get("need_sort", True in space.need_sort):
        return False
    # A method may be there without a pool that has it: token allocators inherit an extend that only raises.
    largest = space.fixed.get("page_size", max(space.page_sizes))
    extends = space.kind == "paged" or (space.kind == "swa" and largest > 1)
    return relation.needs <= traits.operations and (extends or not relation.needs >= _EXTEND)


def draw_pair(
    relation: Relation, source: Source, subject: Subject, level: str, avoid: frozenset[str] = NONE
) -> Pair:
    """A pool and three pieces of a workload on it."""
    for _ in range(TRIES):  # what is avoided may leave no pool that has extends: then nothing is compared
        config = draw_config(source, subject.space, level, avoid)
        if not relation.needs >= _EXTEND or config.extends:
            break
    if relation.sorts:
        config = replace(config, need_sort=True)
    traits = subject.traits(config)
    workload = Workload(config, traits, source, avoid, misuse=False)
    before = _made(workload, source, 1 + source.below(8))
    world = workload.world
    between: list[Operation]
    if relation.middle == "frees":
        names = sorted(world.requests)
        between = [ops.Free((Part(name),)) for name in names if not chance(source, 3)]
    elif relation.middle == "extends":
        between = [workload.extend(source) for _ in range(1 + source.below(2))]
        for operation in between:
            workload.world = Ledger(config, traits).step(workload.world, operation).after
    else:
        between = _made(workload, source, 1 + source.below(8))
    if relation.name in ("clear", "refill"):
        workload = Workload(config, traits, source, avoid, misuse=False)
    elif relation.name == "restore":
        workload.world = world
    after = _made(workload, source, 1 + source.below(8))
    return Pair(relation, config, (tuple(before), tuple(between), tuple(after)))


def _made(workload: Workload, source: Source, count: int) -> list[Operation]:
    made = (workload.next(source) for _ in range(count))
    return [operation for operation in made if operation is not None]


def compare(
    subject: Subject, pair: Pair, level: str, avoid: frozenset[str] = NONE
) -> tuple[Violation | None, int]:
    """Run both cases; the violation where they differ or where one of them breaks the contract by itself."""
    runs = pair.runs()
    if not _comparable(subject, runs, avoid):
        return None, 0
    violation, first, second = compare_runs(subject, runs, level)
    return violation, first.operations + second.operations


def compare_runs(subject: Subject, runs: Runs, level: str) -> tuple[Violation | None, Outcome, Outcome]:
    """The same of runs that can be compared, with what came of each."""
    first, second = (judged(subject, case, level, keep=True) for case in (runs.left, runs.right))
    violation = first.violation or second.violation or _departure(subject, runs, first, second)
    return violation, first, second


def comparable(subject: Subject, runs: Runs) -> bool:
    """Whether the two runs must agree on this subject."""
    return _comparable(subject, runs, NONE)


def _departure(subject: Subject, runs: Runs, first: Outcome, second: Outcome) -> Violation | None:
    relation, left, count = runs.relation, runs.left, runs.after
    config = left.config
    dialect = subject.traits(config).dialect
    exact = relation.exact == "always" or (relation.exact == "ordered" and dialect is not None)
    start = len(left.operations) - count, len(runs.right.operations) - count
    if relation.middle == "extends" and dialect is not None:
        # When waiting pages are merged depends on the batch, and with it the order; where none wait, nothing does.
        several = start[1] - start[0] + 1
        parts = second.answers[start[1] - several : start[1]]
        sorts = config.need_sort or dialect.always_sorts
        difference = (
            "" if sorts else _batch_difference(first.answers[start[0] - 1], parts, relation.same_order)
        )
        if difference:
            summary = f"{relation.says} But {ops.sentence(left.operations[start[0] - 1])} {difference}"
            symptom = f"relation {relation.name}"
            return Violation(relation.code, "fault", start[0] - 1, "alloc_extend", summary, symptom)
    for offset in range(min(len(first.answers) - start[0], len(second.answers) - start[1])):
        a, b = first.answers[start[0] + offset], second.answers[start[1] + offset]
        difference = _difference(a, b, exact)
        if difference:
            place = start[0] + offset
            asked = ops.sentence(left.operations[place]) if offset < count else "draining the pool"
            method = ops.name_of(left.operations[place]) if offset < count else "alloc"
            summary = f"{relation.says} But {asked} {difference}"
            return Violation(relation.code, "fault", place, method, summary, f"relation {relation.name}")
    return None


def _comparable(subject: Subject, runs: Runs, avoid: frozenset[str]) -> bool:
    """Whether the two must agree: pieces of a workload may have become misuse, and a batch that does not fit
    is refused whole, while some of its requests would fit alone."""
    left, config = runs.left, runs.left.config
    traits = subject.traits(config)
    plans = plan(left, traits), plan(runs.right, traits)
    steps = [step for made in plans for step in made]
    if any(step.status == "misuse" for step in steps):
        return False
    if not avoid.isdisjoint(config_shapes(config)):
        return False
    if avoid and any(not avoid.isdisjoint(shapes(step, config)) for step in steps if not step.probe):
        return False
    if runs.relation.middle != "extends":
        return True
    batch = plans[0][len(left.operations) - runs.after - 1]
    return batch.status == "legal" and batch.fits


def _batch_difference(whole: Observation, parts: Sequence[Observation], same_order: bool) -> str:
    """How a batch departs from its parts, one after the other: in its slots, or in the free list it leaves."""
    slots = tuple(slot for part in parts for slot in part.slots)
    if same_order and whole.slots != slots:
        return f"got {short(whole.slots)} at once and {short(slots)} one by one"
    lists = parts[-1].lists if parts else whole.lists
    if whole.lists is not None and lists is not None and whole.lists != lists:
        return f"left {lists_in_words(whole.lists)} in one run and {lists_in_words(lists)} in the other"
    return ""


def _difference(a: Observation, b: Observation, exact: bool) -> str:
    if a.outcome != b.outcome:
        return f"gave {a.outcome} in one run and {b.outcome} in the other"
    if (a.available, a.full, a.window) != (b.available, b.full, b.window):
        return f"left {a.available} slots in one run and {b.available} in the other"
    if exact and a.slots != b.slots:
        return f"got {short(a.slots)} in one run and {short(b.slots)} in the other"
    if len(a.slots) != len(b.slots):
        return f"got {len(a.slots)} slots in one run and {len(b.slots)} in the other"
    return ""
