"""Dead letters: messages that are given up, as they would be delivered, with the reason and the
history in headers.

The record is the delivery: key, value and headers of the source, `Nats-Subject` and the token. The
token names the last delivery. Its consumer sequence is not known any more and is written as 0, so
no ack of it is ever taken for an ack of a message. The record's time is the time when the message
was given up, because the source's time may be why it was given up.

A dead letter that is too large for its topic goes without its value. `Nats-Msg-Size` says so, as it
does with headers_only. Source partition and offset say where the value is. Key and headers are
still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.consumer.effects import DeadLetter
from overlay.kafka.header_names import CAUSES
from overlay.units import format_time

from .assemble import Body, Envelope, Numbers, assemble, without_value
from .batch_builder import OutputBatch, OutputTopic, Slice, measure
from .encoded_batch import EncodedBatch
from .partition import place
from .record import Headers, encode_headers


def describe_dead_letter(letter: DeadLetter, stream: str, consumer: str, partition: int, offset: int) -> Headers:
    """Return the headers that say why a message was given up and where it came from, in the order
    of CAUSES. `partition`, `offset`: of the source record.
    """
    texts = (
        letter.reason,
        str(letter.deliveries),
        format_time(letter.first_delivered),
        format_time(letter.last_delivered),
        stream,
        consumer,
        str(partition),
        str(offset),
    )
    return [(name, text.encode()) for name, text in zip(CAUSES, texts, strict=True)]


def encode_dead_letters(
    output_topic: OutputTopic, piece: Slice, rows: Ints, letters: Sequence[DeadLetter], partition: int, now: int
) -> list[OutputBatch]:
    """Return the dead letters of `rows`, one for each, as batches for the dead-letter topic.

    `output_topic`: the dead-letter topic, with the consumer's envelope. `rows`: indices of records of `piece`.
    `letters`: why each row was given up, in the order of `rows`. `partition`: of the source. `now`: ms since 1970. If
    a dead letter is too large even without its value, its batch has the source offset in `oversized_offset`, as
    deliveries do; else that is -1.
    """
    places = place(
        output_topic.partition_by, output_topic.partitions, partition, piece.records, rows, piece.codes, piece.texts
    )
    found: list[OutputBatch] = []
    for target in np.unique(places).tolist():
        mine = np.flatnonzero(places == target)
        writing = _Writing(output_topic, piece, partition, target, now)
        for at in mine.tolist():
            writing.add(rows[at : at + 1], letters[at])
        found += writing.finish()
    return found


class _Writing:
    """A writer of dead letters for one partition, `target`, of the dead-letter topic. `partition`:
    that of the source. `now`: ms since 1970.

    Each letter has headers of its own, so each takes a call of the kernel.
    """

    def __init__(self, output_topic: OutputTopic, piece: Slice, partition: int, target: int, now: int) -> None:
        self._output_topic, self._piece, self._partition, self._target, self._now = (
            output_topic,
            piece,
            partition,
            target,
            now,
        )
        self._names = bytes(output_topic.envelope.stream).decode(), output_topic.envelope.consumers.split()[0].decode()
        self._body = Body(np.empty(0, np.uint8))
        self._done: list[OutputBatch] = []

    def add(self, row: Ints, letter: DeadLetter) -> None:
        """Add the dead letter of one row (`row` has one entry) to the current batch.

        If it may have more uncompressed bytes than the topic's `body_limit`, it gets a batch of its
        own: with its value if the topic takes that batch, else without.
        """
        piece = self._piece
        offset = int(piece.records.offset[row[0]])
        more = encode_headers(describe_dead_letter(letter, *self._names, self._partition, offset))
        with_value = replace(
            self._output_topic.envelope, more=np.frombuffer(more, np.uint8), more_count=len(CAUSES), headers_only=False
        )
        size = int(measure(piece, row, with_value)[0])
        if size <= self._output_topic.body_limit:
            self._make_room(size)
            self._write(row, with_value, letter)
            return
        self._close()
        for envelope in (with_value, without_value(with_value)):
            self._body = Body(np.empty(int(measure(piece, row, envelope)[0]), np.uint8))
            self._write(row, envelope, letter)
            outgoing = self._wrap()
            if outgoing.oversized_offset < 0:
                break
        self._done.append(outgoing)
        self._body = Body(np.empty(0, np.uint8))

    def finish(self) -> list[OutputBatch]:
        """Close the current batch, and return all batches that were written."""
        self._close()
        return self._done

    def _write(self, row: Ints, envelope: Envelope, letter: DeadLetter) -> None:
        piece, one = self._piece, np.ones(1, np.int64)
        numbers = Numbers(one * letter.stream_seq, one * 0, one * letter.deliveries).complete()
        assemble(self._body, piece.records, row, piece.codes, piece.texts, envelope, numbers, self._now)

    def _make_room(self, size: int) -> None:
        """Enlarge the current batch's buffer, if needed, for one more record of `size` bytes. If the batch would
        exceed the topic's `body_limit` with it, close the batch and begin another.
        """
        body, limit = self._body, self._output_topic.body_limit
        if body.size + size <= body.out.size:
            return
        if body.count and body.size + size > limit:
            self._close()
        room = max(size, min(2 * (self._body.size + size), limit))
        self._body.out = _grow(self._body, room)

    def _close(self) -> None:
        if self._body.count:
            self._done.append(self._wrap())
        self._body = Body(np.empty(0, np.uint8))

    def _wrap(self) -> OutputBatch:
        batch = EncodedBatch(self._body, self._output_topic.codec, transactional=self._output_topic.transactional)
        fits = batch.size <= self._output_topic.max_message_bytes
        return OutputBatch(self._output_topic.topic, self._target, batch, -1 if fits else self._body.last_offset)


def _grow(body: Body, room: int) -> Bytes:
    larger = np.empty(room, np.uint8)
    larger[: body.size] = body.records
    return larger
