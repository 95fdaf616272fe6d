"""Fields of Avro and Protobuf values: Spark's workers, the scan of a service and of `read()`, and a message give the same."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.client.subscribe.message import Delivered
from overlay.client.subscribe.properties import PropertyReader
from overlay.config import StreamConfig
from overlay.config.relations import check_stream
from overlay.config.stream import PropertyType
from overlay.config.values import ValuesConfig
from overlay.errors import SourceUnavailable
from overlay.field import Field, FieldKind
from overlay.match import make_addressing
from overlay.match.addressing import Addressed
from overlay.match.properties import Source
from overlay.match.reading import Reading
from overlay.schemas.gate import settle_all
from spark.encoded import ColumnReader
from tests.oracle.batches import Record
from tests.support.avro import encode
from tests.support.batches import build
from tests.support.protobuf import compile_file, make_class
from tests.support.schema_registry import Registry, serve_registry

PATHS = {"n": "long", "a.d": "double", "at": "timestamp", "s": "string", "a.b": "boolean", "raw": "binary"}
INNER = {
    "type": "record",
    "name": "A",
    "fields": [{"name": "d", "type": ["null", "double"]}, {"name": "b", "type": "boolean"}],
}
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "a", "type": ["null", INNER]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "s", "type": "string"},
        {"name": "raw", "type": "bytes"},
    ],
}
PROTOBUF = {"n": 3, "a": ".A", "at": ".google.protobuf.Timestamp", "s": 9, "raw": 12}
TAG = b"$JS.ACK._.4x1.S.c.1.7.7.1700000000123000000.0"
YEARS = (0, 4_000_000_000_000)


@cache
def make_file() -> Any:
    made = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    made.dependency.append("google/protobuf/timestamp.proto")
    outer, inner = made.message_type.add(name="R"), made.message_type.add(name="A")
    for message, fields in ((outer, PROTOBUF), (inner, {"d": 1, "b": 8})):
        for number, (name, type) in enumerate(fields.items(), 1):
            field = message.field.add(name=name, number=number, label=1)
            if isinstance(type, str):
                field.type, field.type_name = 11, type
            else:
                field.type = type
    return made


@cache
def make_stream(form: str) -> StreamConfig:
    schema: object = AVRO
    if form == "protobuf":
        schema = {"file_descriptor_set": base64.b64encode(compile_file(make_file())).decode()}
    stream = StreamConfig.model_validate(
        {
            "name": "S",
            "topics": ("t",),
            "values": {"format": form, "schema": schema, **({"message": "R"} if form == "protobuf" else {})},
            "properties": {
                f"p{i}": {"type": type, "from": f"{{value:{of}}}"} for i, (of, type) in enumerate(PATHS.items())
            },
        }
    )
    assert [*check_stream(stream)] == []
    return stream


def encode_one(form: str, value: Mapping[str, Any]) -> bytes:
    if form == "avro":
        return encode(AVRO, value)
    seconds, ms = divmod(value["at"], 1000)
    given = {name: each for name, each in value.items() if each is not None}
    if value["a"] is not None:
        given["a"] = {name: each for name, each in value["a"].items() if each is not None}
    message = make_class(make_file(), "R")(**{**given, "at": {"seconds": seconds, "nanos": ms * 1_000_000}})
    return bytes(message.SerializeToString())


LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.fixed_dictionaries(
    {
        "n": st.none() | LONGS,
        "a": st.none() | st.fixed_dictionaries({"d": st.none() | st.floats(), "b": st.booleans()}),
        "at": st.integers(*YEARS),
        "s": st.text(max_size=5) | st.sampled_from(['"', "\\u0041", "2024-02-29T12:00:00Z"]),
        "raw": st.binary(max_size=4),
    }
)


@st.composite
def value_lists(draw: st.DrawFn) -> tuple[str, list[bytes | None]]:
    form = draw(st.sampled_from(["avro", "protobuf"]))
    found: list[bytes | None] = []
    for each in draw(st.lists(VALUES, min_size=1, max_size=4)):
        value = encode_one(form, each)
        cut = draw(st.integers(0, len(value)))
        found.append(draw(st.sampled_from([value, value[:cut], value[:cut] + b"\xff" + value[cut:], None])))
    return form, found


def read_as_spark(stream: StreamConfig, values: list[bytes | None]) -> list[list[object]]:
    fields = [(source_of(stream, name), entry.type) for name, entry in stream.properties.items()]
    reader = ColumnReader(stream.values, fields)
    assert [len(column) for column in reader.read(pa.array([], pa.binary()))] == [0] * len(fields)
    # behind others, as in a slice of a larger array
    batch = pa.array([b"some", *values], pa.binary())[1:]
    return [column.to_pylist() for column in reader.read(batch)]


def source_of(stream: StreamConfig, name: str) -> Field:
    source = stream.properties[name].source
    assert source is not None
    return source


def read_as_service(stream: StreamConfig, values: list[bytes | None]) -> list[list[object]]:
    records = [Record(i, 0, None, value, []) for i, value in enumerate(values)]
    batch = np.frombuffer(build(records, codec=3), np.uint8)
    more = tuple(source_of(stream, name) for name in stream.properties)
    found: list[list[object]] = [[] for _ in more]
    for piece in make_addressing(stream).read("t", 0, batch, 0, more=more):
        assert isinstance(piece, Addressed)
        for column, source, entry in zip(found, more, stream.properties.values(), strict=True):
            array = Reading(piece).read(Source((source,)), entry.type).array
            column += (array.cast(pa.int64()) if entry.type is PropertyType.TIMESTAMP else array).to_pylist()
    return found


class Message:
    def __init__(self, value: bytes | None) -> None:
        self._value = value

    def key(self) -> None:
        return None

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return [("Nats-Subject", b"t"), ("Nats-Reply-To", TAG)]


def read_as_messages(stream: StreamConfig, values: list[bytes | None]) -> list[list[object]]:
    reader = PropertyReader(stream.properties, stream.values)
    rows = [reader.read(Delivered(cast(Any, Message(value)), TAG, cast(Any, None))) for value in values]
    return [[count_ms(row[name]) for row in rows] for name in stream.properties]


def count_ms(value: object) -> object:
    if not isinstance(value, datetime):
        return value
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@settings(max_examples=150, deadline=None)
@given(value_lists())
def test_all_readers_agree(drawn: tuple[str, list[bytes | None]]) -> None:
    form, values = drawn
    stream = make_stream(form)
    found = read_as_service(stream, values)
    assert read_as_spark(stream, values) == found
    assert read_as_messages(stream, values) == found


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_readers_read_what_was_written(form: str) -> None:
    value = {"n": -5, "a": {"d": 0.1, "b": True}, "at": 1_600_000_000_007, "s": 'a"ø\\', "raw": b'\x00"\xff'}
    stream, values = make_stream(form), [encode_one(form, value), None]
    wanted = [[-5, None], [0.1, None], [1_600_000_000_007, None], ['a"ø\\', None], [True, None], [b'\x00"\xff', None]]
    assert (
        read_as_spark(stream, values) == read_as_service(stream, values) == read_as_messages(stream, values) == wanted
    )


def test_a_worker_asks_the_registry_for_the_ids_of_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    registry = Registry()
    registry.add("s-value", 7, AVRO)
    value = {"n": 5, "a": None, "at": 0, "s": "x", "raw": b""}
    framed = [b"\0" + id.to_bytes(4, "big") + encode(AVRO, value) for id in (7, 9, 7)]
    with serve_registry(registry) as url:
        values = ValuesConfig.model_validate({"format": "avro", "registry": {"url": url}})
        reader = ColumnReader(pickle.loads(pickle.dumps(values)), [(Field(FieldKind.VALUE, "n"), PropertyType.LONG)])
        for _ in range(2):
            (column,) = reader.read(pa.array([*framed, None], pa.binary()))
            assert column.to_pylist() == [5, None, 5, None]
    assert sorted(path for path, _ in registry.asked) == ["/schemas/ids/7", "/schemas/ids/9"]


def test_a_task_ends_if_the_registry_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("overlay.schemas.gate.MOST_WAIT_S", 0.5)
    registry = Registry()
    registry.answers["/schemas/ids/7"] = 503, {}, b""
    with serve_registry(registry) as url:
        values = ValuesConfig.model_validate({"format": "avro", "registry": {"url": url}})
        with pytest.raises(SourceUnavailable, match=r"is waited for: .* status 503"):
            settle_all(values, [7])
