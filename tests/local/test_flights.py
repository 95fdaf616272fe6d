from __future__ import annotations

import json
import uuid

import pyarrow as pa
import pytest

from bench.outputs import count_committed
from overlay.local import flights


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read_flights()


def test_the_whole_year_is_there(table: pa.Table) -> None:
    assert table.num_rows == 336_776
    assert set(flights.HEADERS) <= set(table.column_names)


def test_values_are_what_json_dumps_gives(table: pa.Table) -> None:
    # rows at both ends, with everything that can be missing
    for rows in (table.slice(0, 20_000), table.slice(330_000)):
        values = [value for _, value, _ in flights.records(rows)]
        assert values == [json.dumps(row).encode() for row in rows.to_pylist()]


def test_headers_are_the_columns_as_text(table: pa.Table) -> None:
    rows = table.slice(0, 1_000)
    for row, (key, _, headers) in zip(rows.to_pylist(), flights.records(rows), strict=True):
        assert key is None
        assert headers == [(name, str(row[name]).encode()) for name in flights.HEADERS if row[name] is not None]


def test_subjects_follow_the_rows(table: pa.Table) -> None:
    first = table.slice(0, 1).to_pylist()[0]
    assert flights.subjects(table)[0].as_py() == f"flights.{first['origin']}.{first['dest']}.{first['carrier']}"


@pytest.mark.parametrize(("scale", "expected"), [(0.5, 50), (1, 100), (2.25, 225), (0, 0)])
def test_scale_repeats_the_data(table: pa.Table, scale: float, expected: int) -> None:
    rows = table.slice(0, 100)
    values = [value for _, value, _ in flights.records(rows, scale)]
    assert len(values) == expected == flights.count_records(rows, scale)
    assert values[100:] == values[: max(0, expected - 100)][: len(values[100:])]


def test_publish_writes_every_record(bootstrap: str, table: pa.Table) -> None:
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    rows, seen = table.slice(0, 5_000), list[int]()
    assert flights.publish(bootstrap, topic, 1.5, "zstd", seen.append, table=rows) == 7_500
    assert count_committed(bootstrap, topic) == 7_500
    assert seen == sorted(seen) and seen[-1] == 7_500
