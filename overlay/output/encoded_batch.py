"""Finished record batches, complete except for the producer's id, epoch and first sequence."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import google_crc32c
import numpy as np

from overlay.scan.codec import Codec, compress
from overlay.scan.header import HEADER_SIZE, TRANSACTIONAL

from .assemble import Body
from .record import Record, decode_varint, encode_record, encode_varint

_FRONT = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, CRC
_REST = struct.Struct(">hiqqqhii")  # attributes ... record count: what the CRC covers, with the records


class EncodedBatch:
    """Records for one output partition, compressed and ready to send. `build` adds what the
    producer gives them.
    """

    def __init__(self, body: Body, codec: Codec, *, transactional: bool) -> None:
        self._records = compress(codec, body.records)
        self._attributes = int(codec) | (TRANSACTIONAL if transactional else 0)
        self._base, self._latest = body.base_timestamp, body.max_timestamp
        self.count = body.count
        self.consumer_seqs = body.consumer_seqs
        """Of the first and the last record, if they are deliveries."""

    @property
    def is_transactional(self) -> bool:
        return bool(self._attributes & TRANSACTIONAL)

    @property
    def is_joinable(self) -> bool:
        """Whether the batch may be joined with others (`join`): it is not compressed, belongs to no
        transaction, and has at most 64 records, so that a request of its own would cost more.
        """
        return self._attributes == Codec.NONE and self.count <= JOINABLE

    @property
    def size(self) -> int:
        """Bytes on the wire, as the broker's max.message.bytes counts them."""
        return HEADER_SIZE + len(self._records)

    def build(self, producer_id: int = -1, producer_epoch: int = -1, sequence: int = -1) -> bytes:
        """Return the batch as bytes to send, with its CRC.

        `sequence`: the producer's sequence number of the first record, within the partition. All -1
        for no idempotent producer.
        """
        rest = _REST.pack(
            self._attributes, self.count - 1, self._base, self._latest, producer_id, producer_epoch, sequence, self.count
        )  # fmt: skip
        crc = google_crc32c.extend(google_crc32c.value(rest), self._records)
        front = _FRONT.pack(0, len(rest) + len(self._records) + 9, 0, 2, crc)
        return b"".join((front, rest, self._records))

    def _renumber(self, first: int, base: int) -> Iterator[bytes]:
        """Yield the encoded records piece by piece, for another batch: with offsets from `first`
        on, and times relative to `base` (ms since 1970).
        """
        data, at = self._records, 0
        while at < len(data):
            size, start = decode_varint(data, at)
            at = start + size
            since, rest = decode_varint(data, start + 1)
            delta, rest = decode_varint(data, rest)
            body = b"".join(
                (
                    data[start : start + 1],
                    encode_varint(self._base + since - base),
                    encode_varint(first + delta),
                    data[rest:at],
                )
            )
            yield encode_varint(len(body))
            yield body

    @classmethod
    def join(cls, batches: Sequence[EncodedBatch]) -> EncodedBatch:
        """Return one batch with the records of several (at least one) in their order, uncompressed
        and without a transaction. All have to be joinable, which is not checked. A single batch is
        returned as it is.

        Kafka takes only one batch per partition in a request.
        """
        if len(batches) == 1:
            return batches[0]
        base = min(batch._base for batch in batches)
        parts: list[bytes] = []
        count = 0
        for batch in batches:
            parts += batch._renumber(count, base)
            count += batch.count
        out = np.frombuffer(b"".join(parts), np.uint8)
        body = Body(out, out.size, count, base, max(batch._latest for batch in batches))
        return cls(body, Codec.NONE, transactional=False)


JOINABLE = 64
"""Most records of a batch that may be joined with others."""

COMPRESS_FROM = 64 << 10
"""Bytes of records above which their batch is compressed, because a state may be larger than its
topic takes.
"""


def encode_records(records: Sequence[Record], now: int, *, transactional: bool = True) -> EncodedBatch:
    """Return one batch of all these records, at least one, compressed with LZ4 if they have more
    than COMPRESS_FROM bytes. `now`: ms since 1970, the time of all of them. `transactional`: whether
    the batch belongs to a transaction.
    """
    out = b"".join(encode_record(record, delta) for delta, record in enumerate(records))
    body = Body(np.frombuffer(out, np.uint8), base_timestamp=now, max_timestamp=now, count=len(records))
    body.size = body.out.size
    return EncodedBatch(body, Codec.LZ4 if len(out) > COMPRESS_FROM else Codec.NONE, transactional=transactional)
