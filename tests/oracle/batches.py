"""The slow, obvious twin of overlay/scan: record batches of message format 2, one Python object per record.

Written from the Kafka protocol's description of the format (kafka.apache.org/documentation, "Record Batch") with struct
alone, so that an error of the fast kernels is not repeated here. All integers are big-endian; `varint` is zigzag in
groups of seven bits, low group first, at most 5 bytes for an int32 and 10 for an int64.

    batch:  base_offset i64, batch_length i32, leader_epoch i32, magic i8, crc u32,         not under the CRC
            attributes i16, last_offset_delta i32, base_timestamp i64, max_timestamp i64,   CRC-32C from here to the end
            producer_id i64, producer_epoch i16, base_sequence i32, count i32, records (compressed as attributes say)
    record: length varint, attributes i8, timestamp_delta varlong, offset_delta varint, key_size varint, key,
            value_size varint, value, header count varint, headers
    header: name_size varint, name, value_size varint, value          size -1 = null, for all but the name

Brokers accept less than all bytes that fit this scheme; what a broker could not have written is refused here, so that
"malformed" has one meaning. A fetch response may end inside a batch: such a tail is not an error and not a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import cramjam
import google_crc32c

Header = tuple[bytes, bytes | None]

HEADER_SIZE = 61
LENGTH_AT = 8
MAGIC_AT = 16
CRC_AT = 17
CRC_FROM = 21
PREFIX = 12  # base_offset and batch_length, which batch_length does not count
MIN_LENGTH = HEADER_SIZE - PREFIX
LAYOUT = struct.Struct(">qiibIhiqqqhii")

MAX_OFFSET = 1 << 61  # a position from which nothing that is added to it overflows
MAX_DECOMPRESSED = 128 << 20
XERIAL = b"\x82SNAPPY\x00"
ABORT, COMMIT = 0, 1


class Malformed(Exception):
    """A batch that no broker could have written. `before` holds the whole batches that precede it in the buffer."""

    def __init__(self, base_offset: int, reason: str) -> None:
        self.base_offset, self.reason = base_offset, reason
        self.before: list[Batch] = []
        super().__init__(f"batch at offset {base_offset}: {reason}")


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `timestamp` in milliseconds, as a consumer would show it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    records: list[Record] = field(default_factory=list)
    crc_matches: bool = True
    fault: Malformed | None = None  # why the records cannot be read; then there are none

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def log_append_time(self) -> bool:
        return bool(self.attributes & 8)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 16)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 32)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def parse(buf: bytes) -> list[Batch]:
    """The whole batches of a fetch response. Raises Malformed at the first that breaks the format."""
    batches, broken = survey(buf)
    for i, batch in enumerate(batches):
        if batch.fault is not None:
            batch.fault.before = batches[:i]
            raise batch.fault
    if broken is not None:
        broken.before = batches
        raise broken
    return batches


def survey(buf: bytes) -> tuple[list[Batch], Malformed | None]:
    """As `parse`, but a batch that cannot be read stands in the list with its fault, and reading goes on behind it.

    Second: the fault that hides where the next batch begins, or puts it into the wrong place of the log.
    """
    batches: list[Batch] = []
    try:
        for frame in walk(buf):
            batches.append(parse_batch(frame))  # noqa: PERF401 - what was read before an error is kept
    except Malformed as broken:
        return batches, broken
    return batches, None


def walk(buf: bytes) -> Iterator[bytes]:
    """The bytes of batch after batch; the offsets of a log rise from each to the next without overlap."""
    at, last_offset = 0, -1
    while len(buf) - at > MAGIC_AT:
        base_offset, length = struct.unpack_from(">qi", buf, at)
        magic = buf[at + MAGIC_AT]
        if magic != 2:
            raise Malformed(base_offset, f"{'old message format' if magic < 2 else 'unknown magic'} ({magic})")
        if length < MIN_LENGTH:
            raise Malformed(base_offset, f"batch length {length} is less than a header's {MIN_LENGTH}")
        end = at + PREFIX + length
        if end > len(buf):
            return
        if not last_offset < base_offset <= MAX_OFFSET:
            raise Malformed(base_offset, f"base offset after a batch that ends at {last_offset}")
        (delta,) = struct.unpack_from(">i", buf, at + CRC_FROM + 2)
        if delta < 0:
            raise Malformed(base_offset, f"last offset delta {delta} is negative")
        yield buf[at:end]
        at, last_offset = end, base_offset + bound_delta(buf[at:end], delta)


def bound_delta(frame: bytes, delta: int) -> int:
    """The last offset delta of a batch. One whose CRC is wrong may have a wrong delta as well: its record count bounds it."""
    (crc,), (count,) = struct.unpack_from(">I", frame, CRC_FROM - 4), struct.unpack_from(">i", frame, HEADER_SIZE - 4)
    return delta if google_crc32c.value(frame[CRC_FROM:]) == crc else max(1, min(delta + 1, count)) - 1


def parse_batch(buf: bytes) -> Batch:
    """Exactly one batch, header to end."""
    batch = Batch(*LAYOUT.unpack_from(buf))
    actual = google_crc32c.value(buf[CRC_FROM:])
    if actual != batch.crc:
        fault = Malformed(batch.base_offset, f"CRC is {actual:08x}, the header says {batch.crc:08x}")
        delta = bound_delta(buf, batch.last_offset_delta)
        return replace(batch, crc_matches=False, fault=fault, last_offset_delta=delta)
    try:
        if batch.count < 0:
            raise Malformed(batch.base_offset, f"record count {batch.count} is negative")
        return replace(batch, records=list(parse_records(batch, decompress(batch, buf[HEADER_SIZE:]))))
    except Malformed as fault:
        return replace(batch, fault=fault)


def decompress(batch: Batch, section: bytes) -> bytes:
    if not section:
        return section  # as compaction may leave a batch without records, whatever codec it once had
    try:
        match batch.codec:
            case 0:
                return section
            case 1:
                return bytes(cramjam.gzip.decompress(section))
            case 2:
                return _unsnappy(section)
            case 3:
                return bytes(cramjam.lz4.decompress(section))
            case 4:
                return bytes(cramjam.zstd.decompress(section))
    except (cramjam.DecompressionError, struct.error) as error:
        raise Malformed(batch.base_offset, f"codec {batch.codec} cannot decompress: {error}") from error
    raise Malformed(batch.base_offset, f"unknown codec {batch.codec}")


def _unsnappy(section: bytes) -> bytes:
    """Java producers write xerial's stream (16 bytes of header, then sized blocks), others one raw block."""
    if not section.startswith(XERIAL):
        return _unsnappy_block(section)
    blocks, at = [], 16
    while at < len(section):
        (size,) = struct.unpack_from(">i", section, at)
        at += 4
        if size < 0 or at + size > len(section):
            raise struct.error(f"snappy block of {size} bytes at {at} leaves the batch")
        blocks.append(_unsnappy_block(section[at : at + size]))
        at += size
    return b"".join(blocks)


def _unsnappy_block(block: bytes) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > MAX_DECOMPRESSED:
        raise struct.error("snappy block says it is larger than any batch")
    return bytes(cramjam.snappy.decompress_raw(block))


@dataclass(slots=True)
class Cursor:
    """A position in `buf` that may not pass `end`."""

    base_offset: int
    buf: bytes
    at: int
    end: int

    def fail(self, reason: str) -> Malformed:
        return Malformed(self.base_offset, f"{reason} (byte {self.at} of the records)")

    def take(self, size: int, what: str) -> bytes:
        if size < 0 or self.at + size > self.end:
            raise self.fail(f"{what} of {size} bytes passes the end at {self.end}")
        self.at += size
        return self.buf[self.at - size : self.at]

    def varint(self, what: str, bits: int = 32) -> int:
        raw = 0
        for group in range(5 if bits == 32 else 10):
            byte = self.take(1, what)[0]
            raw |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                if bits == 32 and raw >> 32:
                    raise self.fail(f"{what} does not fit 32 bits")
                raw &= (1 << bits) - 1  # an int64's tenth byte may carry more than its one bit: clients drop the rest
                return (raw >> 1) ^ -(raw & 1)
        raise self.fail(f"{what} is longer than a {bits}-bit varint can be")

    def nullable(self, what: str) -> bytes | None:
        size = self.varint(f"{what} size")
        if size < -1:
            raise self.fail(f"{what} size {size}")
        return None if size == -1 else self.take(size, what)


def parse_records(batch: Batch, section: bytes) -> Iterator[Record]:
    cursor = Cursor(batch.base_offset, section, 0, len(section))
    last = -1
    for _ in range(batch.count):
        size = cursor.varint("record length")
        start = cursor.at
        cursor.take(size, "record")
        record = parse_record(batch, Cursor(batch.base_offset, section, start, cursor.at))
        delta = record.offset - batch.base_offset
        if not last < delta <= batch.last_offset_delta:
            raise cursor.fail(f"offset delta {delta} after {last}, of at most {batch.last_offset_delta}")
        last = delta
        yield record
    if cursor.at != cursor.end:
        raise cursor.fail(f"{cursor.end - cursor.at} bytes after the last record")


def parse_record(batch: Batch, cursor: Cursor) -> Record:
    cursor.take(1, "record attributes")
    timestamp_delta = cursor.varint("timestamp delta", bits=64)
    offset_delta = cursor.varint("offset delta")
    key = cursor.nullable("key")
    value = cursor.nullable("value")
    count = cursor.varint("header count")
    if count < 0:
        raise cursor.fail(f"header count {count}")
    headers = [parse_header(cursor) for _ in range(count)]
    if cursor.at != cursor.end:
        raise cursor.fail(f"{cursor.end - cursor.at} bytes after the record's last field")
    timestamp = batch.max_timestamp if batch.log_append_time else wrap(batch.base_timestamp + timestamp_delta)
    return Record(batch.base_offset + offset_delta, timestamp, key, value, headers)


def parse_header(cursor: Cursor) -> Header:
    name = cursor.take(cursor.varint("header name size"), "header name")
    return name, cursor.nullable("header value")


def wrap(number: int) -> int:
    """As Java's long does: clients add the delta without asking whether it fits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def read_committed(
    batches: Sequence[Batch], aborted: Sequence[tuple[int, int]], last_stable_offset: int
) -> list[Record]:
    """What a consumer with isolation.level=read_committed hands out. Raises Malformed at the first fault in its way.

    `aborted` is the fetch response's list of (producer id, first offset), in any order: from the first offset on, the
    producer's transactional batches are dropped until its abort marker. Control batches are never handed out.
    """
    kept: list[Record] = []
    for one in pick_committed(batches, aborted):
        if isinstance(one, Malformed):
            raise one
        if one.offset < last_stable_offset:
            kept.append(one)
    return kept


def pick_committed(batches: Sequence[Batch], aborted: Sequence[tuple[int, int]]) -> Iterator[Record | Malformed]:
    """The committed records and, between them, the faults of batches that are not known to be hidden."""
    waiting = sorted(aborted, key=lambda one: one[1])
    dropping: set[int] = set()
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last_offset:
            dropping.add(waiting.pop(0)[0])
        hidden = batch.is_transactional and batch.producer_id in dropping
        if batch.fault is not None:
            if not batch.crc_matches or batch.is_control or not hidden:
                yield batch.fault
        elif batch.is_control:
            kind = marker(batch)
            if isinstance(kind, Malformed):
                yield kind
            elif kind == ABORT:
                dropping.discard(batch.producer_id)
        elif not hidden:
            yield from batch.records


def marker(batch: Batch) -> int | Malformed | None:
    """The type in the key of a control batch's record: i16 version, i16 type. None: compaction took the record away."""
    if not batch.records:
        return None
    key = batch.records[0].key
    if key is None or len(key) < 4:
        return Malformed(batch.base_offset, f"control record with key {key!r}: what it ends cannot be known")
    kind: int = struct.unpack_from(">h", key, 2)[0]
    return kind
