"""Chunk indexes made beside the deliveries: what the pipeline reads is sealed chunk by chunk. No
IO.

The shard that the stream's name hashes to keeps its index. There the index is one more reader of
the stream's partitions, at the position of a cursor like any consumer. At first it catches up
alone. Once it has met the other cursors, every batch is fetched and decoded once for all of them.
Headers are written in the transaction of the round they come from. The index's position is recorded
nowhere but in the index topic: after a restart, indexing goes on behind the last header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from overlay.config.stream import StreamConfig
from overlay.field import Field
from overlay.index.skip.chunk_header import NO_CHUNKS, AddressCounts, Header
from overlay.index.skip.contents import Contents
from overlay.index.skip.encode import encode
from overlay.index.skip.seal import Sealer
from overlay.kafka.log_position import TopicPartition
from overlay.match import Addressed
from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import encode_records
from overlay.output.record import Record
from overlay.scan import Malformed
from overlay.scan.header import Batches

BATCH_BYTES = 512 << 10
"""Headers are packed into batches of up to this size. A single header is smaller than a topic's
default max.message.bytes."""


class Sealed(NamedTuple):
    """A chunk (some thousand consecutive records) whose header was made, with its offsets. A chunk
    that has grown is written again with the same first offset."""

    stream: str
    source: TopicPartition
    first_offset: int
    next_offset: int
    records: int
    """Committed records."""
    unaddressed: int
    """Those of them without a subject in the stream."""


@dataclass(slots=True)
class Reach:
    """How far the chunk index of a partition reaches: the number of chunks, the offset below
    which they cover the log, and how many of their records have no subject."""

    chunks: int
    position: int
    addresses: AddressCounts = NO_CHUNKS
    _first_offset: int = -1
    _before: AddressCounts = NO_CHUNKS
    """Without the last chunk, whose header may be replaced."""

    def add(self, sealed: Sealed) -> None:
        """Take in one more header; one with the first offset of the last replaces it. The headers
        of a partition come in order."""
        if sealed.first_offset != self._first_offset:
            self.chunks += 1
            self._before = self.addresses
        self._first_offset, self.position = sealed.first_offset, sealed.next_offset
        before = self._before
        self.addresses = AddressCounts(
            before.records + sealed.records,
            before.unaddressed + sealed.unaddressed,
            (sealed.first_offset, sealed.next_offset) if sealed.unaddressed else before.last,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Seal:
    """The indexing of one fetch: `add` divides the fetch's decoded slices into chunks.

    `headers`: the list that headers of complete chunks are appended to. It belongs to the stream.
    """

    sealer: Sealer
    batches: Batches
    fields: tuple[Field, ...]
    """Fields that the slices must contain."""
    headers: list[Header]

    def add(self, piece: Addressed | Malformed, now: int) -> None:
        """Add the next decoded slice, or unreadable batch, of the fetch to the chunks. `now`: ms
        since 1970."""
        self.headers.extend(self.sealer.add(piece, self.batches, now))


class Indexing:
    """Makes the chunk headers of a pipeline's streams. `topics`: by stream, its index topic. Not
    thread-safe."""

    def __init__(self, streams: Mapping[str, StreamConfig], topics: Mapping[str, str]) -> None:
        self._contents = {name: Contents(stream) for name, stream in streams.items()}
        self._topics = topics
        self._sealers: dict[tuple[str, TopicPartition], Sealer] = {}
        self._headers: dict[str, list[Header]] = {name: [] for name in streams}

    def open(self, stream: str, source: TopicPartition, position: int, batches: Batches) -> Seal:
        """Return the object that takes the slices of a fetch from `position` on. If the partition's
        last fetch did not end there, a new chunk begins. `batches`: the fetch's batch headers."""
        key, contents = (stream, source), self._contents[stream]
        sealer = self._sealers.get(key)
        if sealer is None or sealer.position != position:
            if sealer is not None:
                self._headers[stream].extend(sealer.flush())
            sealer = self._sealers[key] = Sealer(contents, *source, position)
        return Seal(sealer, batches, contents.fields, self._headers[stream])

    @property
    def has_more(self) -> bool:
        """Whether there are records for which `finish` has made no header yet."""
        return any(sealer.has_more for sealer in self._sealers.values())

    def finish(self, now: int, *, last: bool = False) -> tuple[list[Sealed], list[OutputBatch]]:
        """Return the chunks that are complete or old enough and not written yet, and their headers as batches for the
        index topics. Call once a round. `now`: ms since 1970.

        `last`: no more records follow, so all growing chunks are returned as well.
        """
        for (stream, _), sealer in self._sealers.items():
            self._headers[stream].extend(sealer.flush() if last else sealer.age(now))
        due = {stream: headers for stream, headers in self._headers.items() if headers}
        sealed = [
            Sealed(
                stream,
                (each.topic, each.partition),
                each.first_offset,
                each.next_offset,
                each.records,
                each.records - each.addressed,
            )
            for stream, headers in due.items()
            for each in headers
        ]
        batches = [
            batch
            for stream, headers in due.items()
            for batch in pack(self._topics[stream], (Record(*encode(header)) for header in headers), now)
        ]
        for headers in due.values():
            headers.clear()
        return sealed, batches


def pack(topic: str, records: Iterable[Record], now: int) -> list[OutputBatch]:
    """Return records of an index topic as batches for its partition 0, of about BATCH_BYTES each.
    `now`: their timestamp, ms since 1970."""
    packs: list[list[Record]] = []
    room = 0
    for record in records:
        size = len(record.key or b"") + len(record.value or b"")
        if not packs or size > room:
            packs.append([])
            room = BATCH_BYTES
        packs[-1].append(record)
        room -= size
    return [OutputBatch(topic, 0, encode_records(some, now)) for some in packs]
