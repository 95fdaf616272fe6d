"""The rows of `format("overlay")`: the columns, their types, and how batches of them are built.

The columns are those of the envelope (overlay/client/read/columns.py) and the sections that filters
name: `header`, `properties` and `application_properties`, structs of typed fields. A declared
property may also be a column of its own, as tables have it (tables.py). Spark takes
Arrow batches only with its own variant of each type: times are microseconds in UTC and null outside
the years 1 to 9999 (times.py), everything may be null, and the entries of a list are called `element`.

Spark does not tell a Python data source which columns a query uses (pyspark 4.2). To get fewer
columns, a program sets the option `columns` or a schema. Only what is in the schema is built, field
by field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from overlay.arrays import Ints
from overlay.client import SCHEMA, BadQuestion
from overlay.client.read.columns import build_batch
from overlay.client.read.typed_columns import OWN, list_fields, list_own, pick_fields
from overlay.config.stream import StreamConfig
from overlay.config.suggestion import suggest
from overlay.field import Field
from overlay.filter.nodes import Column
from overlay.match import Addressed
from overlay.match.properties import Source, find_sources
from overlay.match.reading import Reading

from .times import to_micros

_SPARK_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
}
_HEADERS = ArrayType(StructType([StructField("name", StringType()), StructField("value", BinaryType())]))
ENVELOPE: dict[str, DataType] = {
    "subject": StringType(),
    "stream": StringType(),
    "consumer": StringType(),
    "sequence": LongType(),
    "consumer_sequence": LongType(),
    "num_delivered": IntegerType(),
    "timestamp": TimestampType(),
    "ack_token": StringType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": _HEADERS,
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
}
"""The columns of every stream, those of overlay.client.SCHEMA."""
assert list(ENVELOPE) == SCHEMA.names


def make_schema(stream: StreamConfig, columns: Sequence[str] | None) -> StructType:
    """Return the schema of a reading with these columns. Raises BadQuestion for a name that the stream does not have.

    `columns`: names such as `value`, `application_properties`, `application_properties.delay`, or `delay` for a
    column of its own. None stands for the envelope and, if the stream's file declares any of its fields, the struct
    `application_properties`.
    """
    fields = list_fields(stream)
    own = list_own(stream)
    if columns is None:
        columns = [*ENVELOPE, *([OWN] if pick_fields(fields, OWN) else [])]
    found: dict[str, DataType] = {}
    for name in columns:
        if name in ENVELOPE:
            found[name] = ENVELOPE[name]
            continue
        if name in own:
            found[name] = _SPARK_TYPES[own[name].type]
            continue
        section = name.partition(".")[0]
        chosen = pick_fields(fields, name)
        if not chosen:
            raise _refuse(name, fields)
        before = found.get(section, StructType())
        assert isinstance(before, StructType)
        added = [_make_field(field, column) for field, column in chosen.items() if field not in before.fieldNames()]
        found[section] = StructType([*before.fields, *added])
    return StructType([StructField(name, type) for name, type in found.items()])


def check_schema(stream: StreamConfig, schema: StructType) -> None:
    """Raise BadQuestion for a column, or a type, that a reading of the stream does not have."""
    fields, own = list_fields(stream), list_own(stream)
    for column in schema.fields:
        if column.name in ENVELOPE:
            _check_type(column.name, column.dataType, ENVELOPE[column.name])
        elif column.name in own:
            _check_type(column.name, column.dataType, _SPARK_TYPES[own[column.name].type])
        elif isinstance(column.dataType, StructType) and column.dataType.fields:
            for field in column.dataType.fields:
                name = f"{column.name}.{field.name}"
                if (column.name, field.name) not in fields:
                    raise _refuse(name, fields)
                _check_type(name, field.dataType, _SPARK_TYPES[fields[column.name, field.name].type])
        else:
            raise _refuse(column.name, fields)


def _make_field(name: str, column: Column) -> StructField:
    return StructField(name, _SPARK_TYPES[column.type])


def _refuse(name: str, fields: Iterable[tuple[str, str]]) -> BadQuestion:
    known = [*ENVELOPE, *dict.fromkeys(section for section, _ in fields), *map(".".join, fields)]
    return BadQuestion(f"there is no column {name!r}.{suggest(name, known)} Columns are {', '.join(known)}")


def _check_type(name: str, given: DataType, own: DataType) -> None:
    if given != own:
        raise BadQuestion(f"column {name} is {own.simpleString()}, not {given.simpleString()}. Cast it in a select")


@dataclass(frozen=True, slots=True)
class _Section:
    """A struct column of a Spark batch: `header`, `properties` or `application_properties`. `type`:
    its Arrow type. `columns`: for each field its typed filter column, and the source that it is
    read from. `build` returns the column for the records of a reading.
    """

    type: pa.DataType
    columns: tuple[tuple[Column, Source], ...]

    def build(self, reading: Reading) -> pa.Array:
        arrays = [
            _spell(reading.read(source, column.type).array, field.type)
            for (column, source), field in zip(self.columns, self.type, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type))


class SparkForm:
    """A builder of batches with a Spark schema that check_schema has accepted.

    `name`: the stream's, None for a topic that no file describes.
    """

    def __init__(self, schema: StructType, stream: StreamConfig, name: str | None) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._name = name
        self._envelope = [field.name for field in schema.fields if field.name in ENVELOPE]
        fields = list_fields(stream)
        sections = {
            each.name: [fields[each.name, field.name] for field in each.dataType.fields]
            for each in schema.fields
            if isinstance(each.dataType, StructType)
        }
        own = list_own(stream)
        single = {each.name: own[each.name] for each in schema.fields if each.name in own}
        asked = [*(column for columns in sections.values() for column in columns), *single.values()]
        sources = find_sources(asked, stream.properties)
        self._single = {name: (column, sources[column]) for name, column in single.items()}
        self._sections = {
            name: _Section(self.schema.field(name).type, tuple((column, sources[column]) for column in columns))
            for name, columns in sections.items()
        }
        wanted = (field for source in sources.values() for field in source.fields)
        self.fields: tuple[Field, ...] = tuple(sorted(set(wanted), key=str))

    def build(self, piece: Addressed, rows: Ints, *, sequenced: bool) -> pa.RecordBatch:
        """Return the records `rows` of the slice `piece` as a batch with the Spark schema.

        All data is copied, since the slice's buffers are reused. `sequenced`: the stream has one
        partition, so a record's sequence is its offset + 1; otherwise sequences are null.
        """
        found = build_batch(piece, rows, self._envelope or ("offset",), stream=self._name, sequenced=sequenced)
        reading = Reading(piece, rows)
        arrays = []
        for field in self.schema:
            if field.name in self._sections:
                array = self._sections[field.name].build(reading)
            elif field.name in self._single:
                column, source = self._single[field.name]
                array = _spell(reading.read(source, column.type).array, field.type)
            else:
                array = _spell(found[field.name], field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _spell(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Return the same values as an array of `type`, the type that Spark takes. Times that it cannot have are null."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == type:
        return array
    if pa.types.is_list(type):
        pairs = pa.StructArray.from_arrays(array.values.flatten(), fields=list(type.value_type))
        return pa.ListArray.from_arrays(array.offsets, pairs, type=type)
    if pa.types.is_timestamp(array.type):
        return to_micros(array, type)
    return array.cast(type, safe=False)
