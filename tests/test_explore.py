"""Does the search see everything that there is on a small pool, and tell the shortest case of a fault?"""

import json
import random
from collections import deque
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from click.testing import CliRunner

from fuzz import walker
from fuzz.campaign import campaign
from fuzz.cli import main
from fuzz.explore import Workers, explore
from fuzz.minimal import Shortest, shortest
from fuzz.minimal_pair import shortest_pair
from fuzz.walker import Question
from impl.answers import Answers, ElsewhereError
from impl.branches import Branches
from impl.child import ChildSubject
from impl.defects.catalogue import CATALOGUE
from impl.defects.state import HiddenTurn
from impl.names import local, resolve
from impl.pages import PageList
from impl.state import State, UnreadableError, copied, deep_copied
from impl.subject import own
from oracle import casefile
from oracle.judge import Judge
from oracle.ledger import Ledger
from oracle.ops import (
    Alloc,
    Backup,
    Case,
    Config,
    CopyIn,
    CopyOut,
    Extend,
    Free,
    FreeSwa,
    GroupBegin,
    GroupEnd,
    Grow,
    Merge,
    Part,
    Restore,
)
from oracle.plan import plan
from oracle.world import renumbered
from properties.alphabet import Alphabet
from properties.checks import Task
from properties.judged import judged
from properties.relations import RELATIONS, Pair, compare
from tests.planted import FourthFree

TINY = {
    "token": Config("token", 2),
    "paged": Config("paged", 1, 2),
    "ascend": Config("paged", 1, 2),
    "swa": Config("swa", 1, 2, swa_pages=1),
}


def planted(part, *mixins):
    return own(part, name="deep", before=mixins)


# -- a world to its end --------------------------------------------------------------------------------


@pytest.mark.parametrize("age", [None, 1])
@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("name", TINY)
def test_the_tiny_world_of_each_own_subject_closes_and_holds(name, need_sort, age):
    config = replace(TINY[name], need_sort=need_sort)
    question = Question(config, "parity", snapshot=age is not None, age=age, misuse=age is None)
    result = explore(own(name), question)
    assert (result.closed, result.cut, result.found) == (True, False, [])
    assert result.way == "copied"
    assert result.states > 9
    assert result.transitions == sum(result.alphabet) + result.last_chances
    assert len(result.alphabet) == result.states - result.last_chances
    assert bool(result.last_chances) == (age is not None)
    assert 0 < result.calls < result.transitions


@pytest.mark.parametrize("name", TINY)
def test_misuse_is_refused_everywhere_in_the_tiny_world(name):
    config = replace(TINY[name], debug=True)
    result = explore(own(name), Question(config, "hardened"), depth=3 if name == "swa" else None)
    assert result.found == []
    assert result.closed == (name != "swa")


@pytest.mark.parametrize("engine", ["triton", "emulator"])
def test_kernels_lead_to_the_same_states_as_torch_operators(engine):
    question = Question(Config("paged", 2, 2), "parity")
    plain = explore(own("paged"), question, depth=3)
    kernels = explore(local(f"paged[engine={engine}]"), question, depth=3)
    assert (kernels.states, kernels.transitions, kernels.found) == (plain.states, plain.transitions, [])


def test_a_world_with_a_snapshot_closes_too():
    plain = explore(own("token"), Question(Config("token", 1), "parity"))
    snapshot = explore(own("token"), Question(Config("token", 1), "parity", snapshot=True))
    assert plain.closed
    assert snapshot.closed
    assert snapshot.states > plain.states


class LosesLate:
    """A restore loses a slot, if two allocations were made since the backup."""

    since = 0

    def backup_state(self):
        self.since = 0
        return super().backup_state()

    def alloc(self, need_size):
        self.since = min(self.since + 1, 3)
        return super().alloc(need_size)

    def restore_state(self, state):
        super().restore_state(state)
        if self.since == 2 and len(self._free_list):
            self._drop_head(1)


@pytest.mark.parametrize(
    ("name", "age", "shortest"),
    [("F40-group", 1, 4), ("group-of-snapshot", 1, 6), ("restore-in-group", 1, 6), ("", 2, 4)],
)
def test_a_snapshot_is_restored_as_long_as_was_asked(name, age, shortest):
    """The fault's shortest case has so many operations between backup and restore, and is found with no fewer."""
    subject = CATALOGUE[name].subject() if name else planted("token", LosesLate)
    config = Config("token", 2, need_sort=name == "restore-in-group")
    question = Question(config, "contract", snapshot=True, age=age, misuse=False)
    found = explore(subject, question, shortest).found
    assert {len(one.case.operations) for one in found} == {shortest}
    for one in found:
        assert judged(subject, one.case, "contract").violation == one.violation
    assert not explore(subject, replace(question, age=age - 1), shortest).found


class RemembersBackup:
    """The fourth allocation after a backup loses a slot, when the snapshot is long out of reach."""

    since = None

    def backup_state(self):
        self.since = 0
        return super().backup_state()

    def alloc(self, need_size):
        if self.since is not None:
            self.since += 1
            if self.since == 4 and len(self._free_list):
                self._drop_head(1)
        return super().alloc(need_size)


def test_a_forgotten_snapshot_leaves_what_it_did_to_the_allocator():
    question = Question(Config("token", 1), "contract", snapshot=True, age=1, misuse=False)
    found = explore(planted("token", RemembersBackup), question, 5).found
    assert {len(one.case.operations) for one in found} == {4}
    assert all(isinstance(one.case.operations[0], Backup) for one in found)


@pytest.mark.parametrize("age", [1, 2])
def test_sequences_with_a_snapshot_that_is_forgotten_are_counted_one_by_one(age):
    config = Config("token", 1)
    question = Question(config, "parity", snapshot=True, age=age, misuse=False)
    alphabet = Alphabet(Ledger(config, own("token").traits(config)), snapshot=True, misuse=False)

    def sequences(world, left, since):
        if not left:
            return 1
        total = 1
        if world.snapshots and since == age:
            total += sequences(alphabet.restore(world)[0].after, left - 1, 0)
            world = world._replace(snapshots={})
        for step in alphabet.steps(world):
            new = isinstance(step.operation, Backup | Restore)
            total += sequences(step.after, left - 1, 0 if new else since + 1)
        return total

    for depth in range(5):
        assert explore(own("token"), question, depth).sequences == sequences(
            alphabet.ledger.start(), depth, 0
        )


class HoldsOne:
    """A group holds one free: a second pushes the first one out."""

    def _free(self, slots, *, full):
        super()._free(slots, full=full)
        if self._group is not None and len(self._group) > 1:
            self._group.pop(0)


@pytest.mark.parametrize(("frees", "shortest"), [("one", None), ("whole", 4), ("any", 4)])
def test_what_a_group_collects_is_what_was_asked_for(frees, shortest):
    question = Question(Config("token", 2), "contract", misuse=False, group_frees=frees)
    result = explore(planted("token", HoldsOne), question)
    assert result.closed == (shortest is None)
    assert {len(one.case.operations) for one in result.found} == ({shortest} if shortest else set())


class KeepsLaterHalves:
    """free_swa of a page keeps its window half while the page before is mapped."""

    def _free(self, slots, *, full):
        before = (int(slots[0]) // self.page_size - 1) * self.page_size if slots.numel() else 0
        if full or not before or not self.full_to_swa_index_mapping[before]:
            super()._free(slots, full=full)


@pytest.mark.parametrize(("frees", "found"), [("first", 0), ("any", 1)])
def test_a_window_gives_up_the_pages_that_were_asked_for(frees, found):
    question = Question(
        Config("swa", 2, 2, swa_pages=2), "contract", ("A",), misuse=False, window_frees=frees
    )
    result = explore(planted("swa", KeepsLaterHalves), question, depth=2)
    assert [len(one.case.operations) for one in result.found] == [2] * found


def test_sequences_are_counted_one_by_one():
    question = Question(Config("token", 2), "parity")
    ways = {0: 1, 1: 1 + 12}
    for depth, count in ways.items():
        assert explore(own("token"), question, depth).sequences == count
    two = explore(own("token"), question, 2)
    assert (
        two.sequences
        == 13 + sum(two.alphabet[1:]) + (two.alphabet[0] - misuses_at_root() - 3) * two.alphabet[0]
    )


def misuses_at_root():
    """A negative size, one that is no int, and a restore of what is no snapshot: the others need a request."""
    return 3


def test_more_processes_find_the_same():
    question = Question(Config("token", 2), "parity")
    alone = explore(own("token"), question)
    children = [ChildSubject("token") for _ in range(2)]
    try:
        shared = explore(own("token"), question, workers=Workers(children))
    finally:
        for child in children:
            child.close()
    same = ("states", "transitions", "depth", "closed", "sequences", "alphabet")
    assert [getattr(alone, name) for name in same] == [getattr(shared, name) for name in same]


# -- faults --------------------------------------------------------------------------------------------

FAULTS = (
    "repeats-page", "F37", "F35", "F40-released", "F40-group", "F39", "F15", "F26", "F36", "F17", "F22",
    "counts-waiting", "batch-loses-page", "longest-first", "shared-prefix",
)  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_shortest_case_of_a_fault_is_as_short_as_is_known(name):
    fault = CATALOGUE[name]
    kind = "paged" if fault.part == "ascend" else fault.part
    pages, page_size = {1: (3, 2), 3: (1, 1)}.get(fault.shortest, (2, 2))
    config = Config(
        kind, pages, 1 if kind == "token" else page_size, swa_pages=1 if kind == "swa" else 0,
        need_sort=name == "F40-released", debug=fault.level == "hardened",
    )  # fmt: skip
    subject = fault.subject()
    question = Question(config, fault.level, snapshot=True, misuse=False)
    result = explore(subject, question, depth=fault.shortest)
    assert result.found
    assert {len(found.case.operations) for found in result.found} == {fault.shortest}
    assert fault.codes & {found.violation.code for found in result.found}
    for found in result.found:
        assert judged(subject, found.case, fault.level).violation == found.violation


def test_a_counter_that_only_the_fourth_free_shows_is_not_merged_away():
    sound = explore(own("token"), Question(Config("token", 4), "contract"), depth=4)
    deep = explore(planted("token", FourthFree), Question(Config("token", 4), "contract"), depth=4)
    assert deep.states > sound.states
    assert [len(found.case.operations) for found in deep.found] == [4]
    assert sound.found == []


def test_hidden_state_keeps_states_apart():
    question = Question(Config("token", 2), "contract")
    hidden = explore(planted("token", HiddenTurn), question, depth=6)
    assert explore(own("token"), question, depth=6).states < hidden.states
    assert not hidden.closed


def test_memory_that_an_answer_shares_with_the_allocator_is_state():
    fault = CATALOGUE["F36"]
    result = explore(fault.subject(), Question(Config("token", 2), "contract", snapshot=True), depth=4)
    assert result.question.answers
    assert [found.violation.code for found in result.found] == ["ALIAS"]


class TakesNegative:
    """A negative size gives the whole pool, and all else is right."""

    def alloc(self, need_size):
        return super().alloc(self.num_pages if need_size < 0 else need_size)


def test_misuse_that_harms_is_found_and_does_not_end_the_search():
    question = Question(Config("token", 2), "contract")
    result = explore(planted("token", TakesNegative), question)
    assert [(f.violation.kind, f.violation.rule, len(f.case.operations)) for f in result.found] == [
        ("misuse", "negative", 1)
    ]
    assert result.closed
    assert result.states == explore(own("token"), question).states


class CountsElsewhere:
    """What it does depends on a number that all of its kind share."""

    taken: ClassVar = [0]

    def _take(self, pages):
        self.taken[0] += 1
        self.free_pages = self.free_pages.roll(self.taken[0])
        return super()._take(pages)


def test_a_subject_that_keeps_state_outside_of_itself_is_undecided():
    with pytest.raises(ElsewhereError, match="something outside of the allocator"):
        explore(planted("token", CountsElsewhere), Question(Config("token", 3), "contract"), depth=6)


def test_one_state_of_so_many_is_made_anew_and_compared(monkeypatch):
    """Before any allocator was dropped, so that nothing else looks."""
    question = Question(Config("token", 3), "contract")
    assert explore(planted("token", CountsElsewhere), question, depth=1).found == []
    monkeypatch.setattr(walker, "CHECKED_EVERY", 1)
    with pytest.raises(ElsewhereError, match="something outside of the allocator"):
        explore(planted("token", CountsElsewhere), question, depth=1)


def test_a_process_that_dies_is_a_finding_of_the_operation_that_ends_it():
    child = ChildSubject("tests.planted:dies")
    try:
        question = Question(Config("token", 3), "contract")
        result = explore(child, question, depth=2)
        assert [(len(f.case.operations), f.violation.code) for f in result.found] == [(0, "GUARD")]
    finally:
        child.close()


# -- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("need_sort", [False, True])
def test_a_state_answers_as_an_allocator_does_that_went_all_the_way(name, need_sort):
    """Along random paths: what the table says, asked by page number, and what one session says, asked by uid."""
    config = replace(TINY[name], pages=2, need_sort=need_sort, swa_pages=2 * (name == "swa"))
    if name != "token":
        config = replace(config, page_size=3)
    subject = own(name)
    traits = subject.traits(config)
    ledger, answers = Ledger(config, traits), Answers(Branches(subject, config))
    alphabet = Alphabet(ledger, snapshot=True, misuse=False)
    told = 0
    for seed in range(15):
        choose, world, node = random.Random(seed), ledger.start(), answers.root
        session, judge = subject.open(config), Judge(config, traits, "parity")
        judge.begin(session.begin())
        for _ in range(20):
            step = choose.choice(alphabet.steps(world))
            calls = answers.calls
            seen, node = answers.ask(node, step, judge.page)
            assert seen == session.apply(step)
            assert judge.check(step, seen) is None
            told += calls == answers.calls
            # Numbered anew at times, as the search does it with states that it keeps.
            world, uids = renumbered(step.after) if choose.random() < 0.3 else (step.after, None)
            if uids is not None:
                known = judge.state(step.after, True)
                judge = judge.renumbered(world, uids)
                assert judge.state(world, True) == known
                session._first = {new: session._first[old] for old, new in uids.items()}
        if seed % 5 == 4:
            answers.rest()
    assert told > 20


def test_a_number_of_uids_is_a_history_and_no_difference():
    config = Config("token", 3)
    ledger = Ledger(config, own("token").traits(config))

    def world(*operations):
        made = ledger.start()
        for operation in operations:
            made = ledger.step(made, operation).after
        return renumbered(made)[0]

    plain = world(Alloc("A", 1), GroupBegin(), Alloc("B", 2), Free((Part("A"),)))
    assert plain == world(
        Alloc("A", 2), Free((Part("A"),)), Alloc("A", 1), GroupBegin(), Alloc("B", 2), Free((Part("A"),))
    )
    assert plain != world(Alloc("A", 1), GroupBegin(), Alloc("B", 1), Free((Part("A"),)))


def known(name, *operations):
    """What caller and judge know behind operations, in page numbers."""
    config = replace(TINY[name], pages=3, swa_pages=3 * (name == "swa"))
    session = own(name).open(config)
    judge = Judge(config, session.traits, "contract")
    judge.begin(session.begin())
    steps = plan(Case(config, operations), session.traits)[: len(operations)]
    assert [judge.check(step, session.apply(step)) for step in steps] == [None] * len(operations)
    return judge.state(steps[-1].after, False)


def test_what_the_caller_knows_keeps_states_apart_and_names_and_their_order_do_not():
    def grown(name, tokens):
        return Extend((Grow(name, tokens),))

    a, begun = Free((Part("A"),)), (grown("A", 2), GroupBegin())
    different = [
        [grown("A", 1)],
        [grown("A", 2)],
        [grown("A", 2), Backup("S")],
        [grown("A", 1), Backup("S"), grown("A", 1)],
        begun,
        [*begun, a],
        [*begun, Free((Part("A", 1),))],
        [*begun, Free((Part("A", 0, 1),))],
        [*begun, FreeSwa((Part("A"),))],
        [grown("A", 2), FreeSwa((Part("A"),))],
        [grown("A", 2), Extend((Grow("B", 2, "A"),))],
        [grown("A", 2), grown("B", 2)],
        [grown("A", 2), a],
        [grown("A", 4)],
        [grown("A", 4), a, grown("A", 4)],
    ]
    states = [known("swa", *operations) for operations in different]
    assert all(one != other for one, other in combinations(states, 2))
    assert known("swa", grown("B", 2)) == states[1]
    one_by_one = known("swa", grown("A", 2), a, grown("A", 2), grown("B", 2))
    assert known("swa", grown("A", 2), grown("B", 2), a, grown("A", 2)) == one_by_one


# -- state and copies ----------------------------------------------------------------------------------


class SaysHow:
    """Copied in its own way."""

    def __deepcopy__(self, memo):
        return self.fresh(memo)

    def fresh(self, memo):
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({name: deep_copied(value) for name, value in vars(self).items()})
        return made


class NoCopy:
    """Can't be copied at all."""

    def __deepcopy__(self, memo):
        raise TypeError("no copies")


@pytest.mark.parametrize(("mixin", "way"), [(SaysHow, "deepcopied"), (NoCopy, "replayed")])
def test_what_can_not_be_copied_plainly_is_searched_all_the_same(mixin, way):
    question = Question(Config("token", 2), "contract")
    result = explore(planted("token", mixin), question)
    plain = explore(own("token"), question)
    assert result.way == way
    assert (result.closed, result.states, result.transitions) == (True, plain.states, plain.transitions)


def driven(name, config, operations):
    session = own(name).open(config)
    session.begin()
    for step in plan(Case(config, operations), session.traits)[: len(operations)]:
        session.apply(step)
    return session


@pytest.mark.parametrize("name", TINY)
def test_a_copy_is_in_the_same_state_and_goes_on_by_itself(name):
    config = TINY[name]
    operations = (Alloc("A", config.page_size), GroupBegin(), Free((Part("A"),)))
    session = driven(name, config, operations)
    branches = Branches(own(name), config)
    other = branches.copy(session, (), shares=False)
    before = branches.state(session).value
    assert branches.state(other).value == before
    other.allocator.free_group_end()
    assert branches.state(session).value == before
    assert branches.state(other).value != before


def test_the_state_says_what_lies_over_what():
    whole = torch.arange(4)
    apart, over = [whole[:2].clone(), whole[2:].clone()], [whole[:3], whole[1:]]
    assert State((apart,)).shared == []
    assert State((over,)).shared == [(0, 1, 8)]
    assert State((copied(apart, {}),)).value == State((apart,)).value
    assert State((deep_copied(over),)).value == State((over,)).value
    assert State((copied(over, {}),)).value != State((over,)).value


def test_the_state_is_the_same_for_the_same_and_other_for_each_difference():
    def digest(*values):
        return State(values).digest

    twin = [1]
    assert digest([1, "a", None]) == digest([1, "a", None])
    values = [
        1,
        True,
        "1",
        1.0,
        None,
        [1],
        (1,),
        {1: 1},
        torch.tensor([1]),
        torch.tensor([1], dtype=torch.int32),
    ]
    assert len({digest(value) for value in values}) == len(values)
    assert digest([twin, twin]) != digest([[1], [1]])


class Slotted:
    __slots__ = ("value",)


def closure():
    hidden = [0]
    return lambda: hidden.append(1)


@pytest.mark.parametrize(
    "value", [Slotted(), random.Random(0), closure(), partial(print), deque([1]), {Slotted()}, iter([1])]
)
def test_what_can_not_be_read_is_said_and_not_passed_over(value):
    with pytest.raises(UnreadableError, match="holds a"):
        State(([value],))


class KeepsRandom:
    """Has a part that nobody can compare."""

    def clear(self):
        super().clear()
        self.chance = random.Random(0)


def test_a_subject_whose_state_can_not_be_read_is_undecided():
    with pytest.raises(UnreadableError, match=r"holds a random\.Random"):
        explore(planted("token", KeepsRandom), Question(Config("token", 1), "contract"))


# -- minimal cases -------------------------------------------------------------------------------------


def test_a_shorter_case_is_taken_and_a_shortest_one_is_known_to_be():
    fault = CATALOGUE["F37"]
    subject, config = fault.subject(), Config("token", 1)
    wordy = Case(
        config, (Alloc("A", 1), Merge(), GroupBegin(), Free((Part("A"),)), Merge(), GroupEnd(), GroupEnd())
    )
    key = judged(subject, wordy, "contract").violation.key
    known = shortest(subject, wordy, "contract", key)
    assert (known.proven, known.least, len(known.case.operations)) == (True, fault.shortest, fault.shortest)
    assert judged(subject, known.case, "contract").violation.key == key
    assert shortest(subject, known.case, "contract", key) == known
    cut = shortest(subject, wordy, "contract", key, limit=20)
    assert (cut.case, cut.proven) == (wordy, False)
    assert 1 < cut.least < fault.shortest


def test_out_of_reach_no_more_is_claimed_than_that_nothing_at_all_does_not_show_it():
    case = Case(Config("paged", 128, 64), (Extend((Grow("A", 1),)), Free((Part("A"),))))
    assert shortest(own("paged"), case, "contract", ("CONSERVE", "fault", "free", "done", "")) == Shortest(
        case, 1
    )


def known_of(name, config, *operations, **more):
    fault = CATALOGUE[name]
    subject, case = resolve(f"defect:{name}"), Case(config, operations)
    try:
        violation = judged(subject, case, fault.level).violation
        return shortest(subject, case, fault.level, violation.key, **more)
    finally:
        subject.close()


A = (Part("A"),)


@pytest.mark.parametrize(
    ("name", "config", "operations", "least"),
    [
        # K and V, which are no state: each case is run.
        ("copy-one-layer", Config("token", 2, data=True), (Alloc("A", 1), Merge(), CopyOut("A"), CopyIn("A")), 3),
        # A pool that is not looked at behind a free: what comes next shows it, and nothing sooner.
        ("F22", Config("swa", 20, 1, 1), (Alloc("A", 1), Merge(), FreeSwa(A), Alloc("B", 0)), 3),
        # Every third extend is told its number of new pages: the operations before it do nothing else.
        ("nine-pages", Config("paged", 1), (Merge(),) * 5 + (Extend((Grow("A", 9),)),), 3),
        # Only its own run tells an ALIAS from what looks like it.
        ("adopted-list", Config("token", 1, overwrite=True), (Merge(), Alloc("A", 1), Free(A)), 1),
        ("batch-loses-page", Config("paged", 9, 2), (Merge(), Extend((Grow("A", 1), Grow("B", 3)))), 1),
        ("dies", Config("token", 2), (Merge(), Alloc("A", 1), Alloc("B", 2)), 2),
    ],
)  # fmt: skip
def test_the_shortest_case_of_a_finding_is_found_and_proven(name, config, operations, least):
    known = known_of(name, config, *operations)
    assert (len(known.case.operations), known.least, known.proven) == (least, least, True)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
@pytest.mark.parametrize("need_sort", [False, True])
def test_no_short_pair_is_wrong_on_a_sound_subject(relation, need_sort):
    subject, asked = own("paged"), []
    merges = ((Merge(),) * 2, (), (Merge(),))

    def holds(pair):
        asked.append(pair)
        return compare(subject, pair, "contract")[0] is not None

    if relation.sorts and not need_sort:
        return
    pair = Pair(relation, Config("paged", 2, 2, need_sort=need_sort), merges)
    assert shortest_pair(subject, pair, holds, limit=300)[0] == pair
    assert len(asked) > 200


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("F39", Config("paged", 1, 2)),
        ("F11", Config("paged", 1, 2, debug=True)),
        ("F17-decode", Config("swa", 1, 2, 2)),
        ("window-fit", Config("swa", 2, 1, 1)),
        ("one-snapshot", Config("paged", 1)),
    ],
)
def test_what_is_left_out_for_one_finding_alone_takes_none_away(name, config):
    """Each finding of a search for all is found, as early, in a search for it alone that leaves out what can't show it."""
    fault = CATALOGUE[name]
    subject = local(f"defect:{name}")
    found = explore(subject, Question(config, fault.level, snapshot=True), 4).found
    assert found
    for one in found:
        length = len(one.case.operations)
        kind = one.violation.kind == "misuse"
        alone = Question(config, fault.level, snapshot=True, misuse=kind, key=one.violation.key)
        assert not length or not explore(subject, alone, length - 1).found
        assert [again.violation.key for again in explore(subject, alone, length).found] == [one.violation.key]


def test_a_search_for_one_finding_asks_less():
    subject, config = own("paged"), Config("paged", 2, 2)
    key = ("RESTORE", "fault", "restore_state", "done", "")
    whole = explore(subject, Question(config, "contract", snapshot=True, misuse=False), 2)
    alone = explore(subject, Question(config, "contract", snapshot=True, misuse=False, key=key), 2)
    assert alone.transitions < whole.transitions / 3
    assert not alone.found


def test_lists_of_another_dtype_are_another_state():
    pages = torch.tensor([1, 2])
    wide, narrow = (PageList.of(pages.to(dtype), 2) for dtype in (torch.int64, torch.int32))
    assert State((wide,)).digest != State((narrow,)).digest


def test_a_shorter_pair_is_taken_and_a_shortest_one_is_known_to_be():
    subject = local("defect:group-reverses")
    relation = next(r for r in RELATIONS if r.name == "group")
    wordy = Pair(relation, Config("token", 2), ((Alloc("A", 1), Alloc("A", 1)), (Free(A),), (Merge(),)))

    def holds(pair):
        violation, _ = compare(subject, pair, "contract")
        return violation is not None and violation.symptom == "relation group"

    assert holds(wordy)
    pair, least = shortest_pair(subject, wordy, holds)
    assert holds(pair)
    assert len(pair.cases()[0].operations) == least == 4
    assert shortest_pair(subject, pair, holds) == (pair, 4)
    assert shortest_pair(subject, wordy, holds, limit=3) == (wordy, 3)


def test_the_gate_says_whether_its_cases_are_minimal():
    subject = CATALOGUE["counts-waiting"].subject()
    result = campaign(Task(subject.name, "sequences", 0, 30), subject, "contract", 0)
    found = result.findings[0]
    assert (found.minimal, found.length) == (True, CATALOGUE["counts-waiting"].shortest)


# -- the command ---------------------------------------------------------------------------------------


def kvassay(out, *arguments):
    return CliRunner().invoke(main, ["explore", "--out", str(out), "--workers", "1", *map(str, arguments)])


def test_a_sound_subject_ends_with_0(tmp_path):
    result = kvassay(tmp_path, "--impl", "token", "--pages", 1, "--json")
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    assert whole == json.loads((tmp_path / "report.json").read_text())
    assert (whole["verdict"], whole["closed"], whole["findings"]) == ("pass", True, [])
    assert (whole["level"], whole["copies"], whole["pool"]["page_size"]) == ("parity", "copied", 1)
    assert whole["alphabet"]["min"] <= whole["alphabet"]["median"] <= whole["alphabet"]["max"]


def test_a_fault_ends_with_1_and_leaves_its_shortest_case(tmp_path):
    result = kvassay(tmp_path, "--impl", "defect:F22", "--pages", 2)
    assert result.exit_code == 1, result.output
    assert "No finding has a shorter case" in result.stdout
    whole = json.loads((tmp_path / "report.json").read_text())
    finding = whole["findings"][0]
    assert (finding["code"], finding["length"], finding["minimal"]) == ("MAP", 2, True)
    file = casefile.read(tmp_path / finding["case"])
    assert judged(local("defect:F22"), file.case, "contract").violation == file.finding


def test_the_depth_is_kept(tmp_path):
    result = kvassay(tmp_path, "--impl", "paged", "--depth", 1)
    assert result.exit_code == 0
    assert "Sequences of up to 1 operations, every promise kept at level parity." in result.stdout
    assert not json.loads((tmp_path / "report.json").read_text())["closed"]


def test_what_is_asked_is_said(tmp_path):
    plain = kvassay(tmp_path, "--impl", "token", "--pages", 1)
    assert (
        "2 request(s), behind a group's first free whole requests, a snapshot for 1 operation(s)"
        in " ".join(plain.stdout.split())
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["requests"], report["snapshot_age"], report["group_frees"]) == (2, 1, "whole")
    assert (report["closed"], report["prefixes"], report["misuse"]) == (True, False, False)
    assert 0 < report["last_chances"] < report["states"]
    more = kvassay(
        tmp_path, "--impl", "token", "--pages", 1, "--requests", 1, "--no-snapshot", "--group-frees", "any", "--misuse",
    )  # fmt: skip
    assert "1 request(s), any frees in a group, no snapshot, no prefixes, misuse" in " ".join(
        more.stdout.split()
    )
    assert json.loads((tmp_path / "report.json").read_text())["snapshot_age"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--impl", "nonsense"], "no subject is called 'nonsense'"),
        (["--impl", "token", "--page-size", "2"], "token has pages of 1, and none of 2"),
        (["--impl", "paged", "--page-size", "7"], "and none of 7"),
        (["--impl", "token", "--swa-pages", "2"], "swa_pages goes with kind swa"),
        (["--impl", "paged[page_size=4]", "--page-size", "2"], "paged[page_size=4] has page_size=4"),
        (["--impl", "tests.planted:two_faults", "--level", "parity", "--depth", "0"], ""),
        (["--impl", "tests.planted:no_claims", "--level", "parity"], "claims no exact order"),
        (["--impl", "token", "--depth", "-1"], "--depth"),
        (["--impl", "token", "--pages", "0"], "--pages"),
        (["--impl", "token", "--level", "nonsense"], "--level"),
        ([], "--impl"),
    ],
)
def test_bad_input_is_refused(tmp_path, arguments, says):
    result = kvassay(tmp_path, *arguments)
    if not says:
        assert result.exit_code == 0
        return
    assert result.exit_code == 2, result.output
    assert says in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output


def test_an_output_folder_that_can_not_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    result = kvassay(Path(tmp_path, "file", "below"), "--impl", "token")
    assert result.exit_code == 2
    assert "can't be written" in result.stderr
