"""The partition of an output topic that a record goes to.

`key` places records as Java's default partitioner does: murmur2 (seed 0x9747b28c) of the key's
bytes, sign bit cleared, modulo the number of partitions. Records without a key are placed by their
subject, so that records of one subject stay together. `source` takes the source record's partition,
modulo the number of output partitions.
"""

from __future__ import annotations

import numpy as np

from overlay.arrays import Bool, Bytes, Int, Ints
from overlay.config.consumer import PartitionBy
from overlay.kernels import kernel
from overlay.scan.decode import Records
from overlay.scan.varint import read_varint
from overlay.subject.dictionary import Codes, Texts


def place(
    by: PartitionBy, partitions: int, source_partition: int, source: Records, rows: Ints, codes: Codes, subjects: Texts
) -> Ints:
    """Return the number of the output partition of each of `rows` (int64, one per row). `by`: KEY
    for the hash of the key, or of the subject if a record has no key; SUBJECT for the hash of the
    subject; SOURCE for the source's partition. Each is taken modulo `partitions`, the number of
    output partitions.

    `rows`: indices of records of `source`. `codes`: of all records of `source`, the index of each
    one's subject in `subjects`.
    """
    if partitions == 1 or by is PartitionBy.SOURCE:
        return np.full(rows.size, source_partition % partitions, np.int64)
    out = np.empty(rows.size, np.int64)
    by_key = by is PartitionBy.KEY
    _place(source.buf, source.body, source.end, rows, codes, subjects.text, subjects.bounds, by_key, partitions, out)
    return out


@kernel
def murmur2(data: Bytes, at: Int, size: Int) -> np.uint32:
    """Return the 32-bit murmur2 of data[at:at+size], as Kafka's Utils.murmur2 computes it."""
    m = np.uint32(0x5BD1E995)
    h = np.uint32(0x9747B28C) ^ np.uint32(size)
    whole = size // 4
    for i in range(whole):
        p = at + i * 4
        k = np.uint32(data[p]) | np.uint32(data[p + 1]) << np.uint32(8)
        k |= np.uint32(data[p + 2]) << np.uint32(16) | np.uint32(data[p + 3]) << np.uint32(24)
        k = np.uint32(k * m)
        k ^= k >> np.uint32(24)
        k = np.uint32(k * m)
        h = np.uint32(h * m) ^ k
    rest = size - whole * 4
    p = at + whole * 4
    if rest == 3:
        h ^= np.uint32(data[p + 2]) << np.uint32(16)
    if rest >= 2:
        h ^= np.uint32(data[p + 1]) << np.uint32(8)
    if rest >= 1:
        h = np.uint32((h ^ np.uint32(data[p])) * m)
    h ^= h >> np.uint32(13)
    h = np.uint32(h * m)
    return np.uint32(h ^ (h >> np.uint32(15)))


@kernel
def _place(
    buf: Bytes, body: Ints, end_of: Ints, rows: Ints, codes: Codes, text: Bytes, bounds: Ints, by_key: Bool,
    partitions: Int, out: Ints,
) -> None:  # fmt: skip
    for i in range(rows.size):
        row = rows[i]
        size, at = read_varint(buf, body[row], end_of[row])
        if by_key and size >= 0:
            digest = murmur2(buf, at, size)
        else:
            code = codes[row]
            digest = murmur2(text, bounds[code], bounds[code + 1] - bounds[code])
        out[i] = np.int64(digest & np.uint32(0x7FFFFFFF)) % partitions
