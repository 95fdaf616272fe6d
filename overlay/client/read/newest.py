"""The last record of each subject, as rows of batches: collected while a partition is read, and
merged at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from overlay.arrays import Ints
from overlay.scan.columns import wrap

from .columns import make_empty_rows
from .row_filter import FilteredRows


@dataclass(frozen=True, slots=True)
class _Row:
    """Row number `at` of `batch`. `offset`: that of its record in its partition.

    `order`: compares rows of several partitions: the record's timestamp (ms since 1970), or its place
    in the ledger's order if the stream has a ledger.
    """

    offset: int
    order: int
    batch: pa.RecordBatch
    at: int


@dataclass(slots=True)
class Newest:
    """The last row of each subject in one partition: that with the highest offset among the parts that were added, in
    any order.
    """

    rows: dict[str, _Row] = field(default_factory=dict)
    """By subject."""

    @property
    def heads(self) -> list[tuple[str, int]]:
        """Subject and offset of each row."""
        return [(subject, row.offset) for subject, row in self.rows.items()]

    def add(self, part: FilteredRows) -> None:
        """Keep each row of `part` whose offset is higher than that of the row kept for its subject, in
        its place. The part must be one of a reading with `last_per_subject`, since only that has
        `heads`; without them nothing is kept.
        """
        orders = np.concatenate(part.places or part.times).tolist() if part.heads else []
        places = [(batch, at) for batch in part.batches for at in range(batch.num_rows)]
        for (subject, offset), order, (batch, at) in zip(part.heads, orders, places, strict=True):
            known = self.rows.get(subject)
            if known is None or known.offset < offset:
                self.rows[subject] = _Row(offset, order, batch, at)


def merge_newest(schema: pa.Schema, partitions: Sequence[Newest]) -> list[pa.RecordBatch]:
    """Return, as batches of `schema`, the last row of each subject over all partitions, oldest first;
    [] if there are no rows.

    Rows of one partition are compared and sorted by offset. If there are several partitions, rows
    are compared and sorted by timestamp, or by sequence if the stream has a ledger; among equal ones
    of a subject, that of the later partition in `partitions` is the last.
    """
    last: dict[str, _Row] = {}
    for newest in partitions:
        for subject, row in newest.rows.items():
            if subject not in last or last[subject].order <= row.order:
                last[subject] = row
    alone = len(partitions) == 1
    rows = sorted(last.values(), key=lambda row: row.offset if alone else row.order)
    if not rows:
        return []
    if not schema.names:
        return [make_empty_rows(len(rows))]
    batches = {id(row.batch): row.batch for row in rows}
    starts = dict(zip(batches, np.cumsum([0, *(batch.num_rows for batch in batches.values())]).tolist(), strict=False))
    order: Ints = np.array([starts[id(row.batch)] + row.at for row in rows], np.int64)
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches.values(), schema).take(wrap(order)).to_batches()
    return found
