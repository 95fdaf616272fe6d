"""The batch builder: turns selected rows of slices into finished batches, split by output partition
and by size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from overlay.arrays import Bytes, Ints
from overlay.config.consumer import PartitionBy
from overlay.errors import DeliveryFailed
from overlay.scan.codec import Codec
from overlay.scan.decode import Records
from overlay.scan.header import HEADER_SIZE
from overlay.subject.dictionary import Codes, Texts

from .assemble import Body, Columns, Envelope, Numbers, assemble, room_for
from .encoded_batch import EncodedBatch
from .partition import place

ConsumerId = tuple[str, str]
"""Stream and name."""

_LARGEST_BODY = 1 << 20
_SMALLEST_BODY = 1 << 14
_SPARES = 8
MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default of max.message.bytes for topics."""
NO_LIMIT = (1 << 63) - 1
_EXPANSION = 1024  # what a codec may add to records that do not compress, in addition to 1/128


class Slice(Protocol):
    """Records with the codes of their subjects: a decoded slice of the scan, or a kept copy of its
    rows.
    """

    @property
    def records(self) -> Records: ...
    @property
    def codes(self) -> Codes: ...
    @property
    def texts(self) -> Texts: ...


@dataclass(frozen=True, slots=True, eq=False)
class OutputTopic:
    """An output topic with its actual settings, and how a consumer writes to it, or several that
    share batches. Sizes are bytes.

    `transactional`: batches belong to a transaction. `envelope`: what all deliveries have in
    common.
    """

    topic: str
    partitions: int
    partition_by: PartitionBy
    max_message_bytes: int
    codec: Codec
    transactional: bool
    envelope: Envelope
    needs_key: bool = False
    """Whether the topic is compacted, and so takes no record without a key."""
    oldest_ms: int = NO_LIMIT
    newest_ms: int = NO_LIMIT
    """How many ms before (`oldest_ms`) and after now the topic accepts a record's time."""

    @property
    def body_limit(self) -> int:
        """Most uncompressed bytes of records in a batch: so many that it stays below
        max.message.bytes with any codec, but not more than 1 MiB.
        """
        return max(1, min(_LARGEST_BODY, self.max_message_bytes * 127 // 128 - HEADER_SIZE - _EXPANSION))


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """A batch for one output partition."""

    topic: str
    partition: int
    batch: EncodedBatch
    oversized_offset: int = -1
    """The source offset of a record that alone is larger than the topic takes; -1 for a batch that
    fits.
    """
    recipient: int = 0
    """Who gets the last record, as a number among the recipients of its envelope."""
    reply: str = ""
    """The reply address of the batch's pull request; empty if it is for none."""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.batch.size


def refuse_oversized(batches: Iterable[tuple[tuple[ConsumerId, ...], OutputBatch]]) -> None:
    """Raise DeliveryFailed for the first batch that is too large for its topic, naming its
    consumer. `batches`: each with its consumers; one that is too large has one.

    Call before anything is sent, so that no other consumer's batches wait for it
    (docs/exactly-once.md#refusing-outputs).
    """
    for consumers, outgoing in batches:
        if outgoing.oversized_offset >= 0:
            raise DeliveryFailed(
                outgoing.topic,
                outgoing.partition,
                f"the record at source offset {outgoing.oversized_offset} makes a batch of {outgoing.batch.size} bytes,"
                " more than the topic's max.message.bytes. Raise that, then restart; or see `on_undeliverable: dead_letter`",
                final=True,
                consumer=consumers[0],
            )


class BatchBuilder:
    """A builder that fills batches slice by slice. `take` returns those that are full, `flush` all of them. Not
    thread-safe.

    Batches start small and grow, so that a thousand consumers with few messages need little memory. (A second thread
    that compresses while this one fills was tried: with the broker on the same two cores it changed nothing.)
    """

    def __init__(self) -> None:
        self._open: dict[tuple[OutputTopic, int], Body] = {}
        self._closed: list[tuple[OutputTopic, OutputBatch]] = []
        self._spares: list[Bytes] = []

    def add(
        self, output_topic: OutputTopic, slice_: Slice, rows: Ints, partition: int, numbers: Numbers, now: int
    ) -> None:
        """Add deliveries of the records `rows` (indices) of a slice to the batches of the output partitions that they
        belong to by the topic's `partition_by`.

        `partition`: that of the source. `numbers`: of the rows, in their order. `now`: ms since 1970, the time of all
        records of the batches that begin with this call, unless they keep the source's time.
        """
        source, codes, texts = slice_.records, slice_.codes, slice_.texts
        columns = numbers.complete()
        if output_topic.partitions == 1:
            self._fill(output_topic, slice_, rows, columns, 0, now)
            return
        places = place(output_topic.partition_by, output_topic.partitions, partition, source, rows, codes, texts)
        for target in np.unique(places).tolist():
            mine = places == target
            self._fill(output_topic, slice_, rows[mine], _cut(columns, mine), target, now)

    def add_to(
        self, output_topic: OutputTopic, target: int, slice_: Slice, rows: Ints, numbers: Numbers, now: int
    ) -> None:
        """Add deliveries of the records `rows` (indices) of a slice to one output partition, `target`, whatever
        `partition_by` says.

        `numbers`: of the rows, in their order. `now`: ms since 1970, the time of all records of the batches that
        begin with this call, unless they keep the source's time.
        """
        self._fill(output_topic, slice_, rows, numbers.complete(), target, now)

    def take(self) -> list[tuple[OutputTopic, OutputBatch]]:
        """Return the batches that have been closed since the last call of `take` or `flush`, because the next record
        did not fit, in order within each output partition. The builder no longer has them. Others stay open.
        """
        finished, self._closed = self._closed, []
        return finished

    def flush(self) -> list[tuple[OutputTopic, OutputBatch]]:
        """Close all batches, and remove and return those that were not returned yet, in order
        within each output partition.
        """
        for (output_topic, target), body in self._open.items():
            if body.count:
                self._close(output_topic, target, body)
        self._open.clear()
        return self.take()

    def _fill(
        self, output_topic: OutputTopic, slice_: Slice, rows: Ints, numbers: Columns, target: int, now: int
    ) -> None:
        done, key = 0, (output_topic, target)
        body = self._open.get(key) or Body(self._room(min(_SMALLEST_BODY, output_topic.body_limit)))
        while done < rows.size:
            is_alone = body.out.size > output_topic.body_limit
            rest = slice(done, done + 1 if is_alone else None)
            done += assemble(
                body, slice_.records, rows[rest], slice_.codes, slice_.texts, output_topic.envelope,
                _cut(numbers, rest), now,
            )  # fmt: skip
            if not is_alone and (done == rows.size or self._grow(body, output_topic.body_limit)):
                continue
            if not body.count:
                # larger than a batch's limit: it gets a batch of its own, as it may still fit once
                # compressed
                body.out = np.empty(int(measure(slice_, rows[done : done + 1], output_topic.envelope)[0]), np.uint8)
                continue
            self._close(output_topic, target, body)
            body = Body(self._room(output_topic.body_limit))  # a full batch is likely to be followed by another
        self._open[key] = body

    def _grow(self, body: Body, limit: int) -> bool:
        """Double the buffer of a batch, up to `limit` bytes. Return False, and do nothing, if it
        has that size already.
        """
        if body.out.size >= limit:
            return False
        larger = self._room(min(body.out.size * 2, limit))
        larger[: body.size] = body.records
        body.out = larger
        return True

    def _room(self, size: int) -> Bytes:
        """Return a buffer of `size` bytes with any content, a used one if possible: fresh memory
        costs as much as filling it.
        """
        for i, spare in enumerate(self._spares):
            if spare.size == size:
                return self._spares.pop(i)
        return np.empty(size, np.uint8)

    def _close(self, output_topic: OutputTopic, target: int, body: Body) -> None:
        """Compress a batch and add it to those that `take` returns. Only a batch with a single
        record can be too large for its topic; then `oversized_offset` is set.
        """
        batch = EncodedBatch(body, output_topic.codec, transactional=output_topic.transactional)
        if body.out.size == output_topic.body_limit and len(self._spares) < _SPARES:
            self._spares.append(body.out)
        fits = batch.size <= output_topic.max_message_bytes
        self._closed.append(
            (
                output_topic,
                OutputBatch(output_topic.topic, target, batch, -1 if fits else body.last_offset, body.last_recipient),
            )
        )


def _cut(columns: Columns, part: Any) -> Columns:
    stream, consumer, deliveries, pending, recipients = columns
    return stream[part], consumer[part], deliveries[part], pending[part], recipients[part]


def measure(slice_: Slice, rows: Ints, envelope: Envelope) -> Ints:
    """Return an upper bound of the uncompressed bytes that each of the records `rows` (indices) of a slice takes as a
    delivery (int64, one per row).
    """
    codes, bounds = slice_.codes[rows], slice_.texts.bounds
    return room_for(slice_.records, rows, bounds[codes + 1] - bounds[codes], envelope)
