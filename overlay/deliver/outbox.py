"""From selected rows to finished batches: one consumer's share of a slice, split by output partition and by size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overlay.config.consumer import PartitionBy
from overlay.match.addressing import Addressed
from overlay.scan.codec import Codec
from overlay.scan.header import HEADER_SIZE, Bytes

from .assemble import Body, Envelope, assemble, room_for
from .batch import EncodedBatch
from .partition import place

Ints = npt.NDArray[np.int64]

_LARGEST_BODY = 1 << 20
_SMALLEST_BODY = 1 << 14
_SPARES = 8
_EXPANSION = 1024  # what a codec may add to records that do not compress, beside a part in 128


@dataclass(frozen=True, slots=True, eq=False)
class Outlet:
    """An output topic as it stands, and how one consumer writes to it. Sizes are bytes."""

    topic: str
    partitions: int
    partition_by: PartitionBy
    max_message_bytes: int
    codec: Codec
    transactional: bool
    sequenced: bool  # whether the stream gives sequences; tokens say 0 where it does not
    envelope: Envelope

    @property
    def body_limit(self) -> int:
        """Uncompressed bytes that surely stay under max.message.bytes whatever the codec makes of them."""
        return max(1, min(_LARGEST_BODY, self.max_message_bytes * 127 // 128 - HEADER_SIZE - _EXPANSION))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A batch for one output partition."""

    topic: str
    partition: int
    batch: EncodedBatch
    oversized_offset: int = -1
    """The source offset of a record that is by itself larger than the topic takes; -1 for a batch that fits."""


class Press:
    """Fills batches slice by slice and hands them out when they are full, or all of them at `flush`.

    Batches start small and grow, so that a thousand consumers with little to say need little memory. Not for two threads
    at once.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[Outlet, int], Body] = {}
        self._spares: list[Bytes] = []

    def add(
        self, outlet: Outlet, slice_: Addressed, rows: Ints, partition: int, first_sequence: int, now: int
    ) -> Iterator[tuple[Outlet, Outgoing]]:
        """Add the deliveries of `rows`; yields the batches that became full, in order within each output partition.

        `partition`: of the source; `first_sequence`: the consumer sequence of the first row; `now`: ms.
        """
        source, codes, texts = slice_.records, slice_.codes, slice_.dictionary.texts
        sequences = np.arange(first_sequence, first_sequence + rows.size)
        if outlet.partitions == 1:
            yield from self._fill(outlet, slice_, rows, sequences, 0, now)
            return
        places = place(outlet.partition_by, outlet.partitions, partition, source, rows, codes, texts)
        for target in np.unique(places).tolist():
            mine = places == target
            yield from self._fill(outlet, slice_, rows[mine], sequences[mine], target, now)

    def flush(self) -> Iterator[tuple[Outlet, Outgoing]]:
        """Everything that is still open."""
        for (outlet, target), body in self._open.items():
            if body.count:
                yield outlet, self._finish(outlet, target, body)
        self._open.clear()

    def _fill(
        self, outlet: Outlet, slice_: Addressed, rows: Ints, sequences: Ints, target: int, now: int
    ) -> Iterator[tuple[Outlet, Outgoing]]:
        stream_sequences = slice_.records.offset[rows] + 1 if outlet.sequenced else np.zeros(rows.size, np.int64)
        done, key = 0, (outlet, target)
        body = self._open.get(key) or Body(self._room(min(_SMALLEST_BODY, outlet.body_limit)))
        while done < rows.size:
            is_alone = body.out.size > outlet.body_limit
            rest = slice(done, done + 1 if is_alone else None)
            done += assemble(
                body, slice_.records, rows[rest], slice_.codes, slice_.dictionary.texts, outlet.envelope,
                (stream_sequences[rest], sequences[rest]), now,
            )  # fmt: skip
            if not is_alone and (done == rows.size or self._grow(body, outlet.body_limit)):
                continue
            if not body.count:
                # larger than any batch may be: it goes by itself, since it may still fit once it is compressed
                body.out = np.empty(_room_alone(outlet, slice_, int(rows[done])), np.uint8)
                continue
            yield outlet, self._finish(outlet, target, body)
            body = Body(self._room(outlet.body_limit))  # one that was full is followed by another
        self._open[key] = body

    def _grow(self, body: Body, limit: int) -> bool:
        """Double the room, up to `limit` bytes; False when it is that large already."""
        if body.out.size >= limit:
            return False
        larger = self._room(min(body.out.size * 2, limit))
        larger[: body.size] = body.records
        body.out = larger
        return True

    def _room(self, size: int) -> Bytes:
        """A buffer, one that has been used before if there is such a one: fresh memory costs as much as filling it."""
        for i, spare in enumerate(self._spares):
            if spare.size == size:
                return self._spares.pop(i)
        return np.empty(size, np.uint8)

    def _finish(self, outlet: Outlet, target: int, body: Body) -> Outgoing:
        """Close a batch. One that is too large holds a single record: batches of more always fit."""
        batch = EncodedBatch(body, outlet.codec, transactional=outlet.transactional)
        if body.out.size == outlet.body_limit and len(self._spares) < _SPARES:
            self._spares.append(body.out)
        fits = batch.size <= outlet.max_message_bytes
        return Outgoing(outlet.topic, target, batch, -1 if fits else body.last_offset)


def _room_alone(outlet: Outlet, slice_: Addressed, row: int) -> int:
    code, bounds = int(slice_.codes[row]), slice_.dictionary.texts.bounds
    return room_for(slice_.records, row, int(bounds[code + 1] - bounds[code]), outlet.envelope)
