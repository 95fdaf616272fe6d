"""The last rows of several partitions, by timestamp or by the sequences of the stream's ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.scan.columns import wrap

from .columns import make_empty_rows
from .row_filter import FilteredRows


def merge_last(schema: pa.Schema, partitions: Sequence[Iterable[FilteredRows]], count: int) -> list[pa.RecordBatch]:
    """Return, as batches of `schema`, the last `count` rows of several partitions, keeping the order of
    each; [] if there are none. `partitions`: the parts of each, by offset.

    Among the partitions' last rows the one with the latest timestamp comes last (of equal ones,
    that of the later partition), and so on backwards. With a ledger, sequences are used instead of timestamps.
    """
    order = _find_last(partitions, count)
    if not order.size:
        return []
    if not schema.names:
        return [make_empty_rows(order.size)]
    batches = [batch for parts in partitions for part in parts for batch in part.batches]
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches, schema).take(wrap(order)).to_batches()
    return found


def count_newer(partitions: Sequence[Iterable[FilteredRows]], count: int) -> int:
    """Return how many of the last `count` rows by timestamp are not among the last `count` by sequence and newer than one
    of these; 0 without a ledger. A backlog is numbered partition after partition, so its last rows by sequence may all
    be of one.
    """
    found = _find_last(partitions, count)
    if not found.size or not any(part.places for parts in partitions for part in parts):
        return 0
    times = np.concatenate([each for parts in partitions for part in parts for each in part.times])
    others = np.setdiff1d(_find_last(partitions, count, by_time=True), found)
    return int(np.count_nonzero(times[others] > times[found].min()))


def _find_last(partitions: Iterable[Iterable[FilteredRows]], count: int, *, by_time: bool = False) -> Ints:
    """Return the numbers of the last `count` rows, in their order; rows are numbered as they are in `partitions`.
    `by_time`: by timestamps even with a ledger.

    This is a sort by the smallest timestamp or sequence from a row to the end of its partition.
    """
    keys: list[Ints] = []
    for parts in partitions:
        times = [each for part in parts for each in (part.times if by_time or not part.places else part.places)]
        if times:
            keys.append(np.minimum.accumulate(np.concatenate(times)[::-1])[::-1])
    if not keys or not count:
        return np.empty(0, np.int64)
    order: Ints = np.argsort(np.concatenate(keys), kind="stable")[-count:]
    return order
