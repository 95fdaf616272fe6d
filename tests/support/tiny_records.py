"""Batches of very many records of a few bytes, quickly made."""

from __future__ import annotations

import numpy as np

from overlay.arrays import Ints

from .batches import build


def build_tiny(count: int, *, base_offset: int = 0, codec: int = 4) -> bytes:
    """Return a batch of `count` records with consecutive offsets and an empty key, without value and headers.
    A compacted topic takes them as well.
    """
    payload = encode_tiny(count)
    return build(base_offset=base_offset, codec=codec, payload=payload, count=count, last_offset_delta=count - 1)


def encode_tiny(count: int) -> bytes:
    """Return the bytes of these records before compression, 7 to 10 for each."""
    first, parts = 0, []
    for size, end in enumerate((1 << 6, 1 << 13, 1 << 20, 1 << 27), 1):
        parts.append(_encode(np.arange(first, min(end, count)), size))
        first = min(end, count)
    return b"".join(parts)


def _encode(deltas: Ints, size: int) -> bytes:
    """Return records whose offset deltas take `size` bytes."""
    # length, attributes, timestamp delta, offset delta, empty key, no value, no headers
    rows = np.tile(np.array([2 * (size + 5), 0, 0, *[0] * size, 0, 1, 0], np.uint8), (deltas.size, 1))
    for byte in range(size):
        is_last = byte == size - 1
        rows[:, 3 + byte] = (2 * deltas >> 7 * byte) & 0x7F | (0 if is_last else 0x80)
    return rows.tobytes()
