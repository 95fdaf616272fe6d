"""Record batches made by hand: every shape a broker can hand out, and many that it never would.

The builder trusts its caller: it writes whatever it is told, with the CRC over the result, so that a test can put one
wrong field into an otherwise sound batch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TypedDict, Unpack

import cramjam
import google_crc32c

from tests.oracle.batches import ABORT, COMMIT, CRC_AT, CRC_FROM, HEADER_SIZE, LAYOUT, LENGTH_AT, PREFIX, XERIAL, Record

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32


class Fields(TypedDict, total=False):
    """Header fields to write instead of what follows from the records."""

    batch_length: int
    leader_epoch: int
    magic: int
    attributes: int  # whole, codec and flags included
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int


def build(
    records: Sequence[Record] = (),
    *,
    base_offset: int = 0,
    codec: int = 0,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    xerial: bool = True,
    payload: bytes | None = None,
    section: bytes | None = None,
    crc: int | None = None,
    **fields: Unpack[Fields],
) -> bytes:
    """One batch. Records carry absolute offsets and timestamps; their deltas are taken from the base of the header.

    `payload` replaces the encoded records before compression, `section` after it. `crc` None is the right one.
    """
    times = [record.timestamp for record in records] or [0]
    base_timestamp = fields.get("base_timestamp", times[0])
    if payload is None:
        payload = b"".join(encode_record(record, base_offset, base_timestamp) for record in records)
    if section is None:
        section = compress(codec, payload, xerial=xerial)
    flags = codec | LOG_APPEND_TIME * log_append_time | TRANSACTIONAL * transactional | CONTROL * control
    head = LAYOUT.pack(
        base_offset,
        fields.get("batch_length", HEADER_SIZE - PREFIX + len(section)),
        fields.get("leader_epoch", 0),
        fields.get("magic", 2),
        0,
        fields.get("attributes", flags),
        fields.get("last_offset_delta", records[-1].offset - base_offset if records else 0),
        base_timestamp,
        fields.get("max_timestamp", max(times)),
        fields.get("producer_id", -1),
        fields.get("producer_epoch", -1),
        fields.get("base_sequence", -1),
        fields.get("count", len(records)),
    )
    return repair_crc(head + section, crc)


def repair_crc(batch: bytes, crc: int | None = None) -> bytes:
    """The batch with `crc`, or with the CRC its bytes have. Shorter than a header: as it is."""
    if len(batch) < HEADER_SIZE:
        return batch
    right = google_crc32c.value(batch[CRC_FROM:]) if crc is None else crc
    return batch[:CRC_AT] + struct.pack(">I", right) + batch[CRC_FROM:]


def repair_length(batch: bytes) -> bytes:
    return batch[:LENGTH_AT] + struct.pack(">i", len(batch) - PREFIX) + batch[PREFIX:]


def split_batches(buf: bytes) -> list[bytes]:
    """The pieces of a buffer of sound batches, the incomplete tail left out."""
    pieces, at = [], 0
    while at + PREFIX <= len(buf):
        end = at + PREFIX + int.from_bytes(buf[at + LENGTH_AT : at + PREFIX], "big")
        if end > len(buf):
            break
        pieces.append(buf[at:end])
        at = end
    return pieces


def varint(number: int, *, width: int = 0) -> bytes:
    """Zigzag varint; `width` pads with empty groups to that many bytes, which decodes to the same number."""
    raw = number << 1 if number >= 0 else (-number << 1) - 1
    groups = []
    while True:
        groups.append(raw & 0x7F)
        raw >>= 7
        if not raw and len(groups) >= width:
            break
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Record, base_offset: int = 0, base_timestamp: int = 0) -> bytes:
    body = b"".join(
        [
            b"\x00",
            varint(record.timestamp - base_timestamp),
            varint(record.offset - base_offset),
            sized(record.key),
            sized(record.value),
            varint(len(record.headers)),
            *(sized(name) + sized(value) for name, value in record.headers),
        ]
    )
    return varint(len(body)) + body


def compress(codec: int, payload: bytes, *, xerial: bool = True) -> bytes:
    """`payload` as a producer compresses it; an unknown codec leaves it as it is."""
    match codec:
        case 1:
            return bytes(cramjam.gzip.compress(payload))
        case 2:
            return _snappy_stream(payload) if xerial else bytes(cramjam.snappy.compress_raw(payload))
        case 3:
            return bytes(cramjam.lz4.compress(payload))
        case 4:
            return bytes(cramjam.zstd.compress(payload))
    return payload


def _snappy_stream(payload: bytes, block: int = 1024) -> bytes:
    """xerial's framing; small blocks, so that a test's payload has several."""
    parts = [XERIAL + struct.pack(">ii", 1, 1)]
    for at in range(0, len(payload), block):
        data = bytes(cramjam.snappy.compress_raw(payload[at : at + block]))
        parts.append(struct.pack(">i", len(data)) + data)
    return b"".join(parts)


def end_marker(offset: int, producer_id: int, *, commit: bool, timestamp: int = 0, producer_epoch: int = 0) -> bytes:
    """The control batch that ends a transaction: key (version, type), value (version, coordinator epoch)."""
    key = struct.pack(">hh", 0, COMMIT if commit else ABORT)
    record = Record(offset, timestamp, key, struct.pack(">hi", 0, 0))
    return build(
        [record],
        base_offset=offset,
        transactional=True,
        control=True,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def empty(base_offset: int, span: int, **fields: Unpack[Fields]) -> bytes:
    """What compaction leaves of a batch whose records are all gone: the header, which still spans `span` offsets."""
    fields["last_offset_delta"] = span - 1
    return build(base_offset=base_offset, **fields)


def old_message(offset: int, value: bytes | None, *, magic: int, key: bytes | None = None, timestamp: int = 0) -> bytes:
    """One message of format 0 or 1, as brokers before 0.11 stored them."""
    body = struct.pack(">bb", magic, 0)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for data in (key, value):
        body += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message
