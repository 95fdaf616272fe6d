"""Which part of a record each name of a filter is read from
(docs/filters.md#what-a-filter-can-name).

| name                | read from                                                              |
|---------------------|------------------------------------------------------------------------|
| a declared property | its `from`; without one, the header of its name                        |
| an undeclared one   | the header of its name, as a string                                    |
| `header.priority`   | the header `priority`                                                  |
| `properties.x`      | the header `x`, spelled with underscores or with hyphens               |

If a record has no header for a field of `properties`, or only a null one, `subject` is the
overlay's subject, `to` the topic, `creation_time` the record's timestamp and `group_id` its key.

A declaration of a section's field (`p.message_id: {type: long}`) changes its type and, if it has a
`from`, its source.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from overlay.config.stream import Property, place_property
from overlay.field import Field, FieldKind
from overlay.filter import Filter
from overlay.filter.nodes import Column, Section


class Given(enum.Enum):
    """What a column can be made of besides a record's key, headers and value: its subject, topic,
    partition or timestamp.
    """

    SUBJECT = "subject"
    TOPIC = "topic"
    PARTITION = "partition"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a column's value in a record comes from: the first of `fields` that the record has and
    that is not null. If there is none, `given`; if `given` is None, the value is then NULL.
    """

    fields: tuple[Field, ...]
    given: Given | None = None


_GIVEN = {FieldKind.TOPIC: Given.TOPIC, FieldKind.PARTITION: Given.PARTITION, FieldKind.TIMESTAMP: Given.TIMESTAMP}

_OTHERWISE = {
    "subject": Source((), Given.SUBJECT),
    "to": Source((), Given.TOPIC),
    "creation_time": Source((), Given.TIMESTAMP),
    "group_id": Source((Field(FieldKind.KEY),)),
}
"""Sources of the fields of `properties` in records without a header of their name."""


def list_columns(filter: Filter) -> tuple[Column, ...]:
    """Return the columns that a filter reads. Raises ValueError if the filter was compiled without
    the stream's properties, so that the types of some columns are open.
    """
    columns = tuple(column for column in filter.columns if isinstance(column, Column))
    if len(columns) < len(filter.columns):
        raise ValueError(f"filter {filter.text!r} was compiled without the stream's properties, so its types are open")
    return columns


def find_sources(columns: Iterable[Column], declared: Mapping[str, Property]) -> dict[Column, Source]:
    """Return the source of each column of a bound filter. `declared`: the stream's properties."""
    written = {place_property(name): entry.source for name, entry in declared.items()}
    return {column: _find_source(column, written.get((column.section, column.name))) for column in columns}


def _find_source(column: Column, written: Field | None) -> Source:
    if written is not None:
        return Source((), _GIVEN[written.kind]) if written.kind in _GIVEN else Source((written,))
    headers = tuple(Field(FieldKind.HEADER, name) for name in _spell(column))
    if column.section is not Section.PROPERTIES:
        return Source(headers)
    otherwise = _OTHERWISE.get(column.name, Source(()))
    return Source(headers + otherwise.fields, otherwise.given)


def _spell(column: Column) -> tuple[str, ...]:
    """Return the names of headers that a column may be read from, the first to try first."""
    if column.section is Section.PROPERTIES:
        return tuple(dict.fromkeys((column.name, column.name.replace("_", "-"))))
    return (column.name,)
