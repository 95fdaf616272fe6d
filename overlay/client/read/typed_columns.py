"""Typed columns: declared properties, and the sections that filters name, beside the envelope
(docs/reading.md#declared-properties-as-columns).

They have the names that Spark's data source gives them: `application_properties`, `properties` and
`header` are structs, and a declared property may be a column of its own. Only what is asked for is
decoded and built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig, place_property
from overlay.field import Field
from overlay.filter.fields import FIELDS
from overlay.filter.nodes import Column, Section
from overlay.match import Addressed
from overlay.match.properties import Source, find_sources
from overlay.match.reading import Reading
from overlay.scan.columns import TYPES

from .columns import SCHEMA, EnvelopeBuilder, Form, build_batch, choose_schema

OWN = Section.APPLICATION.value
"""The section, and the struct column, of declared properties."""
INSTANT = pa.timestamp("ms", tz="UTC")
"""The type of times in typed columns."""
_TYPES = TYPES | {"timestamp": INSTANT}

Typed = Column | dict[str, Column]
"""A property as a column of its own, or the fields of a struct column by name."""


def list_fields(stream: StreamConfig) -> dict[tuple[str, str], Column]:
    """Return the fields of a stream's records that a filter can name, with their types, by section
    (`header`, `properties` or `application_properties`) and name: the declared properties, and the
    fixed fields of the first two sections. A fixed field that is declared has the declared type.
    """
    declared = {place_property(name): entry.type.value for name, entry in stream.properties.items()}
    built_in = {(section, name): type for section, of in FIELDS.items() for name, type in of.items()}
    types = {key: type for key, type in declared.items() if key[0] is Section.APPLICATION} | {
        key: declared.get(key, type) for key, type in built_in.items()
    }
    return {(section.value, name): Column(section, name, type) for (section, name), type in types.items()}


def list_own(stream: StreamConfig) -> dict[str, Column]:
    """Return the declared properties that may be columns of their own, by name: those of no fixed
    section (`header`, `properties`). One with the name of a column of SCHEMA or of a section is left
    out.
    """
    fields = list_fields(stream)
    taken = {*SCHEMA.names, *(section for section, _ in fields), OWN}
    return {name: column for (section, name), column in fields.items() if section == OWN and name not in taken}


def pick_fields(fields: Mapping[tuple[str, str], Column], name: str) -> dict[str, Column]:
    """Return the fields of the section `name`, or the one field that `SECTION.FIELD` names, by field
    name; empty if there are none. `fields`: as `list_fields` returns them.
    """
    section, dot, field = name.partition(".")
    return {key[1]: column for key, column in fields.items() if key[0] == section and (not dot or key[1] == field)}


def list_names(stream: StreamConfig) -> list[str]:
    """Return the names of the columns that a reading of the stream can have: those of SCHEMA,
    properties as columns of their own, and sections as structs. `SECTION.FIELD` is allowed besides.
    """
    return [*SCHEMA.names, *list_own(stream), *dict.fromkeys(section for section, _ in list_fields(stream))]


def find_unknown(stream: StreamConfig, names: Iterable[str]) -> str | None:
    """Return the first of `names` that a reading of the stream cannot have as a column: it is not in `list_names` and no
    SECTION.FIELD. None if all are columns.
    """
    if not (others := [name for name in names if name not in SCHEMA.names]):
        return None
    fields, own = list_fields(stream), list_own(stream)
    return next((name for name in others if name not in own and not pick_fields(fields, name)), None)


def lay_out(stream: StreamConfig, names: Iterable[str]) -> dict[str, Typed]:
    """Return the typed columns that `names` ask for, by name in this order. `names`: such that
    `find_unknown` returns None. Names in SCHEMA are left out. All fields of one section that are
    asked for become one struct, at the place of the first.
    """
    found: dict[str, Typed] = {}
    if not (others := [name for name in names if name not in SCHEMA.names]):
        return found
    fields, own = list_fields(stream), list_own(stream)
    for name in others:
        if name in own:
            found[name] = own[name]
            continue
        before = found.setdefault(name.partition(".")[0], {})
        assert isinstance(before, dict)
        before |= pick_fields(fields, name)
    return found


def make_form(stream: StreamConfig, columns: Collection[str], name: str | None, *, decode: bool) -> Form:
    """Return a builder of batches with these columns. `columns`: such that `find_unknown` returns None.

    `name`: the stream's name for the column `stream`, None for a topic that no file describes.
    `decode`: whether the column `timestamp` has a zone.
    """
    typed = lay_out(stream, columns)
    envelope = [each for each in columns if each in SCHEMA.names]
    if typed or (decode and "timestamp" in envelope):
        return TypedBuilder(stream, envelope, typed, name, has_zone=decode)
    return EnvelopeBuilder(envelope, name)


class TypedBuilder:
    """A builder of batches with some of the columns of SCHEMA, and typed columns after them.

    `envelope`: names in SCHEMA. `typed`: as `lay_out` returns it. `name`: the stream's name, None for
    a topic that no file describes. `has_zone`: whether `timestamp` has a zone. The attribute `fields`:
    the fields that slices have to be decoded with for `build`.
    """

    def __init__(
        self,
        stream: StreamConfig,
        envelope: Collection[str],
        typed: Mapping[str, Typed],
        name: str | None,
        *,
        has_zone: bool,
    ) -> None:
        self._envelope, self._typed, self._name = envelope, typed, name
        known = [
            (each.name, INSTANT if has_zone and each.name == "timestamp" else each.type)
            for each in choose_schema(envelope)
        ]
        self.schema = pa.schema([*known, *((name, _find_type(column)) for name, column in typed.items())])
        asked = [each for column in typed.values() for each in _list_columns(column)]
        self._sources = find_sources(asked, stream.properties)
        wanted = (field for source in self._sources.values() for field in source.fields)
        self.fields: tuple[Field, ...] = tuple(sorted(set(wanted), key=str))

    def build(self, piece: Addressed, rows: Ints, *, sequenced: bool) -> pa.RecordBatch:
        """Return these rows of a slice (row numbers) as a batch of `self.schema`. `sequenced`: the stream has one
        partition, so that offsets give sequences; otherwise `sequence` is null.
        """
        found = build_batch(piece, rows, self._envelope, stream=self._name, sequenced=sequenced)
        reading = Reading(piece, rows)
        arrays = [
            self._read(reading, self._typed[field.name], field.type)
            if field.name in self._typed
            else _spell(found[field.name], field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _read(self, reading: Reading, column: Typed, type: pa.DataType) -> pa.Array:
        if isinstance(column, Column):
            return _read(reading, self._sources[column], column.type)
        arrays = [_read(reading, self._sources[each], each.type) for each in column.values()]
        return pa.StructArray.from_arrays(arrays, fields=list(type))


def _read(reading: Reading, source: Source, type: str) -> pa.Array:
    """Return a property of each row of `reading`. It is null for a row that does not have it, or whose value does not
    spell `type`.
    """
    return _spell(reading.read(source, type).array, _TYPES[type])


def _spell(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Return the same values as an array of `type`: a dictionary decoded, a time with its zone."""
    return array if array.type == type else array.cast(type)


def _list_columns(column: Typed) -> list[Column]:
    return [column] if isinstance(column, Column) else list(column.values())


def _find_type(column: Typed) -> pa.DataType:
    if isinstance(column, Column):
        return _TYPES[column.type]
    return pa.struct([(name, _TYPES[each.type]) for name, each in column.items()])
