"""From a machine's effects to batches: deliveries, dead letters, statuses, answers and advisories, in the order of the effects
where they go to the same place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import PartitionBy
from overlay.consumer.effects import DeadLetter, Deliver, Effect, Status
from overlay.output.assemble import Envelope, Numbers, make_envelope
from overlay.output.batch_builder import MAX_MESSAGE_BYTES, Outgoing, Outlet, Press
from overlay.output.entry import Entry, press_entries
from overlay.output.undeliverable import find_refused
from overlay.scan.codec import Codec
from overlay.state.shard_state import ConsumerId

from .answers import describe_reply, encode_answers, encode_statuses
from .dead_letters import press_letters
from .event_topic import encode_notices
from .record_cache import NOWHERE, Larder
from .record_slice import Piece
from .reply_address import parse_address
from .served_consumer import Seat

MILLISECOND = 1_000_000
REPLY_ROOM = 4_096
"""What the headers may take by which a reply finds its pull request."""


@dataclass(slots=True)
class Printed:
    """Batches in order; the newest and the oldest source record among the deliveries, ms, None for none."""

    batches: list[Outgoing] = field(default_factory=list)
    answers: list[Entry | Outgoing] = field(default_factory=list)
    """What goes to reply topics, in order: it belongs to no transaction (reply_sender.py)."""
    newest: int | None = None
    oldest: int | None = None

    def note(self, first: int, last: int) -> None:
        """Records of these times are among the deliveries. A time may be 0 or below."""
        self.oldest = first if self.oldest is None else min(self.oldest, first)
        self.newest = last if self.newest is None else max(self.newest, last)


class Printing:
    """Not for two threads at once. `prefix`: of the overlay's topics."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._press = Press()

    def print(self, consumer: ConsumerId, seat: Seat, effects: Sequence[Effect], larder: Larder, now: int) -> Printed:
        """What one consumer's effects become. The larder has the records of all deliveries; now: ns."""
        printed = Printed()
        time = now // MILLISECOND
        for effect in effects:
            if isinstance(effect, Deliver):
                self._deliver(effect, consumer, seat, larder, time, printed)
            elif isinstance(effect, Status) and not effect.reply and seat.outlet is not None:
                # it stands behind the deliveries that it is about
                self._flush(printed)
                statuses = encode_statuses([effect], *consumer, seat.outlet.topic, seat.outlet.partitions)
                printed.batches += press_entries(statuses, time)
        self._flush(printed)
        printed.batches += self._bury(effects, consumer, seat, larder, time)
        printed.answers += encode_statuses([e for e in effects if isinstance(e, Status) and e.reply], *consumer)
        printed.answers += encode_answers(effects)
        printed.batches += press_entries(encode_notices(effects, *consumer, now, self._prefix), time)
        return printed

    def find_refused(self, consumer: ConsumerId, seat: Seat, larder: Larder, sequences: Ints, now: int) -> Ints:
        """Those of these stream sequences that their output can never take. The larder has them all; now: ns."""
        outlet = seat.outlet
        if outlet is None:
            envelope = make_envelope(
                *consumer,
                full=False,
                source_time=False,
                headers_only=seat.machine.config.headers_only,
                incarnation=seat.machine.lineage.incarnation,
            )
            outlet = _make_reply_outlet("", envelope, MAX_MESSAGE_BYTES - REPLY_ROOM)
        found = [
            sequences[part][find_refused(outlet, piece, rows, now // MILLISECOND)]
            for piece, rows, part in _cut(larder, consumer[0], sequences)
        ]
        return np.concatenate([sequences[:0], *found])

    def _deliver(
        self, deliver: Deliver, consumer: ConsumerId, seat: Seat, larder: Larder, time: int, printed: Printed
    ) -> None:
        outlet = seat.outlet if not deliver.reply else _reply_outlet(deliver, consumer, seat)
        if outlet is None:
            return
        for piece, rows, part in _cut(larder, consumer[0], deliver.sequences):
            numbers = Numbers(
                deliver.sequences[part],
                deliver.consumer_seqs[part],
                deliver.deliveries[part],
                deliver.num_pending[part],
            )
            self._press.add(outlet, piece, rows, piece.partition, numbers, time)
            times = piece.records.timestamp[rows]
            printed.note(int(times.min()), int(times.max()))
        if deliver.reply:
            partition = parse_address(deliver.reply).partition or 0
            printed.answers += (
                replace(outgoing, partition=partition, reply=deliver.reply) for _, outgoing in self._press.flush()
            )

    def _flush(self, printed: Printed) -> None:
        printed.batches += (outgoing for _, outgoing in self._press.flush())

    def _bury(
        self, effects: Sequence[Effect], consumer: ConsumerId, seat: Seat, larder: Larder, time: int
    ) -> Iterator[Outgoing]:
        """Dead letters; records that the log does not hold any more are left out."""
        letters = [effect for effect in effects if isinstance(effect, DeadLetter)]
        if not letters or seat.letters is None:
            return
        sequences = np.array([letter.stream_seq for letter in letters], np.int64)
        for piece, rows, part in _cut(larder, consumer[0], sequences):
            yield from press_letters(seat.letters, piece, rows, letters[part], piece.partition, time)


def _cut(larder: Larder, stream: str, sequences: Ints) -> Iterator[tuple[Piece, Ints, slice]]:
    """Runs of neighbours that lie in one piece: the piece, their rows there, and which they are. Those that are nowhere are
    left out."""
    found = larder.find(stream, sequences)
    cuts = np.flatnonzero(np.diff(found.number)) + 1
    bounds = [0, *cuts.tolist(), sequences.size]
    for first, end in pairwise(bounds):
        number = int(found.number[first])
        if number != NOWHERE:
            yield found.pieces[number], found.row[first:end], slice(first, end)


def _reply_outlet(deliver: Deliver, consumer: ConsumerId, seat: Seat) -> Outlet:
    """Where the messages of a pull request go."""
    envelope = make_envelope(
        *consumer,
        full=False,
        source_time=False,
        headers_only=deliver.headers_only,
        more=describe_reply(deliver.reply, deliver.pin),
        incarnation=seat.machine.lineage.incarnation,
    )
    return _make_reply_outlet(parse_address(deliver.reply).topic, envelope, MAX_MESSAGE_BYTES)


def _make_reply_outlet(topic: str, envelope: Envelope, max_message_bytes: int) -> Outlet:
    """A reply topic takes what Kafka's topics take by default: nobody asks it what else it would."""
    return Outlet(topic, 1, PartitionBy.SOURCE, max_message_bytes, Codec.NONE, False, envelope)
