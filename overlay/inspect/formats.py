"""What the values of a topic are written in, told from their bytes.

Nothing in Kafka says how a value was serialised, so this is a judgement with degrees. A container file of Avro names
itself, and JSON either parses or does not. Serialisers with a schema registry begin with a zero byte and a four-byte
schema id; what follows is JSON, or Avro, or Protobuf, and the last has a list of message indexes in front. Avro has no
marks of its own, so such a value is called Protobuf only when every value of its schema id reads as Protobuf to the
last byte. Bare Protobuf has no marks either: it is a guess, and is called one.

Source of the frames: Confluent's page on the wire format of its serialisers; of Protobuf: its page on encoding.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum

from overlay.scan.values import AVRO_FILE, FRAME

_MAX_INDEXES = 16
_MAX_FIELD = 4096


class ValueFormat(Enum):
    """The words are those that people see."""

    JSON = "JSON object"
    JSON_OTHER = "JSON, but no object"
    JSON_REGISTRY = "JSON with a schema registry"
    AVRO_REGISTRY = "Avro with a schema registry"
    PROTOBUF_REGISTRY = "Protobuf with a schema registry"
    AVRO_FILE = "Avro container file"
    PROTOBUF = "Protobuf (a guess)"
    TEXT = "plain text"
    BINARY = "binary"
    EMPTY = "empty"
    NULL = "null (tombstone)"

    @property
    def has_fields(self) -> bool:
        """Whether fields of the value can be named in subjects and properties."""
        return self is ValueFormat.JSON

    @property
    def is_encoded(self) -> bool:
        """Whether there are fields in it that the overlay cannot read yet."""
        return self in _ENCODED


_ENCODED = frozenset(
    {
        ValueFormat.JSON_REGISTRY,
        ValueFormat.AVRO_REGISTRY,
        ValueFormat.PROTOBUF_REGISTRY,
        ValueFormat.AVRO_FILE,
        ValueFormat.PROTOBUF,
    }
)


def count_formats(values: Iterable[bytes | None]) -> Counter[ValueFormat]:
    """How many of the values have which format; values that only resemble Protobuf are judged together."""
    kept = list(values)
    formats = [recognise(value) for value in kept]
    ids = [
        schema_id(value) if form in (ValueFormat.AVRO_REGISTRY, ValueFormat.PROTOBUF_REGISTRY) else None
        for value, form in zip(kept, formats, strict=True)
    ]
    avro = {number for number, form in zip(ids, formats, strict=True) if form is ValueFormat.AVRO_REGISTRY}
    counts: Counter[ValueFormat] = Counter()
    for number, form in zip(ids, formats, strict=True):
        counts[ValueFormat.AVRO_REGISTRY if number is not None and number in avro else form] += 1
    if counts[ValueFormat.BINARY]:
        # one value that is no Protobuf makes the others a coincidence
        counts[ValueFormat.BINARY] += counts.pop(ValueFormat.PROTOBUF, 0)
    return +counts


def recognise(value: bytes | None) -> ValueFormat:
    """The format of one value, judged by itself."""
    if value is None:
        return ValueFormat.NULL
    if not value:
        return ValueFormat.EMPTY
    if value.startswith(AVRO_FILE):
        return ValueFormat.AVRO_FILE
    if value[0] == 0 and len(value) > FRAME:
        return _recognise_framed(value[FRAME:])
    if (document := parse_json(value)) is not None:
        return ValueFormat.JSON if isinstance(document, dict) else ValueFormat.JSON_OTHER
    if _is_text(value):
        return ValueFormat.TEXT
    return ValueFormat.PROTOBUF if is_protobuf(value) else ValueFormat.BINARY


def schema_id(value: bytes | None) -> int | None:
    """The schema id of a registry's frame, None when the value has none."""
    return int.from_bytes(value[1:FRAME], "big") if value and value[0] == 0 and len(value) > FRAME else None


def parse_json(value: bytes) -> object | None:
    """The document when the bytes are a JSON object or array; bare numbers and words are text to us."""
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        document: object = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return document


def is_protobuf(value: bytes) -> bool:
    """Whether the bytes read as a Protobuf message of at least one field, to the last byte."""
    fields = 0
    at = 0
    while at < len(value):
        tag, at = _read_varint(value, at)
        if at < 0 or not 0 < tag >> 3 <= _MAX_FIELD:
            return False
        at = _skip_field(value, at, tag & 7)
        if at < 0:
            return False
        fields += 1
    return fields > 0


def _recognise_framed(rest: bytes) -> ValueFormat:
    if parse_json(rest) is not None:
        return ValueFormat.JSON_REGISTRY
    if any(is_protobuf(rest[at:]) or at == len(rest) for at in _skip_indexes(rest)):
        return ValueFormat.PROTOBUF_REGISTRY
    return ValueFormat.AVRO_REGISTRY


def _skip_indexes(rest: bytes) -> Iterator[int]:
    """Where the message begins, after the message indexes: a count and as many zigzag numbers, or a 0 alone."""
    count, at = _read_varint(rest, 0)
    if at < 0 or count % 2 or count // 2 > _MAX_INDEXES:
        return
    for _ in range(count // 2):
        index, at = _read_varint(rest, at)
        if at < 0 or index % 2:
            return
    yield at


def _skip_field(value: bytes, at: int, wire: int) -> int:
    """Where the field ends, -1 when it does not end in time."""
    if wire == 0:
        return _read_varint(value, at)[1]
    if wire == 2:
        length, at = _read_varint(value, at)
        end = at + length if at >= 0 else -1
    else:
        end = at + {1: 8, 5: 4}[wire] if wire in (1, 5) else -1
    return end if 0 <= end <= len(value) else -1


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    """The number and where it ends, -1 for an end when it has none within ten bytes."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(value):
            return 0, -1
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    return 0, -1


def _is_text(value: bytes) -> bool:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter.isspace() for letter in text)
