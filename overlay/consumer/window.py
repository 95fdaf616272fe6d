"""What was delivered and is not settled: pending rows, their deadlines, the redelivery queue, and the ack floors.

The rules are those of facts/jetstream d. A few shape the code:

- Each delivery takes the next consumer sequence; the row keeps the first one, and floors count by it.
- A message is in one of three pending states at a time: waiting (its timer runs), queued to go out again, delayed by a nak.
  An ack ends any of them, in whatever order the acks of its deliveries come.
- A floor moves with an ack: to the last delivered pair when nothing is pending, else just below the first pending message.
  A message whose deliveries are used up leaves without moving it.
- With `interest: group` a timer starts only when the reader group has passed the delivery: until then its deadline is NEVER.

Range acks name consumer sequences of any delivery. First deliveries are found in the table, which is in their order as
well; the others are kept in `_again`, two numbers each, until their message is settled or they are too many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import AckPolicy, ConsumerConfig, Interest

from .deadlines import NEVER, Deadlines
from .pending import Pending, Row, distinct
from .queues import Redeliveries
from .ranges import find_within, join

_MANY_AGAIN = 4096
_MANY_TOUCHES = 1 << 20

EMPTY: Ints = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Pair:
    """A place in the consumer's and in the stream's counting."""

    consumer: int
    stream: int


@dataclass(frozen=True, slots=True)
class Given:
    """Deliveries, in order, as columns. `deliveries` counts those of each message, this one included."""

    sequences: Ints
    consumer_seqs: Ints
    deliveries: Ints
    sizes: Ints


@dataclass(frozen=True, slots=True)
class Settled:
    """Rows that ended, as columns: what advisories, samples and dead letters tell. Times are ns."""

    sequences: Ints
    consumer_seqs: Ints
    deliveries: Ints
    first: Ints
    last: Ints

    def __len__(self) -> int:
        return self.sequences.size

    def only(self, sequence: int) -> Settled:
        """The row of one message, if it is among them."""
        at = np.flatnonzero(self.sequences == sequence)
        names = ("sequences", "consumer_seqs", "deliveries", "first", "last")
        return Settled(*(getattr(self, name)[at] for name in names))


class Window:
    """See the module's text. `config` has its defaults filled in. All times are ns; `now` is given, never read."""

    def __init__(self, config: ConsumerConfig, start: int) -> None:
        self.config = config
        self.delivered = Pair(0, start - 1)
        self.floor = Pair(0, start - 1)
        self.read_up_to = 0
        self.pending = Pending()
        self.deadlines = Deadlines()
        self.queue = Redeliveries()
        self.again_fresh: list[tuple[Ints, Ints]] = []
        self._again: list[tuple[Ints, Ints]] = []
        self._again_size = 0
        self._touched: list[Ints] = []
        self._touches, self._many_touches = 0, _MANY_TOUCHES

    @property
    def tracks(self) -> bool:
        """Whether deliveries wait for an ack at all."""
        return self.config.ack_policy is not AckPolicy.NONE

    @property
    def queued(self) -> int:
        return self.pending.counts[Row.QUEUED]

    @property
    def room(self) -> int:
        """New messages that max_ack_pending still lets through."""
        most = self.config.max_ack_pending
        if not self.tracks or most <= 0:
            return NEVER
        freed = self.pending.counts[Row.DELAYED] if self.config.nak_delay_frees_pending else 0
        return max(most - self.pending.count + freed, 0)

    @property
    def awaits_reader(self) -> bool:
        """Whether there are deliveries whose timer waits for a reader."""
        return not self._starts_at_delivery and self.pending.count > 0 and self.read_up_to < self.delivered.consumer

    @property
    def num_redelivered(self) -> int:
        return 0 if self.config.max_deliver == 1 else self.pending.redelivered

    @property
    def nbytes(self) -> int:
        again = sum(part.nbytes for pair in self._again for part in pair)
        return self.pending.nbytes + self.deadlines.nbytes + again

    # deliveries

    def give(self, sequences: Ints, sizes: Ints, now: int) -> Given:
        """Deliver messages for the first time. Their sequences lie above all that were delivered."""
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
        """Deliver `most` queued messages or fewer, and end those met on the way whose deliveries are used up.

        `peek_again` has found that the next one can be delivered.
        """
        rows = self.queue.take(self.pending, most)
        used_up = self._is_used_up(rows)
        ended = self._exhaust(rows[used_up])
        rows = rows[~used_up]
        column, consumer_seqs = self.pending.column, self._count(rows.size)
        self.delivered = Pair(int(consumer_seqs[-1]), self.delivered.stream)
        self.pending.redelivered += int((column["deliveries"][rows] == 1).sum())
        column["deliveries"][rows] += 1
        column["last"][rows] = now
        column["deadline"][rows] = NEVER
        self.pending.become(rows, Row.WAITING)
        if self._starts_at_delivery:
            self._arm(rows, now)
        sequences = column["sequence"][rows]
        self._remember(consumer_seqs, sequences)
        self._touch(sequences)
        deliveries = column["deliveries"][rows].astype(np.int64)
        return Given(sequences, consumer_seqs, deliveries, column["size"][rows].astype(np.int64)), ended

    def peek_again(self, most: int = NEVER) -> tuple[Ints, Settled]:
        """The row that goes out again next, none or one, and the rows before it that end as used up, `most` of them."""
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
        """Stream sequences and sizes of what is queued to go out again, in its order; `most` of them or fewer."""
        rows = self.queue.find_next_up(self.pending, most)
        return self.pending.view("sequence")[rows], self.pending.view("size")[rows].astype(np.int64)

    # what comes back

    def ack(self, sequences: Ints, consumer_seq: int) -> Settled:
        """Settle these messages, or with `all` what is pending up to the highest. `consumer_seq`: the last token's."""
        if self.config.ack_policy is AckPolicy.EXPLICIT:
            return self._settle(self.pending.find(distinct(sequences)))
        highest = int(sequences.max()) if sequences.size else 0
        if highest <= self.floor.stream or consumer_seq <= self.floor.consumer:
            return self._look(EMPTY)
        rows = self.pending.find_pending(self.pending.find_up_to(highest))
        ended = self._look(rows)
        self._drop(rows)
        # seen on 2.15.1: the ack of a message whose deliveries are used up settles those below it, and no floor moves
        if len(ended) and int(ended.sequences[-1]) == highest:
            self.floor = Pair(consumer_seq, highest)
        return ended

    def ack_ranges(self, ranges: tuple[tuple[int, int], ...]) -> Settled:
        """Settle the messages of these consumer sequences."""
        sequences = self.find_sequences(ranges)
        return self.ack(sequences, max(min(last, self.delivered.consumer) for _, last in ranges))

    def find_sequences(self, ranges: tuple[tuple[int, int], ...]) -> Ints:
        """Stream sequences of known messages that were delivered under these consumer sequences, rising."""
        own = self.pending.view("sequence")
        consumer_seqs, again = self.again
        joined = join(ranges, self.delivered.consumer)
        found = own[self.pending.find_delivered(joined)], again[find_within(consumer_seqs, joined)]
        return own[self.pending.find(distinct(np.concatenate(found)))]

    def nak(self, sequence: int, consumer_seq: int, delay: int | None, now: int) -> bool:
        """Queue a pending message, or set its timer to `delay`. False where it is not pending or below the floor."""
        rows = self.pending.find_pending(self.pending.find(np.array([sequence])))
        if not rows.size or not self.floor.consumer < consumer_seq <= self.delivered.consumer:
            return False
        if delay is None:
            if self.pending.view("state")[rows[0]] != Row.QUEUED:
                self.queue.put(self.pending, rows)
        else:
            self.pending.become(rows, Row.DELAYED)
            # a server moves the timestamp so that ack_wait ends after the delay; a longer backoff comes on top
            self._arm(rows, min(max(now + delay - self.config.ack_wait, 0), NEVER))
        self._touch(np.array([sequence]))
        return True

    def progress(self, sequences: Ints, now: int) -> None:
        """Begin the timers of pending messages again. A queued one stays queued."""
        rows = self.pending.find_pending(self.pending.find(distinct(sequences)))
        rows = rows[self.pending.view("state")[rows] != Row.QUEUED]
        if rows.size:
            self.pending.become(rows, Row.WAITING)
            self._arm(rows, now)
            self._touch(self.pending.view("sequence")[rows].copy())

    def read(self, consumer_seq: int, now: int) -> None:
        """The reader group has passed all deliveries up to `consumer_seq`: their timers start."""
        if consumer_seq <= self.read_up_to:
            return
        sequences = self.find_sequences(((self.read_up_to + 1, consumer_seq),))
        self.read_up_to = consumer_seq
        rows = self.pending.find(sequences)
        rows = rows[(self.pending.view("state")[rows] == Row.WAITING) & (self.pending.view("deadline")[rows] == NEVER)]
        self._arm(rows, now)
        self._touch(self.pending.view("sequence")[rows].copy())

    # time and retention

    def expire(self, now: int) -> Settled:
        """Queue what is due, in stream order. With max_deliver 1 nothing goes out again: what is due ends instead.

        With a larger one a message whose deliveries are used up is queued like the others, and ends when its turn comes; so
        it was seen on 2.15.1.
        """
        sequences = self.deadlines.pop_due(now)[1]
        order = np.argsort(sequences, kind="stable")
        rows = self.pending.find(sequences[order])
        # a stale entry is known by its row: it is settled, queued, or due later
        state, deadline = self.pending.view("state")[rows], self.pending.view("deadline")[rows]
        due = distinct(rows[((state == Row.WAITING) | (state == Row.DELAYED)) & (deadline <= now)])
        if self.config.max_deliver == 1:
            return self._exhaust(due)
        self._touch(self.pending.view("sequence")[due].copy())
        self.queue.put(self.pending, due)
        return self._look(EMPTY)

    def requeue_all(self) -> None:
        """Queue everything pending: the deliver subject changed."""
        rows = self.pending.find_pending(np.arange(self.pending.lead, self.pending.end))
        rows = rows[self.pending.view("state")[rows] != Row.QUEUED]
        self._touch(self.pending.view("sequence")[rows].copy())
        self.queue.put(self.pending, rows)

    def remove(self, below: int, sequences: Ints) -> Settled:
        """Messages left the stream: those below `below`, and `sequences`. Returns the pending ones among them."""
        gone = np.union1d(self.pending.find_up_to(below - 1), self.pending.find(sequences))
        exhausted = gone[self.pending.view("state")[gone] == Row.EXHAUSTED]
        ended = self._settle(np.setdiff1d(gone, exhausted))
        self._drop(exhausted)
        return ended

    def has_given_up(self, below: int) -> bool:
        """Return whether there are messages below a stream sequence that were given up."""
        return bool(self._find_given_up(below).size)

    def forget_given_up(self, below: int) -> None:
        """Forget the messages below a stream sequence that were given up: the stream does not have them any more."""
        self._drop(self._find_given_up(below))

    def _find_given_up(self, below: int) -> Ints:
        rows = self.pending.find_up_to(below - 1)
        given_up: Ints = rows[self.pending.view("state")[rows] == Row.EXHAUSTED]
        return given_up

    # state

    def restore(self, again: tuple[Ints, Ints]) -> None:
        """Set up what follows from the table: the queue, the heap."""
        self.queue.restore(self.pending)
        self._again, self._again_size = [again], again[0].size
        self._restore_deadlines()

    @property
    def again(self) -> tuple[Ints, Ints]:
        """Consumer and stream sequences of redeliveries that an ack may still name."""
        if len(self._again) != 1:
            pairs = [(EMPTY, EMPTY), *self._again]
            self._again = [(np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs]))]
        return self._again[0]

    def take_touched(self) -> Ints:
        """Stream sequences whose rows changed since this was last asked, rising."""
        touched = distinct(np.concatenate([EMPTY, *self._touched]))
        self._touched, self._touches = [], 0
        return touched

    def _count(self, size: int) -> Ints:
        return np.arange(self.delivered.consumer + 1, self.delivered.consumer + 1 + size)

    @property
    def _starts_at_delivery(self) -> bool:
        return self.config.interest is Interest.ALWAYS or not self.config.is_push

    def _waits(self, rows: Ints) -> Ints:
        """ns that each row waits for its ack, by how often it was delivered."""
        if not self.config.backoff:
            return np.full(rows.size, self.config.ack_wait or NEVER)
        backoff = np.array(self.config.backoff)
        waits: Ints = backoff[np.minimum(self.pending.view("deliveries")[rows] - 1, backoff.size - 1)]
        return waits

    def _arm(self, rows: Ints, start: int) -> None:
        waits = self._waits(rows)
        self._set_deadline(rows, np.where(waits > NEVER - start, NEVER, waits + start))

    def _set_deadline(self, rows: Ints, deadline: Ints) -> None:
        self.pending.column["deadline"][rows] = deadline
        armed = deadline != NEVER
        self.deadlines.push(deadline[armed], self.pending.view("sequence")[rows[armed]])
        if self.deadlines.size > 2 * self.pending.count + _MANY_AGAIN:
            self._restore_deadlines()

    def _restore_deadlines(self) -> None:
        """Leave out the heap's stale entries."""
        state, deadline = self.pending.view("state"), self.pending.view("deadline")
        live = np.flatnonzero(((state == Row.WAITING) | (state == Row.DELAYED)) & (deadline != NEVER))
        self.deadlines.rebuild(deadline[live], self.pending.view("sequence")[live])

    def _is_used_up(self, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        most = self.config.max_deliver
        return np.asarray((self.pending.view("deliveries")[rows] >= most) & (most > 0))

    def _exhaust(self, rows: Ints) -> Settled:
        """End rows whose deliveries are used up. The floor stays: it moves with the next ack."""
        ended = self._look(rows)
        self.pending.become(rows, Row.EXHAUSTED)
        self._touch(ended.sequences)
        return ended

    def _settle(self, rows: Ints) -> Settled:
        """End rows for good, whatever they were, and move the floor. Returns those that were pending."""
        ended = self._look(self.pending.find_pending(rows))
        self._drop(rows)
        if len(ended):
            self._move_floor(int(ended.consumer_seqs[0]))
        return ended

    def _move_floor(self, consumer_seq: int) -> None:
        """The message first delivered as `consumer_seq` was settled, and perhaps some above it."""
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
        """Note rows that the next delta has to tell of."""
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
        self.again_fresh.append((consumer_seqs, sequences))
        self._again.append((consumer_seqs, sequences))
        self._again_size += sequences.size
        if self._again_size > 2 * self.pending.count + _MANY_AGAIN:
            self._prune_again()

    def _prune_again(self) -> None:
        """Leave out messages that are settled; and of those that are not, the earlier ones when they are too many."""
        consumer_seqs, sequences = self.again
        known = self.pending.view("sequence")[self.pending.find(distinct(sequences))]
        kept = np.flatnonzero(np.isin(sequences, known))[-(self.pending.count + _MANY_AGAIN // 2) :]
        self._again, self._again_size = [(consumer_seqs[kept], sequences[kept])], kept.size
