"""The cursors of a session: where every consumer stands, in memory and ahead of what is committed.

`Cursors` is the only writer of cursors. What was fetched and the time come in. What is to be
fetched goes out as wishes, which the session carries out (worker/source_fetches.py). So the whole
of it runs without Kafka, and a test can drive it against a twin that reads the log record by
record.

A round goes like this:

1. `take_round` makes tasks of what was fetched (intake.py).
2. The pipeline works on the tasks.
3. `advance` moves the cursors to where the tasks have come, joins those that have met, and plans
   what the joined ones may skip.
4. `delta` tells what the state must record, and `take_wishes` what to fetch next.

Consumers leave their cursors and come back in between (`park`, `resume`). table.py has the states
of a cursor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from overlay.arrays import Ints
from overlay.errors import CorruptBatch, SourceUnavailable
from overlay.index.ledger.ledger import Ledger
from overlay.index.skip.plan import Saving
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.scan.decode import NO_STOP
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, StreamPartition
from overlay.worker.round.task import Progress, Reader, RoundResult

from .cursor import Cursor, find_tail
from .intake import Intake, Look, Owners, Round
from .order import step_back
from .skip_route import Routes, SkipRoute, plan_visits
from .standing import Standing
from .table import TRANSITIONS, Move, State

MOST_BEHIND = 1_000
"""Offsets by which the foremost cursor of a partition may be behind a new consumer that joins it: they are read within
milliseconds. A consumer that joined a cursor far behind would wait until that has caught up."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be fetched for a cursor: its partition from `log_position` on. `is_urgent`: whether other cursors
    may wait for this data.
    """

    log_position: LogPosition
    route: SkipRoute | None
    """What may be skipped."""
    is_urgent: bool

    def find_size(self, position: int) -> int | None:
        """Return how many bytes to fetch from `position` on before a part that the cursor skips; None if that is
        unknown, or if it skips nothing more.
        """
        return None if self.route is None else self.route.find_size(position)


class Moved(NamedTuple):
    """What the state must record anew: the positions of `partitions`, in which a cursor has moved, come or ended, and
    the states of `consumers`. A consumer that has only advanced with the foremost cursor need not be among these,
    even if its sequence has changed.

    `halted`: partitions that a corrupt batch has stopped in this call.
    """

    partitions: set[StreamPartition]
    consumers: set[ConsumerId]
    halted: Collection[StreamPartition] = ()


Apart = Mapping[str, Sequence[tuple[TopicPartition, Cursor]]]
"""By stream, cursors with their partitions: those that are not the foremost there."""


class Cursors:
    """The reading positions (cursors) of a session's consumers, indexes and ledgers. Consumers at
    the same position of a partition share a cursor.

    `readers`: all consumers; `ledgers`: by stream with a ledger (several partitions), whose cursors
    advance in cursor groups, by sequence; `routes`: what cursors may skip.
    """

    def __init__(
        self,
        readers: Mapping[ConsumerId, Reader] = MappingProxyType({}),
        ledgers: Mapping[str, Ledger] = MappingProxyType({}),
        routes: Routes | None = None,
    ) -> None:
        self._ledgers, self._routes = ledgers, routes or Routes()
        self._cursors: dict[StreamPartition, list[Cursor]] = {}
        self._standings: dict[ConsumerId, Standing] = {}
        self.halts: dict[StreamPartition, CorruptBatch] = {}
        """Partitions that cannot be read further, and why."""
        self.parked: set[ConsumerId] = set()
        """Consumers that have left their cursors."""
        self.savings: list[tuple[str, Saving]] = []
        """What the routes save that were planned, by stream. The caller counts and clears it."""
        self._tails: dict[StreamPartition, Cursor | None] = {}
        """The foremost cursor of each partition when it was settled last."""
        self._returned: set[ConsumerId] = set()
        """Consumers that have come back to a cursor since the last round."""
        self._committed: dict[str, int] = {}
        self._touched: set[StreamPartition] = set()
        self._left: set[Cursor] = set()
        """Cursors that consumers have left by `dismiss` since the last `renew`."""
        self._stirred: dict[Cursor, StreamPartition] = {}
        self._gone: list[Cursor] = []
        self._cursor_groups = 0
        self._intake = Intake(readers, ledgers)

    # who is there

    def all(self) -> Iterator[tuple[StreamPartition, Cursor]]:
        """Yield every cursor with its stream and partition."""
        for partition, cursors in self._cursors.items():
            for cursor in cursors:
                yield partition, cursor

    def partitions(self) -> Iterator[tuple[StreamPartition, list[Cursor]]]:
        """Yield each partition with all its cursors."""
        yield from self._cursors.items()

    def of(self, partition: StreamPartition) -> list[Cursor]:
        """Return the cursors of a partition; empty if it has none."""
        return self._cursors.get(partition, [])

    def members_of(self, consumer: ConsumerId) -> Iterator[tuple[TopicPartition, Cursor]]:
        """Yield each partition of the consumer's stream with the cursor that the consumer is on.
        Yields nothing for a parked consumer."""
        for (stream, source), cursors in self._cursors.items():
            if stream == consumer[0]:
                for cursor in cursors:
                    if consumer in cursor.members:
                        yield source, cursor

    @property
    def sequences(self) -> dict[ConsumerId, int]:
        """The last consumer sequence given out to each consumer."""
        return {consumer: standing.sequence for consumer, standing in self._standings.items()}

    def standing(self, consumer: ConsumerId) -> Standing:
        """Return what is known of a consumer besides its cursors. Raises KeyError if it was not
        added (`enlist`)."""
        return self._standings[consumer]

    def is_alone(self, consumer: ConsumerId) -> bool:
        """Return whether the consumer is still being given only the last messages of subjects
        (last_per_subject) in any partition, or waits for them."""
        return any(cursor.is_alone for _, cursor in self.members_of(consumer))

    def is_at_end(self, consumer: ConsumerId) -> bool:
        """Return whether a consumer has read up to the last stable offset of each of its
        partitions, as far as fetch responses have told. False for a parked consumer."""
        cursors = [cursor for _, cursor in self.members_of(consumer)]
        return bool(cursors) and all(cursor.position >= cursor.stable_end >= 0 for cursor in cursors)

    # who comes

    def enlist(
        self,
        consumer: ConsumerId,
        state: ConsumerState,
        log_positions: Mapping[TopicPartition, LogPosition],
        *,
        careful: bool = False,
    ) -> None:
        """Add a consumer to the cursor at its position in each partition, or to a new cursor.

        `state`: the consumer as the state has it. `log_positions`: where it begins in each
        partition. `careful`: whether the consumer must not be told of sequences before they are
        committed; matters in a stream with a ledger only.
        """
        self._standings[consumer] = Standing(
            state.sequence,
            state.snapshot,
            state.floor,
            state.heard,
            state.replay_until,
            state.policy,
            careful,
            left={source: at for source, at in state.own.items() if source not in log_positions},
        )
        self._join_up(consumer, state.snapshot, log_positions, careful)

    def enlist_ledger(self, stream: str, heads: Mapping[TopicPartition, LogPosition]) -> None:
        """Start numbering the stream's records at these positions, with a new cursor in each
        partition. Call before adding consumers."""
        cursor_group = self._make_cursor_group()
        for source, log_position in heads.items():
            self._add((stream, source), Cursor(log_position, sequenced=True, cursor_group=cursor_group))

    def enlist_index(self, partition: StreamPartition, log_position: LogPosition) -> None:
        """Have the chunk index of a partition made from `log_position` on: by a cursor at exactly
        that position (in a stream with a ledger only by the head), or by a new cursor."""
        ordered = partition[0] in self._ledgers
        here = next(
            (
                cursor
                for cursor in self.of(partition)
                if cursor.position == log_position.position and not cursor.is_alone and cursor.sequenced == ordered
            ),
            None,
        )
        if here is None:
            here = Cursor(log_position)
            self._add(partition, here)
        here.indexed = True

    def begin(self, now: int) -> None:
        """Plan what each cursor may skip, move it past that, and join cursors that are now at the
        same position. Call once, after all consumers, indexes and ledgers were added. `now`: ms
        since 1970."""
        for partition, cursor in self.all():
            self._plan(partition, cursor, now)
        self._settle(set(self._cursors), now)

    # who leaves and comes back

    def park(self, consumers: Collection[ConsumerId]) -> Moved:
        """Take consumers off their cursors, and keep their positions for `resume`. None of them may
        be parked already: its positions would be lost. Return what the state must record. A cursor
        that no consumer, index or ledger needs any more ends."""
        if not consumers:
            return Moved(set(), set())
        for consumer in consumers:
            mine = list(self.members_of(consumer))
            self._standings[consumer].parked = {source: cursor.log_position for source, cursor in mine}
            for _, cursor in mine:
                cursor.members.discard(consumer)
        self.parked |= set(consumers)
        moved = self._end_empty()
        return moved._replace(consumers=moved.consumers | set(consumers))

    def _end_empty(self) -> Moved:
        """End the cursors that no consumer, index or ledger needs any more. Return what the state must record."""
        empty = [(p, t) for p, t in self.all() if not t.members and not t.indexed and not t.sequenced]
        for partition, cursor in empty:
            self._cursors[partition].remove(cursor)
            self._end(cursor)
        # where a cursor has ended, another one may be the foremost
        partitions = {partition for partition, _ in empty}
        others = {
            member for partition in partitions for cursor in self._cursors[partition] for member in cursor.members
        }
        return Moved(partitions, others)

    def resume(self, consumers: Collection[ConsumerId], now: int) -> None:
        """Put parked consumers on cursors again, at the positions where they left. All of
        `consumers` must be parked. The next `advance` returns what the state must record for it.
        `now`: ms since 1970."""
        for consumer in consumers:
            standing = self._standings[consumer]
            parked, snapshot = standing.parked, self.state_of(consumer).snapshot
            assert parked is not None
            standing.parked = None
            self._join_up(consumer, snapshot, parked, standing.is_careful)
        # a cursor that has come may be the foremost, and then the others are not at the tail any more
        self._touched |= {partition for partition, cursor in self.all() if cursor.members & set(consumers)}
        self.parked -= set(consumers)
        self._returned |= set(consumers)
        for partition, cursor in self.all():
            if cursor.members & set(consumers):
                self._plan(partition, cursor, now)

    # who comes, changes and goes while the session runs

    def admit(self, consumer: ConsumerId, state: ConsumerState) -> None:
        """Add a new consumer between two rounds, at the positions of its own in `state`. Call `renew` for it next.

        In a stream without a ledger, a consumer that begins a little beyond the foremost cursor joins that, and is given
        nothing below its beginning. Otherwise it would be the foremost, and each of the others would need a position of its
        own. A consumer that begins more than MOST_BEHIND offsets beyond it gets a cursor of its own all the same.
        """
        own, floor = dict(state.own), dict(state.floor)
        for source, log_position in state.own.items() if consumer[0] not in self._ledgers else ():
            tail = find_tail(self.of((consumer[0], source)))
            if tail is not None and 0 < log_position.position - tail.position <= MOST_BEHIND:
                own[source], floor[source] = tail.log_position, max(log_position.position, floor.get(source, 0))
        self.enlist(consumer, replace(state, own=own, floor=floor), own)
        # its state may say that it is where the stream is, so the state must have the stream's present position
        self._touched |= {partition for partition in self._cursors if partition[0] == consumer[0]}
        self._returned.add(consumer)

    def renew(self, consumers: Set[ConsumerId], now: int) -> Moved:
        """Have the next round look up what these consumers want, since they are new or it has changed. What their cursors
        skip is planned anew, and what those cursors skip that consumers have left by `dismiss`. The foremost cursor needs no
        new plan if it skips nothing and has other consumers. Call between two rounds. `now`: ms since 1970. Return what the
        state must record."""
        self._intake.forget_readerships()
        # also what an earlier call left to the next `advance`: the foremost cursor of a partition may be another one
        moved, self._touched = self._touched, set()
        left, self._left = self._left, set()
        tails = self._find_tails()
        for partition, cursor in self.all():
            is_theirs = cursor.members <= consumers  # it may be a new cursor
            has_changed = cursor in left or not cursor.members.isdisjoint(consumers)
            if has_changed and (is_theirs or cursor.route is not None or cursor is not tails[partition]):
                self._plan(partition, cursor, now)
                moved.add(partition)
        changed = self._settle(moved, now) | self._returned
        self._returned.clear()
        return Moved(moved, changed)

    def dismiss(self, consumers: Collection[ConsumerId]) -> Moved:
        """Forget consumers that are not served any more, between two rounds. Call `renew` next, also if it is for no
        consumer. Return what the state must record of the others. A cursor that no consumer, index or ledger needs any
        more ends."""
        gone = set(consumers)
        for _, cursor in self.all():
            if not cursor.members.isdisjoint(gone):
                cursor.members -= gone
                self._left.add(cursor)
        for consumer in gone:
            del self._standings[consumer]
        self.parked -= gone
        self._returned -= gone
        return self._end_empty()

    def rewind(self, consumer: ConsumerId) -> Moved:
        """Take a consumer with a machine back to what it was offered and has not delivered, since it wants something else
        now, between two rounds. If it was parked, it comes back. Its former offers do not count any more. Call `renew` for
        it next. Return what the state must record of the others.

        In a stream with a ledger it steps back to one sequence in all partitions, as at the beginning of a session.
        """
        standing, state = self._standings[consumer], self.state_of(consumer)
        there = {source: cursor.log_position for source, cursor in self.members_of(consumer)}
        there |= standing.parked or {}
        own = {source: at for source, at in state.own.items() if source in there}
        at = {**there, **own}
        if consumer[0] in self._ledgers:
            at = step_back(at, own, self._ledgers[consumer[0]])
        if at == there and standing.parked is None:
            standing.holds = {}
            return Moved(set(), {consumer})
        moved = self.dismiss([consumer])
        self.enlist(consumer, state, at, careful=standing.is_careful)
        self._touched |= {partition for partition in self._cursors if partition[0] == consumer[0]}
        self._returned.add(consumer)
        return moved._replace(consumers=moved.consumers | {consumer})

    def part(self, machines: Collection[ConsumerId], now: int) -> None:
        """Split each cursor group that a corrupt batch has stopped in one of its partitions.

        Consumers with machines stay, and from now on the whole group waits at the batch. The
        group's other consumers get a new group at the same positions, and read on in the other
        partitions. A group that has no consumer with a machine does not change.

        `machines`: the consumers with machines. `now`: ms since 1970.
        """
        stopped = {
            (stream, cursor.cursor_group)
            for (stream, _), cursor in self.all()
            if cursor.is_halted and cursor.cursor_group and not cursor.waits
        }
        for stream, cursor_group in sorted(stopped):
            cursors = [
                (partition, cursor)
                for partition, cursor in self.all()
                if partition[0] == stream and cursor.cursor_group == cursor_group
            ]
            members = {member for _, cursor in cursors for member in cursor.members}
            if not (waiting := members & set(machines)):
                continue
            number = self._make_cursor_group()
            for partition, cursor in cursors:
                if members - waiting:
                    rest = cursor.members - waiting
                    other = replace(cursor, members=rest, cursor_group=number, route=None, fetched=None)
                    self._add(partition, other)
                    self._plan(partition, other, now)
                cursor.members &= waiting
                cursor.waits = True

    def find(self, consumer: ConsumerId, offsets: Mapping[TopicPartition, Ints], now: int) -> None:
        """Start the cursors of a consumer whose last messages have been searched. Only its cursors
        that wait for that change.

        `offsets`: by partition in which it has such a cursor, the offsets of the last messages,
        ascending. The cursors deliver only these up to the end of the consumer's snapshot, and
        everything from there on. `now`: ms since 1970.
        """
        for source, cursor in self.members_of(consumer):
            if cursor.is_searching:
                cursor.only = offsets[source]
                self._move(cursor, Move.FIND)
                self._plan((consumer[0], source), cursor, now)

    def pass_retention(self, first: Mapping[Cursor, int], now: int) -> Moved:
        """Move cursors whose records retention has removed to the first offsets of their logs.

        `first`: by cursor, its log's first offset. A cursor beyond it stays there. So does a halted
        cursor, whose last fetch was in flight when it halted: what stopped it remains the place
        where the partition goes on, and cursors that read well there must not join it. The fetched
        data of all these cursors is dropped, and fetched anew for those that are not halted. `now`:
        ms since 1970. Return what the state must record."""
        moved: set[StreamPartition] = set()
        for partition, cursor in self.all():
            if cursor in first:
                if first[cursor] > cursor.position and cursor.is_halted:
                    self._move(cursor, Move.PASS)
                elif first[cursor] > cursor.position:
                    self._move(cursor, Move.PASS, LogPosition(first[cursor]))
                    moved.add(partition)
                cursor.fetched = None
                self._stirred[cursor] = partition
        return Moved(moved, self._settle(moved, now) if moved else set())

    # rounds

    def take_round(self, looks: Mapping[Cursor, Look], now: float) -> Round:
        """Return the tasks of the next round; there may be none. Their data counts as taken from the fetcher.
        `looks`: by cursor, the data that is ready and the last stable offset. `now`: monotonic seconds.

        Raises SourceUnavailable if data begins at an offset above its cursor's position.
        """
        self.note_ends(looks)
        made = self._intake.take_round(self._cursors, self._standings, looks, self._committed, now)
        for partition, cursor, fetched in made.taken:
            cursor.fetched = fetched
            self._stirred[cursor] = partition
        for partition, cursor in self.all():
            if cursor.is_urgent != (cursor in made.urgent):
                cursor.is_urgent = cursor in made.urgent
                self._stirred[cursor] = partition
        return made

    def advance(self, owners: Owners, result: RoundResult, now: int) -> Moved:
        """Move the cursors to where a round has brought them and past what they may skip there, and join those that
        are now at the same position. Return what the state must record for these moves; the caller adds the consumers
        of which only the sequence has changed. `owners`: the cursor of each task. `now`: ms since 1970.

        Raises SourceUnavailable if a corrupt batch stops the head of a ledger: what it cannot read has sequences only
        once a session begins behind it (kept/ledgers.py).
        """
        for (partition, cursor), progress in zip(owners, result.progress, strict=True):
            if progress.stopped and cursor.sequenced:
                raise SourceUnavailable(f"{_find_corruption(partition, result)}. The shard goes on behind it")
        moved: set[StreamPartition] = set()
        halted: list[StreamPartition] = []
        for consumer, sequence in result.sequences.items():
            self._standings[consumer].sequence = sequence
        for (partition, cursor), progress in zip(owners, result.progress, strict=True):
            if progress.log_position.position > cursor.position:
                self._move(cursor, Move.ADVANCE, progress.log_position)
                moved.add(partition)
                cursor.read_ms = cursor.read_ms if progress.read_ms is None else progress.read_ms
            if self._keeps_rest(partition, cursor, progress) or cursor.is_halted:
                continue
            self._stirred[cursor] = partition
            if progress.stopped:
                self._move(cursor, Move.STOP)
                self.halts[partition] = _find_corruption(partition, result)
                halted.append(partition)
            elif cursor.position == progress.task.fetched.next_offset:
                self._skip(partition, cursor)
        touched, self._touched = self._touched, set()
        changed = self._settle({partition for partition, _ in owners} | touched, now) | self._returned
        self._returned.clear()
        moved |= touched
        return Moved(moved, changed, halted)

    def rest(self, given_out: Mapping[str, int], now: float) -> float:
        """Have the next ledger entries of streams with many new records wait, so that they get
        larger. Return the longest pause in seconds, 0 if none has to wait.

        `given_out`: by stream that was given sequences, the one that comes next. `now`: monotonic
        seconds.
        """
        return self._intake.rest(given_out, now)

    def take_wishes(self) -> Iterator[tuple[StreamPartition, Cursor, Wish | None]]:
        """Yield each cursor for which the data to fetch next may have changed since the last call,
        with its partition and that wish; None as the wish of a halted cursor."""
        stirred, self._stirred = self._stirred, {}
        for cursor, partition in stirred.items():
            if cursor.state is not State.ENDED:
                yield partition, cursor, self._find_wish(partition, cursor)

    def take_gone(self) -> list[Cursor]:
        """Return the cursors that have ended since the last call: they were joined to another one,
        or their last consumer has left. The list is empty if there are none; no cursor is returned
        twice."""
        gone, self._gone = self._gone, []
        return gone

    # what others tell

    def note_ends(self, looks: Mapping[Cursor, Look]) -> None:
        """Set the last stable offsets of the cursors' partitions, -1 for an unknown one."""
        for cursor, look in looks.items():
            cursor.stable_end = look.stable_end

    def note_committed(self, given_out: Mapping[str, int]) -> None:
        """Set the first sequence that is not committed yet. `given_out`: by stream with a ledger;
        other streams keep theirs."""
        self._committed.update(given_out)

    def note_sequence(self, consumer: ConsumerId, sequence: int) -> None:
        """Set the last consumer sequence that a consumer's machine has given out."""
        self._standings[consumer].sequence = sequence

    def note_heard(self, consumer: ConsumerId, heard: Mapping[TopicPartition, int]) -> None:
        """Set the positions in ack topics that the state records for a consumer: by partition, the
        next offset to read. Only those that differ from the stream's."""
        self._standings[consumer].heard = heard

    def hold(self, consumer: ConsumerId, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets that the state records as the consumer's positions. They replace those of the last call.

        `first_offsets`: by partition, the first offset that was offered to the consumer's machine and is not
        delivered. The cursors advance beyond these offsets. The next session reads again from them.
        """
        self._standings[consumer].holds = first_offsets

    # what the state records

    def delta(self, partitions: Iterable[StreamPartition], consumers: Iterable[ConsumerId]) -> Delta:
        """Return what the state has to record: for each of these partitions the position of its foremost cursor as
        `find_tail` finds it (nothing if there is none), and for each of these consumers its whole state.
        """
        tails = self._find_tails()
        moved = {partition: tails[partition] for partition in partitions}
        positions = {partition: tail.log_position for partition, tail in moved.items() if tail is not None}
        apart = self._list_apart(tails)
        return Delta(positions, {consumer: self._find_state(consumer, apart) for consumer in sorted(consumers)})

    def everything(self) -> Delta:
        """Return the positions of all partitions and the states of all consumers as a delta. A
        session begins with it, so that the state has a position for each partition before it
        records a consumer that has none of its own."""
        return self.delta(self._cursors, self._standings)

    def state_of(self, consumer: ConsumerId) -> ConsumerState:
        """Return what the state records of a consumer."""
        return self._find_state(consumer, self._list_apart(self._find_tails()))

    def _find_tails(self) -> dict[StreamPartition, Cursor | None]:
        """Return the foremost cursor of each partition, as `find_tail` finds it."""
        return {partition: find_tail(cursors) for partition, cursors in self._cursors.items()}

    def _list_apart(self, tails: Mapping[StreamPartition, Cursor | None]) -> Apart:
        """Return the cursors that are not in `tails`, by stream."""
        apart: dict[str, list[tuple[TopicPartition, Cursor]]] = defaultdict(list)
        for (stream, source), cursor in self.all():
            if cursor is not tails[stream, source]:
                apart[stream].append((source, cursor))
        return apart

    def _find_state(self, consumer: ConsumerId, apart: Apart) -> ConsumerState:
        """Return what the state records of a consumer. `apart`: see `_list_apart`."""
        standing, own = self._standings[consumer], self._find_own(consumer, apart)
        # in a stream with a ledger a consumer may step back to below its floor or its snapshot's
        # end (open_cursors)
        snapshot, floor = standing.snapshot, standing.floor
        if (snapshot or floor) and consumer[0] not in self._ledgers:
            snapshot = {s: end for s, end in snapshot.items() if s in own and own[s].position < end}
            floor = {s: at for s, at in floor.items() if at > self._find_position(consumer, s)}
        return ConsumerState(
            standing.sequence, own, snapshot, floor, standing.heard, standing.replay_until, standing.policy
        )

    def _find_own(self, consumer: ConsumerId, apart: Apart) -> dict[TopicPartition, LogPosition]:
        """Return the positions that the state records for the consumer itself. `apart`: see `_list_apart`.

        These are its positions on cursors other than the tail; for a parked consumer, where it left its cursors. In a
        partition with a hold, the hold takes their place. Partitions that its stream does not have now are included.
        """
        standing = self._standings[consumer]
        # thousands of consumers at the tail are in each delta, and have nothing of their own
        own = {
            source: cursor.log_position for source, cursor in apart.get(consumer[0], ()) if consumer in cursor.members
        }
        if standing.left or standing.parked or standing.holds:
            own |= standing.left
            own |= standing.parked or {}
            own |= {source: LogPosition(offset) for source, offset in standing.holds.items()}
        return own

    def _find_position(self, consumer: ConsumerId, source: TopicPartition) -> int:
        """Return the offset of a consumer's cursor in a partition, or where it was parked; 0 if it
        has none."""
        if (parked := self._standings[consumer].parked) is not None:
            return parked[source].position
        cursors = self.of((consumer[0], source))
        return next((cursor.position for cursor in cursors if consumer in cursor.members), 0)

    # rounds, inside

    def _keeps_rest(self, partition: StreamPartition, cursor: Cursor, progress: Progress) -> bool:
        """Return whether data is left of a cursor's fetch for the next round, because the task had
        to stop before its end. If not, drop the fetch. Only streams with a ledger keep data."""
        fetched = cursor.fetched
        if fetched is None:
            return False
        if (
            partition[0] in self._ledgers
            and not progress.stopped
            and cursor.position == progress.task.stop < fetched.next_offset
        ):
            return True
        cursor.fetched = None
        return False

    # meeting

    def _settle(self, partitions: set[StreamPartition], now: int) -> set[ConsumerId]:
        """Join cursors of these partitions that are at the same position. Return the consumers
        whose positions the state must record anew. `now`: ms since 1970."""
        ordered = {stream for stream, _ in partitions} & self._ledgers.keys()
        for stream in ordered:
            self._align(stream)
        changed: set[ConsumerId] = set()
        for partition in partitions | {partition for partition in self._cursors if partition[0] in ordered}:
            cursors, was = self._cursors[partition], self._tails.get(partition)
            # the members of the tail have the stream's position, and there may be thousands
            if len(cursors) > 1 or any(cursor.is_alone for cursor in cursors):
                changed |= {member for cursor in cursors if cursor is not was for member in cursor.members}
            # a joined cursor has more consumers, so it may skip less or other parts of the log, and
            # may meet the next cursor at once
            while self._join(partition):
                for cursor in list(cursors):
                    self._plan(partition, cursor, now)
            self._tails[partition] = tail = find_tail(cursors)
            if tail is not was:
                # some have the stream's position now, others have one of their own
                changed |= {member for cursor in cursors for member in cursor.members}
        return changed

    def _join(self, partition: StreamPartition) -> bool:
        """Join the cursors of a partition that are at the same position and in the same group.
        Return whether any were joined. A cursor that has delivered all its last messages becomes an
        ordinary one first."""
        met: dict[tuple[int, int], Cursor] = {}
        cursors = self._cursors[partition]
        spent: list[Cursor] = []
        for cursor in cursors:
            _finish_snapshot(cursor)
            if cursor.is_alone:
                continue
            first = met.setdefault((cursor.position, cursor.cursor_group), cursor)
            if first is not cursor:
                first.members |= cursor.members
                first.indexed |= cursor.indexed
                first.sequenced |= cursor.sequenced
                if cursor.is_halted:
                    self._move(first, Move.STOP)
                spent.append(cursor)
        for cursor in spent:
            cursors.remove(cursor)
            self._end(cursor)
        return bool(spent)

    def _align(self, stream: str) -> None:
        """Merge the cursor groups of a stream that are at the same position in every partition.

        Groups merge only if they have the same `careful` and `waits`. A group with a cursor that
        delivers selected offsets does not merge. The lowest number remains.

        A cursor that serves only the index has no group (0). In its partition, the head is the
        cursor that gives records their sequences. A cursor without a group gets the head's group if
        it is at the head's position.
        """
        cursors = {source: some for (name, source), some in self._cursors.items() if name == stream}
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
                _finish_snapshot(cursor)
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

    def _join_up(
        self,
        consumer: ConsumerId,
        snapshot: Mapping[TopicPartition, int],
        log_positions: Mapping[TopicPartition, LogPosition],
        careful: bool,
    ) -> None:
        """Put a consumer on the cursor at its position in each partition, or on a new one. Below
        the end of its snapshot it gets a new one, which waits for the search of its last
        messages."""
        stream = consumer[0]
        cursor_group = (
            self._find_cursor_group(stream, snapshot, log_positions, careful) if stream in self._ledgers else 0
        )
        for source, log_position in log_positions.items():
            here = _find_at(self.of((stream, source)), log_position, cursor_group)
            if log_position.position < (end := snapshot.get(source, -1)):
                nothing = np.empty(0, np.int64)
                made = Cursor(log_position, {consumer}, State.SEARCHING, nothing, end)
            elif here is not None:
                here.members.add(consumer)
                continue
            else:
                made = Cursor(log_position, {consumer})
            made.cursor_group, made.careful = cursor_group, careful
            self._add((stream, source), made)

    def _find_cursor_group(
        self,
        stream: str,
        snapshot: Mapping[TopicPartition, int],
        log_positions: Mapping[TopicPartition, LogPosition],
        careful: bool,
    ) -> int:
        """Return the number of the cursor group that is at exactly these positions and has the same
        `careful`. Return a new number if there is none.

        A consumer with a snapshot ahead always gets a group of its own.
        """
        cursors = {source: self.of((stream, source)) for source in log_positions}
        some = next(iter(cursors.values()), [])
        if any(log_position.position < snapshot.get(source, -1) for source, log_position in log_positions.items()):
            return self._make_cursor_group()
        for number in {cursor.cursor_group for cursor in some if cursor.cursor_group and cursor.careful == careful}:
            if all(_find_at(cursors[source], log_position, number) for source, log_position in log_positions.items()):
                return number
        return self._make_cursor_group()

    def _make_cursor_group(self) -> int:
        self._cursor_groups += 1
        return self._cursor_groups

    # single cursors

    def _add(self, partition: StreamPartition, cursor: Cursor) -> None:
        self._cursors.setdefault(partition, []).append(cursor)
        self._stirred[cursor] = partition

    def _end(self, cursor: Cursor) -> None:
        self._move(cursor, Move.END)
        cursor.fetched = None
        self._gone.append(cursor)

    def _move(self, cursor: Cursor, move: Move, log_position: LogPosition | None = None) -> None:
        """Change a cursor's state and position as table.py allows; any other move is a bug, and a KeyError."""
        cursor.state = TRANSITIONS[cursor.state][move]
        if log_position is not None:
            cursor.log_position = log_position

    def _plan(self, partition: StreamPartition, cursor: Cursor, now: int) -> None:
        """Plan anew what a cursor may skip, and move it to the first part that it has to read.
        `now`: ms since 1970.

        A cursor that an index is made from skips nothing, and neither does one that is halted or
        whose last messages are not found yet.
        """
        self._stirred[cursor] = partition
        cursor.route = None
        if cursor.state is not State.READING:
            return
        if cursor.only is not None:
            cursor.route = plan_visits(cursor.only, cursor.snapshot_end)
        elif not cursor.indexed:
            cursor.route = self._routes.plan(partition, cursor.members, cursor.position, now)
        if cursor.route is not None:
            self.savings.append((partition[0], cursor.route.route.saving))
            self._skip(partition, cursor)

    def _skip(self, partition: StreamPartition, cursor: Cursor) -> None:
        """Move a cursor past what its route lets it skip at its position, but not past the next
        cursor that it can join."""
        if cursor.route is not None:
            reached = cursor.route.find_next(cursor.position, self._find_ahead(partition, cursor))
            if reached > cursor.position:
                self._move(cursor, Move.SKIP, cursor.route.find_log_position(reached))
                if cursor.fetched is not None and cursor.fetched.next_offset <= reached:
                    # data that ends before the cursor would be taken for all that there is (Intake)
                    cursor.fetched = None

    def _find_ahead(self, partition: StreamPartition, cursor: Cursor) -> int:
        """Return the lowest position above the cursor's at which another cursor of the partition is;
        NO_STOP if there is none. Cursors of last messages join no other: they do not count, and for
        one of them the result is NO_STOP."""
        if cursor.is_alone:
            return NO_STOP
        others = (t.position for t in self._cursors[partition] if not t.is_alone and t.position > cursor.position)
        return min(others, default=NO_STOP)

    def _find_wish(self, partition: StreamPartition, cursor: Cursor) -> Wish | None:
        """Return what is to be fetched next for a cursor: what follows the data taken for it, past
        what it may skip there. None if it is halted."""
        if cursor.is_halted:
            return None
        need = cursor.need
        if cursor.route is not None and need.position > cursor.position:
            reached = cursor.route.find_next(need.position, self._find_ahead(partition, cursor))
            if reached > need.position:
                need = cursor.route.find_log_position(reached)
        return Wish(need, cursor.route, cursor.is_urgent)


def _finish_snapshot(cursor: Cursor) -> None:
    """If a cursor of last messages has reached the end of its snapshot, have it deliver everything
    from there on."""
    if cursor.is_alone and not cursor.is_searching and cursor.position >= cursor.snapshot_end:
        cursor.only, cursor.snapshot_end = None, NO_STOP


def _find_at(cursors: Iterable[Cursor], log_position: LogPosition, cursor_group: int) -> Cursor | None:
    """Return the cursor of this group at this position that others may join, None if there is
    none."""
    return next(
        (
            cursor
            for cursor in cursors
            if cursor.position == log_position.position and cursor.cursor_group == cursor_group and not cursor.is_alone
        ),
        None,
    )


def _find_corruption(partition: StreamPartition, result: RoundResult) -> CorruptBatch:
    """Return the corrupt batch that has stopped a partition in a round, as an error to be raised or
    shown. There must be one."""
    bad = next(
        corruption.malformed
        for corruption in result.corruptions
        if (corruption.stream, corruption.source, corruption.skipped) == (*partition, False)
    )
    return CorruptBatch(*partition[1], bad.base_offset, bad.fault.text)
