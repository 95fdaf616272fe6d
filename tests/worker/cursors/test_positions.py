"""overlay/worker/cursors/positions.py and tracks.py by themselves: any interleaving reads every offset once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.log_position import LogPosition
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerState, ShardState
from overlay.worker.cursors.cursor import Cursor, find_tail, join, plan_round
from overlay.worker.cursors.positions import Positions

SOURCE = ("source", 0)
PLACE = ("S", SOURCE)
END = 60


@dataclass(slots=True)
class Reading:
    """A session without Kafka: fetches of any length arrive for any cursor, rounds run on whatever is there."""

    cursors: list[Cursor]
    fetched: dict[Cursor, int] = field(default_factory=dict)
    given: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    lost: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))

    def fetch(self, which: int, length: int) -> None:
        cursor = self.cursors[which % len(self.cursors)]
        if cursor not in self.fetched and cursor.position < END:
            self.fetched[cursor] = min(END, cursor.position + length)

    def run_round(self) -> bool:
        """Whether there was anything to be worked on."""
        turns = plan_round(self.cursors, self.fetched)
        for turn in turns:
            cursor = turn.cursor
            stop = min(self.fetched.pop(cursor), turn.stop)
            for offset in range(cursor.position, stop):
                if cursor.only is None or offset in cursor.only:
                    for member in cursor.members:
                        self.given[member].append(offset)
            cursor.log_position = LogPosition(max(cursor.position, stop))
        self._settle()
        return bool(turns)

    def trim(self, which: int, first: int) -> None:
        """Retention has passed a cursor, which the others have not noticed yet."""
        cursor = self.cursors[which % len(self.cursors)]
        if cursor.position < first:
            for member in cursor.members:
                self.lost[member] += range(cursor.position, first)
            cursor.log_position = LogPosition(first)
            self.fetched.pop(cursor, None)
            self._settle()

    def _settle(self) -> None:
        for cursor in self.cursors:
            cursor.finish_snapshot()
        for spent in join(self.cursors):
            self.fetched.pop(spent, None)


# a fetch for some cursor of some offsets, or a round; no offsets: a batch that is not whole, or cannot be read
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)) | st.just(None), max_size=60)


@given(starts=st.lists(st.integers(0, END), min_size=1, max_size=6), steps=steps)
def test_every_consumer_reads_every_offset_once(starts: list[int], steps: list[tuple[int, int] | None]) -> None:
    positions = Positions()
    for number, start in enumerate(starts):
        positions.enlist(("S", str(number)), ConsumerState(), {SOURCE: LogPosition(start)})
    reading = Reading(positions.cursors[PLACE])
    _play(reading, steps)
    for number, start in enumerate(starts):
        assert reading.given["S", str(number)] == list(range(start, END))
    assert len(reading.cursors) == 1 or all(start == END for start in starts)


@given(
    starts=st.lists(st.integers(0, END), max_size=4),
    snapshots=st.lists(st.tuples(st.integers(0, END - 1), st.integers(1, END)), min_size=1, max_size=3),
    steps=steps,
    data=st.data(),
)
def test_snapshots_read_theirs_once_and_then_go_on(
    starts: list[int],
    snapshots: list[tuple[int, int]],
    steps: list[tuple[int, int] | None],
    data: st.DataObject,
) -> None:
    cursors = [Cursor(LogPosition(start), {("S", f"c{i}")}) for i, start in enumerate(starts)]
    join(cursors)
    wanted = {("S", f"c{i}"): list(range(start, END)) for i, start in enumerate(starts)}
    for i, (start, length) in enumerate(snapshots):
        end = min(END, start + length)
        only = sorted(data.draw(st.sets(st.integers(start, end - 1)))) if end > start else []
        cursors.append(Cursor(LogPosition(start), {("S", f"s{i}")}, np.array(only, np.int64), end))
        wanted["S", f"s{i}"] = [*only, *range(end, END)]
    reading = Reading(cursors)
    _play(reading, steps)
    assert {consumer: reading.given[consumer] for consumer in wanted} == wanted


@given(
    starts=st.lists(st.integers(0, END), min_size=1, max_size=6),
    steps=steps,
    trims=st.lists(st.tuples(st.integers(0, 5), st.integers(1, END)), min_size=1, max_size=6),
)
def test_retention_takes_from_each_cursor_what_it_had_not_read(
    starts: list[int], steps: list[tuple[int, int] | None], trims: list[tuple[int, int]]
) -> None:
    """A cursor may be taken past others, which have not been told yet or have data in hand."""
    positions = Positions()
    for number, start in enumerate(starts):
        positions.enlist(("S", str(number)), ConsumerState(), {SOURCE: LogPosition(start)})
    reading = Reading(positions.cursors[PLACE])
    share = len(steps) // len(trims) + 1
    for number, (which, first) in enumerate(trims):
        _take_steps(reading, steps[number * share : (number + 1) * share])
        reading.trim(which, first)
    _play(reading, [])
    for number, start in enumerate(starts):
        given, lost = reading.given["S", str(number)], reading.lost["S", str(number)]
        assert given == sorted(given)
        assert sorted(given + lost) == list(range(start, END))


def _play(reading: Reading, steps: list[tuple[int, int] | None]) -> None:
    _take_steps(reading, steps)
    for _ in range(4 * END):  # whatever is left; a round without progress for so long is a livelock
        for which in range(len(reading.cursors)):
            reading.fetch(which, 7)
        reading.run_round()
    assert {cursor.position for cursor in reading.cursors} == {END}


def _take_steps(reading: Reading, steps: list[tuple[int, int] | None]) -> None:
    for step in steps:
        if step is None:
            reading.run_round()
        else:
            reading.fetch(*step)


def test_the_tail_is_never_alone() -> None:
    alone = Cursor(LogPosition(50), {("S", "a")}, np.array([55]), 60)
    behind = Cursor(LogPosition(10), {("S", "b")})
    assert find_tail([alone, behind]) is behind
    assert find_tail([alone]) is None


def test_a_cursor_that_reaches_the_next_one_stops_there() -> None:
    behind, ahead = Cursor(LogPosition(0)), Cursor(LogPosition(10))
    turns = plan_round([ahead, behind], {behind: 25, ahead: 40})
    assert [(turn.cursor, turn.stop) for turn in turns] == [(behind, 10)]


def test_a_cursor_that_does_not_reach_the_next_one_lets_it_read() -> None:
    behind, ahead = Cursor(LogPosition(0)), Cursor(LogPosition(10))
    turns = plan_round([ahead, behind], {behind: 9, ahead: 40})
    assert {(id(turn.cursor), turn.stop) for turn in turns} == {(id(behind), 10), (id(ahead), NO_STOP)}


def test_who_reaches_a_halted_cursor_halts_too() -> None:
    cursors = [Cursor(LogPosition(7), {("S", "a")}, halted=True), Cursor(LogPosition(7), {("S", "b")})]
    join(cursors)
    assert [(cursor.members, cursor.halted) for cursor in cursors] == [({("S", "a"), ("S", "b")}, True)]


@pytest.mark.parametrize("order", [("lasts", "all"), ("all", "lasts")])
def test_a_consumer_of_last_messages_shares_its_cursor_with_nobody(order: tuple[str, str]) -> None:
    positions = Positions()
    for name in order:
        snapshot = {SOURCE: 40} if name == "lasts" else {}
        positions.enlist(("S", name), ConsumerState(snapshot=snapshot), {SOURCE: LogPosition(0)})
    assert sorted(len(cursor.members) for cursor in positions.cursors[PLACE]) == [1, 1]


def test_snapshots_are_forgotten_once_they_are_delivered() -> None:
    positions = Positions()
    positions.enlist(("S", "lasts"), ConsumerState(3, snapshot={SOURCE: 40}), {SOURCE: LogPosition(0)})
    (cursor,) = positions.cursors[PLACE]
    cursor.only, cursor.snapshot_end = np.array([30]), 40
    assert positions.state_of(("S", "lasts")) == ConsumerState(3, {SOURCE: LogPosition(0)}, {SOURCE: 40})
    cursor.log_position = LogPosition(40)
    positions.settle(PLACE)
    assert positions.state_of(("S", "lasts")) == ConsumerState(3)


@given(
    starts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    steps=steps,
)
def test_what_is_written_leads_back_to_where_everyone_stands(
    starts: list[int], steps: list[tuple[int, int] | None]
) -> None:
    """After each round the state, changed by deltas alone, gives every consumer the position that its cursor has."""
    state = ShardState()
    positions = Positions()
    for number, start in enumerate(starts):
        consumer = ("S", str(number))
        state.consumers[consumer] = ConsumerState(0, {SOURCE: LogPosition(start)})
        positions.enlist(consumer, state.consumers[consumer], {SOURCE: LogPosition(start)})
    state.apply(positions.everything())
    reading = Reading(positions.cursors[PLACE])
    for step in steps:
        if step is not None:
            reading.fetch(*step)
            continue
        before = {consumer: cursor.position for cursor in reading.cursors for consumer in cursor.members}
        many = len(reading.cursors) > 1
        if not reading.run_round():
            continue
        now = {consumer: cursor.position for cursor in reading.cursors for consumer in cursor.members}
        moved = {consumer for consumer in now if now[consumer] != before[consumer]}
        state.apply(positions.delta({PLACE} if moved else set(), set(now) if many else moved))
        for consumer, position in now.items():
            log_position = state.log_position_of(consumer, SOURCE)
            assert log_position is not None and log_position.position == position


def test_a_partition_that_its_stream_does_not_have_for_a_while() -> None:
    """Whoever was behind there is so still when it is back, served meanwhile or not."""
    here, gone, consumer, absent = ("a", 0), ("b", 0), ("S", "c"), ("S", "absent")
    state = ShardState({("S", here): LogPosition(500), ("S", gone): LogPosition(1_000)}, {})
    state.consumers |= {
        each: ConsumerState(7, {gone: LogPosition(100)}, {}, {gone: 200}) for each in (consumer, absent)
    }
    positions = Positions()
    positions.enlist(consumer, state.consumers[consumer], {here: LogPosition(500)})
    state.apply(positions.everything())
    state.consumers[absent] = state.pin(absent, {here: 0})
    assert [state.log_position_of(each, gone) for each in (consumer, absent)] == [LogPosition(100)] * 2
    assert state.consumers[consumer].floor == {gone: 200}
    assert state.log_position_of(absent, here) == LogPosition(500)
