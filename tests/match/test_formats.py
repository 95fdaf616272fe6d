"""The same messages as JSON, Avro and Protobuf have the same subjects and the same typed columns."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from overlay.config import StreamConfig
from overlay.config.relations import check_stream
from overlay.match import make_addressing
from overlay.match.addressing import Addressed
from overlay.match.properties import Source
from overlay.match.reading import Reading
from tests.oracle.batches import Record
from tests.support.avro import encode
from tests.support.batches import build
from tests.support.protobuf import compile_file, make_class

ORDERS: list[dict[str, Any]] = [
    {"id": 1 << 40, "total": 12.5, "paid": True, "at": 1_600_000_000_007, "customer": {"country": "NO", "note": 'a"b'}},
    {"id": -7, "total": -0.001, "paid": False, "at": -5, "customer": {"country": "DE", "note": "x\\y"}},
    {"id": 3, "total": 1e300, "paid": True, "at": 0, "customer": None},
]
TYPES = {"id": "long", "total": "double", "paid": "boolean", "at": "timestamp"}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "customer",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Customer",
                    "fields": [{"name": name, "type": "string"} for name in ("country", "note")],
                },
            ],
        },
    ],
}


def make_file() -> Any:
    made = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    order, customer = made.message_type.add(name="Order"), made.message_type.add(name="Customer")
    for number, name in enumerate(("country", "note"), 1):
        customer.field.add(name=name, number=number, label=1, type=9)
    for number, (name, type) in enumerate({"id": 18, "total": 1, "paid": 8}.items(), 1):
        order.field.add(name=name, number=number, label=1, type=type)
    order.field.add(name="at", number=4, label=1, type=11, type_name=".google.protobuf.Timestamp")
    order.field.add(name="customer", number=5, label=1, type=11, type_name=".Customer")
    made.dependency.append("google/protobuf/timestamp.proto")
    return made


def as_protobuf(order: dict[str, Any]) -> bytes:
    seconds, ms = divmod(order["at"], 1000)
    given = {name: value for name, value in order.items() if value is not None}
    message = make_class(make_file(), "Order")(**{**given, "at": {"seconds": seconds, "nanos": ms * 1_000_000 + 999}})
    return bytes(message.SerializeToString())


def make_values(form: str) -> tuple[object, list[bytes]]:
    """Return what a stream's file declares, and the orders."""
    match form:
        case "json":
            return "json", [json.dumps(order).encode() for order in ORDERS]
        case "avro":
            return {"format": "avro", "schema": AVRO}, [encode(AVRO, order) for order in ORDERS]
        case _:
            schema = {"file_descriptor_set": base64.b64encode(compile_file(make_file())).decode()}
            values = {"format": "protobuf", "schema": schema, "message": "Order"}
            return values, [as_protobuf(order) for order in ORDERS]


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_formats_agree(form: str, codec: int) -> None:
    declared, values = make_values(form)
    fields = {**{name: (type, name) for name, type in TYPES.items()}, "note": ("string", "customer.note")}
    properties = {name: {"type": type, "from": f"{{value:{of}}}"} for name, (type, of) in fields.items()}
    data: dict[str, Any] = {
        "name": "S",
        "topics": ("t",),
        "subject": {"template": "o.{value:customer.country}.{value:id}"},
    }
    stream = StreamConfig.model_validate({**data, "values": declared, "properties": properties})
    assert [*check_stream(stream)] == []
    records = [Record(i, 0, None, value, []) for i, value in enumerate(values)]
    batch = np.frombuffer(build(records, codec=codec), np.uint8)
    sources = {name: entry.source for name, entry in stream.properties.items()}
    more = tuple(source for source in sources.values() if source is not None)
    pieces = [p for p in make_addressing(stream).read("t", 0, batch, 0, more=more) if isinstance(p, Addressed)]
    (piece,) = (piece for piece in pieces[:1] if len(piece.records))
    subjects = [piece.dictionary.subjects[code] if code >= 0 else None for code in piece.codes.tolist()]
    assert subjects == [f"o.NO.{1 << 40}", "o.DE.-7", None]
    reading = Reading(piece)
    for name, (type, _) in fields.items():
        source = sources[name]
        assert source is not None
        array = reading.read(Source((source,)), type).array
        found = (array.cast(pa.int64()) if type == "timestamp" else array).to_pylist()
        wanted = [(order["customer"] or {}).get("note") if name == "note" else order[name] for order in ORDERS]
        assert found == wanted, name
