"""What may reach Faust of the record batches that Kafka answers a fetch with. Pure.

Any client with Write on a topic chooses the bytes of its batches. Faust's client has two ways to fail at
them: it decompresses a batch whatever that takes, and it raises an error for a header whose name is not
UTF-8, at each start anew. So each batch is looked at here first, within limits. One that must not get
through is replaced by a batch of the same offsets without records, as compaction leaves them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from overlay.arrays import Bytes
from overlay.scan import Malformed
from overlay.scan.codec import Arena
from overlay.scan.crc import crc32c
from overlay.scan.header import CODEC_MASK, HEADER_SIZE, LENGTH_AT, split
from overlay.scan.rows import Row, find_batches, read_rows

MOST_BATCH_BYTES = 32 << 20
"""Most bytes to which one batch may decompress, as for workers that read the control topic."""
MOST_BATCH_RECORDS = 100_000
"""Most records of one batch."""
PASS_BYTES = 16 << 20
"""Of one answer, so many bytes of records get through at a time, as long as it is not a single batch; the rest is fetched
again."""
ROW_BYTES = 200
"""What a record costs beside its key, value and headers, as a Python object."""

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">H")
_CRC_AT, _ATTRIBUTES_AT, _COUNT_AT = 17, 21, 57


@dataclass(frozen=True, slots=True)
class Screened:
    """What gets through of an answer. `data`: record batches. `refused`: by its first offset, what is wrong with each batch
    that was emptied.
    """

    data: bytes
    refused: Mapping[int, str] = field(default_factory=dict)


def make_arena() -> Arena:
    """Return a buffer for `screen`, which must not be used by two threads at once."""
    return Arena(1 << 20, MOST_BATCH_BYTES)


def screen(data: bytes, arena: Arena) -> Screened:
    """Return the record batches that may get through: all of them, or the first ones if all of them hold more than
    PASS_BYTES, in which case the client asks for the rest again. Those that cannot be read, that decompress to more than
    the limit of `arena`, that have more than MOST_BATCH_RECORDS records or a header whose name is not UTF-8 are without
    records. From a batch on whose own header cannot be read, the bytes are as they were: brokers take none of these.
    """
    buf = np.frombuffer(data, np.uint8)
    parts: list[bytes] = []
    refused: dict[int, str] = {}
    taken, end = 0, 0
    for batch in split(buf, find_batches).batches:
        start, end = int(batch["at"]), int(batch["end"])
        fault, size = _judge(buf[start:end], arena)
        if taken and taken + size > PASS_BYTES:
            return Screened(b"".join(parts), refused)
        taken += size
        if fault:
            refused[int(batch["base_offset"])] = fault
        parts.append(empty(data[start:end]) if fault else data[start:end])
    return Screened(b"".join([*parts, data[end:]]) if refused else data, refused)


def _judge(buf: Bytes, arena: Arena) -> tuple[str, int]:
    """Return what is wrong with a batch, "" if nothing is, and how many bytes its records take in memory."""
    size = 0
    for row in read_rows(buf, arena=arena, most_records=MOST_BATCH_RECORDS):
        if isinstance(row, Malformed):
            return row.fault.text, 0
        size += _measure(row)
        for name, _ in row.headers:
            try:
                name.decode()
            except UnicodeDecodeError:
                return "the name of a header is not UTF-8", 0
    return "", size


def _measure(row: Row) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in row.headers)
    return ROW_BYTES + len(row.key or b"") + len(row.value or b"") + headers


def empty(batch: bytes) -> bytes:
    """Return the batch without its records: same offsets, producer and times, no codec, and a checksum that fits."""
    made = bytearray(batch[:HEADER_SIZE])
    (attributes,) = _ATTRIBUTES.unpack_from(made, _ATTRIBUTES_AT)
    _LENGTH.pack_into(made, 8, HEADER_SIZE - LENGTH_AT)
    _ATTRIBUTES.pack_into(made, _ATTRIBUTES_AT, attributes & ~CODEC_MASK)
    _LENGTH.pack_into(made, _COUNT_AT, 0)
    _CRC.pack_into(made, _CRC_AT, crc32c(bytes(made[_ATTRIBUTES_AT:])))
    return bytes(made)
