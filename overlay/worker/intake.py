"""Fetched data waiting to be processed, grouped into rounds.

In a stream of one partition, a cursor processes all that its partition fetch has ready, up to the
next cursor. Cursors of a stream with a ledger process only what the order by sequence allows
(cursors/order.py). The rest of their data is kept here, while their partition fetches fetch on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from overlay.clock import monotonic
from overlay.errors import SourceUnavailable
from overlay.kafka.fetcher import Fetched, PartitionFetch
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.metrics import Metrics
from overlay.state.shard_state import StreamPartition

from .assignment import Assignment
from .cursors.cursor import Cursor, plan_round
from .cursors.order import plan_steps
from .cursors.positions import Positions
from .round.sequencing import Linger
from .round.task import Progress, Task
from .skip_routes import Detours

ROUND_BYTES = 8 << 20
"""Bytes of fetched data from which on no further stream or partition is added to a round."""

Owners = list[tuple[StreamPartition, Cursor]]


@dataclass(slots=True)
class Intake:
    """Takes fetched data and makes the tasks of rounds from it.

    `committed`: for each stream with a ledger, the first sequence that is not committed yet.
    """

    assignment: Assignment
    positions: Positions
    partition_fetches: Mapping[Cursor, PartitionFetch]
    detours: Detours
    metrics: Metrics
    committed: Mapping[str, int]
    _held: dict[Cursor, Fetched] = field(default_factory=dict)
    """Data of cursors in cursor groups, of which a part is not processed yet."""
    _turn: int = 0
    """Index of the partition with which the next round begins."""
    _linger: Linger = field(default_factory=Linger)
    _resting: dict[str, float] = field(default_factory=dict)
    """Monotonic time until which the head of a stream's ledger waits for more data."""

    def take_round(self) -> tuple[list[Task], Owners]:
        """Return the tasks of the next round, and for each the cursor it belongs to."""
        tasks: list[Task] = []
        owners: Owners = []
        size = 0
        seen: set[str] = set()
        places = list(self.positions.cursors)
        # a backlog in some partitions must not starve the others
        self._turn = (self._turn + 1) % max(1, len(places))
        for place in places[self._turn :] + places[: self._turn]:
            if size >= ROUND_BYTES or place[0] in seen:
                continue
            in_order = place[0] in self.positions.ordered
            fetches: set[int] = set()
            for task, owner in self._take_stream(place[0]) if in_order else self._take_place(place):
                tasks.append(task)
                owners.append(owner)
                size += 0 if id(task.fetched) in fetches else task.fetched.data.size
                fetches.add(id(task.fetched))
            if in_order:
                seen.add(place[0])
        return tasks, owners

    def _take_place(self, place: StreamPartition) -> Iterator[tuple[Task, tuple[StreamPartition, Cursor]]]:
        """Yield the tasks of one partition of a stream without a ledger."""
        cursors = self.positions.cursors[place]
        for turn in plan_round(cursors, self._find_reach(cursors)):
            fetched = self._take(place, turn.cursor)
            yield self._make_task(place, turn.cursor, fetched, turn.cursor.position, turn.stop), (place, turn.cursor)

    def _take_stream(self, stream: str) -> Iterator[tuple[Task, tuple[StreamPartition, Cursor]]]:
        """Yield the tasks of a stream with a ledger, in the order in which they have to run."""
        cursors = {source: some for (name, source), some in self.positions.cursors.items() if name == stream}
        every = [cursor for some in cursors.values() for cursor in some]
        ledger = self.assignment.ledgers[stream]
        is_resting = monotonic() < self._resting.get(stream, 0.0)
        reach = self._find_reach([cursor for cursor in every if not (cursor.sequenced and is_resting)])
        plan = plan_steps(cursors, reach, ledger, self.committed.get(stream, ledger.next_sequence))
        # the head is urgent too: it gives out sequences that other groups may need
        for cursor in every:
            self.partition_fetches[cursor].urgent = cursor in plan.wanted or (cursor.sequenced and not is_resting)
        for step in plan.steps:
            place, cursor = (stream, step.source), step.cursor
            if cursor not in self._held:
                self._held[cursor] = self._take(place, cursor)
            yield self._make_task(place, cursor, self._held[cursor], step.start, step.stop), (place, cursor)

    def rest(self, given_out: Mapping[str, int]) -> float:
        """Have the next ledger entries of busy streams wait, so that they get larger. Return the
        longest pause in seconds.

        `given_out`: by stream, the sequence that comes next.
        """
        now = monotonic()
        pauses = {stream: self._linger.find_pause(stream, after, now) for stream, after in given_out.items()}
        self._resting.update((stream, now + pause) for stream, pause in pauses.items())
        return max(pauses.values(), default=0.0)

    def _find_reach(self, cursors: list[Cursor]) -> dict[Cursor, int]:
        """Return the offset at which the fetched data ends, for the cursors that have some and are
        not halted."""
        reach: dict[Cursor, int] = {}
        for cursor in cursors:
            ready = self._held.get(cursor) or self.partition_fetches[cursor].ready
            if isinstance(ready, Fetched) and not cursor.halted:
                reach[cursor] = ready.reach
        return reach

    def _take(self, place: StreamPartition, cursor: Cursor) -> Fetched:
        """Take the fetched data of a cursor, and let its partition fetch go on where the cursor
        will need more.

        Raises SourceUnavailable if the data begins behind the cursor's position.
        """
        partition_fetch = self.partition_fetches[cursor]
        fetched = partition_fetch.take()
        assert isinstance(fetched, Fetched)
        if fetched.position > cursor.position:
            # this must never happen; if it did, the records in between would be delivered to no
            # consumer
            raise SourceUnavailable(
                f"{place[1]}: read from {fetched.position} instead of {cursor.position}. Reading again"
            )
        self.detours.lead(place, cursor, partition_fetch, fetched.log_position)
        self.metrics.records_fetched.labels(place[0]).inc(fetched.records)
        return fetched

    def _make_task(self, place: StreamPartition, cursor: Cursor, fetched: Fetched, start: int, stop: int) -> Task:
        """Return the task that processes the offsets from `start` to `stop` for a cursor."""
        stream, source = place
        readers = tuple(self.assignment.readers[consumer] for consumer in sorted(cursor.members))
        floors = self.positions.floors_at(cursor, source)
        return Task(
            stream, source, fetched, start, stop, readers, cursor.only, floors, cursor.indexed, cursor.sequenced,
            cursor.cursor_group, self._find_others(place, cursor),
        )  # fmt: skip

    def _find_others(self, place: StreamPartition, cursor: Cursor) -> dict[TopicPartition, tuple[int, int]]:
        """Return where the cursor's group is in the other partitions of its stream, with the last
        stable offsets there.

        Each entry is (position, last stable offset), with -1 for an unknown offset. Empty for a
        stream without a ledger.
        """
        stream, source = place
        if stream not in self.positions.ordered or not cursor.members:
            return {}
        others: dict[TopicPartition, tuple[int, int]] = {}
        for (name, other), cursors in self.positions.cursors.items():
            if name == stream and other != source:
                mine = next((each for each in cursors if each.cursor_group == cursor.cursor_group), None)
                partition_fetch = None if mine is None else self.partition_fetches.get(mine)
                others[other] = (
                    (0, -1) if mine is None or partition_fetch is None else (mine.position, partition_fetch.stable_end)
                )
        return others

    def keeps(self, cursor: Cursor, progress: Progress) -> bool:
        """Return whether the rest of a cursor's data is kept, now that a task has moved the cursor.
        If not, drop it."""
        fetched = self._held.get(cursor)
        if fetched is None:
            return False
        if not progress.stopped and cursor.position == progress.task.stop < fetched.next_offset:
            return True
        del self._held[cursor]
        return False

    def find_need(self, cursor: Cursor) -> LogPosition:
        """Return the log position from which a cursor needs more data: the end of what is kept for
        it, or its own position.

        Data that the cursor has skipped meanwhile is dropped.
        """
        fetched = self._held.get(cursor)
        if fetched is None or fetched.next_offset <= cursor.position:
            self.drop(cursor)
            return cursor.log_position
        return fetched.log_position

    def drop(self, cursor: Cursor) -> None:
        """Drop the data that is kept for a cursor."""
        self._held.pop(cursor, None)
