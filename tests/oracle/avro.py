"""Fields of Avro values by the specification, one value and one path at a time: the slow twin of overlay/scan/avro.

It works on schemas as they are written, and reads no further than the path's value.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

MISSING, BROKEN, OTHER, UNKNOWN = object(), object(), object(), object()
"""A value that is not there; one that cannot be read; a record, an array or a map; a value of a schema that is not known."""

_PLAIN = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_PER_MS = {"timestamp-millis": 1, "timestamp-micros": 1_000, "timestamp-nanos": 1_000_000}
_DAY = 86_400_000
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class _Found(Exception):
    """The answer, which ends the reading."""


class _Cut(Exception):
    """The value ends too early, or has what no value has."""


def find(schema: Any, value: bytes, path: Sequence[str]) -> Any:
    """Return the Python value at the end of a path; times are ms, a text and bytes are bytes."""
    names: dict[str, Any] = {}
    _name(schema, "", names)
    reader = _Reader(value, names)
    try:
        reader.search(schema, "", tuple(path))
    except _Found as found:
        return found.args[0]
    except _Cut:
        return BROKEN
    raise AssertionError("a search ends with an answer")


def find_framed(schemas: Mapping[int, Any], value: bytes, path: Sequence[str]) -> Any:
    """Return the same for a value that has its schema's id in front."""
    if value.startswith(b"Obj\x01"):
        return UNKNOWN
    if len(value) < 5 or value[0]:
        return BROKEN
    schema = schemas.get(int.from_bytes(value[1:5], "big"))
    return UNKNOWN if schema is None else find(schema, value[5:], path)


def _full(schema: Mapping[str, Any], namespace: str) -> str:
    name: str = schema["name"]
    namespace = schema.get("namespace", namespace)
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _name(schema: Any, namespace: str, names: dict[str, Any]) -> None:
    """Write down all named types of a schema."""
    if isinstance(schema, list):
        for part in schema:
            _name(part, namespace, names)
    elif isinstance(schema, dict):
        match schema["type"]:
            case "record":
                full = _full(schema, namespace)
                names[full] = schema, full.rpartition(".")[0]
                for field in schema["fields"]:
                    _name(field["type"], full.rpartition(".")[0], names)
            case "enum" | "fixed":
                names[_full(schema, namespace)] = schema, ""
            case "array":
                _name(schema["items"], namespace, names)
            case "map":
                _name(schema["values"], namespace, names)
            case dict() | list():
                _name(schema["type"], namespace, names)


class _Reader:
    def __init__(self, value: bytes, names: Mapping[str, Any]) -> None:
        self.value, self.names, self.at = value, names, 0

    def search(self, schema: Any, namespace: str, path: tuple[str, ...]) -> NoReturn:
        """Raise _Found with the answer for a path from here, or _Cut."""
        schema, namespace = self.resolve(schema, namespace)
        if isinstance(schema, list):
            self.search(schema[self.choose(schema)], namespace, path)
        kind = schema["type"]
        if not path:
            raise _Found(self.read(schema, namespace))
        if kind != "record" or path[0] not in [field["name"] for field in schema["fields"]]:
            raise _Found(MISSING)
        inner = _full(schema, namespace).rpartition(".")[0]
        for field in schema["fields"]:
            if field["name"] == path[0]:
                self.search(field["type"], inner, path[1:])
            self.pass_over(field["type"], inner)
        raise AssertionError("unreachable")

    def resolve(self, schema: Any, namespace: str) -> tuple[Any, str]:
        while isinstance(schema, str) or (isinstance(schema, dict) and schema["type"] not in _KINDS):
            if isinstance(schema, dict):
                schema = schema["type"]
            elif schema in _PLAIN:
                schema = {"type": schema}
            else:
                full = schema if "." in schema or not namespace else f"{namespace}.{schema}"
                schema, namespace = self.names[full]
        return schema, namespace

    def choose(self, schema: list[Any]) -> int:
        branch = self.number()
        if not 0 <= branch < len(schema):
            raise _Cut
        return branch

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.value) - self.at:
            raise _Cut
        self.at += size
        return self.value[self.at - size : self.at]

    def number(self) -> int:
        raw = 0
        for group in range(10):
            (byte,) = self.take(1)
            raw |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                raw &= (1 << 64) - 1
                return (raw >> 1) ^ -(raw & 1)
        raise _Cut

    def read(self, schema: Any, namespace: str) -> Any:
        """Return the value of a type that is no union."""
        logical = schema.get("logicalType", "")
        match schema["type"]:
            case "null":
                return MISSING
            case "boolean":
                (byte,) = self.take(1)
                return bool(byte) if byte < 2 else BROKEN
            case "int" | "long":
                return self.read_number(schema["type"], logical)
            case "float":
                return struct.unpack("<f", self.take(4))[0]
            case "double":
                return struct.unpack("<d", self.take(8))[0]
            case "bytes" | "string" | "fixed":
                size = schema["size"] if schema["type"] == "fixed" else self.number()
                raw = self.take(size)
                return self.read_decimal(raw, schema) if logical == "decimal" and schema["type"] != "string" else raw
            case "enum":
                number = self.number()
                symbols = schema["symbols"]
                return symbols[number].encode() if 0 <= number < len(symbols) else BROKEN
            case _:
                return OTHER

    def read_number(self, kind: str, logical: str) -> Any:
        number = self.number()
        if kind == "int" and logical == "date":
            number *= _DAY
        elif kind == "long" and logical.removeprefix("local-") in _PER_MS:
            number //= _PER_MS[logical.removeprefix("local-")]
        else:
            return number
        return number if -_MOST <= number <= _MOST else BROKEN

    def read_decimal(self, raw: bytes, schema: Any) -> Any:
        unscaled = int.from_bytes(raw, "big", signed=True)
        if not _LEAST <= unscaled <= _MOST:
            return float("nan")
        return Decimal(unscaled).scaleb(-schema.get("scale", 0))

    def pass_over(self, schema: Any, namespace: str) -> None:
        schema, namespace = self.resolve(schema, namespace)
        if isinstance(schema, list):
            self.pass_over(schema[self.choose(schema)], namespace)
            return
        match schema["type"]:
            case "record":
                inner = _full(schema, namespace).rpartition(".")[0]
                for field in schema["fields"]:
                    self.pass_over(field["type"], inner)
            case "array" | "map":
                self.pass_blocks(schema, namespace)
            case "enum":
                self.number()
            case "boolean":
                self.take(1)
            case _:
                self.read(schema, namespace)

    def pass_blocks(self, schema: Any, namespace: str) -> None:
        while count := self.number():
            if count < 0:
                self.take(self.number())
            elif schema["type"] == "array" and self.is_empty(schema["items"], namespace):
                continue
            elif count > len(self.value) - self.at:
                raise _Cut
            else:
                for _ in range(count):
                    if schema["type"] == "map":
                        self.take(self.number())
                    self.pass_over(schema["items" if schema["type"] == "array" else "values"], namespace)

    def is_empty(self, schema: Any, namespace: str) -> bool:
        schema, namespace = self.resolve(schema, namespace)
        if isinstance(schema, list):
            return False
        if schema["type"] == "record":
            inner = _full(schema, namespace).rpartition(".")[0]
            return all(self.is_empty(field["type"], inner) for field in schema["fields"])
        return schema["type"] == "null" or (schema["type"] == "fixed" and not schema["size"])


_KINDS = {*_PLAIN, "record", "enum", "fixed", "array", "map"}
