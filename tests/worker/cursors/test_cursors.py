"""overlay/worker/cursors: any interleaving of fetches and rounds reads every offset once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.arrays import Ints
from overlay.index.skip.plan import OPEN_END, Route, Saving
from overlay.kafka.log_position import LogPosition
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId, ConsumerState, ShardState
from overlay.subject import Pattern
from overlay.worker.cursors import cursors as cursors_module
from overlay.worker.cursors.cursor import Cursor, find_tail, plan_round
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.skip_route import Routes, SkipRoute
from overlay.worker.cursors.table import TRANSITIONS, Move, State
from overlay.worker.round.task import Reader, Task
from tests.worker.cursors.play import Player

SOURCE = ("source", 0)
PLACE = ("S", SOURCE)
NEW = ("S", "new")
END = 60
ALL = (Pattern.parse(">"),)


class Log:
    """A log of END records, its cursors, and what their consumers were given."""

    def __init__(self, routes: Routes | None = None) -> None:
        self.readers: dict[ConsumerId, Reader] = {}
        self.cursors = Cursors(self.readers, routes=routes)
        self.player = Player(self.cursors, {SOURCE: END}, self._read)
        self.given: dict[ConsumerId, list[int]] = defaultdict(list)
        self.lost: dict[ConsumerId, list[int]] = defaultdict(list)

    def enlist(self, name: str, state: ConsumerState, start: int) -> None:
        consumer = ("S", name)
        self.readers[consumer] = Reader(consumer, ALL, None)
        self.cursors.enlist(consumer, state, {SOURCE: LogPosition(start)})

    def find(self, name: str, offsets: list[int]) -> None:
        found: Ints = np.array(offsets, np.int64)
        self.cursors.find(("S", name), {SOURCE: found}, 0)

    def trim(self, which: int, first: int) -> None:
        """Retention has passed a cursor, which the others have not noticed yet."""
        cursors = self.cursors.of(PLACE)
        cursor = cursors[which % len(cursors)]
        if cursor.position < first:
            for member in cursor.members:
                self.lost[member] += range(cursor.position, first)
            self.cursors.pass_retention({cursor: first}, 0)

    def take_steps(self, steps: list[tuple[int, int] | None]) -> None:
        for step in steps:
            if step is None:
                self.player.run_round()
            else:
                self.player.fetch(*step)

    def play(self, steps: list[tuple[int, int] | None]) -> None:
        """Take some steps, and read the rest."""
        self.take_steps(steps)
        for _ in range(4 * END):  # a round without progress for so long is a livelock
            self.player.fetch_all(7)
            self.player.run_round()
        assert {cursor.position for cursor in self.cursors.of(PLACE)} == {END}

    def _read(self, task: Task, offsets: range) -> None:
        for offset in offsets:
            if task.only is None or offset in task.only:
                for reader in task.readers:
                    self.given[reader.id].append(offset)


def test_a_cursor_s_readers_are_the_same_object_until_they_change() -> None:
    """So that small rounds at the tail cost nothing for each of thousands of consumers."""
    log, tasks = Log(), list[Task]()
    log.player.read = lambda task, offsets: tasks.append(task)
    for number in range(3):
        log.enlist(str(number), ConsumerState(floor={SOURCE: 9} if number == 1 else {}), 0)
    log.cursors.begin(0)
    for _ in range(3):
        log.player.fetch_all(4)
        log.player.run_round()
    first, second, third = tasks
    assert [reader.id[1] for reader in first.readers] == ["0", "1", "2"]
    assert first.readers is second.readers is third.readers
    assert [dict(task.floors) for task in tasks] == [{("S", "1"): 9}] * 3
    log.cursors.park([("S", "2")])
    log.player.fetch_all(4)
    log.player.run_round()
    assert [reader.id[1] for reader in tasks[-1].readers] == ["0", "1"]
    assert dict(tasks[-1].floors) == {}


def test_what_the_state_records_does_not_grow_with_the_consumers_at_the_tail() -> None:
    log = Log()
    for number in range(20):
        log.enlist(f"tail{number}", ConsumerState(), 30)
    log.enlist("behind", ConsumerState(), 0)
    log.cursors.begin(0)
    log.player.fetch_all(5)
    _, moved = log.player.run_round()
    assert moved.consumers == {("S", "behind")}
    # the tail has nothing to read for a while, and is reached
    log.player.ends = {SOURCE: 35}
    for _ in range(10):
        log.player.fetch_all(5)
        _, moved = log.player.run_round()
        assert len(moved.consumers) in (0, 1, 21)
    assert len(log.cursors.of(PLACE)) == 1
    assert all(not log.cursors.state_of(consumer).own for consumer in log.readers)


@pytest.mark.parametrize(("begins_at", "cursors"), [(10, 1), (11, 2), (END, 2)])
def test_a_new_consumer_joins_the_tail_only_a_little_behind_its_beginning(
    begins_at: int, cursors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cursor of its own it need not wait for the others."""
    monkeypatch.setattr(cursors_module, "MOST_BEHIND", 10)
    log, floors = Log(), dict[int, int]()
    log.enlist("old", ConsumerState(), 0)
    log.cursors.begin(0)
    log.readers[NEW] = Reader(NEW, ALL, None)
    log.cursors.admit(NEW, ConsumerState(own={SOURCE: LogPosition(begins_at)}))
    moved = log.cursors.renew({NEW}, 0)
    assert len(log.cursors.of(PLACE)) == cursors
    state = ShardState()
    state.apply(log.cursors.delta(moved.partitions, moved.consumers))
    assert state.log_position_of(("S", "old"), SOURCE) == LogPosition(0)
    assert state.log_position_of(NEW, SOURCE) == LogPosition(0 if cursors == 1 else begins_at)
    assert state.consumers[NEW].floor == ({SOURCE: begins_at} if cursors == 1 else {})
    log.player.read = lambda task, offsets: floors.update(dict.fromkeys(offsets, task.floors.get(NEW, 0)))
    log.player.fetch_all(END)
    log.player.run_round()
    assert set(floors.values()) == {begins_at if cursors == 1 else 0}


@pytest.mark.parametrize("leaves", [True, False])
def test_a_cursor_skips_what_a_consumer_wants_no_more(leaves: bool) -> None:
    """It has left the cursor, or has another filter; the rest of the cursor's consumers want nothing below offset 40."""
    greedy = ("S", "greedy")
    wants_all = {greedy}

    class Planned(Routes):
        def plan(self, partition: object, members: Collection[ConsumerId], position: int, now: int) -> SkipRoute | None:
            route = Route(np.array([40]), np.array([OPEN_END]), np.zeros(1, np.uint8), Saving(0, 0, 0, 0, 0), True)
            return None if wants_all.intersection(members) else SkipRoute(route)

    log = Log(Planned())
    for name, start in (("greedy", 0), ("modest", 0), ("tail", 50)):
        log.enlist(name, ConsumerState(), start)
    log.cursors.begin(0)
    assert sorted(cursor.position for cursor in log.cursors.of(PLACE)) == [0, 50]
    state = ShardState()
    state.apply(log.cursors.everything())
    wants_all.clear()
    left = log.cursors.dismiss([greedy] if leaves else [])
    moved = log.cursors.renew(set() if leaves else {greedy}, 0)
    assert sorted(cursor.position for cursor in log.cursors.of(PLACE)) == [40, 50]
    state.apply(log.cursors.delta(left.partitions | moved.partitions, left.consumers | moved.consumers))
    assert state.log_position_of(("S", "modest"), SOURCE) == LogPosition(40)


# a fetch for some cursor of some offsets, or a round; no offsets: a batch that is not whole, or cannot be read
steps = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)) | st.just(None), max_size=60)


@given(starts=st.lists(st.integers(0, END), min_size=1, max_size=6), steps=steps)
def test_every_consumer_reads_every_offset_once(starts: list[int], steps: list[tuple[int, int] | None]) -> None:
    log = Log()
    for number, start in enumerate(starts):
        log.enlist(str(number), ConsumerState(), start)
    log.cursors.begin(0)
    log.play(steps)
    for number, start in enumerate(starts):
        assert log.given["S", str(number)] == list(range(start, END))
    assert len(log.cursors.of(PLACE)) == 1


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
    log = Log()
    wanted = {("S", f"c{i}"): list(range(start, END)) for i, start in enumerate(starts)}
    for i, start in enumerate(starts):
        log.enlist(f"c{i}", ConsumerState(), start)
    for i, (start, length) in enumerate(snapshots):
        end = min(END, start + length)
        only = sorted(data.draw(st.sets(st.integers(start, end - 1)))) if end > start else []
        log.enlist(f"s{i}", ConsumerState(snapshot={SOURCE: end}), start)
        log.find(f"s{i}", only)
        wanted["S", f"s{i}"] = [*only, *range(end, END)]
    log.cursors.begin(0)
    log.play(steps)
    assert {consumer: log.given[consumer] for consumer in wanted} == wanted


@given(
    starts=st.lists(st.integers(0, END), min_size=1, max_size=6),
    steps=steps,
    trims=st.lists(st.tuples(st.integers(0, 5), st.integers(1, END)), min_size=1, max_size=6),
)
def test_retention_takes_from_each_cursor_what_it_had_not_read(
    starts: list[int], steps: list[tuple[int, int] | None], trims: list[tuple[int, int]]
) -> None:
    """A cursor may be taken past others, which have not been told yet or have data in hand."""
    log = Log()
    for number, start in enumerate(starts):
        log.enlist(str(number), ConsumerState(), start)
    log.cursors.begin(0)
    share = len(steps) // len(trims) + 1
    for number, (which, first) in enumerate(trims):
        log.take_steps(steps[number * share : (number + 1) * share])
        log.trim(which, first)
    log.play([])
    for number, start in enumerate(starts):
        given, lost = log.given["S", str(number)], log.lost["S", str(number)]
        assert given == sorted(given)
        assert sorted(given + lost) == list(range(start, END))


def test_the_tail_is_never_alone() -> None:
    alone = Cursor(LogPosition(50), {("S", "a")}, only=np.array([55]), snapshot_end=60)
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
    log = Log()
    log.enlist("a", ConsumerState(), 7)
    log.enlist("b", ConsumerState(), 0)
    log.cursors.begin(0)
    (halted,) = (cursor for cursor in log.cursors.of(PLACE) if cursor.position == 7)
    halted.state = State.HALTED
    log.player.fetch_all(10)
    log.player.run_round()
    ((cursor,),) = (log.cursors.of(PLACE),)
    assert (cursor.members, cursor.is_halted) == ({("S", "a"), ("S", "b")}, True)
    log.player.follow()
    assert not log.player.fetches, "nothing is fetched for it any more"


@pytest.mark.parametrize("order", [("lasts", "all"), ("all", "lasts")])
def test_a_consumer_of_last_messages_has_a_cursor_of_its_own(order: tuple[str, str]) -> None:
    log = Log()
    for name in order:
        log.enlist(name, ConsumerState(snapshot={SOURCE: 40} if name == "lasts" else {}), 0)
    log.cursors.begin(0)
    assert sorted(len(cursor.members) for cursor in log.cursors.of(PLACE)) == [1, 1]


def test_snapshots_are_forgotten_once_they_are_delivered() -> None:
    log = Log()
    log.enlist("lasts", ConsumerState(3, snapshot={SOURCE: 40}), 0)
    assert log.cursors.state_of(("S", "lasts")) == ConsumerState(3, {SOURCE: LogPosition(0)}, {SOURCE: 40})
    log.find("lasts", [30])
    log.player.fetch_all(40)
    log.player.run_round()
    assert log.cursors.state_of(("S", "lasts")) == ConsumerState(3)


def test_the_table_of_states_is_whole() -> None:
    """Every state can be reached but the first two, which cursors begin with, and every state can end."""
    assert set(TRANSITIONS) == set(State)
    reached = {after for moves in TRANSITIONS.values() for after in moves.values()}
    assert reached == set(State)
    assert all(Move.END in moves for state, moves in TRANSITIONS.items() if state is not State.ENDED)


@given(
    starts=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    steps=steps,
)
def test_what_is_written_leads_back_to_where_everyone_stands(
    starts: list[int], steps: list[tuple[int, int] | None]
) -> None:
    """After each round the state, changed by deltas alone, gives every consumer the position that its cursor has."""
    state, log = ShardState(), Log()
    for number, start in enumerate(starts):
        consumer = ("S", str(number))
        state.consumers[consumer] = ConsumerState(0, {SOURCE: LogPosition(start)})
        log.enlist(str(number), state.consumers[consumer], start)
    log.cursors.begin(0)
    state.apply(log.cursors.everything())

    def list_positions() -> dict[ConsumerId, int]:
        return {consumer: cursor.position for cursor in log.cursors.of(PLACE) for consumer in cursor.members}

    for step in steps:
        if step is not None:
            log.player.fetch(*step)
            continue
        before = list_positions()
        is_busy, moved = log.player.run_round()
        if not is_busy:
            continue
        now = list_positions()
        given = {consumer for consumer in now if now[consumer] != before[consumer]}
        state.apply(log.cursors.delta(moved.partitions, moved.consumers | given))
        for consumer, position in now.items():
            log_position = state.log_position_of(consumer, SOURCE)
            assert log_position is not None and log_position.position == position


def test_a_partition_that_its_stream_does_not_have_for_a_while() -> None:
    """A consumer that was behind there is so still when the partition is back, served meanwhile or not."""
    here, gone, consumer, absent = ("a", 0), ("b", 0), ("S", "c"), ("S", "absent")
    state = ShardState({("S", here): LogPosition(500), ("S", gone): LogPosition(1_000)}, {})
    state.consumers |= {
        each: ConsumerState(7, {gone: LogPosition(100)}, {}, {gone: 200}) for each in (consumer, absent)
    }
    cursors = Cursors()
    cursors.enlist(consumer, state.consumers[consumer], {here: LogPosition(500)})
    state.apply(cursors.everything())
    state.consumers[absent] = state.pin(absent, {here: 0})
    assert [state.log_position_of(each, gone) for each in (consumer, absent)] == [LogPosition(100)] * 2
    assert state.consumers[consumer].floor == {gone: 200}
    assert state.log_position_of(absent, here) == LogPosition(500)
