"""The ids of schemas in front of values, found in fetched bytes. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overlay.arrays import Bytes, Int, Ints
from overlay.kernels import kernel
from overlay.scan import Decoder, Malformed, make_plan
from overlay.scan.borrow import borrow
from overlay.scan.commit import Aborted
from overlay.scan.values import read_schema_id


def find_ids(data: Bytes, position: int, aborted: Aborted) -> dict[int, int]:
    """Return the ids in front of the values of the committed records in `data` from the offset `position` on, each with
    the offset of its first record, ascending by offset. Batches that cannot be read are passed over: the decoder
    reports them. `data`, `aborted`: as in `Decoder.decode`.
    """
    # the place of the values and nothing else
    decoder = Decoder(replace(make_plan(), width=1, value_slot=0))
    found: dict[int, int] = {}
    for piece in decoder.decode(data, position, aborted=aborted):
        if isinstance(piece, Malformed) or not len(piece):
            continue
        ids, rows = _find_runs(piece.buf, piece.at[0], piece.size[0])
        distinct, first = np.unique(ids, return_index=True)
        for run in np.sort(first[distinct >= 0]).tolist():
            found.setdefault(int(ids[run]), int(piece.offset[rows[run]]))
    return found


def list_ids(buf: Bytes, at: Ints, size: Ints) -> list[int]:
    """Return the distinct ids in front of values. `at`, `size`: where each value is in `buf`; a size below 0 for none."""
    ids = np.unique(_find_runs(buf, at, size)[0])
    return [int(id) for id in ids[ids >= 0]]


def _find_runs(buf: Bytes, at: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the id in front of each value, a negative number for a value without one, and the value's row; only
    of values whose id differs from the one before.
    """
    ids, rows = np.empty(size.size, np.int64), np.empty(size.size, np.int64)
    count = _read_ids(buf, at, size, ids, rows)
    return ids[:count], rows[:count]


@kernel
def _read_ids(buf: Bytes, at: Ints, size: Ints, ids: Ints, rows: Ints) -> Int:
    """Write the id and the row of each value whose id differs from the one before. Return how many there are."""
    buf, at, size, ids, rows = borrow(buf), borrow(at), borrow(size), borrow(ids), borrow(rows)
    count: Int = np.int64(0)
    for row in range(size.size):
        id = read_schema_id(buf, at[row], at[row] + size[row]) if size[row] >= 0 else np.int64(-1)
        if count == 0 or ids[count - 1] != id:
            ids[count] = id
            rows[count] = row
            count += 1
    return count
