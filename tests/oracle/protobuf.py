"""Fields of Protobuf values by the rules of the encoding, one value and one path at a time: the slow twin of
overlay/scan/protobuf. A message that stands several times is one with all their fields."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from overlay.protobuf import Field, Kind, Message

MISSING, BROKEN, OTHER, UNKNOWN = object(), object(), object(), object()
"""A value that is not there; one that cannot be read; a message; a value of a type that is not known."""

_FIXED = {
    Kind.FIXED64: "<Q",
    Kind.SFIXED64: "<q",
    Kind.DOUBLE: "<d",
    Kind.FIXED32: "<I",
    Kind.SFIXED32: "<i",
    Kind.FLOAT: "<f",
}
_WIRES = {8: 1, 4: 5}
_MOST_SECONDS = 9_000_000_000_000_000

Part = tuple[int, int, bytes]
"""A field as it stands in a message: number, wire type, the bytes of its value without their size."""


class _Broken(Exception):
    """The bytes are no message."""


def find(message: Message, value: bytes, path: Sequence[str]) -> Any:
    """Return the Python value at the end of a path; a text, bytes and symbols are bytes, times are ms."""
    return _find(message, [value], tuple(path)) if _has(message, path) else MISSING


def _has(message: Message, path: Sequence[str]) -> bool:
    """Whether the type has such a path: values without it need not be read."""
    found = message.fields.get(path[0])
    if found is None or len(path) == 1:
        return found is not None
    is_inner = found.kind is Kind.MESSAGE and found.message is not None and not found.is_repeated
    return is_inner and found.message is not None and _has(found.message, path[1:])


def find_framed(
    types: Mapping[int, Sequence[tuple[tuple[int, ...], Message]]], value: bytes, path: Sequence[str]
) -> Any:
    """Return the same for a value with the id of its schema and the indexes of its type in front."""
    if value.startswith(b"Obj\x01"):
        return UNKNOWN
    if len(value) < 5 or value[0]:
        return BROKEN
    known = types.get(int.from_bytes(value[1:5], "big"))
    if known is None:
        return UNKNOWN if _count(value[5:]) is not None else BROKEN
    try:
        at, count = _varint(value, 5)
        if count % 2 or count // 2 > 100:
            return BROKEN
        place = []
        for _ in range(count // 2):
            at, index = _varint(value, at)
            place.append(index / 2)
    except _Broken:
        return BROKEN
    for known_place, message in known:
        if list(known_place) == (place or [0]):
            return find(message, value[at:], path)
    return UNKNOWN


def _count(rest: bytes) -> int | None:
    try:
        _, count = _varint(rest, 0)
    except _Broken:
        return None
    return None if count % 2 or count // 2 > 100 else count


def _is_sound(message: Message, value: bytes, path: tuple[str, ...]) -> bool:
    """Whether a message can be read, and all those within it that the path leads through."""
    try:
        parts = split(value)
    except _Broken:
        return False
    wanted = message.fields[path[0]]
    if len(path) == 1 or wanted.message is None:
        return True
    inner = [raw for number, wire, raw in parts if (number, wire) == (wanted.number, find_wire(wanted))]
    return all(_is_sound(wanted.message, raw, path[1:]) for raw in inner)


def _find(message: Message, values: Sequence[bytes], path: tuple[str, ...]) -> Any:
    if not all(_is_sound(message, value, path) for value in values):
        return BROKEN
    parts = [part for value in values for part in split(value)]
    wanted = message.fields[path[0]]
    kept: list[bytes] = []
    for number, wire, raw in parts:
        met = next((each for each in message.fields.values() if (each.number, find_wire(each)) == (number, wire)), None)
        if met is wanted:
            kept.append(raw)
        elif met is not None and wanted.oneof >= 0 and met.oneof == wanted.oneof:
            kept = []
    if len(path) > 1:
        return _find(wanted.message, kept, path[1:]) if kept and wanted.message else MISSING
    if kept:
        return _read(wanted, kept[-1])
    return MISSING if wanted.has_presence or wanted.is_repeated else _read_default(wanted)


def find_wire(field: Field) -> int:
    """Return the wire type of a field's values; of a repeated one, that of packed values."""
    if field.is_repeated:
        return 2
    if field.kind in _FIXED:
        return _WIRES[struct.calcsize(_FIXED[field.kind])]
    if field.kind is Kind.GROUP:
        return 3
    return 2 if field.kind in (Kind.STRING, Kind.BYTES, Kind.MESSAGE) else 0


def split(data: bytes) -> list[Part]:
    """Return the fields of a message in order. Raises _Broken."""
    at, parts = 0, []
    while at < len(data):
        at, number, wire = _tag(data, at)
        begin, at = _pass(data, at, wire)
        parts.append((number, wire, data[begin:at]))
    return parts


def _tag(data: bytes, at: int) -> tuple[int, int, int]:
    at, tag = _varint(data, at)
    if tag < 8 or tag >> 32:
        raise _Broken
    return at, tag >> 3, tag & 7


def _pass(data: bytes, at: int, wire: int) -> tuple[int, int]:
    """Return where a value begins and ends."""
    begin = end = at
    match wire:
        case 0:
            end, _ = _varint(data, at)
        case 1 | 5:
            end = at + (8 if wire == 1 else 4)
        case 2:
            begin, size = _varint(data, at)
            end = begin + size
        case 3:
            open = 1
            while open:
                end, _, inner = _tag(data, end)
                if inner == 4:
                    open -= 1
                elif inner == 3:
                    open += 1
                else:
                    _, end = _pass(data, end, inner)
        case _:
            raise _Broken
    if end > len(data):
        raise _Broken
    return begin, end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the position after a varint, and its 64 bits."""
    raw = 0
    for group in range(10):
        if at >= len(data):
            break
        raw |= (data[at] & 0x7F) << (7 * group)
        at += 1
        if data[at - 1] < 0x80:
            return at, raw & ((1 << 64) - 1)
    raise _Broken


def _read(field: Field, raw: bytes) -> Any:
    if field.is_repeated or field.kind is Kind.GROUP:
        return OTHER
    if field.kind is Kind.MESSAGE:
        is_time = field.message is not None and field.message.name == "google.protobuf.Timestamp"
        return _read_time(raw) if is_time else OTHER
    if field.kind in (Kind.STRING, Kind.BYTES):
        return raw
    if field.kind in _FIXED:
        return struct.unpack(_FIXED[field.kind], raw)[0]
    _, number = _varint(raw, 0)
    match field.kind:
        case Kind.BOOL:
            return number != 0
        case Kind.UINT64:
            return number
        case Kind.UINT32:
            return number & 0xFFFFFFFF
        case Kind.INT64:
            return _sign(number, 64)
        case Kind.SINT64:
            return (number >> 1) ^ -(number & 1)
        case Kind.SINT32:
            low = number & 0xFFFFFFFF
            return (low >> 1) ^ -(low & 1)
        case Kind.ENUM:
            return _name(field, _sign(number, 32))
    return _sign(number, 32)


def _read_default(field: Field) -> Any:
    if field.kind in (Kind.STRING, Kind.BYTES):
        return b""
    if field.kind is Kind.ENUM:
        return _name(field, 0)
    return False if field.kind is Kind.BOOL else 0


def _name(field: Field, number: int) -> bytes | int:
    return field.symbols[number].encode() if number in field.symbols else number


def _read_time(raw: bytes) -> Any:
    seconds = nanoseconds = 0
    try:
        for number, wire, value in split(raw):
            if (number, wire) == (1, 0):
                seconds = _sign(_varint(value, 0)[1], 64)
            elif (number, wire) == (2, 0):
                nanoseconds = _sign(_varint(value, 0)[1], 32)
    except _Broken:
        return BROKEN
    return seconds * 1000 + nanoseconds // 1_000_000 if abs(seconds) <= _MOST_SECONDS else BROKEN


def _sign(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number
