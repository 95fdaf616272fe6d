"""What a filter's columns hold for one record, in plain Python: the slow twin of overlay/match (properties, reading).

Written from docs/configuration.md and docs/filters.md, without a look at the kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from overlay.filter import Filter
from overlay.filter.nodes import Column, Section
from tests.oracle.batches import Record
from tests.oracle.values import BAD, NOT_UTF8, read

Declared = Mapping[str, tuple[str, str]]
"""Property to type and source, as a stream's file has them: `{"tail": ("string", "{value:tailnum}")}`."""

UNDECODED, MALFORMED = object(), object()
REASONS = {BAD: "unparsable", NOT_UTF8: "not_utf8", UNDECODED: "undecoded", MALFORMED: "malformed"}

_OTHERWISE = {"subject": "{subject}", "to": "{topic}", "creation_time": "{timestamp}", "group_id": "{key}"}


def answer(
    filter: Filter, record: Record, subject: str, topic: str, partition: int, declared: Declared
) -> tuple[bool | None, list[str]]:
    """What the row evaluator says of a record, and why columns of the filter are null though the record has a value."""
    message: dict[str, dict[str, object]] = {}
    reasons = []
    place = find_place(record, subject, topic, partition)
    for column in filter.columns:
        assert isinstance(column, Column)
        value = read_column(column, record, place, declared)
        if value in REASONS:
            reasons.append(REASONS[value])
            if value in (BAD, NOT_UTF8):  # there, but of no value
                message.setdefault(column.section.value, {})[column.name] = None
        elif value is not None:
            message.setdefault(column.section.value, {})[column.name] = value
    return filter.matches(message, now=0), reasons


def find_place(record: Record, subject: str, topic: str, partition: int) -> dict[str, bytes]:
    """What is known of a record without its bytes, by the source that names it."""
    place = {"{subject}": subject.encode(), "{topic}": topic.encode(), "{partition}": str(partition).encode()}
    if record.timestamp != -1:
        place["{timestamp}"] = str(record.timestamp).encode()
    return place


def read_column(column: Column, record: Record, place: Mapping[str, bytes], declared: Declared) -> Any:
    """The value of a column, None if the record has none, or one of REASONS if it cannot be read. Times are ms since 1970."""
    for source in _list_sources(column, declared):
        value = _read_source(source, column.type, record, place)
        if value is not None:
            return value
    return None


def _list_sources(column: Column, declared: Declared) -> Iterable[str]:
    if column.section is Section.APPLICATION:
        return [declared.get(column.name, ("", ""))[1] or f"{{header:{column.name}}}"]
    for prefix in (column.section.value, column.section.value[0]):
        if source := declared.get(f"{prefix}.{column.name}", ("", ""))[1]:
            return [source]
    if column.section is Section.HEADER:
        return [f"{{header:{column.name}}}"]
    names = [column.name, column.name.replace("_", "-")]
    return [
        *(f"{{header:{name}}}" for name in names),
        *([_OTHERWISE[column.name]] if column.name in _OTHERWISE else []),
    ]


def _read_source(source: str, type: str, record: Record, place: Mapping[str, bytes]) -> Any:
    kind, _, name = source[1:-1].partition(":")
    if kind == "value":
        return _read_json(record.value, name, type)
    fixed = {"header": dict(record.headers).get(name.encode()), "key": record.key}
    raw = fixed.get(kind, place.get(source))
    return None if raw is None else read(raw, type, False)


def _read_json(value: bytes | None, path: str, type: str) -> Any:
    if value is None:
        return None
    if value.startswith(b"Obj\x01") or (value.startswith(b"\0") and len(value) > 5):
        return UNDECODED
    try:
        found = json.loads(value)
    except ValueError:
        return MALFORMED
    for step in path.split("."):
        if not isinstance(found, dict) or step not in found:
            return None
        found = found[step]
    return read(json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass"), type, True)
