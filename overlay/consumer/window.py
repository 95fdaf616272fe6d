"""Delivered messages that are not settled: pending rows, their deadlines, the redelivery queue, and
the ack floors.

The rules are JetStream's (docs/jetstream.md#acks). A few of them shape the code:

- Each delivery takes the next consumer sequence. The row keeps the first one, and floors count by
  it.
- A pending message is in one of three states: waiting (its timer runs), queued for redelivery, or
  delayed by a nak. An ack ends any of them, in whatever order the acks of its deliveries arrive.
- A floor moves with an ack. With `explicit` it moves to the last delivered pair if nothing is
  pending, or to just below the first pending message if the lowest acked one was the next above it.
  With `all` and `flow_control` it moves to the acked pair. A message that has used up its
  deliveries leaves without moving the floor.
- For a push consumer with `interest: group` a delivery starts no timer: the deadline is NEVER until
  the reader group has passed the delivery.

Range acks name consumer sequences of any delivery. First deliveries are found in the table, whose
rows are also in order of the first consumer sequence. Redeliveries are kept in `_again`, two
numbers each. From time to time those of settled messages are dropped, and the oldest others if
there are too many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import AckPolicy, ConsumerConfig, Interest

from .deadlines import NEVER, Deadlines
from .pending import Pending, Row, distinct, leave_out
from .queues import Redeliveries
from .ranges import find_within, join

_MANY_AGAIN = 4096
_MANY_TOUCHES = 1 << 20

EMPTY: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Pair:
    """The consumer sequence and the stream sequence of a position, such as the last delivery or the
    ack floor.
    """

    consumer: int
    stream: int


@dataclass(frozen=True, slots=True)
class Given:
    """Deliveries in order, as columns (int64, one entry per delivery).

    `deliveries`: how often each message was delivered, this delivery included. `sizes`: bytes.
    """

    sequences: Ints
    consumer_seqs: Ints
    deliveries: Ints
    sizes: Ints


@dataclass(frozen=True, slots=True)
class Settled:
    """Messages that a call has settled or given up, as columns (one entry per message), with what
    advisories, samples and dead letters need.

    `consumer_seqs`: of the first delivery. `deliveries`: how often it was delivered. `first` and
    `last`: ns since 1970 of the first and the last delivery.
    """

    sequences: Ints
    consumer_seqs: Ints
    deliveries: Ints
    first: Ints
    last: Ints

    def __len__(self) -> int:
        return self.sequences.size

    def only(self, sequence: int) -> Settled:
        """Return the entry of the message with this stream sequence; empty if it is not among them."""
        at = np.flatnonzero(self.sequences == sequence)
        names = ("sequences", "consumer_seqs", "deliveries", "first", "last")
        return Settled(*(getattr(self, name)[at] for name in names))


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a window that a record of the state has to contain.

    `rows`: row numbers of messages to be written in full. `ended`: stream sequences of messages
    that are not known any more. `again`: consumer and stream sequences of redeliveries.
    """

    rows: Ints
    ended: Ints
    again: tuple[Ints, Ints]


class Window:
    """The delivered messages of one consumer that are not settled: their rows and ack timers, the
    queue of redeliveries, and the ack floor.

    All times are ns since 1970; `now` is passed in, never read from a clock.

    `config`: with its defaults filled in. `start`: the first stream sequence that may be delivered.
    `sequence`: the last consumer sequence that was given out before.
    """

    def __init__(self, config: ConsumerConfig, start: int, sequence: int = 0) -> None:
        self.config = config
        self.delivered = self.floor = Pair(sequence, start - 1)
        self.read_up_to = 0
        self.pending = Pending()
        self.deadlines = Deadlines()
        self.queue = Redeliveries()
        self._again_fresh: list[tuple[Ints, Ints]] = []
        self._again: list[tuple[Ints, Ints]] = []
        self._again_size = 0
        self._touched: list[Ints] = []
        self._touches, self._many_touches = 0, _MANY_TOUCHES

    @property
    def tracks(self) -> bool:
        """Whether deliveries wait for an ack: false with ack_policy none."""
        return self.config.ack_policy is not AckPolicy.NONE

    @property
    def queued(self) -> int:
        """Number of messages queued for redelivery."""
        return self.pending.counts[Row.QUEUED]

    @property
    def room(self) -> int:
        """Number of new messages that max_ack_pending still lets through; NEVER if there is no
        limit.
        """
        most = self.config.max_ack_pending
        if not self.tracks or most <= 0:
            return NEVER
        freed = self.pending.counts[Row.DELAYED] if self.config.nak_delay_frees_pending else 0
        return max(most - self.pending.count + freed, 0)

    @property
    def awaits_reader(self) -> bool:
        """Whether messages are pending and the reader group has not read all deliveries yet, so
        that the timers of some may not run. Only for push consumers with `interest: group`;
        otherwise False.
        """
        return not self._starts_at_delivery and self.pending.count > 0 and self.read_up_to < self.delivered.consumer

    @property
    def num_redelivered(self) -> int:
        """Number of messages that were delivered more than once and are not settled, those included
        that have used up their deliveries; 0 with max_deliver 1.
        """
        return 0 if self.config.max_deliver == 1 else self.pending.redelivered

    @property
    def nbytes(self) -> int:
        again = sum(part.nbytes for pair in self._again for part in pair)
        return self.pending.nbytes + self.deadlines.nbytes + again

    # deliveries

    def give(self, sequences: Ints, sizes: Ints, now: int) -> Given:
        """Record the first delivery of messages at `now`: give them consumer sequences and, unless
        ack_policy is none, add them to the pending ones. Return the deliveries; the caller sends
        them.

        `sequences`: rising, at least one, and above everything delivered before. `sizes`: bytes of
        each message.
        """
        consumer_seqs = self._count(sequences.size)
        last = Pair(int(consumer_seqs[-1]), int(sequences[-1]))
        once = np.ones(sequences.size, np.int64)
        self.delivered = last
        if not self.tracks:
            self.floor = last
            return Given(sequences, consumer_seqs, once, sizes)
        self.pending.compact()
        rows = self.pending.append(
            sequence=sequences, consumer_seq=consumer_seqs, first=now, last=now, deadline=NEVER, size=sizes,
            deliveries=1, state=Row.WAITING,
        )  # fmt: skip
        if self._starts_at_delivery:
            self._arm(rows, now)
        self._touch(sequences)
        return Given(sequences, consumer_seqs, once, sizes)

    def give_again(self, most: int, now: int) -> tuple[Given, Settled]:
        """Take messages out of the redelivery queue, at most `most` (1 or more), and record that
        they are delivered again at `now`. Return the deliveries, and the messages that were given
        up instead.

        A message is given up if it has used up its deliveries. Call only after `peek_again` has
        found a message to deliver.
        """
        rows = self.queue.take(self.pending, most)
        used_up = self._is_used_up(rows)
        ended = self._exhaust(rows[used_up])
        rows = rows[~used_up]
        consumer_seqs = self._count(rows.size)
        self.delivered = Pair(int(consumer_seqs[-1]), self.delivered.stream)
        self.pending.deliver_again(rows, now)
        if self._starts_at_delivery:
            self._arm(rows, now)
        column = self.pending.column
        sequences = column["sequence"][rows]
        self._remember(consumer_seqs, sequences)
        self._touch(sequences)
        deliveries = column["deliveries"][rows].astype(np.int64)
        return Given(sequences, consumer_seqs, deliveries, column["size"][rows].astype(np.int64)), ended

    def peek_again(self, most: int = NEVER) -> tuple[Ints, Settled]:
        """Find the next message to deliver again, without taking it out of the redelivery queue.
        Return its row number (an array of one row, or empty), and the messages before it that were
        given up.

        Given up are messages that have used up their deliveries, at most `most`; they leave the
        queue. If there are more of them in front of the next message, the first array is empty.
        """
        used_up: list[int] = []
        while (row := self.queue.peek(self.pending)) >= 0 and self._is_used_up(np.array([row]))[0]:
            if len(used_up) == most:
                row = -1
                break
            self.queue.take(self.pending, 1)
            used_up.append(row)
        ended = self._exhaust(np.array(used_up, np.int64))
        return np.array([row] if row >= 0 else [], np.int64), ended

    def find_next_up(self, most: int) -> tuple[Ints, Ints]:
        """Return stream sequences and sizes (bytes) of messages queued for redelivery, in queue
        order, at most `most`.
        """
        rows = self.queue.find_next_up(self.pending, most)
        return self.pending.view("sequence")[rows], self.pending.view("size")[rows].astype(np.int64)

    # what comes back

    def ack(self, sequences: Ints, consumer_seq: int) -> Settled:
        """Settle these messages (stream sequences) and return those that were pending.

        Unless ack_policy is explicit, settle everything pending up to the highest one; nothing if
        it or `consumer_seq` is not above the floor. If the highest one was pending, the floor moves
        to it and to `consumer_seq`, the one in the last token. With explicit, `consumer_seq` is not
        used.
        """
        if self.config.ack_policy is AckPolicy.EXPLICIT:
            return self._settle(self.pending.find(distinct(sequences)))
        highest = int(sequences.max()) if sequences.size else 0
        if highest <= self.floor.stream or consumer_seq <= self.floor.consumer:
            return self._look(EMPTY)
        rows = self.pending.find_pending(self.pending.find_up_to(highest))
        ended = self._look(rows)
        self._drop(rows)
        # seen on nats-server 2.15.1: the ack of a message that has used up its deliveries settles
        # those below it, but does not move the floor
        if len(ended) and int(ended.sequences[-1]) == highest:
            self.floor = Pair(consumer_seq, highest)
        return ended

    def ack_ranges(self, ranges: tuple[tuple[int, int], ...]) -> Settled:
        """Settle the messages delivered under the consumer sequences in these ranges (both ends
        included; at least one range), and return those that were pending. Unless ack_policy is
        explicit, settle everything before them too.
        """
        sequences = self.find_sequences(ranges)
        return self.ack(sequences, max(min(last, self.delivered.consumer) for _, last in ranges))

    def find_sequences(self, ranges: tuple[tuple[int, int], ...]) -> Ints:
        """Return the stream sequences (rising) of messages that were delivered, for the first time
        or again, under the consumer sequences in these ranges (both ends included). Only messages
        that are pending or have used up their deliveries are found, and none by a redelivery that
        was forgotten (`_prune_again`).
        """
        own = self.pending.view("sequence")
        consumer_seqs, again = self.again
        joined = join(ranges, self.delivered.consumer)
        found = own[self.pending.find_delivered(joined)], again[find_within(consumer_seqs, joined)]
        return own[self.pending.find(distinct(np.concatenate(found)))]

    def is_settled(self, sequences: Ints) -> bool:
        """Return whether none of these messages (stream sequences) will be delivered again: none is
        above the last delivery, and none is pending. True also for sequences up to the last
        delivery that did not match.
        """
        if sequences.size and int(sequences.max()) > self.delivered.stream:
            return False
        return not self.pending.find_pending(self.pending.find(distinct(sequences))).size

    def nak(self, sequence: int, consumer_seq: int, delay: int | None, now: int) -> bool:
        """Queue a pending message for redelivery; or with a `delay` (ns), make it due when the
        delay has passed, plus its backoff and minus ack_wait if the consumer has a backoff.

        Return False, and change nothing, if the message is not pending, or if `consumer_seq` is at
        or below the floor, or above the last delivery.
        """
        rows = self.pending.find_pending(self.pending.find(np.array([sequence])))
        if not rows.size or not self.floor.consumer < consumer_seq <= self.delivered.consumer:
            return False
        if delay is None:
            if self.pending.view("state")[rows[0]] != Row.QUEUED:
                self.queue.put(self.pending, rows)
        else:
            self.pending.become(rows, Row.DELAYED)
            # nats-server moves the timestamp so that ack_wait ends after the delay; a longer
            # backoff is added on top
            self._arm(rows, min(max(now + delay - self.config.ack_wait, 0), NEVER))
        self._touch(np.array([sequence]))
        return True

    def progress(self, sequences: Ints, now: int) -> None:
        """Restart the ack timers of those of these messages (stream sequences) that are pending. A
        message that waited for the delay of a nak waits for its ack again. A message queued for
        redelivery stays queued.
        """
        rows = self.pending.find_pending(self.pending.find(distinct(sequences)))
        rows = rows[self.pending.view("state")[rows] != Row.QUEUED]
        if rows.size:
            self.pending.become(rows, Row.WAITING)
            self._arm(rows, now)
            self._touch(self.pending.view("sequence")[rows].copy())

    def read(self, consumer_seq: int, now: int) -> None:
        """Start the ack timers of all deliveries up to `consumer_seq` whose timers do not run: the
        reader group has read them now. The timer of a message that was delivered again since is left
        alone: it starts when the group has read its last delivery. `consumer_seq` must not be above
        the last delivery, or the timers of the deliveries from there to it never start.
        """
        if consumer_seq <= self.read_up_to:
            return
        sequences = self.find_sequences(((self.read_up_to + 1, consumer_seq),))
        self.read_up_to = consumer_seq
        consumer_seqs, again = self.again
        rows = self.pending.find(leave_out(sequences, distinct(again[consumer_seqs > consumer_seq])))
        rows = rows[(self.pending.view("state")[rows] == Row.WAITING) & (self.pending.view("deadline")[rows] == NEVER)]
        self._arm(rows, now)
        self._touch(self.pending.view("sequence")[rows].copy())

    # time and retention

    def expire(self, now: int) -> Settled:
        """Queue the messages whose deadline is at `now` or before for redelivery, in stream order,
        and return the messages that were given up instead.

        Messages end here only with max_deliver 1. With a larger limit, a message that has used up
        its deliveries is queued like the others and ends when its turn comes, as seen on
        nats-server 2.15.1.
        """
        sequences = self.deadlines.pop_due(now)[1]
        order = np.argsort(sequences, kind="stable")
        rows = self.pending.find(sequences[order])
        # a heap entry is stale if its row is settled, queued, or due later
        state, deadline = self.pending.view("state")[rows], self.pending.view("deadline")[rows]
        due = distinct(rows[((state == Row.WAITING) | (state == Row.DELAYED)) & (deadline <= now)])
        if self.config.max_deliver == 1:
            return self._exhaust(due)
        self._touch(self.pending.view("sequence")[due].copy())
        self.queue.put(self.pending, due)
        return self._look(EMPTY)

    def requeue_all(self) -> None:
        """Queue all pending messages for redelivery, in stream order behind those that are queued
        already. Used when the deliver subject has changed.
        """
        rows = self.pending.find_pending(np.arange(self.pending.lead, self.pending.end))
        rows = rows[self.pending.view("state")[rows] != Row.QUEUED]
        self._touch(self.pending.view("sequence")[rows].copy())
        self.queue.put(self.pending, rows)

    def remove(self, below: int, sequences: Ints) -> Settled:
        """Drop messages that left the stream: all below `below`, and those of `sequences` (rising).
        Return those of them that were pending.
        """
        gone = np.union1d(self.pending.find_up_to(below - 1), self.pending.find(sequences))
        exhausted = gone[self.pending.view("state")[gone] == Row.EXHAUSTED]
        ended = self._settle(leave_out(gone, exhausted))
        self._drop(exhausted)
        return ended

    def has_given_up(self, below: int) -> bool:
        """Return whether the window still has a message below this stream sequence that has used up
        its deliveries.
        """
        return bool(self._find_given_up(below).size)

    def forget_given_up(self, below: int) -> None:
        """Drop the messages below this stream sequence that were given up because their deliveries
        were used up. The stream does not have them any more.

        Other messages stay, also one that waits for the ack of its last delivery. The floor does
        not move.
        """
        self._drop(self._find_given_up(below))

    def _find_given_up(self, below: int) -> Ints:
        rows = self.pending.find_up_to(below - 1)
        given_up: Ints = rows[self.pending.view("state")[rows] == Row.EXHAUSTED]
        return given_up

    # state

    @classmethod
    def restore(
        cls,
        config: ConsumerConfig,
        pending: Pending,
        again: tuple[Ints, Ints],
        *,
        delivered: Pair,
        floor: Pair,
        read_up_to: int,
        ticket: int,
    ) -> Window:
        """Return a window with this table of pending rows; its redelivery queue and its deadlines
        are made from the table.

        `again`: as the property of that name; redeliveries of messages that are not in the table
        are left out. `ticket`: the next one of the redelivery queue. The others are the fields of
        the same names.
        """
        window = cls(config, delivered.stream + 1, delivered.consumer)
        window.pending, window.floor, window.read_up_to = pending, floor, read_up_to
        window.queue = Redeliveries.restore(pending, ticket)
        known = np.isin(again[1], pending.view("sequence"))
        window._again, window._again_size = [(again[0][known], again[1][known])], int(known.sum())
        window._restore_deadlines()
        return window

    @property
    def again(self) -> tuple[Ints, Ints]:
        """Consumer sequences (rising) and stream sequences of the redeliveries that are remembered,
        int64, one entry per redelivery: those that an ack may still name, and some of settled
        messages.
        """
        if len(self._again) != 1:
            pairs = [(EMPTY, EMPTY), *self._again]
            self._again = [(np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs]))]
        return self._again[0]

    @property
    def everything(self) -> Changes:
        """All that the window knows, in the form of changes: what a checkpoint has to contain."""
        return Changes(np.flatnonzero(self.pending.view("state") != Row.GONE), EMPTY, self.again)

    def take_changes(self) -> Changes:
        """Return what changed since the last call, and forget that it changed: the caller has to
        write it.
        """
        touched = distinct(np.concatenate([EMPTY, *self._touched]))
        rows = self.pending.find(touched)
        ended = leave_out(touched, self.pending.view("sequence")[rows])
        pairs = [(EMPTY, EMPTY), *self._again_fresh]
        again = np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])
        self._touched, self._touches, self._again_fresh = [], 0, []
        return Changes(rows, ended, again)

    def _count(self, size: int) -> Ints:
        return np.arange(self.delivered.consumer + 1, self.delivered.consumer + 1 + size)

    @property
    def _starts_at_delivery(self) -> bool:
        return self.config.interest is Interest.ALWAYS or not self.config.is_push

    def _waits(self, rows: Ints) -> Ints:
        """Return how long each of these rows may wait for its ack, in ns, by its number of
        deliveries (backoff, or ack_wait); NEVER for no limit.
        """
        if not self.config.backoff:
            return np.full(rows.size, self.config.ack_wait or NEVER)
        backoff = np.array(self.config.backoff)
        waits: Ints = backoff[np.minimum(self.pending.view("deliveries")[rows] - 1, backoff.size - 1)]
        return waits

    def _arm(self, rows: Ints, start: int) -> None:
        """Set the deadlines of rows whose wait for an ack begins at `start` (ns since 1970)."""
        waits = self._waits(rows)
        self._set_deadline(rows, np.where(waits > NEVER - start, NEVER, waits + start))

    def _set_deadline(self, rows: Ints, deadline: Ints) -> None:
        self.pending.set_deadlines(rows, deadline)
        armed = deadline != NEVER
        self.deadlines.push(deadline[armed], self.pending.view("sequence")[rows[armed]])
        if self.deadlines.size > 2 * self.pending.count + _MANY_AGAIN:
            self._restore_deadlines()

    def _restore_deadlines(self) -> None:
        """Rebuild the heap of deadlines from the rows, without stale entries."""
        state, deadline = self.pending.view("state"), self.pending.view("deadline")
        live = np.flatnonzero(((state == Row.WAITING) | (state == Row.DELAYED)) & (deadline != NEVER))
        self.deadlines.rebuild(deadline[live], self.pending.view("sequence")[live])

    def _is_used_up(self, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        most = self.config.max_deliver
        return np.asarray((self.pending.view("deliveries")[rows] >= most) & (most > 0))

    def _exhaust(self, rows: Ints) -> Settled:
        """Mark rows as EXHAUSTED: their messages have used up their deliveries. Return these
        messages.

        The floor does not move.
        """
        ended = self._look(rows)
        self.pending.become(rows, Row.EXHAUSTED)
        self._touch(ended.sequences)
        return ended

    def _settle(self, rows: Ints) -> Settled:
        """Mark rows as GONE, in whatever state they are, and return the messages that were pending.
        If there were any, move the floor if it can move.
        """
        ended = self._look(self.pending.find_pending(rows))
        self._drop(rows)
        if len(ended):
            self._move_floor(int(ended.consumer_seqs[0]))
        return ended

    def _move_floor(self, consumer_seq: int) -> None:
        """Move the floor after messages were settled: to the last delivery if nothing is pending; to
        just below the first pending message if the lowest settled one was the next above the floor.
        Otherwise it stays. `consumer_seq`: that of the first delivery of the lowest settled one.
        """
        if not self.pending.count:
            self.floor = self.delivered
        elif consumer_seq == self.floor.consumer + 1:
            first = self.pending.lead
            columns = self.pending.view("consumer_seq"), self.pending.view("sequence")
            self.floor = Pair(*(int(column[first]) - 1 for column in columns))

    def _drop(self, rows: Ints) -> None:
        self._touch(self.pending.view("sequence")[rows].copy())
        self.pending.become(rows, Row.GONE)

    def _touch(self, sequences: Ints) -> None:
        """Remember these stream sequences: `take_changes` has to return what became of them."""
        self._touched.append(sequences)
        self._touches += sequences.size
        if self._touches > self._many_touches:
            self._touched = [distinct(np.concatenate(self._touched))]
            self._touches = self._touched[0].size
            self._many_touches = max(2 * self._touches, _MANY_TOUCHES)

    def _look(self, rows: Ints) -> Settled:
        names = ("sequence", "consumer_seq", "deliveries", "first", "last")
        return Settled(*(self.pending.column[name][rows] for name in names))

    def _remember(self, consumer_seqs: Ints, sequences: Ints) -> None:
        """Keep consumer and stream sequences of redeliveries, so that range acks can find their
        messages and the next delta contains them.
        """
        self._again_fresh.append((consumer_seqs, sequences))
        self._again.append((consumer_seqs, sequences))
        self._again_size += sequences.size
        if self._again_size > 2 * self.pending.count + _MANY_AGAIN:
            self._prune_again()

    def _prune_again(self) -> None:
        """Forget redeliveries of settled messages, and the oldest of the others if there are too
        many, but not the last one of a message: by that one its timer starts (`read`). A message is
        no longer found by the consumer sequence of a forgotten redelivery.
        """
        consumer_seqs, sequences = self.again
        known = self.pending.view("sequence")[self.pending.find(distinct(sequences))]
        rows = np.flatnonzero(np.isin(sequences, known))
        last = rows[::-1][np.unique(sequences[rows][::-1], return_index=True)[1]]
        kept = np.union1d(last, rows[-(self.pending.count + _MANY_AGAIN // 2) :])
        self._again, self._again_size = [(consumer_seqs[kept], sequences[kept])], kept.size
