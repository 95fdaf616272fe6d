"""The flights as Avro: their schema, and an encoder of their JSON."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import fastavro
import orjson
import pyarrow as pa


def make_schema(table: pa.Table) -> dict[str, Any]:
    """A record with the columns of the flights, of which each may be null."""
    return {
        "type": "record",
        "name": "Flight",
        "fields": [{"name": each.name, "type": ["null", _name_type(each.type)]} for each in table.schema],
    }


def _name_type(type: pa.DataType) -> str:
    if pa.types.is_integer(type):
        return "long"
    return "double" if pa.types.is_floating(type) else "string"


def make_encoder(schema: dict[str, Any]) -> Callable[[bytes], bytes]:
    """A function that writes a flight, a JSON object, as Avro without a frame."""
    parsed = fastavro.parse_schema(schema)

    def encode(value: bytes) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, orjson.loads(value))
        return out.getvalue()

    return encode
