"""Functions for Spark before 4.1 give the columns that those on Arrow arrays give; here on the Spark that is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas import functions as of_spark

from overlay.config.stream import PropertyType
from overlay.config.values import ValuesConfig
from overlay.field import Field, FieldKind
from spark import before_arrow
from spark.decoding import TYPES
from spark.value_fields import ColumnReader, read_fields

KINDS = {
    "n": PropertyType.LONG,
    "d": PropertyType.DOUBLE,
    "b": PropertyType.BOOLEAN,
    "s": PropertyType.STRING,
    "at": PropertyType.TIMESTAMP,
}
FIELDS = [(Field(FieldKind.VALUE, name), kind) for name, kind in KINDS.items()]
SHAPE = T.StructType(
    [T.StructField(name, T.LongType() if name == "at" else TYPES[kind]) for name, kind in KINDS.items()]
)
WHOLE = {"n": 9_007_199_254_740_993, "d": 0.5, "b": True, "s": "größe", "at": 1_600_000_000_007}
VALUES: list[bytes | None] = [
    json.dumps(WHOLE).encode(),
    *(json.dumps({name: value}).encode() for name, value in WHOLE.items()),
    b"{}",
    b"no JSON",
    None,
    b'{"s": ""}',
]


def expect() -> list[list[Any]]:
    """The fields of each value: a number above 2**53 as it is, and None where there is none."""
    whole = list(WHOLE.values())
    alone = [[value if at == place else None for at, value in enumerate(whole)] for place in range(len(whole))]
    nothing = [None] * len(whole)
    return [whole, *alone, nothing, nothing, nothing, [None, None, None, "", None]]


def read(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    reader = ColumnReader(ValuesConfig(), FIELDS)
    for batch in batches:
        yield pa.StructArray.from_arrays(reader.read(batch), names=SHAPE.names)


def test_frames_of_pandas_have_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way a batch is cut: a column in which all or no values are missing as well."""
    made: list[Callable[[Iterator[pd.Series]], Iterator[pd.DataFrame]]] = []

    def note(function: Any, shape: T.StructType) -> Callable[[Column], Column]:
        assert shape == SHAPE
        made.append(function)
        return lambda column: column

    monkeypatch.setattr(before_arrow, "pandas_udf", note)
    before_arrow.make_function(read, SHAPE)
    for size in (1, 3, len(VALUES)):
        batches = [pd.Series(VALUES[at : at + size], dtype=object) for at in range(0, len(VALUES), size)]
        frames = list(made[0](iter(batches)))
        assert [len(frame) for frame in frames] == [len(batch) for batch in batches]
        assert all(list(frame.columns) == SHAPE.names for frame in frames)
        # as Spark makes Arrow columns of them, with the types that it was told
        types = [pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.int64()]
        columns = [
            [each for frame in frames for each in pa.array(frame[name], type, from_pandas=True).to_pylist()]
            for name, type in zip(SHAPE.names, types, strict=True)
        ]
        assert [list(row) for row in zip(*columns, strict=True)] == expect()


@pytest.mark.parametrize("has_arrow", [True, False])
def test_spark_gives_the_same_rows_with_either(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, has_arrow: bool
) -> None:
    if not has_arrow:
        monkeypatch.delattr(of_spark, "arrow_udf")
    frame = spark.createDataFrame(list(enumerate(VALUES)), "number int, value binary").repartition(2)
    found = frame.select("number", read_fields(ValuesConfig(), FIELDS, SHAPE).alias("found"))
    plan = found._jdf.queryExecution().toString()
    assert ("ArrowEvalPython" in plan) and ("convert(" in plan) is not has_arrow
    rows = found.select("number", F.col("found.*")).orderBy("number").collect()
    assert [list(row)[1:] for row in rows] == expect()
