"""The encoder of a machine's effects: deliveries, dead letters, statuses, answers and advisories
become batches.

Records for a partition of the output topic keep the order of their effects. Of the records for
reply topics, deliveries come first, then statuses, then answers to acks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from overlay.arrays import Ints
from overlay.config.consumer import PartitionBy
from overlay.consumer.effects import DeadLetter, Deliver, Effect, Status
from overlay.match.record_slice import RecordSlice
from overlay.output.assemble import Envelope, Numbers, make_envelope
from overlay.output.batch_builder import MAX_MESSAGE_BYTES, BatchBuilder, OutputBatch, OutputTopic
from overlay.output.dead_letters import encode_dead_letters
from overlay.output.entry import Entry, press_entries
from overlay.output.undeliverable import find_refused
from overlay.replies.answers import describe_reply, encode_answers, encode_statuses
from overlay.replies.event_topic import encode_notices
from overlay.replies.reply_address import parse_address
from overlay.scan.codec import Codec
from overlay.state.shard_state import ConsumerId

from .record_cache import NOWHERE, RecordCache
from .served_consumer import ConsumerSlot

MILLISECOND = 1_000_000
REPLY_ROOM = 4_096
"""Most bytes of the headers by which a reply finds its pull request."""


@dataclass(slots=True)
class EncodedEffects:
    """What one consumer's effects were encoded into: batches for its topics and the events topic,
    and answers, each in order.

    `newest` and `oldest`: times of the source records among the deliveries, ms since 1970; None if
    there are none.
    """

    batches: list[OutputBatch] = field(default_factory=list)
    answers: list[Entry | OutputBatch] = field(default_factory=list)
    """Records for reply topics, in order. They belong to no transaction (reply_sender.py)."""
    newest: int | None = None
    oldest: int | None = None

    def note(self, first: int, last: int) -> None:
        """Widen `oldest` and `newest` so that they include records from `first` to `last`, ms since
        1970. Either may be 0 or negative.
        """
        self.oldest = first if self.oldest is None else min(self.oldest, first)
        self.newest = last if self.newest is None else max(self.newest, last)


class EffectEncoder:
    """Encodes the effects of consumers' machines into batches and answers. Not thread-safe.
    `prefix`: how the names of the overlay's topics begin.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._builder = BatchBuilder()

    def print(
        self, consumer: ConsumerId, slot: ConsumerSlot, effects: Sequence[Effect], record_cache: RecordCache, now: int
    ) -> EncodedEffects:
        """Return one consumer's effects as batches and answers: deliveries, statuses, dead letters,
        answers to acks, advisories and samples. Other effects are left out.

        `record_cache` must have the records of all deliveries; a dead letter whose record it does
        not have is left out. `now`: ns since 1970.
        """
        printed = EncodedEffects()
        time = now // MILLISECOND
        for effect in effects:
            if isinstance(effect, Deliver):
                self._deliver(effect, consumer, slot, record_cache, time, printed)
            elif isinstance(effect, Status) and not effect.reply and slot.output_topic is not None:
                # the status comes after the deliveries that it is about
                self._flush(printed)
                statuses = encode_statuses([effect], *consumer, slot.output_topic.topic, slot.output_topic.partitions)
                printed.batches += press_entries(statuses, time)
        self._flush(printed)
        printed.batches += self._bury(effects, consumer, slot, record_cache, time)
        printed.answers += encode_statuses([e for e in effects if isinstance(e, Status) and e.reply], *consumer)
        printed.answers += encode_answers(effects)
        printed.batches += press_entries(encode_notices(effects, *consumer, now, self._prefix), time)
        return printed

    def find_refused(
        self, consumer: ConsumerId, slot: ConsumerSlot, record_cache: RecordCache, sequences: Ints, now: int
    ) -> Ints:
        """Return those stream sequences whose messages the output can never take, in the order of
        `sequences`.

        `record_cache` must have the records of all of them. `now`: ns since 1970. For a pull
        consumer the limit is Kafka's default max.message.bytes, less REPLY_ROOM.
        """
        output_topic = slot.output_topic
        if output_topic is None:
            envelope = make_envelope(
                *consumer,
                full=False,
                source_time=False,
                headers_only=slot.machine.state.config.headers_only,
                incarnation=slot.machine.state.lineage.incarnation,
            )
            output_topic = _make_reply_output_topic("", envelope, MAX_MESSAGE_BYTES - REPLY_ROOM)
        found = [
            sequences[part][find_refused(output_topic, piece, rows, now // MILLISECOND)]
            for piece, rows, part in _cut(record_cache, consumer[0], sequences)
        ]
        return np.concatenate([sequences[:0], *found])

    def _deliver(
        self,
        deliver: Deliver,
        consumer: ConsumerId,
        slot: ConsumerSlot,
        record_cache: RecordCache,
        time: int,
        printed: EncodedEffects,
    ) -> None:
        """Encode the messages of one Deliver effect. `time`: ms since 1970.

        For a pull request they are added to `printed.answers` at once. For the output topic they
        are collected, and `_flush` adds them to `printed.batches`; without an output topic they are
        dropped.
        """
        output_topic = slot.output_topic if not deliver.reply else _reply_output_topic(deliver, consumer, slot)
        if output_topic is None:
            return
        for piece, rows, part in _cut(record_cache, consumer[0], deliver.sequences):
            numbers = Numbers(
                deliver.sequences[part],
                deliver.consumer_seqs[part],
                deliver.deliveries[part],
                deliver.num_pending[part],
            )
            self._builder.add(output_topic, piece, rows, piece.partition, numbers, time)
            times = piece.records.timestamp[rows]
            printed.note(int(times.min()), int(times.max()))
        if deliver.reply:
            partition = parse_address(deliver.reply).partition or 0
            printed.answers += (
                replace(outgoing, partition=partition, reply=deliver.reply) for _, outgoing in self._builder.flush()
            )

    def _flush(self, printed: EncodedEffects) -> None:
        printed.batches += (outgoing for _, outgoing in self._builder.flush())

    def _bury(
        self, effects: Sequence[Effect], consumer: ConsumerId, slot: ConsumerSlot, record_cache: RecordCache, time: int
    ) -> Iterator[OutputBatch]:
        """Yield batches of the dead letters among the effects; none if the consumer has no
        dead-letter topic. Messages whose records are not in the cache are left out, since the log
        has lost them. `time`: ms since 1970.
        """
        letters = [effect for effect in effects if isinstance(effect, DeadLetter)]
        if not letters or slot.dead_letter_topic is None:
            return
        sequences = np.array([letter.stream_seq for letter in letters], np.int64)
        for piece, rows, part in _cut(record_cache, consumer[0], sequences):
            yield from encode_dead_letters(slot.dead_letter_topic, piece, rows, letters[part], piece.partition, time)


def _cut(record_cache: RecordCache, stream: str, sequences: Ints) -> Iterator[tuple[RecordSlice, Ints, slice]]:
    """Cut sequences into runs whose records are in one slice of the cache. Yield that slice, the
    run's row numbers there, and where the run is in `sequences`.

    Sequences that are not in the cache are left out. There must be at least one sequence.
    """
    found = record_cache.find(stream, sequences)
    cuts = np.flatnonzero(np.diff(found.number)) + 1
    bounds = [0, *cuts.tolist(), sequences.size]
    for first, end in pairwise(bounds):
        number = int(found.number[first])
        if number != NOWHERE:
            yield found.pieces[number], found.row[first:end], slice(first, end)


def _reply_output_topic(deliver: Deliver, consumer: ConsumerId, slot: ConsumerSlot) -> OutputTopic:
    """Return an output topic for the deliveries of a pull request: its reply topic, with an
    envelope that has the headers of the request.
    """
    envelope = make_envelope(
        *consumer,
        full=False,
        source_time=False,
        headers_only=deliver.headers_only,
        more=describe_reply(deliver.reply, deliver.pin),
        incarnation=slot.machine.state.lineage.incarnation,
    )
    return _make_reply_output_topic(parse_address(deliver.reply).topic, envelope, MAX_MESSAGE_BYTES)


def _make_reply_output_topic(topic: str, envelope: Envelope, max_message_bytes: int) -> OutputTopic:
    """Return a reply topic as an output topic: one partition, no compression, no transactions.

    The topic's settings are not looked up; `max_message_bytes` is the limit that is assumed.
    """
    return OutputTopic(topic, 1, PartitionBy.SOURCE, max_message_bytes, Codec.NONE, False, envelope)
