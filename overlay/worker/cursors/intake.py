"""What a round takes in: the tasks that can be made of what was fetched.

In a stream without a ledger a cursor processes all that is there, up to the next cursor. In a
stream with a ledger only what the order by sequence allows is processed (order.py); the rest stays
with its cursor for the next round.

No cursor is changed here. `Cursors` notes what was taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from overlay.errors import SourceUnavailable
from overlay.index.ledger.ledger import Ledger
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import TopicPartition
from overlay.recent import Recent
from overlay.state.shard_state import ConsumerId, StreamPartition
from overlay.worker.round.sequencing import Linger
from overlay.worker.round.task import Reader, Task

from .cursor import Cursor, plan_round
from .order import plan_steps
from .standing import Standing

ROUND_BYTES = 8 << 20
"""Bytes of fetched data from which on no further stream or partition is added to a round."""

Owners = list[tuple[StreamPartition, Cursor]]


class Look(NamedTuple):
    """What a fetcher has for a cursor: the fetched data, None if there is none, and its partition's
    last stable offset, -1 if that is unknown."""

    fetched: Fetched | None
    stable_end: int


NOTHING = Look(None, -1)
MOST_READERSHIPS = 64
"""Cursors whose consumers are kept as the pipeline sees them. Most sessions have a few."""


@dataclass(frozen=True, slots=True)
class Readership:
    """The consumers of one cursor, as the pipeline sees them: `readers` in the order of their names."""

    members: frozenset[ConsumerId]
    readers: tuple[Reader, ...]
    floors: tuple[tuple[ConsumerId, int], ...]
    """Of those that begin after the cursor's position: the offset below which they are given nothing."""


@dataclass(slots=True)
class Round:
    """The work of one round: its tasks, in the order in which they run, and what they take."""

    tasks: list[Task] = field(default_factory=list)
    owners: Owners = field(default_factory=list)
    """The cursor of each task."""
    taken: list[tuple[StreamPartition, Cursor, Fetched]] = field(default_factory=list)
    """Data that is not with the fetcher any more but with its cursor."""
    urgent: set[Cursor] = field(default_factory=set)
    """Cursors for whose next data others wait."""


class Intake:
    """Decides what a round processes. `take_round` returns tasks, each of which gives a range of one partition's
    fetched offsets to the consumers of a cursor, if it has any. `readers`: all served consumers. `ledgers`: by stream
    with a ledger; of these streams, records are taken only as far as the order by sequence allows.
    """

    def __init__(self, readers: Mapping[ConsumerId, Reader], ledgers: Mapping[str, Ledger]) -> None:
        self._readers, self._ledgers = readers, ledgers
        self._turn = 0
        self._readerships: Recent[Cursor, Readership] = Recent()
        self._linger = Linger()
        self._resting: dict[str, float] = {}

    def take_round(
        self,
        cursors: Mapping[StreamPartition, Sequence[Cursor]],
        standings: Mapping[ConsumerId, Standing],
        looks: Mapping[Cursor, Look],
        committed: Mapping[str, int],
        now: float,
    ) -> Round:
        """Return the next round, which may have no tasks. Changes no cursor.

        `looks`: by cursor, the data that is ready. `committed`: by stream with a ledger, the first
        sequence that is not committed yet; if the stream is missing there, all of its ledger counts as
        committed. `now`: monotonic seconds. Raises SourceUnavailable if data begins after its cursor's
        position.
        """
        making = _Making(self._readers, cursors, standings, looks, self._readerships, Round())
        size = 0
        seen: set[str] = set()
        partitions = list(cursors)
        # a backlog in some partitions must not starve the others
        self._turn = (self._turn + 1) % max(1, len(partitions))
        for partition in partitions[self._turn :] + partitions[: self._turn]:
            stream = partition[0]
            if size >= ROUND_BYTES or stream in seen:
                continue
            count = len(making.made.tasks)
            if (ledger := self._ledgers.get(stream)) is not None:
                seen.add(stream)
                is_resting = now < self._resting.get(stream, 0.0)
                making.take_stream(stream, ledger, committed.get(stream, ledger.next_sequence), is_resting=is_resting)
            else:
                making.take_partition(partition)
            size += sum({id(task.fetched): task.fetched.data.size for task in making.made.tasks[count:]}.values())
        return making.made

    def forget_readerships(self) -> None:
        """Have the next round look up the readers of each cursor anew."""
        self._readerships.clear()

    def rest(self, given_out: Mapping[str, int], now: float) -> float:
        """Have the ledgers of streams with many new records pause before their next entry: until then
        `take_round` makes no tasks for their heads. Return the longest pause in seconds, 0 for none.
        `given_out`: by stream that was given sequences, the one that comes next. `now`: monotonic
        seconds."""
        pauses = {stream: self._linger.find_pause(stream, after, now) for stream, after in given_out.items()}
        self._resting.update((stream, now + pause) for stream, pause in pauses.items())
        return max(pauses.values(), default=0.0)


@dataclass(frozen=True, slots=True)
class _Making:
    """Collects the tasks of one round in `made`."""

    readers: Mapping[ConsumerId, Reader]
    cursors: Mapping[StreamPartition, Sequence[Cursor]]
    standings: Mapping[ConsumerId, Standing]
    looks: Mapping[Cursor, Look]
    readerships: Recent[Cursor, Readership]
    """Those of earlier rounds; new ones are added."""
    made: Round

    def take_partition(self, partition: StreamPartition) -> None:
        """Add the tasks of one partition of a stream without a ledger."""
        cursors = self.cursors[partition]
        for turn in plan_round(cursors, self._find_reach(cursors)):
            fetched = self._take(partition, turn.cursor)
            self._add_task(partition, turn.cursor, fetched, turn.cursor.position, turn.stop)

    def take_stream(self, stream: str, ledger: Ledger, committed: int, *, is_resting: bool) -> None:
        """Add the tasks of a stream with a ledger, in the order in which they have to run.

        `committed`: the first sequence that is not committed yet. `is_resting`: whether the cursors
        whose records get sequences next pause, so that more records share a ledger entry.
        """
        cursors = {source: some for (name, source), some in self.cursors.items() if name == stream}
        every = [cursor for some in cursors.values() for cursor in some]
        reach = self._find_reach([cursor for cursor in every if not (cursor.sequenced and is_resting)])
        plan = plan_steps(cursors, reach, ledger, committed)
        # the head is urgent too: it gives out sequences that other groups may need
        self.made.urgent.update(plan.wanted, (cursor for cursor in every if cursor.sequenced and not is_resting))
        taken: dict[Cursor, Fetched] = {}
        for step in plan.steps:
            partition, cursor = (stream, step.source), step.cursor
            fetched = cursor.fetched or taken.get(cursor)
            if fetched is None:
                fetched = taken[cursor] = self._take(partition, cursor)
            self._add_task(partition, cursor, fetched, step.start, step.stop)

    def _find_reach(self, cursors: Iterable[Cursor]) -> dict[Cursor, int]:
        """Return, by cursor, the offset at which its fetched data ends (`Fetched.reach`). Cursors
        without data, or halted ones, are left out."""
        reach: dict[Cursor, int] = {}
        for cursor in cursors:
            ready = cursor.fetched or self.looks.get(cursor, NOTHING).fetched
            if ready is not None and not cursor.is_halted:
                reach[cursor] = ready.reach
        return reach

    def _take(self, partition: StreamPartition, cursor: Cursor) -> Fetched:
        """Return the fetched data of a cursor, and record it as taken. Raises SourceUnavailable if
        it begins after the cursor's position."""
        fetched = self.looks[cursor].fetched
        assert fetched is not None
        if fetched.position > cursor.position:
            # this must never happen; if it did, the records in between would be delivered to no
            # consumer
            raise SourceUnavailable(
                f"{partition[1]}: read from {fetched.position} instead of {cursor.position}. Reading again"
            )
        self.made.taken.append((partition, cursor, fetched))
        return fetched

    def _add_task(self, partition: StreamPartition, cursor: Cursor, fetched: Fetched, start: int, stop: int) -> None:
        """Add the task that gives a cursor's consumers the offsets from `start` to `stop`,
        exclusive, of `fetched`."""
        stream, source = partition
        readership = self._find_readership(source, cursor)
        task = Task(
            stream, source, fetched, start, stop, readership.readers, cursor.only,
            {consumer: floor for consumer, floor in readership.floors if floor > cursor.position},
            cursor.indexed, cursor.sequenced, cursor.cursor_group, self._find_others(partition, cursor),
        )  # fmt: skip
        self.made.tasks.append(task)
        self.made.owners.append((partition, cursor))

    def _find_readership(self, source: TopicPartition, cursor: Cursor) -> Readership:
        """Return the consumers of a cursor in `source`. It is mostly the same object as in the last round if they are
        the same: at the tail of thousands of consumers there are many small rounds.
        """
        known = self.readerships.get(cursor)
        if known is None or known.members != cursor.members:
            readers = tuple(self.readers[consumer] for consumer in sorted(cursor.members))
            floors = ((reader.id, self.standings[reader.id].floor.get(source, 0)) for reader in readers)
            known = Readership(frozenset(cursor.members), readers, tuple(each for each in floors if each[1]))
            # cursors come and go while consumers catch up
            self.readerships.put(cursor, known, MOST_READERSHIPS)
        return known

    def _find_others(self, partition: StreamPartition, cursor: Cursor) -> dict[TopicPartition, tuple[int, int]]:
        """Return, for each other partition of the stream, where the cursor's group is there and the
        last stable offset.

        An unknown last stable offset is -1. A partition without a cursor of the group has (0, -1).
        Empty for a cursor that is in no group or has no members.
        """
        stream, source = partition
        if not cursor.cursor_group or not cursor.members:
            return {}
        others: dict[TopicPartition, tuple[int, int]] = {}
        for (name, other), cursors in self.cursors.items():
            if name == stream and other != source:
                mine = next((each for each in cursors if each.cursor_group == cursor.cursor_group), None)
                others[other] = (0, -1) if mine is None else (mine.position, mine.stable_end)
        return others
