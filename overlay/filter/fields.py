"""What a filter can name: the sections of a message, their fields with built-in types, and the words that are taken.

The tables are AMQP's, as the facts on SQL filters list them (sections 3 and 4). A bare name is an application property,
and so is everything in brackets; only the sections `header` and `properties` have fixed fields.
"""

from __future__ import annotations

from .nodes import Section

SECTIONS = {
    "header": Section.HEADER,
    "h": Section.HEADER,
    "properties": Section.PROPERTIES,
    "p": Section.PROPERTIES,
    "application_properties": Section.APPLICATION,
    "a": Section.APPLICATION,
}
"""Case-sensitive, each with its short form."""

CLOSED_SECTIONS = ("delivery_annotations", "d", "message_annotations", "m", "footer", "f")
"""Parts of an AMQP message that filters may not read. Hyphens count as underscores."""

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
"""Built-in types of the fixed fields; a stream's file may give others."""

CLOSED_HEADER_FIELDS = ("durable", "ttl", "first_acquirer", "delivery_count")

DEFAULT_PRIORITY = 4
"""What header.priority reads as when the message has none, or none that can be read."""

OPERATORS = frozenset({"AND", "OR", "NOT", "LIKE", "IN", "IS", "NULL", "ESCAPE", "TRUE", "FALSE", "UTC"})
"""Words of the language; upper case only."""

MISSING_FUNCTIONS = frozenset({"EXISTS", "LOWER", "UPPER", "LEFT", "RIGHT", "SUBSTRING", "DATE", "INF", "NAN"})
"""Words that are kept for functions and constants which do not exist."""

RESERVED = frozenset(word.lower() for word in OPERATORS | MISSING_FUNCTIONS)
"""No bare name in any case of letters: `[and]` and `a.and` name properties that are called so."""
