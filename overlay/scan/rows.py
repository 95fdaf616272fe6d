"""Records of small topics, read one after the other without kernels.

Kernels are for millions of records. Loading them takes a second, in which a command could have
read what it needs of the control topic and of the state. What is here reads a few hundred thousand
records per second and judges every byte as decode.py does: tests/scan/test_rows.py compares both.

A batch that cannot be read is yielded as a `Malformed`, never raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from overlay.arrays import Bytes

from .codec import Arena
from .commit import NO_ABORTS, Aborted
from .crc import matches
from .decode import NO_STOP, SMALLEST_RECORD, Malformed
from .header import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batches,
    Fault,
    split,
)

_HEADER = struct.Struct(">qiibIHiqqqhii")  # the fields in header.py
_LENGTH = struct.Struct(">i")
_HIGHEST_OFFSET = 1 << 61
_INT32_BITS, _INT64_BITS = 35, 70
_WORD = (1 << 64) - 1


class Row(NamedTuple):
    """One record. `timestamp`: ms since 1970. `headers`: all of them in order, names as bytes."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]


class _Unreadable(Exception):
    """Bytes that are no record."""


class _Batch(NamedTuple):
    """The fields of a batch's header that reading its records needs; see header.BATCH."""

    at: int
    end: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    attributes: int
    record_count: int


_FIELDS = [*_Batch._fields[:-1], "count"]


def find_batches(buf: Bytes, at: int, previous: int, out: Batches) -> tuple[int, int, Fault]:
    """Fill `out` with the complete batches from `at` on, as the kernel does that `split` otherwise
    uses. Return how many were found, the position after them, and the fault of the batch there
    (NONE if the bytes or the room in `out` end). `previous`: the last offset of the batch before
    `at`, -1 if there is none.
    """
    data, fault = buf.data, Fault.NONE
    rows: list[tuple[int, ...]] = []
    while len(rows) < out.size and at + 17 <= len(data):
        (length,), magic = _LENGTH.unpack_from(data, at + 8), data[at + 16]
        end = at + LENGTH_AT + length
        if magic != 2:
            fault = Fault.OLD_FORMAT if magic in (0, 1) else Fault.MAGIC
        elif length < HEADER_SIZE - LENGTH_AT:
            fault = Fault.LENGTH
        if fault or end > len(data):
            break
        base, _, epoch, _, crc, attributes, delta, base_time, max_time, producer, _, _, count = _HEADER.unpack_from(
            data, at
        )
        if delta < 0 or not 0 <= base <= _HIGHEST_OFFSET:
            fault = Fault.OFFSETS
        elif base <= previous:
            fault = Fault.ORDER
        if fault:
            break
        previous = base + delta
        rows.append((at, end, base, previous, base_time, max_time, producer, crc, 0, 0, epoch, attributes, count))
        at = end
    out[: len(rows)] = rows
    return len(rows), at, fault


def read_rows(
    buf: Bytes,
    position: int = 0,
    *,
    stop: int = NO_STOP,
    aborted: Aborted = NO_ABORTS,
    arena: Arena,
    most_records: int | None = None,
) -> Iterator[Row | Malformed]:
    """Yield the records with position <= offset < stop in order, and a Malformed for each batch
    that cannot be read, as `Decoder.decode` does with `committed=True`. `arena`: for decompression;
    a compressed batch whose records exceed its limit is Malformed. `most_records`: as in Decoder.
    """
    found = split(buf, find_batches)
    sound = matches(buf, found.batches).tolist()
    tail = position
    transactions = _Transactions(aborted)
    for batch, is_sound in zip(map(_Batch._make, found.batches[_FIELDS].tolist()), sound, strict=True):
        sight = transactions.judge(buf, batch) if is_sound else Fault.CRC
        if batch.last_offset < position or batch.base_offset >= stop:
            continue
        tail = min(batch.last_offset + 1, stop)
        if isinstance(sight, Fault):
            yield Malformed(sight, batch.base_offset, batch.last_offset + 1)
        elif sight:
            records = _read_batch(buf, batch, arena, most_records)
            if isinstance(records, Fault):
                yield Malformed(records, batch.base_offset, batch.last_offset + 1)
            else:
                yield from (row for row in records if position <= row.offset < stop)
    if found.fault and found.base_offset < stop:
        yield Malformed(found.fault, found.base_offset, max(found.base_offset, tail) + 1)


class _Transactions:
    """Which batches a read-committed reader may see, asked for batch after batch; the rule is in
    commit.py.
    """

    def __init__(self, aborted: Aborted) -> None:
        """`aborted`: pairs (producer id, first offset), in any order."""
        self._left = sorted(((first, producer) for producer, first in aborted.tolist()), key=lambda pair: -pair[0])
        self._open: list[int] = []

    def judge(self, buf: Bytes, batch: _Batch) -> bool | Fault:
        """Return whether the batch may be seen, Fault.CONTROL for a marker that cannot be read.
        Call for each batch of a fetch, in order.
        """
        while self._left and self._left[-1][0] <= batch.last_offset:
            self._open.append(self._left.pop()[1])
        if not batch.attributes & CONTROL:
            return not (batch.attributes & TRANSACTIONAL and batch.producer_id in self._open)
        if batch.record_count <= 0:
            return False  # compaction may leave control batches without their record
        try:
            kind = _read_marker(buf.data[: batch.end], batch.at + HEADER_SIZE)
        except _Unreadable:
            return Fault.CONTROL
        if kind == 0:
            self._open = [producer for producer in self._open if producer != batch.producer_id]
        return False


def _read_marker(data: memoryview, at: int) -> int:
    """Return the type of the control record at `at`: 0 abort, 1 commit, others are internal to the
    broker. Raises _Unreadable.
    """
    length, at = _read_varint(data, at, len(data), _INT32_BITS)
    if length < 0 or at + length > len(data):
        raise _Unreadable
    _, at = _read_varint(data, at + 1, len(data), _INT64_BITS)
    _, at = _read_varint(data, at, len(data), _INT32_BITS)
    size, at = _read_varint(data, at, len(data), _INT32_BITS)
    if size < 4 or at + size > len(data):
        raise _Unreadable
    return int.from_bytes(data[at + 2 : at + 4])


def _read_batch(buf: Bytes, batch: _Batch, arena: Arena, most_records: int | None) -> list[Row] | Fault:
    """Return all records of a batch, or why it cannot be read."""
    if most_records is not None and batch.record_count > most_records:
        return Fault.TOO_MANY
    data = buf[batch.at + HEADER_SIZE : batch.end]
    if (codec := batch.attributes & CODEC_MASK) and data.size:
        filled = arena.put(0, codec, data)
        if isinstance(filled, Fault):
            return filled
        data = arena.buf[:filled]
    if batch.record_count < 0 or batch.record_count * SMALLEST_RECORD > data.size:
        return Fault.COUNT
    copied = data.tobytes()
    arena.trim()
    return _walk(copied, batch)


def _walk(data: bytes, batch: _Batch) -> list[Row] | Fault:
    rows, at, before = [], 0, batch.base_offset - 1
    try:
        for _ in range(batch.record_count):
            row, at = _read_row(data, at, batch)
            if not before < row.offset <= batch.last_offset:
                return Fault.OFFSETS
            before = row.offset
            rows.append(row)
    except _Unreadable:
        return Fault.RECORD
    return rows if at == len(data) else Fault.COUNT


def _read_row(data: bytes, at: int, batch: _Batch) -> tuple[Row, int]:
    """Return the record at `at` and the position after it. Raises _Unreadable."""
    length, at = _read_varint(data, at, len(data), _INT32_BITS)
    end = at + length
    if length < 0 or end > len(data):
        raise _Unreadable
    delta, at = _read_varint(data, at + 1, end, _INT64_BITS)
    offset_delta, at = _read_varint(data, at, end, _INT32_BITS)
    key, at = _read_bytes(data, at, end)
    value, at = _read_bytes(data, at, end)
    count, at = _read_varint(data, at, end, _INT32_BITS)
    if count < 0:
        raise _Unreadable
    headers = []
    for _ in range(count):
        name, at = _read_bytes(data, at, end)
        if name is None:
            raise _Unreadable
        content, at = _read_bytes(data, at, end)
        headers.append((name, content))
    if at != end:
        raise _Unreadable
    timestamp = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else _wrap(batch.base_timestamp + delta)
    return Row(batch.base_offset + offset_delta, timestamp, key, value, headers), end


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Return bytes with their size in front, None for size -1, and the position after them. Raises
    _Unreadable.
    """
    size, at = _read_varint(data, at, end, _INT32_BITS)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise _Unreadable
    return data[at : at + size], at + size


def _read_varint(data: bytes | memoryview, at: int, end: int, bits: int) -> tuple[int, int]:
    """Return the zigzag varint at `at` and the position after it. Raises _Unreadable if it passes
    `end` or is longer than `bits` / 7 bytes.
    """
    raw = shift = 0
    while at < end and shift < bits:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= _WORD
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    raise _Unreadable


def _wrap(number: int) -> int:
    """Return a number of any size as an int64, by its lowest 64 bits, as an overflow leaves it."""
    return (number + (1 << 63) & _WORD) - (1 << 63)
