"""The last rows of subjects, put together from parts that come in any order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.read.newest import Newest, merge_newest
from overlay.client.read.row_filter import FilteredRows

SCHEMA = pa.schema([("offset", pa.int64())])
rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99)), max_size=12, unique_by=lambda row: row[1])


def make_part(found: list[tuple[str, int]], partition: int, has_ledger: bool) -> FilteredRows:
    """A record's time is its offset times two, and one more in the second partition. With a ledger that is its place, and times
    go the other way."""
    offsets = [offset for _, offset in found]
    part = FilteredRows(0, heads=found)
    if offsets:
        part.batches = [pa.record_batch([pa.array([100 * partition + each for each in offsets])], SCHEMA)]
        order = np.array([2 * each + partition for each in offsets])
        part.times, part.places = ([-order], [order]) if has_ledger else ([order], [])
    return part


@given(st.lists(st.lists(rows, max_size=4), min_size=1, max_size=2), st.booleans())
def test_the_last_row_of_each_subject(partitions: list[list[list[tuple[str, int]]]], has_ledger: bool) -> None:
    kept = []
    last: dict[str, tuple[int, int]] = {}
    for partition, parts in enumerate(partitions):
        newest = Newest()
        for found in parts:
            newest.add(make_part(found, partition, has_ledger))
            for subject, offset in found:
                here = 2 * offset + partition, 100 * partition + offset
                last[subject] = max(last.get(subject, here), here)
        kept.append(newest)
    found_rows = [row for batch in merge_newest(SCHEMA, kept) for row in batch["offset"].to_pylist()]
    assert found_rows == [name for _, name in sorted(last.values())]
    counted = merge_newest(pa.schema([]), kept)
    assert sum(batch.num_rows for batch in counted) == len(last)
