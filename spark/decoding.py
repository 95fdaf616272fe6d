"""The properties that a stream's file declares, as a struct of typed columns.

Headers and keys are texts and follow the grammars of overlay/scan/columns.py, in expressions of Spark. A text
that is not valid for its type is null, and so is a time outside the years 1 to 9999. Fields of values are read by the
overlay's own kernels, in Python workers (value_fields.py): but for such times, a row has the value that a filter has
seen, and null where a filter has seen none.

The source's topic and partition are not part of a delivery, so properties made of them are null.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from overlay.config.stream import PropertyType, StreamConfig, is_sectioned
from overlay.field import Field, FieldKind
from overlay.filter.nodes import Section
from overlay.units import INT64_MAX

from .times import YEARS
from .value_fields import read_fields

TYPES: Mapping[PropertyType, T.DataType] = {
    PropertyType.STRING: T.StringType(),
    PropertyType.LONG: T.LongType(),
    PropertyType.DOUBLE: T.DoubleType(),
    PropertyType.BOOLEAN: T.BooleanType(),
    PropertyType.TIMESTAMP: T.TimestampType(),
    PropertyType.BINARY: T.BinaryType(),
}
PROPERTIES = Section.APPLICATION.value
"""The name of the column, as filters name the section."""
_FOUND = "_found"
"""A column that is there while the properties are made: a struct of the fields of values."""
_WHOLE = r"\A[+-]?[0-9]{1,38}\z"
_NUMBER = r"\A([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?\z"
_NEAR = r"\A[+-]?0*[0-9]{1,9}\z"
"""Exponents that fit an int. A number with another one is no long, unless it is zero."""
_TIME = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})\z"
_LONG_DIGITS = 19
"""What the longest longs have."""


def decode_properties(deliveries: DataFrame, stream: StreamConfig) -> DataFrame:
    """Return the deliveries with one more column, `application_properties`: a struct with a typed field
    for each property that the stream's file declares, null where a value is missing or not valid for
    its type. Fields of the sections `header` and `properties` are not in it. Without declared
    properties the deliveries are returned as they are.

    `deliveries`: with the columns of the envelope.
    """
    declared = {name: entry for name, entry in stream.properties.items() if not is_sectioned(name)}
    if not declared:
        return deliveries
    sources = {name: entry.source or Field(FieldKind.HEADER, name) for name, entry in declared.items()}
    wanted = {name: (field, declared[name].type) for name, field in sources.items() if field.kind is FieldKind.VALUE}
    places = {name: f"field_{i}" for i, name in enumerate(wanted)}
    columns = [
        (_pick(places[name], entry.type) if name in places else _read(sources[name], entry.type)).alias(name)
        for name, entry in declared.items()
    ]
    if wanted:
        shape = T.StructType([T.StructField(places[name], _carry(kind)) for name, (_, kind) in wanted.items()])
        deliveries = deliveries.withColumn(_FOUND, read_fields(stream.values, list(wanted.values()), shape))
    return deliveries.withColumn(PROPERTIES, F.struct(*columns)).drop(_FOUND)


def _carry(kind: PropertyType) -> T.DataType:
    """Return the type in which a field of this type comes from the Python workers: times are ms since 1970."""
    return T.LongType() if kind is PropertyType.TIMESTAMP else TYPES[kind]


def _pick(place: str, kind: PropertyType) -> Column:
    column = F.col(_FOUND).getField(place)
    return F.when(column.between(*YEARS), F.timestamp_millis(column)) if kind is PropertyType.TIMESTAMP else column


def _read(field: Field, kind: PropertyType) -> Column:
    if field.kind is FieldKind.HEADER:
        found = F.filter(F.col("headers"), lambda header: header["name"] == field.name)
        return cast_text(F.get(found, F.size(found) - 1)["value"], kind)
    if field.kind is FieldKind.KEY:
        return cast_text(F.col("key"), kind)
    if field.kind is FieldKind.TIMESTAMP and kind is PropertyType.TIMESTAMP:
        return F.col("timestamp")
    if field.kind is FieldKind.TIMESTAMP:
        return cast_text(F.unix_millis("timestamp").cast("string").cast("binary"), kind)
    return F.lit(None).cast(TYPES[kind])


def cast_text(bytes: Column, kind: PropertyType) -> Column:
    """Return a header's or key's bytes as a column of the Spark type for `kind`, null where they are no
    valid text of it. For binary the bytes are returned as they are, and for string no UTF-8 is
    checked.

    The column raises in no row, whatever Spark's casts do.
    """
    text = bytes.cast("string")
    if kind is PropertyType.BINARY:
        return bytes
    if kind is PropertyType.STRING:
        return text
    if kind is PropertyType.BOOLEAN:
        return F.when(F.lower(text) == "true", True).when(F.lower(text) == "false", False)
    number = F.when(text.rlike(_NUMBER), text.cast("double"))
    if kind is PropertyType.DOUBLE:
        return F.when(F.abs(number) < float("inf"), number)
    long = _cast_long(text)
    if kind is PropertyType.LONG:
        return long
    written = F.when(text.rlike(_TIME), F.try_to_timestamp(F.upper(text)))
    counted = F.when(long.between(*YEARS), F.timestamp_millis(long))
    return F.coalesce(written, counted)


def _cast_long(text: Column) -> Column:
    """Return texts as longs, by the value that they spell in whatever way, as
    overlay/scan/scalars/numbers.py does; null for texts whose value is not a long's."""
    sign, whole, fraction, exponent = (F.regexp_extract(text, _NUMBER, group) for group in range(1, 5))
    digits = F.concat(whole, fraction)
    kept = F.regexp_replace(digits, r"(?<!0)0+\z", "")
    significant = F.regexp_replace(kept, r"\A0+", "")
    power_written = F.when(exponent == "", 0).when(exponent.rlike(_NEAR), exponent.cast("int"))
    power = power_written + F.length(digits) - F.length(kept) - F.length(fraction)
    shifted = F.concat(sign, significant, F.lit("0" * _LONG_DIGITS).substr(F.lit(1), power))
    exact = (
        F.when(text.rlike(_WHOLE), text)  # most are, and these need no more
        .when(~text.rlike(_NUMBER), None)
        .when(significant == "", "0")
        .when((power >= 0) & (F.length(significant) + power <= _LONG_DIGITS), shifted)
    ).cast("decimal(38,0)")
    return F.when(exact.between(-INT64_MAX - 1, INT64_MAX), exact.cast("long"))
