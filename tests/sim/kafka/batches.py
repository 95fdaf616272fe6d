"""Record batches of message format 2 as a broker sees them: a header that it reads and stamps, and a body that it keeps.

base_offset i64, batch_length i32, leader_epoch i32, magic i8, crc u32,                 not under the CRC
attributes i16, last_offset_delta i32, base_timestamp i64, max_timestamp i64,           CRC-32C from here to the end
producer_id i64, producer_epoch i16, base_sequence i32, count i32, records
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
from aiokafka.record.default_records import DefaultRecordBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
PREFIX = 12
CRC_FROM = 21
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 8, 16, 32, 64
ABORT, COMMIT = 0, 1
NO_PRODUCER = -1
MARKER_KIND_AT = HEADER.size + 8
"""The byte of a marker that tells ABORT from COMMIT."""
LAST_SEQUENCE = (1 << 31) - 1

_STAMP = struct.Struct(">qii")
_UNDER_CRC = struct.Struct(">hiqqqhii")


class BadBatch(Exception):
    """Bytes that a broker does not take for a batch: the CRC or the length is wrong."""


class Batch:
    """A batch of a log. Offsets are absolute, timestamps in ms since 1970. `data` is what a fetch gets."""

    __slots__ = (
        "attributes",
        "base",
        "base_timestamp",
        "count",
        "data",
        "epoch",
        "last",
        "max_timestamp",
        "position",
        "producer",
        "producer_epoch",
        "sequence",
        "size",
    )

    def __init__(self, data: bytes) -> None:
        (
            self.base,
            length,
            self.epoch,
            _,
            _,
            self.attributes,
            delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer,
            self.producer_epoch,
            self.sequence,
            self.count,
        ) = HEADER.unpack_from(data)
        self.data = data
        self.size = length + PREFIX
        self.last = self.base + delta
        self.position = 0
        """Of its first byte within its segment."""

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 without sequences. It wraps around to 0."""
        if self.sequence < 0:
            return -1
        return int(self.sequence + self.last - self.base) & LAST_SEQUENCE

    def stamp(self, base: int, epoch: int) -> None:
        """Put the batch at an offset of a log, in the epoch of its leader. The CRC does not cover these."""
        self.last += base - self.base
        self.base, self.epoch = base, epoch
        self.data = _STAMP.pack(base, self.size - PREFIX, epoch) + self.data[16:]

    def stamp_time(self, now_ms: int) -> None:
        """Give all records the broker's time, as topics with LogAppendTime do."""
        self.attributes |= LOG_APPEND_TIME
        self.max_timestamp = now_ms
        body = _UNDER_CRC.pack(
            self.attributes,
            self.last - self.base,
            self.base_timestamp,
            now_ms,
            self.producer,
            self.producer_epoch,
            self.sequence,
            self.count,
        )
        body += self.data[HEADER.size :]
        self.data = self.data[:17] + struct.pack(">I", google_crc32c.value(body)) + body

    def records(self) -> list[Any]:
        """Return the records as aiokafka decodes them, with absolute offsets."""
        batch = DefaultRecordBatch(self.data)
        return list(batch)


def split(data: bytes) -> list[Batch]:
    """Return the batches that a producer sent for one partition; one that is cut off at the end is left out, as Kafka does.

    Raises BadBatch for another format.
    """
    found, at, end = [], 0, len(data)
    while end - at >= HEADER.size:
        (length,) = struct.unpack_from(">i", data, at + 8)
        size = length + PREFIX
        if data[at + 16] != 2 or length < HEADER.size - PREFIX:
            raise BadBatch("a batch of another format")
        if at + size > end:
            break
        found.append(Batch(data if size == end else data[at : at + size]))
        at += size
    return found


def has_valid_crc(batch: Batch) -> bool:
    """Return whether the batch is as its producer made it."""
    (crc,) = struct.unpack_from(">I", batch.data, 17)
    return bool(google_crc32c.value(batch.data[CRC_FROM:]) == crc)


def make_marker(producer: int, producer_epoch: int, kind: int, coordinator_epoch: int, now_ms: int) -> Batch:
    """Return the control batch that ends a producer's transaction in a partition; `kind` is ABORT or COMMIT."""
    key = struct.pack(">hh", 0, kind)
    value = struct.pack(">hi", 0, coordinator_epoch)
    # attributes, timestamp delta and offset delta are zero; lengths are zigzag
    record = b"\x00\x00\x00" + bytes([len(key) * 2]) + key + bytes([len(value) * 2]) + value + b"\x00"
    record = bytes([len(record) * 2]) + record
    return make_batch(
        record, 1, TRANSACTIONAL | CONTROL, now_ms, now_ms, producer=producer, producer_epoch=producer_epoch
    )


def make_batch(
    section: bytes,
    count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    delta: int | None = None,
    producer: int = NO_PRODUCER,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> Batch:
    """Return a batch of encoded records at offset 0. `delta`: from the first offset to the last."""
    last = count - 1 if delta is None else delta
    body = (
        _UNDER_CRC.pack(attributes, last, base_timestamp, max_timestamp, producer, producer_epoch, sequence, count)
        + section
    )
    crc = google_crc32c.value(body)
    return Batch(struct.pack(">qiibI", 0, len(body) + CRC_FROM - PREFIX, 0, 2, crc) + body)
