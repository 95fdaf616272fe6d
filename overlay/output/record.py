"""Single records as bytes: state, chunk headers, advisories, and other records that are not
deliveries of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Headers = Sequence[tuple[str, bytes | None]]


class Record(NamedTuple):
    """Key, value and headers of a record; None is null. Its offset and time come with its batch."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_record(record: Record, delta: int) -> bytes:
    """Return the bytes of a record as part of a batch. Its time is the batch's base timestamp.

    `delta`: its offset, relative to the batch's first.
    """
    # attributes and timestamp delta are 0
    body = b"\0\0" + encode_varint(delta) + _sized(record.key) + _sized(record.value)
    body += encode_varint(len(record.headers)) + encode_headers(record.headers)
    return encode_varint(len(body)) + body


def encode_headers(headers: Headers) -> bytes:
    """Return the bytes of headers as in a record, without the count that comes before them."""
    return b"".join(_sized(name.encode()) + _sized(value) for name, value in headers)


def encode_varint(number: int) -> bytes:
    """Return the zigzag varint of a number."""
    rest, out = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the zigzag varint at `data[at]`. Return the number and the position after it. Raises
    IndexError if `data` ends within it.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data
