"""Declared properties of Avro values in Spark, against the same values as JSON."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from overlay.config import StreamConfig
from spark.decoding import decode_properties
from tests.support.avro import encode

pytestmark = pytest.mark.timeout(300)

SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "a", "type": {"type": "record", "name": "A", "fields": [{"name": "d", "type": "double"}]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "s", "type": "string"},
    ],
}
PATHS = {"n": "long", "a.d": "double", "at": "timestamp", "s": "string"}


def decode(spark: SparkSession, rows: list[bytes | None]) -> list[Row]:
    properties = {f"p{i}": {"type": type, "from": f"{{value:{path}}}"} for i, (path, type) in enumerate(PATHS.items())}
    data: dict[str, Any] = {"name": "S", "topics": ("t",), "properties": properties}
    stream = StreamConfig.model_validate({**data, "values": {"format": "avro", "schema": SCHEMA}})
    frame = spark.createDataFrame([(i, value) for i, value in enumerate(rows)], "i int, value binary")
    found = decode_properties(frame, stream)
    assert found.columns == ["i", "value", "application_properties"]
    chosen = found.orderBy("i").selectExpr(
        *("application_properties.p0", "application_properties.p1"),
        *("unix_millis(application_properties.p2)", "application_properties.p3"),
    )
    return chosen.collect()


def test_properties_of_avro_values(spark: SparkSession) -> None:
    value = encode(SCHEMA, {"n": 5, "a": {"d": -0.25}, "at": 1_600_000_000_007, "s": 'a"ø'})
    empty = encode(SCHEMA, {"n": None, "a": {"d": float("inf")}, "at": 1 << 60, "s": ""})
    rows = [tuple(row) for row in decode(spark, [value, None, value[:-1], empty, b"", b"{}"])]
    assert rows == [
        (5, -0.25, 1_600_000_000_007, 'a"ø'),
        (None, None, None, None),
        (5, -0.25, 1_600_000_000_007, None),
        (None, None, None, ""),
        (None, None, None, None),
        (None, None, None, None),
    ]
