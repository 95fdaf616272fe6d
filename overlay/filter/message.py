"""Fields of one message, converted from Python values to the filter language's values.

A message is `{"header": {...}, "properties": {...}, "application_properties": {...}}`; sections may
be missing. AMQP's many types become four types and NULL (docs/filters.md#values):

- str, bytes and UUID are byte strings
- datetimes are integer milliseconds since 1970; one without a zone is UTC, and fractions of a
  millisecond are rounded down
- NaN and the infinities are NULL, and so are values of all other types, such as lists and
  mappings
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from .fields import DEFAULT_PRIORITY
from .nodes import Section

Value = bool | int | float | bytes | None
"""The value of an expression. None is NULL, which is SQL's unknown if the value is an answer."""

Message = Mapping[str, Mapping[str, object] | None]

_ORDINAL_OF_1970 = 719_163
_DAY = 86_400_000


def read_field(message: Message, section: Section, name: str) -> Value:
    """Return a field's value, None if the message does not have it.

    Fields of the fixed sections are found under both spellings, such as `message_id` and
    `message-id`. For a priority of the header that is missing or NULL, DEFAULT_PRIORITY is
    returned.
    """
    value = to_value(_find(message, section, name))
    if value is None and section is Section.HEADER:
        return DEFAULT_PRIORITY
    return value


def has_property(message: Message, name: str) -> bool:
    """Return whether the message has the application property; True also if its value is None."""
    return name in _open(message, Section.APPLICATION)


def to_value(value: object) -> Value:
    """Return a Python value as a value of the filter language: a str as UTF-8, a UUID as its 16
    bytes, a datetime as ms since 1970 (rounded down, UTC if it has no zone), a bytearray or
    memoryview as bytes. bool, int, float and bytes stay as they are. None (NULL) for NaN, the
    infinities and values of all other types.
    """
    match value:
        case bool() | bytes():
            return value
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case str():
            # half a surrogate pair becomes bytes that are not UTF-8
            return value.encode("utf-8", "surrogatepass")
        case bytearray() | memoryview():
            return bytes(value)
        case datetime():
            return _count_milliseconds(value)
        case UUID():
            return value.bytes
        case _:
            return None


def _open(message: Message, section: Section) -> Mapping[str, object]:
    fields = message.get(section.value)
    return fields if isinstance(fields, Mapping) else {}


def _find(message: Message, section: Section, name: str) -> object:
    fields = _open(message, section)
    value = fields.get(name)
    if value is None and section is not Section.APPLICATION:
        return fields.get(name.replace("_", "-"))
    return value


def _count_milliseconds(time: datetime) -> int:
    # integers only: datetime.timestamp() rounds to a double, and assumes the local zone by default
    minutes = time.hour * 60 + time.minute
    day = (time.toordinal() - _ORDINAL_OF_1970) * _DAY
    offset = time.utcoffset()
    local = day + (minutes * 60 + time.second) * 1000 + time.microsecond // 1000
    if offset is None:
        return local
    # a zone's offset may have microseconds too, so add them before rounding to milliseconds
    micro = local * 1000 + time.microsecond % 1000
    return (micro - (offset.days * 86_400_000_000 + offset.seconds * 1_000_000 + offset.microseconds)) // 1000
