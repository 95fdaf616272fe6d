"""Consumers of several partitions, simulated: every record once, by its sequence, however data comes and cursor groups meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.index.ledger.allocate import allocate, restart
from overlay.index.ledger.entries import LedgerEntry, LedgerRun
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.kafka.fetched import Fetched, log_position_after
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.scan import Decoder, make_plan
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from overlay.state.shard_state import ConsumerId, ConsumerState
from overlay.worker.cursors.cursor import Cursor
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.order import STEPS, plan_steps
from overlay.worker.cursors.table import State
from overlay.worker.round.sequencing import cut
from overlay.worker.round.task import Reader, Task
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.worker.cursors.play import Player

SOURCES: list[TopicPartition] = [("t", 0), ("t", 1), ("u", 0)]


@dataclass
class World:
    """A stream's logs, its ledger, and what its consumers were given."""

    ledger: Ledger = field(default_factory=Ledger)
    cursors: Cursors = field(init=False)
    readers: dict[ConsumerId, Reader] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0))
    committed: int = 1
    given: dict[str, list[int]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Sequences whose runs the ledger has lost."""

    def __post_init__(self) -> None:
        self.ledgers = {"S": self.ledger}
        self.cursors = Cursors(self.readers, self.ledgers)
        self.player = Player(self.cursors, self.ends, self._read)

    def lose(self, sequences: set[int]) -> None:
        """Let the ledger have been read back without the rounds that begin with these sequences, up to a restart."""
        before, self.ledger = self.ledger, Ledger()
        self.ledgers["S"] = self.ledger
        at = 1
        while (run := before.locate(at)) is not None:
            at = run.next_sequence
            if run.first_sequence in sequences:
                self.lost |= set(range(run.first_sequence, at))
            else:
                assert self.ledger.append(LedgerEntry((run,))) is Refusal.NONE
        log_positions = {source: before.log_position_of(source) for source in SOURCES}
        assert self.ledger.append(restart(before.standing, log_positions)) is Refusal.NONE

    def grow(self, more: Mapping[TopicPartition, int], *, sequenced: bool = False) -> None:
        for source, count in more.items():
            self.ends[source] += count
        if sequenced:
            self.allocate({source: (0, LogPosition(end)) for source, end in self.ends.items()})

    def allocate(self, taken: Mapping[TopicPartition, tuple[int, LogPosition]]) -> None:
        if (made := allocate(self.ledger.standing, taken)) is not None:
            assert self.ledger.append(made) is Refusal.NONE

    def enlist(self, name: str, positions: Mapping[TopicPartition, int], *, careful: bool) -> None:
        self.given[name] = []
        log_positions = {source: LogPosition(position) for source, position in positions.items()}
        self.readers["S", name] = Reader(("S", name), (), None)
        self.cursors.enlist(("S", name), ConsumerState(), log_positions, careful=careful)

    def list_cursors(self) -> dict[TopicPartition, list[Cursor]]:
        return {source: self.cursors.of(("S", source)) for source in SOURCES}

    def run(self, at_hand: Mapping[int, int]) -> int:
        """One round; `at_hand`: how many offsets have come for the cursors, by their number. The number of steps."""
        self.cursors.note_committed({"S": self.committed})
        self.steps = 0
        self.player.follow()
        for which, length in at_hand.items():
            if which < len(self.player.fetches):
                self.player.fetch(which, length)
        self.player.run_round(self._give_out)
        return self.steps

    def _give_out(self, tasks: list[Task]) -> None:
        taken = {
            task.source: (task.position, LogPosition(min(task.stop, task.fetched.next_offset)))
            for task in tasks
            if task.sequenced
        }
        assert len(taken) == sum(task.sequenced for task in tasks)
        self.allocate(taken)

    def _read(self, task: Task, offsets: range) -> None:
        assert offsets
        self.steps += 1
        for reader in task.readers:
            is_careful = self.cursors.standing(reader.id).is_careful
            for offset in offsets:
                (sequence,) = self.ledger.sequence_of(task.source, np.array([offset])).tolist()
                assert (sequence or self.lost) and (not is_careful or sequence < self.committed)
                self.given[reader.id[1]].append(sequence)


counts = st.dictionaries(st.sampled_from(SOURCES), st.integers(1, 6), max_size=3)


@given(
    before=st.lists(counts, max_size=5),
    starts=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=4),
    loose=st.none() | st.fixed_dictionaries({source: st.integers(0, 12) for source in SOURCES}),
    indexed=st.fixed_dictionaries({source: st.integers(0, 12) for source in SOURCES}),
    kept=st.booleans(),
    lost=st.sets(st.integers(1, 40), max_size=6),
    rounds=st.lists(
        st.tuples(counts, st.dictionaries(st.integers(0, 20), st.integers(1, 9)), st.booleans()), max_size=25
    ),
)
@settings(max_examples=300, deadline=None)
def test_everybody_is_given_everything_in_order(
    before: list[dict[TopicPartition, int]],
    starts: list[tuple[int, bool]],
    loose: dict[TopicPartition, int] | None,
    indexed: dict[TopicPartition, int],
    kept: bool,
    lost: set[int],
    rounds: list[tuple[dict[TopicPartition, int], dict[int, int], bool]],
) -> None:
    """`kept`: sequences are given out here; else they come from elsewhere. `loose`: positions that are no one sequence's.
    `lost`: sequences whose runs the ledger has lost."""
    world = World()
    for more in before:
        world.grow(more, sequenced=True)
    if lost:
        world.lose(lost)
    world.committed = world.ledger.next_sequence
    if kept:
        world.cursors.enlist_ledger("S", {source: LogPosition(end) for source, end in world.ends.items()})
    begins: dict[str, dict[TopicPartition, int]] = {}
    for number, (sequence, careful) in enumerate(starts):
        places = world.ledger.positions_at(sequence)
        begins[f"c{number}"] = {source: places.get(source, 0) for source in SOURCES}
        world.enlist(f"c{number}", begins[f"c{number}"], careful=careful and kept)
    if loose is not None:
        begins["loose"] = {source: min(loose[source], world.ends[source]) for source in SOURCES}
        world.enlist("loose", begins["loose"], careful=False)
    if kept:
        for source in SOURCES:
            world.cursors.enlist_index(("S", source), LogPosition(min(indexed[source], world.ends[source])))
    for more, at_hand, commits in rounds:
        world.grow(more, sequenced=not kept)
        world.run(at_hand)
        if commits or not kept:
            world.committed = world.ledger.next_sequence
    everything = dict.fromkeys(range(50), 100)
    while world.run(everything) or world.committed < world.ledger.next_sequence:
        world.committed = world.ledger.next_sequence
    for name, positions in begins.items():
        wanted = [
            sequence
            for source in SOURCES
            for sequence in world.ledger.sequence_of(source, np.arange(positions[source], world.ends[source])).tolist()
        ]
        assert [sequence for sequence in world.given[name] if sequence] == sorted(filter(None, wanted))
        assert world.given[name].count(0) == wanted.count(0)
    # each cursor that may has joined the others
    careful = any(is_careful for _, is_careful in starts) and kept
    assert all(len(some) <= 1 + careful for some in world.list_cursors().values())


def test_records_without_sequences_are_read_though_none_come_after_them() -> None:
    """The ledger knows nothing of the partitions but a restart at their ends."""
    world = World()
    world.grow(dict.fromkeys(SOURCES, 3), sequenced=True)
    world.lose({1, 4, 7})
    world.committed = world.ledger.next_sequence
    world.cursors.enlist_ledger("S", {source: LogPosition(end) for source, end in world.ends.items()})
    world.enlist("c", dict.fromkeys(SOURCES, 0), careful=False)
    assert world.run(dict.fromkeys(range(6), 100)) == len(SOURCES)
    assert world.given["c"] == [0] * 9
    assert all(len(some) == 1 for some in world.list_cursors().values())


def test_one_cursor_group_does_not_take_all_the_time() -> None:
    world = World()
    for _ in range(2 * STEPS):
        world.grow(dict.fromkeys(SOURCES, 1), sequenced=True)
    world.committed = world.ledger.next_sequence
    world.enlist("c", dict.fromkeys(SOURCES, 0), careful=False)
    assert world.run(dict.fromkeys(range(3), 1_000)) == STEPS


def test_who_lacks_data_is_named() -> None:
    world = World()
    world.grow(dict.fromkeys(SOURCES, 2), sequenced=True)
    world.enlist("c", dict.fromkeys(SOURCES, 0), careful=False)
    cursors = world.list_cursors()
    (second,), (third,) = cursors[SOURCES[1]], cursors[SOURCES[2]]
    plan = plan_steps(cursors, {second: 2, third: 2}, world.ledger, world.ledger.next_sequence)
    assert not plan.steps and plan.wanted == set(cursors[SOURCES[0]])


def test_consumers_with_machines_wait_where_a_corrupt_batch_stops_their_cursor_group() -> None:
    """The others in the cursor group go on with the other partitions."""
    world = World()
    first, *rest = SOURCES
    for source in SOURCES:
        world.grow({source: 2}, sequenced=True)
    for name in ("acked", "plain"):
        world.enlist(name, dict.fromkeys(SOURCES, 0), careful=False)
    ((stopped,),) = (world.list_cursors()[first],)
    stopped.log_position, stopped.state = LogPosition(1), State.HALTED
    world.cursors.part(set(), 0)
    assert all(len(some) == 1 for some in world.list_cursors().values()), "no consumer waits that takes no acks"
    world.cursors.part({("S", "acked")}, 0)
    for _ in range(2):
        parted = [(source, cursor.members) for source in SOURCES for cursor in world.list_cursors()[source]]
        assert parted == [(source, {("S", name)}) for source in SOURCES for name in ("acked", "plain")]
        world.cursors.part({("S", "acked")}, 0)
        world.cursors.begin(0)  # which leaves cursor groups apart that have just been parted
    for _ in range(2):
        at_hand = {cursor: 2 for source in rest for cursor in world.list_cursors()[source]}
        for step in plan_steps(world.list_cursors(), at_hand, world.ledger, world.ledger.next_sequence).steps:
            step.cursor.log_position = LogPosition(step.stop)
    found = {min(cursor.members): cursor.position for cursor in world.list_cursors()[rest[0]]}
    assert found == {("S", "acked"): 0, ("S", "plain"): 2}


def test_who_catches_up_joins_though_records_keep_coming() -> None:
    """The head sits a round out; otherwise it would always be a step ahead."""
    world = World()
    world.grow(dict.fromkeys(SOURCES, 5), sequenced=True)
    world.committed = world.ledger.next_sequence
    world.cursors.enlist_ledger("S", {source: LogPosition(end) for source, end in world.ends.items()})
    world.enlist("c", dict.fromkeys(SOURCES, 0), careful=False)
    for _ in range(3):
        world.grow(dict.fromkeys(SOURCES, 1))
        world.run(dict.fromkeys(range(6), 100))
    assert all(len(some) == 1 for some in world.list_cursors().values())


@pytest.mark.parametrize("good", [0, 5])
def test_a_batch_that_cannot_be_read_is_come_to(good: int) -> None:
    """The head comes to it with what lies before it, or else with nothing; so does a cursor group that catches up."""
    raw = [build([Record(i, 5, b"k", b"v")], base_offset=i) for i in range(good)]
    old = bytearray(build([Record(good, 5, b"k", b"v")], base_offset=good))
    old[16] = 1  # a format of long ago
    data = np.frombuffer(b"".join([*raw, bytes(old)]), np.uint8)
    found = split(data)
    end = log_position_after(found.batches, 0)
    fetched = Fetched(0, data, found.batches, NO_ABORTS, 9, 0, end, found.base_offset)
    assert (fetched.next_offset, fetched.reach) == (good, good + 1)
    ledger = Ledger()
    assert ledger.append(LedgerEntry((LedgerRun("t", 0, 0, 9, 1),))) is Refusal.NONE
    for cursors in (
        [Cursor(LogPosition(0), sequenced=True, cursor_group=1)],
        [Cursor(LogPosition(9), sequenced=True, cursor_group=1), Cursor(LogPosition(0), {("S", "c")}, cursor_group=2)],
    ):
        (step,) = plan_steps({("t", 0): cursors}, {cursors[-1]: fetched.reach}, ledger, 10).steps
        pieces = Decoder(make_plan()).decode(cut(fetched, step.start, step.stop), step.start, stop=step.stop)
        assert [type(piece).__name__ for piece in pieces] == ["Records"] * bool(good) + ["Malformed"]
