"""The last rows of several partitions, by sequence and by time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from overlay.client.read.last_rows import count_newer, merge_last
from overlay.client.read.row_filter import FilteredRows

SCHEMA = pa.schema([("name", pa.string())])


def make(name: str, times: Sequence[int], places: Sequence[int] = ()) -> list[FilteredRows]:
    """Return a partition of two parts, the first of one row. Rows are named by the partition and their number."""
    names = [f"{name}{at}" for at in range(len(times))]
    return [
        FilteredRows(
            0,
            [pa.record_batch({"name": names[part]}, schema=SCHEMA)],
            [np.array(times[part], np.int64)],
            [np.array(places[part], np.int64)] if places else [],
        )
        for part in (slice(1), slice(1, None))
    ]


def read_last(partitions: list[list[FilteredRows]], count: int) -> list[str]:
    return [name for batch in merge_last(SCHEMA, partitions, count) for name in batch["name"].to_pylist()]


def test_a_backlog_numbered_partition_after_partition_leaves_newer_records_out() -> None:
    ordered = [make("a", [10, 30, 50], [1, 2, 3]), make("b", [20, 40, 60], [4, 5, 6])]
    assert read_last(ordered, 3) == ["b0", "b1", "b2"]
    assert count_newer(ordered, 3) == 1  # a2, of 50
    assert count_newer(ordered, 2) == 1
    assert count_newer(ordered, 1) == count_newer(ordered, 6) == count_newer(ordered, 0) == 0


def test_records_of_equal_times_are_no_newer_ones() -> None:
    assert count_newer([make("a", [10, 10], [1, 2]), make("b", [10, 10], [3, 4])], 2) == 0
    assert count_newer([make("a", [10, 10], [3, 4]), make("b", [10, 10], [1, 2])], 2) == 0


def test_without_a_ledger_the_last_rows_are_those_by_time() -> None:
    apart = [make("a", [10, 30, 50]), make("b", [20, 40, 60])]
    assert read_last(apart, 3) == ["b1", "a2", "b2"]
    assert count_newer(apart, 3) == 0
    assert read_last([], 3) == []
