"""Where record batches begin and end, and the fields of their headers.

A fetch response is a sequence of record batches of format v2; the last one may be cut off. The
header of each (Kafka, "Record Batch", all big-endian):

    at  0  int64   base offset
    at  8  int32   length of everything after this field
    at 12  int32   partition leader epoch
    at 16  int8    magic = 2
    at 17  uint32  CRC-32C of everything from `attributes` on
    at 21  int16   attributes: 0-2 codec, 3 log-append time, 4 transactional, 5 control
    at 23  int32   last offset delta
    at 27  int64   base timestamp
    at 35  int64   max timestamp
    at 43  int64   producer id
    at 51  int16   producer epoch
    at 53  int32   base sequence
    at 57  int32   record count
    at 61          records, compressed as one block by the codec

Magic is at the same place in formats v0 and v1, which is how those are recognised and refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import google_crc32c
import numpy as np

from overlay.arrays import Bytes, Int, Structs
from overlay.kernels import kernel

HEADER_SIZE = 61
LENGTH_AT = 12  # the length field counts from here
CRC_FROM = 21
DELTA_AT = 23

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

FEW_BATCHES, MANY_BATCHES = 128, 1024

BATCH = np.dtype(
    [
        ("at", "i8"),  # of the header, in the fetched bytes
        ("end", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("crc", "i8"),
        ("data_at", "i8"),  # of the decompressed records, in the buffer that `walk` reads
        ("data_end", "i8"),
        ("leader_epoch", "i4"),
        ("attributes", "i4"),
        ("count", "i4"),
    ]
)

Batches = Structs  # of dtype BATCH


class Fault(enum.IntEnum):
    """Why bytes of the log cannot be read; messages show the text."""

    NONE = 0
    LENGTH = 1
    OLD_FORMAT = 2
    MAGIC = 3
    CRC = 4
    CODEC = 5
    DECOMPRESS = 6
    TOO_LARGE = 7
    RECORD = 8
    COUNT = 9
    OFFSETS = 10
    ORDER = 11
    CONTROL = 12
    TOO_MANY = 13

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Fault.NONE: "no fault",
    Fault.LENGTH: "the batch's length field is out of range",
    Fault.OLD_FORMAT: "message format v0 or v1; only v2 (Kafka 0.11 and later) can be read",
    Fault.MAGIC: "unknown message format",
    Fault.CRC: "the CRC does not match",
    Fault.CODEC: "unknown compression codec",
    Fault.DECOMPRESS: "the records do not decompress",
    Fault.TOO_LARGE: "the records decompress to more than the limit",
    Fault.RECORD: "a record runs past its end, or ends before it",
    Fault.COUNT: "the record count does not agree with the records",
    Fault.OFFSETS: "record offsets do not ascend within the batch's range",
    Fault.ORDER: "the batch's offsets overlap those of the batch before",
    Fault.CONTROL: "the control record cannot be read",
    Fault.TOO_MANY: "the batch has more records than the limit",
}


@kernel
def _integer(buf: Bytes, at: Int, size: Int) -> Int:
    """Return a signed big-endian integer of `size` bytes."""
    value = np.int64(np.int8(buf[at]))
    for i in range(1, size):
        value = (value << 8) | np.int64(buf[at + i])
    return value


@kernel
def _split(buf: Bytes, at: int, previous: int, out: Batches) -> tuple[int, int, Fault]:
    """Fill `out` with the complete batches from `at` on. Return how many were found, the position
    after them, and the fault of the batch there (NONE if the bytes or the room in `out` end).
    `previous`: the last offset of the batch before `at`, -1 if there is none.
    """
    filled = 0
    total = buf.size
    while filled < out.size and at + 17 <= total:
        length = _integer(buf, at + 8, 4)
        magic = _integer(buf, at + 16, 1)
        if magic == 0 or magic == 1:
            return filled, at, Fault.OLD_FORMAT
        if magic != 2:
            return filled, at, Fault.MAGIC
        if length < HEADER_SIZE - LENGTH_AT:
            return filled, at, Fault.LENGTH
        if at + LENGTH_AT + length > total:
            break
        row = out[filled]
        row.at = at
        row.end = at + LENGTH_AT + length
        row.base_offset = _integer(buf, at, 8)
        row.leader_epoch = _integer(buf, at + 12, 4)
        row.crc = _integer(buf, at + 17, 4) & 0xFFFFFFFF
        row.attributes = _integer(buf, at + 21, 2) & 0xFFFF
        last_offset_delta = _integer(buf, at + 23, 4)
        row.last_offset = row.base_offset + last_offset_delta
        row.base_timestamp = _integer(buf, at + 27, 8)
        row.max_timestamp = _integer(buf, at + 35, 8)
        row.producer_id = _integer(buf, at + 43, 8)
        row.count = _integer(buf, at + 57, 4)
        if last_offset_delta < 0 or row.base_offset < 0 or row.base_offset > (1 << 61):
            return filled, at, Fault.OFFSETS
        if row.base_offset <= previous:
            return filled, at, Fault.ORDER
        previous = row.last_offset
        at = row.end
        filled += 1
    return filled, at, Fault.NONE


class Split(NamedTuple):
    """The complete batches at the front of fetched bytes, and the fault of the header after them.
    `at`: the position after them, where the faulty header begins. `base_offset`: what that header
    says, -1 without a fault.
    """

    batches: Batches
    fault: Fault
    at: int
    base_offset: int


FindBatches = Callable[[Bytes, int, int, Batches], tuple[int, int, Fault]]
"""What `_split` does."""


def split(buf: Bytes, find: FindBatches = _split) -> Split:
    """Find the batches of fetched bytes. A batch cut off at the end is no fault: the next fetch
    brings it whole. `find`: the kernel, or `find_batches` of rows.py, which needs none.

    If the CRC of a batch does not match, its `last_offset` is limited by its base offset and its
    record count.
    """
    parts: list[Batches] = []
    at, fault, previous = 0, Fault.NONE, -1
    while True:
        # few at first: zeroing room for many takes longer than finding them
        table = np.zeros(MANY_BATCHES if parts else FEW_BATCHES, BATCH)
        filled, at, fault = find(buf, at, previous, table)
        found = table[:filled]
        parts.append(found)
        is_bounded = _bound(buf, found)
        previous = int(found[-1]["last_offset"]) if filled else previous
        if fault == Fault.ORDER and is_bounded and _read_integer(buf, at, 8) > previous:
            # the batch before it claimed to reach farther, but it is damaged and was limited
            continue
        if fault or filled < table.size:
            break
    base_offset = _read_integer(buf, at, 8) if fault else -1
    return Split(np.concatenate(parts) if len(parts) > 1 else parts[0], fault, at, base_offset)


def _bound(buf: Bytes, batches: Batches) -> bool:
    """Lower the `last_offset` of damaged batches (whose CRC does not match) to what their record
    count allows, at least to one offset. Only batches of which record count and range of offsets
    differ are looked at. Return whether one of these is damaged.

    A damaged `last offset delta` may cover two billion records that all exist. Counts are lower
    than the range of offsets only if compaction removed records. Then the broker sends the rest of
    a damaged batch again, and the fetcher skips it.
    """
    counts = batches["count"]
    spans = batches["last_offset"] - batches["base_offset"] + 1
    is_any = False
    for row in (spans != counts).nonzero()[0].tolist():
        batch = batches[row]
        if google_crc32c.value(buf[int(batch["at"]) + CRC_FROM : int(batch["end"])]) != int(batch["crc"]):
            batch["last_offset"] = batch["base_offset"] + max(1, min(int(spans[row]), int(counts[row]))) - 1
            is_any = True
    return is_any


def _read_integer(buf: Bytes, at: int, size: int) -> int:
    """Return a signed big-endian integer of `size` bytes, without a kernel."""
    return int.from_bytes(buf[at : at + size].tobytes(), signed=True)


def read_end(buf: Bytes, batch: np.void) -> int:
    """Return the offset after a batch as its header says it, even if it is damaged."""
    return int(batch["base_offset"]) + _read_integer(buf, int(batch["at"]) + DELTA_AT, 4) + 1
