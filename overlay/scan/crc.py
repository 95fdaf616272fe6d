"""CRC-32C of a batch, from its attributes to its end, as the broker checks it on arrival."""

from __future__ import annotations

import google_crc32c
import numpy as np

from overlay.arrays import Bytes, Flags

from .header import CRC_FROM, Batches


def crc32c(data: bytes | Bytes) -> int:
    """Return the CRC-32C of bytes."""
    return int(google_crc32c.value(data))


def matches(buf: Bytes, batches: Batches) -> Flags:
    """Return for each batch whether its CRC matches its bytes."""
    check = google_crc32c.value
    ranges = zip(batches["at"].tolist(), batches["end"].tolist(), batches["crc"].tolist(), strict=True)
    return np.fromiter((check(buf[at + CRC_FROM : end]) == crc for at, end, crc in ranges), np.bool_, batches.size)
