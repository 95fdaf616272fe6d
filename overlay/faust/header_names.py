"""Records whose headers have names that are not UTF-8, made readable for Faust.

aiokafka raises an error at such a name, again at each attempt, and Faust's worker ends. Deliveries
have the headers of their source records, whose names any producer may have written. So the client
of Faust's consumer looks through what it has fetched before aiokafka does, and leaves such headers out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.record.memory_records import MemoryRecords

from overlay.kafka.message_headers import left_out
from overlay.output.record import encode_varint
from overlay.scan import Malformed
from overlay.scan.codec import Arena
from overlay.scan.header import CODEC_MASK, CONTROL, CRC_FROM, HEADER_SIZE, LENGTH_AT
from overlay.scan.rows import Row, read_rows

_FETCH = 1
"""The API key of fetch requests."""
_HEAD = struct.Struct(">qiibIhiq")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp: how a batch begins."""


def leave_out_names(client: AIOKafkaClient) -> None:
    """Have a client leave headers whose names are not UTF-8 out of the records that it fetches from now on. They are
    counted and told of as `read_headers` does.
    """
    send = client.send

    async def send_and_mend(node_id: int, request: Any, **options: Any) -> Any:
        response = await send(node_id, request, **options)
        if getattr(response, "API_KEY", None) == _FETCH:
            positions = {(topic, each[0]): each[1] for topic, parts in request.topics for each in parts}
            response.topics = [
                (topic, [(*part[:-1], _mend_part(topic, part, positions)) for part in parts])
                for topic, parts in response.topics
            ]
        return response

    client.send = send_and_mend


def _mend_part(topic: str, part: tuple[Any, ...], positions: dict[tuple[str, int], int]) -> bytes:
    """Return the record batches of a partition of a fetch response, made readable. `part`: the partition's number first,
    its batches last. `positions`: by topic and partition, the offset from which on records were asked for.
    """
    partition, data = part[0], part[-1]
    if not data or _is_readable(data):
        return data or b""
    pieces = []
    for batch in _split(data):
        mended, counts = (batch, {}) if _is_readable(batch) else mend_batch(batch)
        pieces.append(mended)
        for offset, count in counts.items():
            if offset >= positions.get((topic, partition), 0):
                left_out.add(topic, partition, offset, count)
    return b"".join(pieces)


def _is_readable(data: bytes) -> bool:
    """Return whether aiokafka can read the records of these batches, which may have another fault than a name."""
    try:
        records = MemoryRecords(data)
        while records.has_next():
            for _ in records.next_batch():
                pass
    except (ValueError, KafkaError):
        return False
    return True


def _split(data: bytes) -> Iterator[bytes]:
    """Yield the batches in turn, and at the end the bytes that are no whole batch."""
    at = 0
    while at + LENGTH_AT <= len(data):
        end = at + LENGTH_AT + int.from_bytes(data[at + LENGTH_AT - 4 : at + LENGTH_AT], "big", signed=True)
        if not at + LENGTH_AT <= end <= len(data):
            break
        yield data[at:end]
        at = end
    yield data[at:]


def mend_batch(batch: bytes) -> tuple[bytes, dict[int, int]]:
    """Return a record batch without the headers whose names are not UTF-8, uncompressed, and how many were left out by the
    offset of their record. A batch that has another fault, or has no such headers, is returned as it is.
    """
    rows = list(read_rows(np.frombuffer(batch, np.uint8), arena=Arena()))
    sound = [row for row in rows if isinstance(row, Row)]
    counts = {row.offset: bad for row in sound if (bad := sum(not _is_text(name) for name, _ in row.headers))}
    if any(isinstance(row, Malformed) for row in rows) or not counts:
        return batch, {}
    base, _, epoch, magic, _, attributes, delta, base_time = _HEAD.unpack_from(batch)
    assert not attributes & CONTROL, "their records are left out by read_rows"
    data = b"".join(_encode(row, row.offset - base, row.timestamp - base_time) for row in sound)
    size = HEADER_SIZE - LENGTH_AT + len(data)
    head = _HEAD.pack(base, size, epoch, magic, 0, attributes & ~CODEC_MASK, delta, base_time)
    whole = head + batch[_HEAD.size : HEADER_SIZE] + data
    crc = google_crc32c.value(whole[CRC_FROM:])
    return whole[: CRC_FROM - 4] + crc.to_bytes(4, "big") + whole[CRC_FROM:], counts


def _encode(row: Row, delta: int, since: int) -> bytes:
    """Return a record without the headers whose names are not UTF-8. `delta`, `since`: its offset and its time, relative to
    its batch.
    """
    headers = [(name, value) for name, value in row.headers if _is_text(name)]
    parts = [b"\0", encode_varint(since), encode_varint(delta), _sized(row.key), _sized(row.value)]
    parts += [encode_varint(len(headers)), *(_sized(name) + _sized(value) for name, value in headers)]
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
