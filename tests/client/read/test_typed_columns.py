"""Declared properties and sections as columns, against the slow twin that reads one record after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from overlay.client import SCHEMA, BadQuestion
from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.question import Question, make_request
from overlay.client.read.row_filter import RowFilter
from overlay.client.read.topic import describe_topic
from overlay.client.read.typed_columns import INSTANT, TypedBuilder, list_fields
from tests.match.test_masks import DECLARED, PLAIN, STREAM, records
from tests.oracle.batches import Record
from tests.oracle.properties import REASONS, find_place, read_column
from tests.support.batches import build

from .test_row_filter import fetch

ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("ms", "UTC"),
}


def read(found: Sequence[Record], **question: Any) -> pa.RecordBatch:
    """The rows of some records of STREAM's topic t, partition 3, from offset 0 on, in one batch."""
    request = make_request(STREAM, is_named=True, now=0, **question)
    fetched = fetch(build([replace(record, offset=at) for at, record in enumerate(found)]), end=len(found))
    (part,) = RowFilter(request, sequenced=True).sift(OffsetRange(("t", 3), 0, len(found)), fetched, 0)
    (batch,) = part.batches
    batch.validate(full=True)
    assert batch.schema == request.make_form().schema
    return batch


def plain(array: pa.Array) -> list[Any]:
    """The values; times as ms since 1970, of which Python's datetime has not all."""
    values: list[Any] = (array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist()
    return values


def expect(found: Sequence[Record], section: str, name: str) -> list[Any]:
    """What the twin reads from each record that has a subject."""
    column, values = list_fields(STREAM)[section, name], []
    for record in found:
        if to := (dict(record.headers).get(b"dest") or b"").decode():
            value = read_column(column, record, find_place(record, f"s.{to}", "t", 3), DECLARED)
            values.append(None if value in REASONS else value)
    return values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records())
def test_every_field_is_what_the_twin_reads(found: list[Record]) -> None:
    found = [*found, Record(0, 5, None, None, [(b"dest", b"a")])]  # one at least has a subject
    batch = read(found, columns=["application_properties", "properties", "header", "delay", "at", "tail"])
    assert batch.schema.names == ["application_properties", "properties", "header", "delay", "at", "tail"]
    for section, name in list_fields(STREAM):
        assert plain(batch[section].field(name)) == expect(found, section, name), (section, name)
    for name in ("delay", "at", "tail"):
        assert batch[name] == batch["application_properties"].field(name)


def test_types_are_those_that_the_stream_declares() -> None:
    batch = read(PLAIN, columns=["application_properties", "properties"])
    own = {name: type for name, (type, _) in DECLARED.items() if "." not in name}
    assert {each.name: each.type for each in batch.schema.field("application_properties").type} == {
        name: ARROW[type] for name, type in own.items()
    }
    fields = {each.name: each.type for each in batch.schema.field("properties").type}
    assert (fields["message_id"], fields["creation_time"], fields["to"]) == (pa.int64(), INSTANT, pa.string())


def test_decoding_adds_the_properties_and_the_zone() -> None:
    batch, before = read(PLAIN, decode=True), read(PLAIN)
    assert before.schema == SCHEMA
    assert batch.schema.names == [*SCHEMA.names, "application_properties"]
    assert batch.schema.field("timestamp").type == INSTANT
    assert (
        plain(batch["timestamp"]) == plain(before["timestamp"]) == plain(batch["application_properties"].field("when"))
    )
    assert batch.drop_columns(["timestamp", "application_properties"]) == before.drop_columns(["timestamp"])


def test_decoding_with_columns_gives_the_zone_alone() -> None:
    assert read(PLAIN, columns=["offset", "timestamp"], decode=True).schema == pa.schema(
        [("timestamp", INSTANT), ("offset", pa.int64())]
    )
    assert read(PLAIN, columns=["timestamp", "when"]).schema == pa.schema(
        [("timestamp", pa.timestamp("ms")), ("when", INSTANT)]
    )
    assert read(PLAIN, columns=[], decode=True).num_rows == len(PLAIN)


def test_columns_come_once_and_in_the_order_of_their_names() -> None:
    wanted = ["tail", "offset", "application_properties.late", "tail", "subject", "application_properties.delay"]
    schema = make_request(STREAM, is_named=True, now=0, columns=wanted).make_form().schema
    assert schema.names == ["subject", "offset", "tail", "application_properties"]
    assert [field.name for field in schema.field("application_properties").type] == ["late", "delay"]


def test_a_property_with_the_name_of_another_column_is_in_the_struct() -> None:
    stream = describe_topic("t", {"key": "long", "header": "double", "x.y": "boolean"})
    request = make_request(
        stream, is_named=False, now=0, columns=["key", "header", "x.y", "application_properties.key"]
    )
    assert request.make_form().schema == pa.schema(
        [
            ("key", pa.binary()),
            ("header", pa.struct([("priority", pa.int64())])),
            ("x.y", pa.bool_()),
            ("application_properties", pa.struct([("key", pa.int64())])),
        ]
    )


def test_readings_without_properties_decode_none() -> None:
    """Their batches are built as if properties were not declared."""
    questions: list[Question] = [{}, {"columns": ["value", "timestamp"]}, {"columns": []}, {"decode": False}]
    for question in questions:
        form = make_request(STREAM, is_named=True, now=0, **question).make_form()
        assert form.fields == () and not isinstance(form, TypedBuilder)
    bare = make_request(describe_topic("t", {}), is_named=False, now=0, decode=True)
    assert bare.columns == tuple(SCHEMA.names) and bare.make_form().fields == ()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["dely"], r"no column 'dely'\. Did you mean delay\? Columns are subject, .*, offset, delay, .*, properties"),
        (["application_properties.nothing"], "no column 'application_properties.nothing'"),
        (["p.message_id"], "no column 'p.message_id'"),
        (["value.n"], "no column 'value.n'"),
    ],
)
def test_names_that_are_no_column_are_refused(columns: list[str], message: str) -> None:
    with pytest.raises(BadQuestion, match=message):
        make_request(STREAM, is_named=True, now=0, columns=columns)


def test_a_topic_that_declares_nothing_has_no_struct_of_properties() -> None:
    with pytest.raises(BadQuestion, match="no column 'application_properties'"):
        make_request(describe_topic("t", {}), is_named=False, now=0, columns=["application_properties"])
