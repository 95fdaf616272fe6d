"""Positions of every consumer of a session, in memory and ahead of what is committed.

Holds the cursors of each partition. After a round it makes the delta by which the state records the
new positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, StreamPartition

from .cursor import Cursor, find_tail, join


@dataclass(slots=True)
class Positions:
    """The cursors of a session, and what the state records of its consumers.

    `cursors`: by partition; `sequences`: the last consumer sequence given out; `snapshots`: for
    last_per_subject, the offsets below which only the last message of each subject is delivered;
    `floors`: the offsets below which nothing is delivered.
    """

    cursors: dict[StreamPartition, list[Cursor]] = field(default_factory=dict)
    sequences: dict[ConsumerId, int] = field(default_factory=dict)
    snapshots: dict[ConsumerId, Mapping[TopicPartition, int]] = field(default_factory=dict)
    floors: dict[ConsumerId, Mapping[TopicPartition, int]] = field(default_factory=dict)
    heard: dict[ConsumerId, Mapping[TopicPartition, int]] = field(default_factory=dict)
    """Positions in ack topics, of the consumers for which they differ from the stream's."""
    replays: dict[ConsumerId, int | None] = field(default_factory=dict)
    """For replay original: the sequence up to which a consumer replays the stream. None for any
    other."""
    holds: dict[ConsumerId, dict[TopicPartition, int]] = field(default_factory=dict)
    """For consumers with machines, the first undelivered offset of each partition. What was read
    from there on is offered to the machine, but not delivered."""
    left: dict[ConsumerId, dict[TopicPartition, LogPosition]] = field(default_factory=dict)
    """Positions of consumers in partitions that their stream does not have now. The stream may get
    them back."""
    parked: dict[ConsumerId, dict[TopicPartition, LogPosition]] = field(default_factory=dict)
    """Positions of consumers that have left their cursors because of backpressure
    (worker/acks/backpressure.py)."""
    ordered: frozenset[str] = frozenset()
    """Streams with a ledger, whose cursors advance in cursor groups (order.py)."""
    _cursor_groups: int = 0
    """The last cursor group number given out."""

    def enlist(
        self,
        consumer: ConsumerId,
        state: ConsumerState,
        log_positions: Mapping[TopicPartition, LogPosition],
        *,
        careful: bool = False,
    ) -> None:
        """Add a consumer to the cursor at its position in each partition, or to a new cursor.

        `log_positions`: where it begins in each partition. `careful`: whether the consumer must not
        be told of sequences before they are committed; matters in a stream with a ledger only.
        """
        self.sequences[consumer] = state.sequence
        self.snapshots[consumer] = state.snapshot
        self.floors[consumer] = state.floor
        self.heard[consumer] = state.heard
        self.replays[consumer] = state.replay_until
        self.left[consumer] = {
            source: log_position for source, log_position in state.own.items() if source not in log_positions
        }
        cursor_group = (
            self._find_cursor_group(consumer[0], state, log_positions, careful) if consumer[0] in self.ordered else 0
        )
        for source, log_position in log_positions.items():
            cursors = self.cursors.setdefault((consumer[0], source), [])
            end = state.snapshot.get(source, -1)
            here = _find_at(cursors, log_position, cursor_group)
            if log_position.position < end:
                snapshot, undecided = np.empty(0, np.int64), consumer[0] in self.ordered
                cursors.append(
                    Cursor(
                        log_position, {consumer}, snapshot, end, undecided, cursor_group=cursor_group, careful=careful
                    )
                )
            elif here is not None:
                here.members.add(consumer)
            else:
                cursors.append(Cursor(log_position, {consumer}, cursor_group=cursor_group, careful=careful))

    def _find_cursor_group(
        self, stream: str, state: ConsumerState, log_positions: Mapping[TopicPartition, LogPosition], careful: bool
    ) -> int:
        """Return the number of the cursor group at exactly these positions, or a new number.

        A consumer with a snapshot ahead always gets a group of its own.
        """
        cursors = {source: self.cursors.get((stream, source), []) for source in log_positions}
        some = next(iter(cursors.values()), [])
        if any(
            log_position.position < state.snapshot.get(source, -1) for source, log_position in log_positions.items()
        ):
            return self._make_cursor_group()
        for number in {t.cursor_group for t in some if t.cursor_group and t.careful == careful}:
            if all(_find_at(cursors[source], log_position, number) for source, log_position in log_positions.items()):
                return number
        return self._make_cursor_group()

    def _make_cursor_group(self) -> int:
        self._cursor_groups += 1
        return self._cursor_groups

    def enlist_ledger(self, stream: str, heads: Mapping[TopicPartition, LogPosition]) -> None:
        """Start numbering the stream's records at these positions. Call before adding consumers."""
        cursor_group = self._make_cursor_group()
        for source, log_position in heads.items():
            self.cursors.setdefault((stream, source), []).append(
                Cursor(log_position, sequenced=True, cursor_group=cursor_group)
            )

    def enlist_index(self, place: StreamPartition, log_position: LogPosition) -> None:
        """Make the chunk index of a partition from `log_position` on, by the cursor that is there
        or a new one."""
        cursors = self.cursors.setdefault(place, [])
        ordered = place[0] in self.ordered
        here = next(
            (t for t in cursors if t.position == log_position.position and not t.is_alone and t.sequenced == ordered),
            None,
        )
        if here is None:
            here = Cursor(log_position)
            cursors.append(here)
        here.indexed = True

    def all(self) -> Iterator[tuple[StreamPartition, Cursor]]:
        """Yield every cursor with its stream and partition."""
        for place, cursors in self.cursors.items():
            for cursor in cursors:
                yield place, cursor

    def find_ahead(self, place: StreamPartition, cursor: Cursor) -> int:
        """Return the position of the next cursor that this one can join, NO_STOP if there is
        none."""
        if cursor.is_alone:
            return NO_STOP
        others = (t.position for t in self.cursors[place] if not t.is_alone and t.position > cursor.position)
        return min(others, default=NO_STOP)

    def floors_at(self, cursor: Cursor, source: TopicPartition) -> dict[ConsumerId, int]:
        """Return the floors of those members of a cursor whose floor lies ahead of it."""
        floors = {
            consumer: self.floors[consumer].get(source, 0) for consumer in cursor.members if self.floors[consumer]
        }
        return {consumer: floor for consumer, floor in floors.items() if floor > cursor.position}

    def align(self, stream: str) -> None:
        """Merge the cursor groups of a stream that are at the same position in every partition.

        Cursors that serve only the index join the head's group in partitions where they have
        reached it.
        """
        cursors = {source: some for (name, source), some in self.cursors.items() if name == stream}
        # where each group is in each partition, and which groups may not merge with others
        places: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        apart: set[int] = set()
        careful: set[int] = set()
        waiting: set[int] = set()
        for source, some in cursors.items():
            head = next((cursor for cursor in some if cursor.sequenced), None)
            for cursor in some:
                if not cursor.cursor_group and head is not None and cursor.position == head.position:
                    cursor.cursor_group = head.cursor_group
                cursor.finish_snapshot()
                places[cursor.cursor_group][source] = cursor.position
                apart |= {cursor.cursor_group} if cursor.is_alone else set()
                careful |= {cursor.cursor_group} if cursor.careful else set()
                waiting |= {cursor.cursor_group} if cursor.waits else set()
        met: dict[tuple[object, ...], int] = {}
        for number, positions in sorted(places.items()):
            if not number or number in apart:
                continue
            into = met.setdefault((number in careful, number in waiting, *sorted(positions.items())), number)
            if into != number:
                for cursor in (cursor for some in cursors.values() for cursor in some if cursor.cursor_group == number):
                    cursor.cursor_group = into

    def part(
        self, stream: str, cursor_group: int, machines: Collection[ConsumerId]
    ) -> list[tuple[StreamPartition, Cursor]]:
        """Have the consumers of a stopped cursor group that are among `machines` wait, and the others go on without them.

        Returns the cursors of the others, if both are there: these are new and have no partition fetches yet.
        """
        cursors = [
            (place, cursor)
            for place, cursor in self.all()
            if place[0] == stream and cursor.cursor_group == cursor_group
        ]
        members = {member for _, cursor in cursors for member in cursor.members}
        waiting = {member for member in members if member in machines}
        if not waiting:
            return []
        parted: list[tuple[StreamPartition, Cursor]] = []
        number = self._make_cursor_group()
        for place, cursor in cursors:
            if members - waiting:
                other = replace(cursor, members=cursor.members - waiting, cursor_group=number)
                self.cursors[place].append(other)
                parted.append((place, other))
            cursor.members &= waiting
            cursor.waits = True
        return parted

    def settle(self, place: StreamPartition) -> list[Cursor]:
        """Join the cursors of a partition that have met. Return those that are no longer needed."""
        for cursor in self.cursors[place]:
            cursor.finish_snapshot()
        return join(self.cursors[place])

    def own(self, consumer: ConsumerId) -> dict[TopicPartition, LogPosition]:
        """Return the positions that the state records for the consumer itself.

        These are its positions on cursors other than the tail, and its holds. For a parked consumer
        they are where it left its cursors. Partitions that its stream does not have now are
        included.
        """
        own = {}
        for (stream, source), cursors in self.cursors.items():
            if stream == consumer[0]:
                tail = find_tail(cursors)
                for cursor in cursors:
                    if consumer in cursor.members and cursor is not tail:
                        own[source] = cursor.log_position
        own |= self.left.get(consumer, {}) | self.parked.get(consumer, {})
        return own | {source: LogPosition(offset) for source, offset in self.holds.get(consumer, {}).items()}

    def state_of(self, consumer: ConsumerId) -> ConsumerState:
        """Return what the state records of a consumer."""
        own = self.own(consumer)
        # in a stream with a ledger a consumer may step back to below its floor or its snapshot's
        # end (open_positions)
        kept = consumer[0] in self.ordered
        ends = self.snapshots[consumer].items()
        snapshot = {s: end for s, end in ends if kept or (s in own and own[s].position < end)}
        floor = {s: at for s, at in self.floors[consumer].items() if kept or at > self._position(consumer, s)}
        return ConsumerState(
            self.sequences[consumer], own, snapshot, floor, self.heard[consumer], self.replays[consumer]
        )

    def is_alone(self, consumer: ConsumerId) -> bool:
        """Return whether the consumer is still being given last messages in any partition."""
        return any(cursor.is_alone and consumer in cursor.members for _, cursor in self.all())

    def park(self, consumer: ConsumerId) -> None:
        """Take a consumer off its cursors, and remember where it left them."""
        mine = [
            (place[1], cursor) for place, cursor in self.all() if consumer in cursor.members and place[0] == consumer[0]
        ]
        self.parked[consumer] = {source: cursor.log_position for source, cursor in mine}
        for _, cursor in mine:
            cursor.members.discard(consumer)

    def unpark(self, consumer: ConsumerId, *, careful: bool) -> None:
        """Put a parked consumer on cursors again, at the positions where it left them."""
        state, log_positions = self.state_of(consumer), self.parked.pop(consumer)
        self.enlist(consumer, state, log_positions, careful=careful)

    def drop_empty(self) -> list[tuple[StreamPartition, Cursor]]:
        """Remove the cursors that serve no consumer, no index and no ledger, and return them."""
        empty = [(p, t) for p, t in self.all() if not t.members and not t.indexed and not t.sequenced]
        for place, cursor in empty:
            self.cursors[place].remove(cursor)
        return empty

    def _position(self, consumer: ConsumerId, source: TopicPartition) -> int:
        """Return a consumer's position in a partition, 0 if it has none."""
        if consumer in self.parked:
            return self.parked[consumer][source].position
        cursors = self.cursors.get((consumer[0], source), ())
        return next((cursor.position for cursor in cursors if consumer in cursor.members), 0)

    def delta(self, moved: Iterable[StreamPartition], changed: Iterable[ConsumerId]) -> Delta:
        """Return what the state records after a round: the tails of the partitions that `moved`,
        and the consumers that `changed`."""
        tails = {place: find_tail(self.cursors[place]) for place in moved}
        cursors = {place: tail.log_position for place, tail in tails.items() if tail is not None}
        return Delta(cursors, {consumer: self.state_of(consumer) for consumer in sorted(changed)})

    def everything(self) -> Delta:
        """Return all positions as a delta. A session begins with it, so that the state has a
        position for each partition before it records a consumer that has none of its own."""
        return self.delta(self.cursors, self.sequences)


def _find_at(cursors: Iterable[Cursor], log_position: LogPosition, cursor_group: int) -> Cursor | None:
    """Return the cursor of this group at this position that others may join, None if there is
    none."""
    return next(
        (
            t
            for t in cursors
            if t.position == log_position.position and t.cursor_group == cursor_group and not t.is_alone
        ),
        None,
    )
