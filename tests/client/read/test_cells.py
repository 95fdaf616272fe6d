"""Records as texts for people: each type of column, and the table that notebooks show."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlay
from overlay.client import SCHEMA
from overlay.client.read.cells import MOST_ROWS, show_column, show_times, write_records
from overlay.client.texts import show_content
from tests.client.test_html import HOSTILE, Page, cut

TIME = 1_357_017_300_250
OFTEN = {"subject": "a.b", "sequence": 7, "topic": "t", "partition": 0, "offset": 6, "timestamp": TIME, "headers": []}


def make_batch(*records: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([OFTEN | record for record in records], SCHEMA)


@pytest.mark.parametrize("type", [pa.timestamp("ms"), pa.timestamp("ms", "UTC")])
def test_times_of_any_year(type: pa.DataType) -> None:
    times = [None, 0, -1, -86_400_000, 253_402_300_800_000, TIME]
    found = show_times(pa.array([7, *times]).cast(type).slice(1))
    assert found[:3] == [None, "1970-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z"]
    assert found[3:5] == ["1969-12-31T00:00:00.000Z", "10000-01-01T00:00:00.000Z"]
    assert found[5] == datetime.fromtimestamp(TIME / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.250Z")


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array(["a", None, "c"]).dictionary_encode(), ["a", None, "c"]),
        (pa.array([b"a", b"\xff\n", None]), ["a", "\\xff\\n", None]),
        (pa.array([1.5, None]), ["1.5", None]),
        (pa.array([True, None]), ["True", None]),
        (
            pa.array(
                [{"n": 1, "k": b"\x1b"}, {"n": None, "k": b""}, None], pa.struct([("n", "int64"), ("k", "binary")])
            ),
            ["n=1 k=\\x1b", "n k=", None],
        ),
        (pa.array([{"at": TIME}], pa.struct([("at", pa.timestamp("ms", "UTC"))])), ["at=2013-01-01T05:15:00.250Z"]),
        (pa.array([{}, None], pa.struct([])), ["", None]),
        (
            pa.array([[("a", b"1"), ("b", None)], []], SCHEMA.field("headers").type),
            ["a=1 b", ""],
        ),
        (pa.array([TIME * 1000], pa.timestamp("us", "UTC")), ["2013-01-01T05:15:00.250Z"]),
        (pa.array([[1, 2]]), ["[1, 2]"]),
    ],
)
def test_texts_of_columns(array: pa.Array, texts: list[str | None]) -> None:
    assert show_column(array) == texts
    assert show_column(array.slice(1)) == texts[1:]


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), min_size=1, max_size=5))
def test_every_record_is_a_row(records: list[tuple[str, bytes | None]]) -> None:
    batch = make_batch(*({"subject": subject, "value": value} for subject, value in records))
    page = Page(write_records(batch.select(["subject", "offset", "value"])))
    has_values = any(value is not None for _, value in records)
    values = [["null" if value is None else show_content(value)] if has_values else [] for _, value in records]
    assert page.rows[0] == ["subject", "offset", "value"][: 2 + has_values]
    assert page.rows[1:] == [[cut(subject), "6", *rest] for (subject, _), rest in zip(records, values, strict=True)]


def test_the_first_rows_and_columns_that_say_something() -> None:
    batch = make_batch(*({"offset": n, "key": None, "value": HOSTILE.encode(errors="replace")} for n in range(2_000)))
    page = Page(write_records(batch))
    assert page.rows[0] == ["subject", "sequence", "timestamp", "value", "headers", "topic", "partition", "offset"]
    assert len(page.rows) == 1 + MOST_ROWS and page.rows[-1][-1] == str(MOST_ROWS - 1)
    left_out = "null: stream, consumer, consumer_sequence, num_delivered, ack_token, key"
    assert page.lines == [f"the first 20 of 2,000 records; {left_out}"]
    assert write_records(pa.Table.from_batches([batch.slice(0, 1), batch.slice(1)])) == write_records(batch)


def test_batches_without_rows_or_columns() -> None:
    assert write_records(SCHEMA.empty_table()) == "<p>0 records</p>"
    assert write_records(make_batch({}).select([])) == "<p>1 record</p>"


def test_the_extension_of_a_notebook_shows_batches_and_tables() -> None:
    """The formatter of IPython finds a class by its module and its name."""

    class Formatter:
        def __init__(self) -> None:
            self.known: dict[tuple[str, str], Any] = {}

        def for_type_by_name(self, module: str, name: str, show: Any) -> None:
            self.known[module, name] = show

    formatter = Formatter()
    overlay.load_ipython_extension(
        SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    )
    for value in (make_batch({}), pa.Table.from_batches([make_batch({})])):
        show = formatter.known[type(value).__module__, type(value).__name__]
        assert show(value) == write_records(value)
