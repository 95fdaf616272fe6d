"""The slow, obvious twin of overlay/match/values.py: a record's filter value, and whether a consumer wants it.

Written from docs/configuration.md and docs/filters.md (filter values).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.batches import Record


def find_header(record: Record, name: bytes) -> bytes | None:
    """The last header of that name."""
    return next((value for key, value in reversed(record.headers) if key == name), None)


def escape(value: bytes) -> str:
    """As a token of a subject: `. * > %`, white space and control characters percent-escaped, and what is no UTF-8."""
    text = value.decode("utf-8", "surrogateescape")
    plain = [char.isprintable() and not char.isspace() and char not in ".*>%" for char in text]
    return "".join(
        char if is_plain else "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))
        for char, is_plain in zip(text, plain, strict=True)
    )


def fill(record: Record, names: Sequence[bytes]) -> bytes | None:
    """The value of the template `{header:A}.{header:B}...`; None where a field is missing or empty."""
    fields = [find_header(record, name) for name in names]
    return ".".join(escape(field) for field in fields if field).encode() if all(fields) else None


def wants_value(values: Sequence[str], match_unfiltered: bool, own: bytes | None) -> bool:
    """One of the values; an empty one stands for records without a value, as match_unfiltered does beside some value."""
    if not values:
        return True
    if not own:
        return match_unfiltered or "" in values
    return own in [value.encode() for value in values]
