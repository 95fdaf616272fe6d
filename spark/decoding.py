"""The properties that a stream's file declares, as a struct of typed columns.

Headers and keys are texts and follow the grammars of overlay/scan/columns.py. A text that is not
valid for its type is null. Fields of JSON values are parsed by Spark, all of them in one pass over
the document, by Spark's rules. There a long is a number without a decimal point, and a string takes
a value of another type as its text. Only times are parsed as in headers: ms since 1970, or RFC 3339
with an offset. For Spark a number would be seconds, and a text needs no offset. Filters have been
evaluated before, by the overlay's own rules; this is for users of the records that passed. Fields of
Avro and Protobuf values are read by the overlay itself, in Python workers (encoded.py).

The source's topic and partition are not part of a delivery, so properties made of them are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from overlay.config.stream import PropertyType, StreamConfig, is_sectioned
from overlay.config.values import ValueFormat, ValuesConfig
from overlay.field import Field, FieldKind
from overlay.filter.nodes import Section
from overlay.units import INT64_MAX

from .encoded import read_encoded

TYPES: Mapping[PropertyType, T.DataType] = {
    PropertyType.STRING: T.StringType(),
    PropertyType.LONG: T.LongType(),
    PropertyType.DOUBLE: T.DoubleType(),
    PropertyType.BOOLEAN: T.BooleanType(),
    PropertyType.TIMESTAMP: T.TimestampType(),
    PropertyType.BINARY: T.BinaryType(),
}
_TEXTS = (PropertyType.BINARY, PropertyType.TIMESTAMP)
"""Types that JSON has as a text or number, and that Spark would parse by rules of its own: bytes as
Base64.
"""
PROPERTIES = Section.APPLICATION.value
"""The name of the column, as filters name the section."""
_WHOLE = r"\A[+-]?[0-9]{1,38}\z"
_NUMBER = r"\A([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?\z"
_NEAR = r"\A[+-]?0*[0-9]{1,9}\z"
"""Exponents that fit an int. A number with another one is no long, unless it is zero."""
_TIME = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})\z"
_LONG_DIGITS = 19
"""What the longest longs have."""
_YEARS = (-62_135_596_800_000, 253_402_300_799_999)  # 0001 to 9999 in ms since 1970, as Python's datetime has them

Tree = dict[str, "Tree | T.DataType"]


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
    find = _find_in_json if stream.values.format is ValueFormat.JSON else partial(_find_encoded, stream.values)
    documents, found = find(wanted) if wanted else ({}, {})
    columns = [
        (found[name] if name in found else _read(field, declared[name].type)).alias(name)
        for name, field in sources.items()
    ]
    return deliveries.withColumns(documents).withColumn(PROPERTIES, F.struct(*columns)).drop(*documents)


Wanted = Mapping[str, tuple[Field, PropertyType]]
"""Fields of values with their types, by the names of their properties."""
Found = tuple[dict[str, Column], dict[str, Column]]
"""Columns to add to the deliveries, by name, and a column for each property that is read from these."""


def _find_in_json(wanted: Wanted) -> Found:
    trees = plant_trees((field.path, kind) for field, kind in wanted.values())
    found = {}
    for name, (field, kind) in wanted.items():
        number = next(i for i, tree in enumerate(trees) if _has(tree, field.path, TYPES[kind]))
        column = _reach(F.col(f"_document_{number}"), field.path)
        found[name] = cast_text(column.cast("binary"), kind) if kind in _TEXTS else column
    return {f"_document_{i}": _parse(tree) for i, tree in enumerate(trees)}, found


def _find_encoded(values: ValuesConfig, wanted: Wanted) -> Found:
    shape = T.StructType(
        [
            T.StructField(f"field_{i}", T.LongType() if kind is PropertyType.TIMESTAMP else TYPES[kind])
            for i, (_, kind) in enumerate(wanted.values())
        ]
    )
    found = {}
    for i, (name, (_, kind)) in enumerate(wanted.items()):
        column = F.col("_document").getField(f"field_{i}")
        is_time = kind is PropertyType.TIMESTAMP
        found[name] = F.when(column.between(*_YEARS), F.timestamp_millis(column)) if is_time else column
    return {"_document": read_encoded(values, list(wanted.values()), shape)}, found


def plant_trees(paths: Iterable[tuple[tuple[str, ...], PropertyType]]) -> list[Tree]:
    """Return trees of fields by name, with Spark types as leaves, one for each schema with which
    documents are parsed; together they have all paths. One tree has all paths unless some conflict:
    one leads through another, or the same path has two types. A conflicting path goes into the next
    tree that can have it. `paths`: each with its property type; none gives no tree.
    """
    trees: list[Tree] = []
    for path, kind in paths:
        if not any(_put(tree, path, TYPES[kind]) for tree in trees):
            tree: Tree = {}
            _put(tree, path, TYPES[kind])
            trees.append(tree)
    return trees


def _put(tree: Tree, path: tuple[str, ...], kind: T.DataType) -> bool:
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return False
        tree = below
    return tree.setdefault(path[-1], kind) == kind


def _has(tree: Tree, path: tuple[str, ...], kind: T.DataType) -> bool:
    for name in path[:-1]:
        below = tree.get(name)
        if not isinstance(below, dict):
            return False
        tree = below
    return tree.get(path[-1]) == kind


def _parse(tree: Tree) -> Column:
    return F.from_json(F.col("value").cast("string"), _shape(tree))


def _shape(tree: Tree) -> T.StructType:
    fields = [
        T.StructField(name, _shape(kind) if isinstance(kind, dict) else _written(kind)) for name, kind in tree.items()
    ]
    return T.StructType(fields)


def _written(kind: T.DataType) -> T.DataType:
    return T.StringType() if isinstance(kind, T.BinaryType | T.TimestampType) else kind


def _reach(document: Column, path: tuple[str, ...]) -> Column:
    for name in path:
        document = document.getField(name)
    return document


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
    counted = F.when(long.between(*_YEARS), F.timestamp_millis(long))
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
