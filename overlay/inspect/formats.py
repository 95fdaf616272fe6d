"""Recognition of the format of a topic's values, from their bytes.

Nothing in Kafka says how a value was serialised, so this is a judgement with degrees. A container file of Avro names
itself, and JSON either parses or does not; what does not parse and begins as JSON is broken JSON. Serialisers with a
schema registry begin with a zero byte and a four-byte schema id; what follows is JSON, or Avro, or Protobuf, and the
last has a list of message indexes in front. Avro has no marks of its own, so such a value is called Protobuf only when
every value of its schema id reads as Protobuf to the last byte. Bare Protobuf has no marks either: it is a guess, and
is called one.

Sources: the wire format page of Confluent's serialisers, and Protobuf's page on its encoding.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NoReturn

from overlay.scan.values import AVRO_FILE, FRAME

_MAX_INDEXES = 16
_MAX_FIELD = 4096
# no log line in brackets, such as `[INFO] started`, and no text in braces begins like this
_JSON_BEGIN = re.compile(rb"\s*(?:\{\s*(?:[\"'}]|\Z)|\[\s*[\[{\"])")


class ValueFormat(Enum):
    """Formats of values, by the names that users see."""

    JSON = "JSON object"
    JSON_ARRAY = "JSON array"
    JSON_BROKEN = "broken JSON"
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
    def is_encoded(self) -> bool:
        """Whether values of this format have fields, and `overlay init` does not look into them."""
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
    """Return how many values have each format.

    If one value of a registry's schema id is neither JSON nor Protobuf, all framed values of that id that are not
    JSON count as Avro. If one value without a frame is BINARY, those that merely resemble Protobuf count as BINARY
    too.
    """
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
        # if one value is not Protobuf, the others resemble it by coincidence
        counts[ValueFormat.BINARY] += counts.pop(ValueFormat.PROTOBUF, 0)
    return +counts


def recognise(value: bytes | None) -> ValueFormat:
    """Return the format of one value, judged without the others. NULL for None."""
    if value is None:
        return ValueFormat.NULL
    if not value:
        return ValueFormat.EMPTY
    if value.startswith(AVRO_FILE):
        return ValueFormat.AVRO_FILE
    if value[0] == 0 and len(value) > FRAME:
        return _recognise_framed(value[FRAME:])
    if (document := parse_json(value)) is not None:
        return ValueFormat.JSON if isinstance(document, dict) else ValueFormat.JSON_ARRAY
    if _JSON_BEGIN.match(value):
        return ValueFormat.JSON_BROKEN
    if _is_text(value):
        return ValueFormat.TEXT
    return ValueFormat.PROTOBUF if is_protobuf(value) else ValueFormat.BINARY


def schema_id(value: bytes | None) -> int | None:
    """Return the schema id in a value that begins as schema registries' serialisers write it: a zero byte, four bytes
    of the id, and at least one byte more. None for any other value.
    """
    return int.from_bytes(value[1:FRAME], "big") if value and value[0] == 0 and len(value) > FRAME else None


def parse_json(value: bytes) -> object | None:
    """Return the document if the bytes are a JSON object or array in UTF-8, else None.

    None also for JSON that is a bare number, string or word.
    """
    if value.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        document: object = json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return document


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def is_protobuf(value: bytes) -> bool:
    """Return whether the bytes read as a Protobuf message with a field or more, up to their end. Fields with numbers
    above _MAX_FIELD and groups are not accepted.
    """
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
    """Yield, once at most, where in `rest` the message begins: after its indexes, which are a count
    and the numbers as zigzag varints, or a single 0. Yield nothing if `rest` cannot begin so.
    """
    count, at = _read_varint(rest, 0)
    if at < 0 or count % 2 or count // 2 > _MAX_INDEXES:
        return
    for _ in range(count // 2):
        index, at = _read_varint(rest, at)
        if at < 0 or index % 2:
            return
    yield at


def _skip_field(value: bytes, at: int, wire: int) -> int:
    """Return the end of the content of a field, which begins at `at`, behind the tag. `wire`: the wire type in the
    tag. -1 if the content ends beyond `value`, or if the wire type is not known.
    """
    if wire == 0:
        return _read_varint(value, at)[1]
    if wire == 2:
        length, at = _read_varint(value, at)
        end = at + length if at >= 0 else -1
    else:
        end = at + {1: 8, 5: 4}[wire] if wire in (1, 5) else -1
    return end if 0 <= end <= len(value) else -1


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and the position after it; (0, -1) if it does not end within ten bytes
    and within `value`.
    """
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
