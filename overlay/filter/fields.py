"""The names that a filter can use: sections, fixed fields with built-in types, and reserved words.

The tables are AMQP's; see docs/filters.md#what-a-filter-can-name. A bare name is an application
property, and so is every name in brackets. Only the sections `header` and `properties` have fixed
fields.
"""

from __future__ import annotations

from .section import Section

SECTIONS = {
    "header": Section.HEADER,
    "h": Section.HEADER,
    "properties": Section.PROPERTIES,
    "p": Section.PROPERTIES,
    "application_properties": Section.APPLICATION,
    "a": Section.APPLICATION,
}
"""Section by name or short form, case-sensitive."""

CLOSED_SECTIONS = ("delivery_annotations", "d", "message_annotations", "m", "footer", "f")
"""Parts of an AMQP message that filters may not read, in the spelling with underscores."""

FIELDS: dict[Section, dict[str, str]] = {
    Section.HEADER: {"priority": "long"},
    Section.PROPERTIES: {
        "message_id": "string",
        "user_id": "string",
        "to": "string",
        "subject": "string",
        "reply_to": "string",
        "correlation_id": "string",
        "content_type": "string",
        "content_encoding": "string",
        "absolute_expiry_time": "timestamp",
        "creation_time": "timestamp",
        "group_id": "string",
        "group_sequence": "long",
        "reply_to_group_id": "string",
    },
}
"""Built-in types of the fixed fields; a stream's file may declare others."""

IDS = frozenset({"message_id", "correlation_id"})
"""Fields of the section properties that may be numbers in AMQP."""

CLOSED_HEADER_FIELDS = ("durable", "ttl", "first_acquirer", "delivery_count")

DEFAULT_PRIORITY = 4
"""The value of header.priority if the message has none, or one that cannot be read."""

OPERATORS = frozenset({"AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE", "UTC"})
"""Words of the language, in upper case only."""

MISSING_FUNCTIONS = frozenset({"EXISTS", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE", "INF", "NAN"})
"""Words reserved for functions and constants that are not implemented."""

RESERVED = frozenset(word.lower() for word in OPERATORS | MISSING_FUNCTIONS)
"""Words, in lower case, that are no bare name in any case; write such a name `[and]` or `a.and`."""
