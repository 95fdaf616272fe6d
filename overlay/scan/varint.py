"""Zigzag varints of the Kafka record format, read and written by kernels.

Reading is sticky: a varint that would pass `end`, or that is longer than its type allows, gives
position LOST, which is beyond every buffer. Every later read stays LOST, so a record needs one
check, at its end, instead of one per field. (Kafka protocol, "Varint": 7 bits a byte, least
significant group first; at most 5 bytes for int32, 10 for int64.)
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bytes, Int
from overlay.kernels import kernel

LOST = 1 << 62


@kernel(inline="always")
def read_varint(buf: Bytes, pos: Int, end: Int) -> tuple[Int, Int]:
    """Read a zigzag varint (int32) at `pos`. Return (value, next position), or (0, LOST) if it
    passes `end` or has more than 5 bytes.
    """
    if pos < end and buf[np.uintp(pos)] < 0x80:  # most fields of most records are one byte
        raw = np.int64(buf[np.uintp(pos)])
        return (raw >> 1) ^ -(raw & 1), pos + 1
    return read_long(buf, pos, end, 35)


@kernel
def read_long(buf: Bytes, pos: Int, end: Int, bits: Int) -> tuple[Int, Int]:
    """Read a zigzag varint of up to `bits` / 7 bytes at `pos`. Return (value, next position), or
    (0, LOST) if it is longer or passes `end`. `bits`: 35 for int32, 70 for int64.
    """
    raw = np.uint64(0)
    shift = 0
    while pos < end and shift < bits:
        byte = np.uint64(buf[np.uintp(pos)])
        pos += 1
        raw |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), pos
        shift += 7
    return np.int64(0), np.int64(LOST)


@kernel(inline="always")
def skip(pos: Int, size: Int) -> Int:
    """Return the position `size` bytes after `pos`. Size -1 means null and takes no bytes; for a
    size below that LOST is returned.
    """
    if size < -1:
        return np.int64(LOST)
    return pos + size if size > 0 else pos


@kernel
def write_varint(out: Bytes, pos: Int, value: Int) -> Int:
    """Write `value` as a zigzag varint to `out` at `pos`, and return the next position. The caller
    has made sure of room (10 bytes).
    """
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw >= np.uint64(0x80):
        out[pos] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
        raw >>= np.uint64(7)
        pos += 1
    out[pos] = np.uint8(raw)
    return pos + 1


@kernel
def varint_size(value: Int) -> Int:
    """Return how many bytes `write_varint` would write."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size
