"""Read committed: which batches of a fetch a consumer may see.

A fetch with isolation level 1 brings, besides the bytes, the aborted transactions that overlap
them, as pairs (producer id, first offset). A producer's transactional batches from that offset on
are aborted, until its abort marker, a control batch, ends the transaction. Control batches
themselves are never records. Such a fetch has nothing at or past the last stable offset.

Source of the rule: Kafka's consumer (KIP-98, "Reading transactional messages"); aiokafka's fetcher
does the same.
"""

from __future__ import annotations

import enum

import numpy as np

from overlay.arrays import Bytes, Flags, Int, Ints
from overlay.kernels import kernel

from .header import CONTROL, HEADER_SIZE, TRANSACTIONAL, Batches
from .varint import read_long, read_varint

Aborted = Ints  # [n, 2]: producer id, first offset

NO_ABORTS: Aborted = np.empty((0, 2), np.int64)


@kernel
def _marker(buf: Bytes, at: Int, end: Int) -> Int:
    """Return the type of the control record at `at` (0 abort, 1 commit, others internal to the
    broker), or -1 if unreadable.
    """
    length, pos = read_varint(buf, at, end)
    if length < 0 or pos + length > end:
        return -1
    _, pos = read_long(buf, pos + 1, end, 70)
    _, pos = read_varint(buf, pos, end)
    key_size, key_at = read_varint(buf, pos, end)
    if key_size < 4 or key_at + key_size > end:
        return -1
    return (np.int64(buf[key_at + 2]) << 8) | np.int64(buf[key_at + 3])


@kernel
def _judge(buf: Bytes, batches: Batches, sound: Flags, aborted: Ints, sight: Bytes) -> None:
    """Write the Sight of each batch to `sight`. A batch that is not `sound` (its CRC does not
    match) is HIDDEN, and its bytes are not read. `aborted`: pairs (producer id, first offset), in
    ascending order of first offsets.
    """
    open_ids = np.empty(aborted.shape[0], np.int64)
    opened = 0
    taken = 0
    for i in range(batches.size):
        batch = batches[i]
        sight[i] = Sight.HIDDEN
        if not sound[i]:
            continue
        # open the aborted transactions that begin at or below the end of this batch
        while taken < aborted.shape[0] and aborted[taken, 1] <= batch.last_offset:
            open_ids[opened] = aborted[taken, 0]
            opened += 1
            taken += 1
        if batch.attributes & CONTROL:
            if batch.count <= 0:
                continue  # compaction may leave control batches without their record
            # an abort marker ends the aborted transactions of its producer
            kind = _marker(buf, batch.at + HEADER_SIZE, batch.end)
            if kind < 0:
                sight[i] = Sight.UNREADABLE
            elif kind == 0:
                kept = 0
                for k in range(opened):
                    if open_ids[k] != batch.producer_id:
                        open_ids[kept] = open_ids[k]
                        kept += 1
                opened = kept
            continue
        # a transactional batch is hidden while an aborted transaction of its producer is open
        hidden = False
        if batch.attributes & TRANSACTIONAL:
            for k in range(opened):
                hidden = hidden or open_ids[k] == batch.producer_id
        sight[i] = Sight.HIDDEN if hidden else Sight.SHOWN


class Sight(enum.IntEnum):
    """Whether a read-committed reader may see a batch."""

    HIDDEN = 0  # aborted, or a control batch
    SHOWN = 1
    UNREADABLE = 2  # a control batch whose marker cannot be read


def judge(buf: Bytes, batches: Batches, sound: Flags, aborted: Aborted) -> Bytes:
    """Return the Sight of each batch of a fetch. `sound`: whether the CRC of each matches; a batch
    that is not sound is HIDDEN. `aborted`: pairs (producer id, first offset), in any order.

    All batches must be passed, also those before the wanted position: an abort marker among them
    ends a transaction that `aborted` lists.
    """
    sight = np.empty(batches.size, np.uint8)
    if aborted.size:
        aborted = aborted[aborted[:, 1].argsort(kind="stable")]
    _judge(buf, batches, sound, aborted, sight)
    return sight
