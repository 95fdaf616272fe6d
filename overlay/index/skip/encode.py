"""Index records: a chunk header as key and value of a Kafka record, and back.

One header is one record. Sharing a record would save nothing beside a kilobyte of Bloom filter, and
a record of its own can be replaced by key when the chunk grows or is merged.

The key is text for people, `chunk TOPIC PARTITION FIRST_OFFSET`. The value, little-endian:

    at  0  uint8   version = 1
    at  1  uint8   kind: 1 a chunk header; 2 runs of the ledger (index/ledger/entries.py)
    at  2  uint32  CRC-32C of everything after it
    at  6  uint8   flags: 1 exact, 2 has counts by subject
    at  7  uint8   hashes of the Bloom filter
    at  8  int64   first offset
    at 16  int64   next offset
    at 24  int64   bytes in the log
    at 32  int64   smallest timestamp, ms; -1 not known
    at 40  int64   largest timestamp
    at 48  uint32  records
    at 52  uint32  addressed records
    at 56  int32   leader epoch of the last batch
    at 60  int64   CRC of the last batch; -1 not known
    at 68  int32   partition
    at 72  uint32  fingerprint of subjects and filter values
    at 76  uint32  bytes of the Bloom filter, 0 or a power of two
    at 80  uint16  bytes of the topic's name
    at 82  uint16  properties with terms
    at 84  uint16  properties with zones
    at 86  uint16  subjects with counts
    at 88          the topic's name; uint32 fingerprints of the properties with terms; zones; counts;
                   the subjects' texts end to end; the Bloom filter

    zone:   uint32 fingerprint, uint8 type (its place in zones.TYPES),
            uint8 flags: 1 has NULL, 2 has values;
            then min and max in 16 bytes each: a number's 8 bytes and zeros, or a text's key,
            big-endian
    count:  uint32 records, uint16 bytes of the subject

Any other value gets a Flaw, which `decode` returns as a `Foreign` with the reason: no value,
another kind or version, too short, a wrong CRC, sizes that do not add up, numbers that contradict
each other. Reading raises nothing, and reads nothing past the value's end.

A kernel reads many values at a time (`parse`), since an index may have a million.

Version, kind and CRC have the same place in records of all kinds. `wrap` writes them, `look` and
`check` read them.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from overlay.arrays import AnyArray, Bool, Bytes, Int, Ints, Structs, UInt32s
from overlay.kernels import kernel
from overlay.scan.crc import crc32c

from .bloom import MAX_BYTES, MAX_HASHES, MIN_BYTES, NONE, Bloom
from .chunk_header import MAX_SUBJECTS, Header
from .zones import TYPES, Bounds

VERSION = 1
CHUNK, RUNS = 1, 2
_CRC_FROM = 6
_EXACT, _COUNTED = 1, 2
_NULL, _VALUE = 1, 2

HEAD = np.dtype(
    [
        ("version", "u1"),
        ("kind", "u1"),
        ("crc_of_value", "<u4"),
        ("flags", "u1"),
        ("hashes", "u1"),
        ("first_offset", "<i8"),
        ("next_offset", "<i8"),
        ("bytes", "<i8"),
        ("min_time", "<i8"),
        ("max_time", "<i8"),
        ("records", "<u4"),
        ("addressed", "<u4"),
        ("epoch", "<i4"),
        ("crc", "<i8"),
        ("partition", "<i4"),
        ("scope", "<u4"),
        ("bloom", "<u4"),
        ("topic", "<u2"),
        ("indexed", "<u2"),
        ("zones", "<u2"),
        ("subjects", "<u2"),
    ]
)
ZONE = np.dtype([("property", "<u4"), ("type", "u1"), ("flags", "u1"), ("min", "V16"), ("max", "V16")])
COUNT = np.dtype([("records", "<u4"), ("size", "<u2")])

_FIGURES = ("first_offset", "next_offset", "records", "addressed", "bytes", "min_time", "max_time", "epoch", "crc")

_HEAD, _ZONE, _COUNT = HEAD.itemsize, ZONE.itemsize, COUNT.itemsize
_STORAGE = {"long": "<i8", "timestamp": "<i8", "double": "<f8"}
_KEY = re.compile(r"chunk (\S+) (\d{1,10}) (\d{1,19})", re.ASCII)


class Flaw(enum.IntEnum):
    """Why a value is not a readable record of the requested kind (chunk header or ledger entry)."""

    NONE = 0
    EMPTY = 1
    VERSION = 2
    KIND = 3
    SHORT = 4
    CRC = 5
    SIZES = 6
    FIGURES = 7


_REASONS = {
    Flaw.EMPTY: "no value: it was deleted",
    Flaw.VERSION: "another version of the format",
    Flaw.KIND: "another kind of record",
    Flaw.SHORT: "too short for its kind",
    Flaw.CRC: "the CRC does not match",
    Flaw.SIZES: "its parts do not fill it",
    Flaw.FIGURES: "its figures contradict each other",
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """A value that is not a record of the requested kind, or that this version cannot read."""

    reason: str

    @classmethod
    def of(cls, flaw: int) -> Foreign:
        """Return the Foreign with the reason of a Flaw."""
        return cls(_REASONS[Flaw(flaw)])


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Values that were read together, one row each. If a row has a flaw, only the flaw is
    meaningful.

    `heads`: the fixed part of each, of dtype HEAD. at[i] says where the parts of row i begin in
    `buf`: its terms, zones, counts, subjects' texts and Bloom filter. `flaws`: a Flaw of each.
    """

    buf: Bytes
    heads: Structs
    at: Ints
    flaws: Bytes


TERMS_AT, ZONES_AT, COUNTS_AT, TEXTS_AT, BLOOM_AT = range(5)


def encode_key(topic: str, partition: int, first_offset: int) -> bytes:
    """Return the key, in the index topic, of the header of the chunk that begins at `first_offset`."""
    return f"chunk {topic} {partition} {first_offset}".encode()


def decode_key(key: bytes) -> tuple[str, int, int] | None:
    """Return topic, partition and first offset of a chunk's key; None for any other key."""
    found = _KEY.fullmatch(key.decode(errors="replace"))
    return (found[1], int(found[2]), int(found[3])) if found else None


def encode(header: Header) -> tuple[bytes, bytes]:
    """Return key and value of a chunk header's record in the index topic. Raises ValueError if the
    header counts more than MAX_SUBJECTS subjects.
    """
    topic = header.topic.encode()
    subjects = None if header.subjects is None else {text.encode(): n for text, n in header.subjects.items()}
    if len(subjects or ()) > MAX_SUBJECTS:
        raise ValueError(f"{len(subjects or ())} subjects: a header counts {MAX_SUBJECTS}")
    head = np.zeros(1, HEAD)
    for name in _FIGURES:
        head[name] = getattr(header, name)
    head["flags"] = _EXACT * header.exact | _COUNTED * (subjects is not None)
    head["hashes"], head["bloom"] = header.bloom.hashes, len(header.bloom.bits)
    head["partition"], head["scope"], head["topic"] = header.partition, header.config_fingerprint, len(topic)
    head["indexed"], head["zones"], head["subjects"] = len(header.indexed), len(header.zones), len(subjects or ())
    payload = b"".join(
        [
            head.tobytes()[_CRC_FROM:],
            topic,
            np.array(header.indexed, "<u4").tobytes(),
            *(_encode_zone(property, bounds) for property, bounds in header.zones.items()),
            np.array([(n, len(text)) for text, n in (subjects or {}).items()], COUNT).tobytes(),
            *(subjects or {}),
            header.bloom.bits,
        ]
    )
    return encode_key(header.topic, header.partition, header.first_offset), wrap(CHUNK, payload)


def wrap(kind: int, payload: bytes) -> bytes:
    """Return the value of an index record: version, kind and CRC-32C of the payload, then the
    payload.
    """
    return bytes([VERSION, kind]) + crc32c(payload).to_bytes(4, "little") + payload


def _encode_zone(property: int, bounds: Bounds) -> bytes:
    zone = np.zeros(1, ZONE)
    has_value = bounds.min is not None
    zone["property"], zone["type"] = property, TYPES.index(bounds.type)
    zone["flags"] = _NULL * bounds.has_null | _VALUE * has_value
    if bounds.min is not None and bounds.max is not None:
        zone["min"], zone["max"] = _encode_bound(bounds.min, bounds.type), _encode_bound(bounds.max, bounds.type)
    return zone.tobytes()


def _encode_bound(bound: int | float, type: str) -> np.void:
    raw = int(bound).to_bytes(16, "big") if type == "string" else np.array(bound, _STORAGE[type]).tobytes()
    return np.void(raw.ljust(16, b"\0"))


def decode(value: bytes | None) -> Header | Foreign:
    """Return the chunk header that a record's value holds, or Foreign with the reason if it holds
    none (also for None, a record without a value).
    """
    block = parse_values([value])
    return Foreign.of(block.flaws[0]) if block.flaws[0] else read_header(block, 0)


def parse_values(values: Sequence[bytes | None]) -> Block:
    """Read chunk headers from values that are Python bytes, None for a record without a value. A
    value that cannot be read gets a flaw, and nothing raises.
    """
    return parse(*lay_out(values))


def lay_out(values: Sequence[bytes | None]) -> tuple[Bytes, Ints, Ints]:
    """Return values end to end: the bytes, where each begins, and its size (-1 for None)."""
    size = np.array([-1 if value is None else len(value) for value in values], np.int64)
    at = np.cumsum(size.clip(0)) - size.clip(0)
    return np.frombuffer(b"".join(value or b"" for value in values), np.uint8), at, size


def parse(buf: Bytes, at: Ints, size: Ints) -> Block:
    """Read chunk headers from the values buf[at[i] : at[i] + size[i]]; a size of -1 means no value.
    A value that cannot be read gets a flaw, and nothing raises. The block keeps using `buf`.
    """
    heads = np.zeros(at.size, HEAD)
    parts = np.zeros((at.size, 5), np.int64)
    flaws = np.zeros(at.size, np.uint8)
    look(buf, at, size, CHUNK, heads.view(np.uint8).reshape(at.size, _HEAD), flaws)
    check(buf, at, size, heads["crc_of_value"], flaws)
    _place(buf, at, size, heads, parts, flaws)
    return Block(buf, heads, parts, flaws)


def check(buf: Bytes, at: Ints, size: Ints, crcs: UInt32s, flaws: Bytes) -> None:
    """Set Flaw.CRC for the values buf[at[i] : at[i] + size[i]] whose CRC-32C, of the bytes after
    the CRC field, is not crcs[i]. Values with a flaw are passed over.
    """
    wanted, ends = crcs.tolist(), (at + size).tolist()
    for i, first in enumerate(at.tolist()):
        if not flaws[i] and crc32c(buf[first + _CRC_FROM : ends[i]]) != wanted[i]:
            flaws[i] = Flaw.CRC


def read_header(block: Block, row: int) -> Header:
    """Return the chunk header of a row of the block. The row must not have a flaw."""
    head = block.heads[row]
    topic_at = int(block.at[row, TERMS_AT]) - int(head["topic"])
    subjects = _read_subjects(block, row) if head["flags"] & _COUNTED else None
    bloom = _cut(block, row, BLOOM_AT, int(head["bloom"])).tobytes()
    figures: dict[str, Any] = {name: int(head[name]) for name in _FIGURES}
    return Header(
        block.buf[topic_at : topic_at + int(head["topic"])].tobytes().decode(errors="replace"),
        int(head["partition"]),
        **figures,
        exact=bool(head["flags"] & _EXACT),
        config_fingerprint=int(head["scope"]),
        indexed=read_indexed(block, row),
        bloom=Bloom(bloom, int(head["hashes"])) if bloom else NONE,
        subjects=subjects,
        zones={int(zone["property"]): _read_bounds(zone) for zone in read_zones(block, row)},
    )


def read_indexed(block: Block, row: int) -> tuple[int, ...]:
    """Return the fingerprints of the properties with terms in a row's Bloom filter."""
    return tuple(_cut(block, row, TERMS_AT, 4 * int(block.heads["indexed"][row])).view("<u4").tolist())


def read_zones(block: Block, row: int) -> Structs:
    """Return the zones of a row, of dtype ZONE."""
    return _cut(block, row, ZONES_AT, _ZONE * int(block.heads["zones"][row])).view(ZONE)


def _read_bounds(zone: np.void) -> Bounds:
    type = TYPES[int(zone["type"])]
    low, high = (_decode_bound(zone[name].tobytes(), type) for name in ("min", "max"))
    has_value = bool(zone["flags"] & _VALUE)
    return Bounds(type, low if has_value else None, high if has_value else None, bool(zone["flags"] & _NULL))


def _decode_bound(raw: bytes, type: str) -> int | float:
    if type == "string":
        return int.from_bytes(raw, "big")
    number: int | float = np.frombuffer(raw, _STORAGE[type], 1)[0].item()
    return number


def _read_subjects(block: Block, row: int) -> Mapping[str, int]:
    counts = _cut(block, row, COUNTS_AT, _COUNT * int(block.heads["subjects"][row])).view(COUNT)
    ends = np.cumsum(counts["size"], dtype=np.int64) + block.at[row, TEXTS_AT]
    return {
        block.buf[end - size : end].tobytes().decode(errors="replace"): records
        for end, size, records in zip(ends.tolist(), counts["size"].tolist(), counts["records"].tolist(), strict=True)
    }


def _cut(block: Block, row: int, part: int, size: int) -> AnyArray:
    first = int(block.at[row, part])
    return np.array(block.buf[first : first + size])


@kernel
def look(buf: Bytes, at: Ints, size: Ints, kind: int, heads: Bytes, flaws: Bytes) -> None:
    """Copy the fixed part of each value that is of this kind and version, and long enough for it,
    into its row of `heads`. Write the flaw of all others to `flaws`: EMPTY, VERSION, KIND or SHORT.
    """
    for i in range(at.size):
        if size[i] <= 0:
            flaws[i] = Flaw.EMPTY
        elif buf[at[i]] != VERSION:
            flaws[i] = Flaw.VERSION
        elif size[i] < 2 or buf[at[i] + 1] != kind:
            flaws[i] = Flaw.KIND
        elif size[i] < heads.shape[1]:
            flaws[i] = Flaw.SHORT
        else:
            for j in range(heads.shape[1]):
                heads[i, j] = buf[at[i] + j]


@kernel(inline="always")
def _unsigned(buf: Bytes, pos: Int, size: Int) -> Int:
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(buf[pos + i]) << (8 * i)
    return value


class _Head(Protocol):
    """An item of an array of dtype HEAD, as a kernel sees it."""

    flags: int
    hashes: int
    first_offset: int
    next_offset: int
    bytes: int
    min_time: int
    max_time: int
    records: int
    addressed: int
    partition: int
    bloom: int
    topic: int
    subjects: int


@kernel
def _agree(head: _Head) -> Bool:
    """Return whether the numbers of a chunk header's fixed part are in range and do not contradict
    each other.
    """
    bloom = np.int64(head.bloom)
    sized = bloom == 0 or (MIN_BYTES <= bloom <= MAX_BYTES and bloom & (bloom - 1) == 0)
    hashed = (bloom == 0) == (head.hashes == 0) and head.hashes <= MAX_HASHES
    counted = (head.flags & _COUNTED) != 0 or head.subjects == 0
    return (
        sized
        and hashed
        and counted
        and 0 <= head.first_offset < head.next_offset
        and head.next_offset < 1 << 62
        and head.addressed <= head.records
        and head.min_time <= head.max_time
        and head.bytes >= 0
        and head.partition >= 0
        and head.topic > 0
        and head.subjects <= MAX_SUBJECTS
        and head.flags < 4
    )


@kernel
def _place(buf: Bytes, at: Ints, size: Ints, heads: Structs, parts: Ints, flaws: Bytes) -> None:
    """Write to `parts` where the five parts of each value begin in `buf` (TERMS_AT to BLOOM_AT).
    Set the flaw SIZES if they do not fill the value exactly, FIGURES if numbers are out of range or
    contradict each other, or if a zone has an unknown type or flag. Values with a flaw are passed
    over.
    """
    for i in range(at.size):
        if flaws[i]:
            continue
        head = heads[i]
        if not _agree(head):
            flaws[i] = Flaw.FIGURES
            continue
        # parts of fixed size come first
        end = at[i] + size[i]
        terms_at = at[i] + _HEAD + head.topic
        zones_at = terms_at + 4 * np.int64(head.indexed)
        counts_at = zones_at + _ZONE * np.int64(head.zones)
        texts_at = counts_at + _COUNT * np.int64(head.subjects)
        if texts_at + head.bloom > end:
            flaws[i] = Flaw.SIZES
            continue
        # the counts give the sizes of the subjects' texts; the filter must then end the value
        bloom_at = texts_at
        counted = np.int64(0)
        for j in range(head.subjects):
            counted += _unsigned(buf, counts_at + _COUNT * j, 4)
            bloom_at += _unsigned(buf, counts_at + _COUNT * j + 4, 2)
        if bloom_at + head.bloom != end:
            flaws[i] = Flaw.SIZES
            continue
        # contents: zone types and flags must be known, counts must add up
        for j in range(head.zones):
            if buf[zones_at + _ZONE * j + 4] >= len(TYPES) or buf[zones_at + _ZONE * j + 5] > 3:
                flaws[i] = Flaw.FIGURES
        if head.flags & _COUNTED and counted != head.addressed:
            flaws[i] = Flaw.FIGURES
        parts[i, 0], parts[i, 1], parts[i, 2], parts[i, 3], parts[i, 4] = (
            terms_at, zones_at, counts_at, texts_at, bloom_at,
        )  # fmt: skip
