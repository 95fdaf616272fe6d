"""What a round has the state record: enough to lead every consumer back to where it is, and no more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from overlay.index.ledger.allocate import allocate
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.index.skip.plan import OPEN_END, Route, Saving
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState, StreamPartition
from overlay.worker.cursors import cursors as cursors_module
from overlay.worker.cursors.cursors import Cursors, Moved
from overlay.worker.cursors.skip_route import Routes, SkipRoute
from overlay.worker.cursors.table import State
from overlay.worker.round.task import Reader
from tests.worker.cursors.play import Player

SOURCES: tuple[TopicPartition, ...] = (("t", 0), ("t", 1))
END = 14
SNAPSHOT_END = 9

Step = tuple[str, int, int]
"""What is done, with which cursor or consumer, and how many offsets arrive."""


@dataclass
class World:
    """Consumers that are given nothing, and the state as the deltas of their rounds make it."""

    ordered: bool
    """Whether the stream has a ledger."""
    readers: dict[ConsumerId, Reader] = field(default_factory=dict)
    state: ShardState = field(default_factory=ShardState)
    back: set[ConsumerId] = field(default_factory=set)
    """Consumers that were resumed since the last round."""
    came: int = 0
    """How many consumers have come between two rounds."""
    routes: Routes = field(default_factory=Routes)

    def __post_init__(self) -> None:
        ledgers = {"S": self._make_ledger()} if self.ordered else {}
        self.cursors = Cursors(self.readers, ledgers, self.routes)
        self.player = Player(self.cursors, dict.fromkeys(SOURCES, END), lambda task, offsets: None)

    @staticmethod
    def _make_ledger() -> Ledger:
        """Return a ledger in which the partitions take turns, three records each."""
        ledger = Ledger()
        for end in (3, 6, 9, 12, END):
            for source in SOURCES:
                made = allocate(ledger.standing, {source: (0, LogPosition(end))})
                assert made is not None and ledger.append(made) is Refusal.NONE
        return ledger

    def enlist(self, name: str, first: int, second: int, *, has_snapshot: bool) -> None:
        consumer = ("S", name)
        self.readers[consumer] = Reader(consumer, (), None)
        snapshot = {SOURCES[0]: SNAPSHOT_END} if has_snapshot else {}
        positions = {SOURCES[0]: LogPosition(first), SOURCES[1]: LogPosition(second)}
        self.cursors.enlist(consumer, ConsumerState(snapshot=snapshot), positions)
        self.find(consumer)

    def begin(self) -> None:
        self.cursors.begin(0)
        self.state.apply(self.cursors.everything())

    def find(self, consumer: ConsumerId) -> None:
        """Tell which last messages there are, before anything is read; the session waits for that as well."""
        self.cursors.find(consumer, dict.fromkeys(SOURCES, np.array([4, 7], np.int64)), 0)

    def part(self, consumer: ConsumerId) -> None:
        """Have the cursors of this consumer's group read on without it, as behind a corrupt batch."""
        halted = [cursor for _, cursor in self.cursors.members_of(consumer) if cursor.state is State.READING][:1]
        for cursor in halted:
            cursor.state = State.HALTED
        self.cursors.part([consumer], 0)
        for cursor in halted:
            cursor.state = State.READING

    def come(self, which: int, length: int) -> Moved:
        """Have a new consumer come between two rounds. Return what the state must record."""
        self.came += 1
        consumer = ("S", f"n{self.came}")
        self.readers[consumer] = Reader(consumer, (), None)
        own = {SOURCES[0]: LogPosition(which), SOURCES[1]: LogPosition(length)}
        self.cursors.admit(consumer, ConsumerState(own=own))
        return self.come_to_rest({consumer})

    def go(self, consumer: ConsumerId) -> Moved:
        """Have a consumer be deleted between two rounds. Return what the state must record of the others."""
        left = self.cursors.dismiss({consumer})
        del self.readers[consumer]
        self.back.discard(consumer)
        self.state.apply(Delta(forgotten=(consumer,)))
        came = self.come_to_rest(set())
        return Moved(left.partitions | came.partitions, left.consumers | came.consumers)

    def come_to_rest(self, consumers: set[ConsumerId]) -> Moved:
        """Have the cursors note who has come, which also ends what was left to the next round."""
        moved = self.cursors.renew(consumers, 0)
        self.back.clear()
        return moved

    def take_step(self, step: Step) -> None:
        """Take one step, apply to the state what it says, and check the state."""
        name, which, length = step
        consumers = sorted(self.readers)
        consumer = consumers[which % len(consumers)]
        moved = Moved(set(), set())
        if name == "fetch":
            self.player.fetch(which, length)
        elif name == "round":
            _, moved = self.player.run_round()
        elif name == "park" and consumer not in self.cursors.parked:
            moved = self.cursors.park([consumer])
        elif name == "resume" and consumer in self.cursors.parked:
            self.cursors.resume([consumer], 0)
            self.back.add(consumer)
            self.find(consumer)
        elif name == "come":
            moved = self.come(which, length)
        elif name == "go" and len(consumers) > 1:
            moved = self.go(consumer)
        elif name == "part":
            self.part(consumer)
        elif name == "trim" and not self.ordered:
            cursors = [cursor for _, cursor in self.cursors.all()]
            moved = self.cursors.pass_retention({cursors[which % len(cursors)]: length}, 0) if cursors else moved
        self.state.apply(self.cursors.delta(moved.partitions, moved.consumers))
        self.back = set() if name == "round" else self.back - self.cursors.parked
        self.check()

    def check(self) -> None:
        """Each consumer's position by the state is that of its cursor, and its snapshot ends where its cursor says."""
        for consumer in self.readers:
            known, parked = self.state.consumers[consumer], self.cursors.standing(consumer).parked
            here = {source: (cursor.position, cursor.is_alone) for source, cursor in self.cursors.members_of(consumer)}
            here |= {source: (at.position, False) for source, at in (parked or {}).items()}
            assert set(here) == set(SOURCES)
            for source, (position, is_alone) in here.items():
                log_position = self.state.log_position_of(consumer, source)
                assert log_position is not None
                # retention may take one on that has come back, before the next round records it
                is_behind = consumer in self.back and log_position.position < position
                assert is_behind or log_position.position == position, (consumer, source)
                assert not is_alone or known.snapshot[source] == SNAPSHOT_END


# few places, so that consumers meet
offsets = st.sampled_from([0, 3, 6, 9, END])
names = ("fetch", "fetch", "round", "round", "park", "resume", "trim", "part", "come", "go")
step_lists = st.lists(st.tuples(st.sampled_from(names), st.integers(0, 8), st.integers(1, 6)), max_size=50)

PARKED_FOR_A_MOMENT: list[Step] = [("park", 0, 0), ("resume", 0, 0), ("fetch", 0, 2), ("round", 0, 0)]
FOREMOST_COMES_BACK: list[Step] = [("park", 0, 0), ("round", 0, 0), ("resume", 0, 0), ("round", 0, 0)]

COMES_WHILE_THE_FOREMOST_COMES_BACK: list[Step] = [("park", 0, 0), ("round", 0, 0), ("resume", 0, 0), ("come", 3, 3)]
COMES_TO_THE_FOREMOST_THAT_CAME_BACK: list[Step] = [("park", 0, 0), ("round", 0, 0), ("resume", 0, 0), ("come", 6, 6)]
COMES_FAR_AHEAD: list[Step] = [("come", 8, 1), ("fetch", 0, 6), ("round", 0, 0), ("fetch", 0, 6), ("round", 0, 0)]
TAIL_IS_OVERTAKEN: list[Step] = [("trim", 1, 6)]


@given(
    starts=st.lists(st.tuples(offsets, offsets, st.booleans()), min_size=2, max_size=4),
    ordered=st.booleans(),
    steps=step_lists,
    most_behind=st.sampled_from([2, END]),
)
@example(starts=[(3, 3, False), (3, 3, False)], ordered=False, steps=PARKED_FOR_A_MOMENT, most_behind=END)
@example(starts=[(6, 6, False), (3, 3, False)], ordered=False, steps=FOREMOST_COMES_BACK, most_behind=END)
@example(
    starts=[(6, 6, False), (3, 3, False)], ordered=False, steps=COMES_WHILE_THE_FOREMOST_COMES_BACK, most_behind=END
)
@example(starts=[(6, 6, False), (3, 3, False)], ordered=False, steps=[("go", 0, 0)], most_behind=END)
@example(starts=[(3, 3, False), (0, 3, False)], ordered=False, steps=TAIL_IS_OVERTAKEN, most_behind=END)
@example(
    starts=[(6, 6, False), (3, 3, False)], ordered=False, steps=COMES_TO_THE_FOREMOST_THAT_CAME_BACK, most_behind=END
)
@example(starts=[(0, 0, False), (0, 0, False)], ordered=False, steps=COMES_FAR_AHEAD, most_behind=2)
@settings(deadline=None)
def test_the_state_follows_consumers_that_are_given_nothing(
    starts: list[tuple[int, int, bool]], ordered: bool, steps: list[Step], most_behind: int
) -> None:
    """A consumer is recorded for its deliveries as well, which must not be needed. `most_behind`: how far the foremost
    cursor may be behind a new consumer that joins it."""
    world = World(ordered)
    for number, (first, second, has_snapshot) in enumerate(starts):
        world.enlist(f"c{number}", first, second, has_snapshot=has_snapshot)
    world.begin()
    with patch.object(cursors_module, "MOST_BEHIND", most_behind):
        for step in steps:
            world.take_step(step)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_group_that_skips_the_rest_of_its_data_reads_on(resumes: bool) -> None:
    """Its cursors are planned anew because a parked consumer comes back, or wants something else; the index has grown."""

    class Grown(Routes):
        def plan(
            self, partition: StreamPartition, members: Collection[ConsumerId], _: int, now: int
        ) -> SkipRoute | None:
            route = Route(np.array([9]), np.array([OPEN_END]), np.zeros(1, np.uint8), Saving(0, 0, 0, 0, 0), True)
            return SkipRoute(route) if has_grown and partition[1] == SOURCES[0] else None

    has_grown = False
    world, here, back = World(ordered=True, routes=Grown()), ("S", "here"), ("S", "back")
    world.enlist("here", 0, 0, has_snapshot=False)
    world.enlist("back", 3, 0, has_snapshot=False)
    world.begin()
    world.cursors.park([back])
    world.player.fetch(0, 6)
    world.player.run_round()
    (first, _) = (cursor for _, cursor in world.cursors.members_of(here))
    assert first.position == 3
    assert first.fetched is not None and first.fetched.next_offset == 6
    has_grown = True
    if resumes:
        world.cursors.resume([back], 0)
    else:
        world.cursors.renew({here}, 0)
    assert first.position == 9
    for _ in range(4 * END):
        world.player.fetch_all(7)
        world.player.run_round()
    assert {cursor.position for _, cursor in world.cursors.all()} == {END}
