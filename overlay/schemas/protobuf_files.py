"""Compiled files of Protobuf as a schema registry has them: put together as protoc would write them.

A registry gives each file by itself. What all files may import without naming it to the registry is
here: the well-known types of Protobuf, as far as values have fields of them, and Confluent's decimal.

Source: descriptor.proto, and the .proto files of the types.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from overlay.errors import SchemaError
from overlay.protobuf import Kind

_TAG_FILE, _TAG_PACKAGE, _TAG_MESSAGE, _TAG_ENUM, _TAG_SYNTAX = 1, 2, 4, 5, 12
_OPTIONAL = 1

_NUMBERS = {"Timestamp": (Kind.INT64, Kind.INT32), "Duration": (Kind.INT64, Kind.INT32)}
_WRAPPERS = {
    "DoubleValue": Kind.DOUBLE,
    "FloatValue": Kind.FLOAT,
    "Int64Value": Kind.INT64,
    "UInt64Value": Kind.UINT64,
    "Int32Value": Kind.INT32,
    "UInt32Value": Kind.UINT32,
    "BoolValue": Kind.BOOL,
    "StringValue": Kind.STRING,
    "BytesValue": Kind.BYTES,
}
_OPAQUE = ("Empty", "Struct", "Value", "ListValue", "FieldMask")
"""Well-known types whose fields no path can end at."""


def read_file(known: Any) -> bytes:
    """Return the compiled .proto file in a registry's answer. Raises SchemaError if the answer has the text of the file
    instead, and KeyError or TypeError if it has neither.
    """
    try:
        return base64.b64decode(known["schema"], validate=True)
    except ValueError:
        raise SchemaError(
            "the registry gives the text of its .proto file alone, not a compiled one. Compile it with"
            " protoc --include_imports, and put ID.desc into the folder of the schemas"
        ) from None


def join_files(referred: Mapping[str, bytes], last: bytes) -> bytes:
    """Return a FileDescriptorSet of compiled files: the well-known types, `referred`, and at its end the file that was
    asked for.
    """
    return b"".join(_pack(_TAG_FILE, file) for file in (*_list_known(), *referred.values(), last))


def _list_known() -> list[bytes]:
    """Return the compiled files of the types that every registry knows."""
    messages = [
        *(_describe(name, {"seconds": kinds[0], "nanos": kinds[1]}) for name, kinds in _NUMBERS.items()),
        *(_describe(name, {"value": kind}) for name, kind in _WRAPPERS.items()),
        _describe("Any", {"type_url": Kind.STRING, "value": Kind.BYTES}),
        *(_describe(name, {}) for name in _OPAQUE),
    ]
    null = _pack(1, b"NullValue") + _pack(2, _pack(1, b"NULL_VALUE") + b"\x10\x00")
    decimal = _describe("Decimal", {"value": Kind.BYTES, "precision": Kind.UINT32, "scale": Kind.INT32})
    return [
        _write_file("google.protobuf", messages, _pack(_TAG_ENUM, null)),
        _write_file("confluent.type", [decimal]),
    ]


def _write_file(package: str, messages: list[bytes], enums: bytes = b"") -> bytes:
    """Return a FileDescriptorProto of proto3."""
    described = b"".join(_pack(_TAG_MESSAGE, message) for message in messages)
    return _pack(_TAG_PACKAGE, package.encode()) + described + enums + _pack(_TAG_SYNTAX, b"proto3")


def _describe(name: str, fields: Mapping[str, Kind]) -> bytes:
    """Return a DescriptorProto of a message with these fields, numbered from 1 on."""
    parts = [
        _pack(1, field.encode()) + bytes((0x18, number, 0x20, _OPTIONAL, 0x28, int(kind)))
        for number, (field, kind) in enumerate(fields.items(), 1)
    ]
    return _pack(1, name.encode()) + b"".join(_pack(2, part) for part in parts)


def _pack(number: int, data: bytes) -> bytes:
    """Return a field of Protobuf with these bytes."""
    size, length = len(data), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + data
