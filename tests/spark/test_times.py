"""Times in Spark's columns: those of the years 1 to 9999, and null for others."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.question import make_request
from overlay.client.read.row_filter import RowFilter
from overlay.client.read.topic import describe_topic
from spark.form import SparkForm, make_schema
from spark.times import YEARS, to_micros
from tests.client.read.test_row_filter import fetch
from tests.oracle.batches import Record
from tests.support.batches import build

SPARKS = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_outside_the_years_1_to_9999_are_null(zone: str | None) -> None:
    """Also where a time in microseconds would wrap around and be one of these years again."""
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    outside = [10**18, -(10**18), 2**63 - 1, -(2**63), 18_446_744_073_709_551, YEARS[0] - 1, YEARS[1] + 1]
    found = to_micros(pa.array([*YEARS, 0, None, *outside], pa.timestamp("ms", tz=zone)), SPARKS)
    assert found.type == SPARKS
    assert found.to_pylist() == [first, last, datetime(1970, 1, 1, tzinfo=UTC), None, *(None for _ in outside)]
    assert to_micros(pa.array([], pa.timestamp("ms", tz=zone)), SPARKS).to_pylist() == []


def test_every_column_of_times_has_them() -> None:
    """The record's own, a struct's field, and a property as a column of its own."""
    stream = describe_topic("t", {"at": "timestamp"})
    form = SparkForm(make_schema(stream, ["timestamp", "application_properties.at", "at"]), stream, "S")
    written = (b"1e18", b"253402300799999", b"-62135596800001", b"5")
    times = (10**15, 7, -1, 5)
    records = [Record(at, times[at], None, b"", [(b"at", text)]) for at, text in enumerate(written)]
    row_filter = RowFilter(make_request(stream, is_named=True, now=0), sequenced=True, form=form)
    (part,) = row_filter.sift(OffsetRange(("t", 0), 0, len(records)), fetch(build(records), end=len(records)), 0)
    (batch,) = part.batches
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    fifth = datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)
    assert batch.column("at").to_pylist() == [None, last, None, fifth]
    assert batch.column("application_properties").to_pylist() == [{"at": each} for each in (None, last, None, fifth)]
    assert batch.column("timestamp").to_pylist()[::3] == [None, fifth]
