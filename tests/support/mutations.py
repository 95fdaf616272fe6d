"""Sound batches made wrong on purpose, so that the wrong byte reaches the code that must notice it.

A flipped byte in a batch is caught by its CRC and proves nothing about what lies behind the CRC. Most mutations here
are therefore repaired: the header's length and CRC are made right again after the damage, and damage to the records of
a compressed batch is done to the decompressed bytes, which are then compressed again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.oracle.batches import HEADER_SIZE, LAYOUT, XERIAL, Batch, Cursor, Malformed, decompress
from tests.support.batches import compress, repair_crc, repair_length, split_batches, varint

# (position, struct format) of the fields that decode reads
HEADER_FIELDS = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "count": (57, ">i"),
}
INTERESTING = [0, 1, -1, -2, 2, 61, 63, 64, 127, 128, 8191, 8192, 65536, 2**28, 2**31 - 1, -(2**31), 2**31, 2**34]
WIDE = [2**62, 2**63 - 1, -(2**63), 2**63, 2**70]

Mutation = Callable[[random.Random, bytes], bytes]


def mutate(rng_seed: int, buf: bytes) -> bytes:
    """One to three mutations of one batch of `buf`, decided by the seed alone; its other batches stay as they are."""
    rng = random.Random(rng_seed)
    pieces = split_batches(buf)
    if not pieces:
        return flip_bytes(rng, buf)
    which = rng.randrange(len(pieces))
    piece = pieces[which]
    if len(pieces) > 1 and rng.random() < 0.1:
        piece = splice(rng, piece, rng.choice(pieces))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        piece = rng.choice(MUTATIONS)(rng, piece)
    return b"".join(pieces[:which]) + piece + b"".join(pieces[which + 1 :])


def flip_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few bits or bytes changed anywhere, nothing repaired."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4) if out else 0):
        at = rng.randrange(len(out))
        out[at] = rng.choice([out[at] ^ (1 << rng.randrange(8)), rng.randrange(256), 0x80, 0xFF, 0x00])
    return bytes(out)


def flip_repaired(rng: random.Random, batch: bytes) -> bytes:
    """Bytes of the stored section (compressed, if it is) changed under a right CRC."""
    return repair_crc(batch[:HEADER_SIZE] + flip_bytes(rng, batch[HEADER_SIZE:]))


def edit_header(rng: random.Random, batch: bytes) -> bytes:
    at, layout = HEADER_FIELDS[rng.choice(list(HEADER_FIELDS))]
    if len(batch) < HEADER_SIZE:
        return batch
    (old,) = struct.unpack_from(layout, batch, at)
    new = rng.choice([old + 1, old - 1, *INTERESTING, *(WIDE if layout == ">q" else [])])
    return repair_crc(batch[:at] + _pack(layout, new) + batch[at + struct.calcsize(layout) :])


def truncate(rng: random.Random, batch: bytes) -> bytes:
    """Cut, with or without the length saying so."""
    cut = batch[: rng.randrange(len(batch))] if batch else batch
    return repair_crc(repair_length(cut)) if rng.random() < 0.7 and len(cut) >= HEADER_SIZE else cut


def extend(rng: random.Random, batch: bytes) -> bytes:
    return repair_crc(repair_length(batch + rng.randbytes(rng.randint(1, 20))))


def splice(rng: random.Random, batch: bytes, other: bytes) -> bytes:
    """The start of one batch and the end of another under one header."""
    at, on = rng.randint(0, len(batch)), rng.randint(0, len(other))
    joined = batch[: max(at, HEADER_SIZE)] + other[max(on, HEADER_SIZE) :]
    return repair_crc(repair_length(joined))


def edit_varint(rng: random.Random, batch: bytes) -> bytes:
    """One length, count or delta among the records replaced, in its shortest or an overlong form."""

    def edit(payload: bytes) -> bytes:
        records = walk_varints(payload, _count(batch))
        if not records:
            return flip_bytes(rng, payload)
        spots = rng.choice(records)
        which = rng.randrange(len(spots))
        start, end, old = spots[which]
        new = rng.choice([old + 1, old - 1, old, *INTERESTING, *WIDE])
        width = rng.choice([0, 0, 0, end - start, 5, 6, 10, 11])
        out = payload[:start] + varint(new, width=width) + payload[end:]
        if which == 0 or rng.random() < 0.3:
            return out
        return _resize(out, spots[0], len(out) - len(payload))

    return _edit_payload(batch, edit)


def edit_payload_bytes(rng: random.Random, batch: bytes) -> bytes:
    return _edit_payload(batch, lambda payload: flip_bytes(rng, payload))


def cut_payload(rng: random.Random, batch: bytes) -> bytes:
    return _edit_payload(batch, lambda payload: payload[: rng.randint(0, len(payload))])


def repeat_record(rng: random.Random, batch: bytes) -> bytes:
    """A record twice, with or without the count saying so: offsets that stand still, bytes that remain."""

    def edit(payload: bytes) -> bytes:
        records = walk_varints(payload, _count(batch))
        if not records:
            return payload
        start, end, size = rng.choice(records)[0]
        return payload[: end + size] + payload[start : end + size] + payload[end + size :]

    out = _edit_payload(batch, edit)
    if rng.random() < 0.5 and len(out) >= HEADER_SIZE:
        out = repair_crc(out[:57] + _pack(">i", _count(out) + 1) + out[61:])
    return out


MUTATIONS: list[Mutation] = [
    flip_bytes,
    flip_repaired,
    edit_header,
    edit_header,
    truncate,
    extend,
    edit_varint,
    edit_varint,
    edit_varint,
    edit_varint,
    edit_payload_bytes,
    edit_payload_bytes,
    cut_payload,
    repeat_record,
]


def _pack(layout: str, number: int) -> bytes:
    bits = 8 * struct.calcsize(layout)
    return struct.pack(layout, (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)))


def _count(batch: bytes) -> int:
    return int.from_bytes(batch[57:61], "big", signed=True) if len(batch) >= HEADER_SIZE else 0


def _edit_payload(batch: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """The batch with its decompressed records edited, compressed again, length and CRC right."""
    if len(batch) < HEADER_SIZE:
        return batch
    head = Batch(*LAYOUT.unpack_from(batch))
    try:
        payload = decompress(head, batch[HEADER_SIZE:])
    except Malformed:
        return batch
    section = compress(head.codec, edit(payload), xerial=batch[HEADER_SIZE:].startswith(XERIAL))
    return repair_crc(repair_length(batch[:HEADER_SIZE] + section))


def _resize(payload: bytes, length: tuple[int, int, int], by: int) -> bytes:
    """The record's length made to fit its edited fields, so that the edit itself is what is wrong."""
    start, end, size = length
    return payload[:start] + varint(size + by) + payload[end:]


def walk_varints(payload: bytes, count: int) -> list[list[tuple[int, int, int]]]:
    """Per record, (start, end, number) of every varint: length, timestamp and offset delta, sizes, header count."""
    cursor, records = Cursor(0, payload, 0, len(payload)), []
    try:
        for _ in range(min(count, len(payload))):
            records.append(_walk_record(cursor))  # noqa: PERF401 - what was walked before an error is kept
    except Malformed:
        return records
    return records


def _walk_record(cursor: Cursor) -> list[tuple[int, int, int]]:
    spots: list[tuple[int, int, int]] = []

    def spot(bits: int = 32) -> int:
        start = cursor.at
        number = cursor.varint("field", bits)
        spots.append((start, cursor.at, number))
        return number

    def body() -> None:
        cursor.take(max(spot(), 0), "body")

    spot()
    cursor.take(1, "attributes")
    spot(64)
    spot()
    body()
    body()
    for _ in range(min(spot(), len(cursor.buf))):
        body()
        body()
    return spots
