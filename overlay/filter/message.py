"""The fields of one message, as its Python values mean them to a filter.

A message is `{"header": {...}, "properties": {...}, "application_properties": {...}}`; sections may be missing. AMQP's
many types become four and NULL (facts on SQL filters, section 4): str, bytes and UUID are byte strings, datetimes are
integer milliseconds since 1970 (one without a zone is UTC; what is finer is cut off towards the past), NaN and the
infinities are NULL, and so is everything that is not listed here, lists and mappings among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from .fields import DEFAULT_PRIORITY
from .nodes import Section

Value = bool | int | float | bytes | None
"""What an expression is worth. None is NULL, which as an answer is SQL's unknown."""

Message = Mapping[str, Mapping[str, object] | None]

_ORDINAL_OF_1970 = 719_163
_DAY = 86_400_000


def read_field(message: Message, section: Section, name: str) -> Value:
    """A field's value. Fields of the fixed sections are found under `message_id` and under `message-id`."""
    value = to_value(_find(message, section, name))
    if value is None and section is Section.HEADER:
        return DEFAULT_PRIORITY
    return value


def has_property(message: Message, name: str) -> bool:
    """Whether the application property is there at all, NULL or not."""
    return name in _open(message, Section.APPLICATION)


def to_value(value: object) -> Value:
    """A Python value as filters take it."""
    match value:
        case bool() | bytes():
            return value
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case str():
            # half a surrogate pair becomes bytes that are no UTF-8
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
    # in whole numbers: datetime.timestamp() goes through a double, and through the local zone when there is none
    minutes = time.hour * 60 + time.minute
    day = (time.toordinal() - _ORDINAL_OF_1970) * _DAY
    offset = time.utcoffset()
    local = day + (minutes * 60 + time.second) * 1000 + time.microsecond // 1000
    if offset is None:
        return local
    # an offset may have microseconds, which the time's own have to be counted with
    micro = local * 1000 + time.microsecond % 1000
    return (micro - (offset.days * 86_400_000_000 + offset.seconds * 1_000_000 + offset.microseconds)) // 1000
