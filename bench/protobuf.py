"""The flights as Protobuf: their message, a class that reads it, and an encoder of their JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FLIGHT = "bench.Flight"
_Types = descriptor_pb2.FieldDescriptorProto


def compile_message(table: pa.Table) -> bytes:
    """Return a FileDescriptorSet, as protoc writes it, of a message with the columns of the flights. Its fields are those of
    proto2, which may be left out.
    """
    made = descriptor_pb2.FileDescriptorSet()
    file = made.file.add(name="flight.proto", package="bench", syntax="proto2")
    message = file.message_type.add(name="Flight")
    for number, each in enumerate(table.schema, 1):
        message.field.add(name=each.name, number=number, label=_Types.LABEL_OPTIONAL, type=_name_type(each.type))
    return bytes(made.SerializeToString())


def make_schema(compiled: bytes) -> dict[str, str]:
    """Return what the stream's file has as `values.schema`."""
    return {"file_descriptor_set": base64.b64encode(compiled).decode()}


def make_class(compiled: bytes) -> Any:
    """Return the class of the message, as protoc's generated code has it."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(FLIGHT))


def make_encoder(compiled: bytes) -> Callable[[bytes], bytes]:
    """Return a function that writes a flight, a JSON object, as Protobuf without a frame. What is null is left out."""
    flight = make_class(compiled)

    def encode(value: bytes) -> bytes:
        columns = orjson.loads(value)
        return bytes(flight(**{name: each for name, each in columns.items() if each is not None}).SerializeToString())

    return encode


def _name_type(type: pa.DataType) -> Any:
    if pa.types.is_integer(type):
        return _Types.TYPE_INT64
    return _Types.TYPE_DOUBLE if pa.types.is_floating(type) else _Types.TYPE_STRING
