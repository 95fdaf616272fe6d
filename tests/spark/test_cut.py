"""Fields of JSON values that Spark decodes, against those that the scan reads, in documents that end too early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from overlay.client.read.topic import describe_topic
from overlay.scan import Records
from overlay.scan.columns import Origin, gather
from spark.decoding import decode_properties
from tests.oracle.batches import Record
from tests.scan.json.test_search import plan_for
from tests.support.batches import build

pytestmark = pytest.mark.timeout(300)

PATHS = {"n": "long", "a.d": "double", "flag": "boolean", "s": "string", "at": "timestamp"}
DOCUMENTS = [
    b'{"n":93,"a":{"d":936.25},"flag":true,"s":"text","at":1600000000007}',
    b'{"at":1600000000007,"s":"te\\"xt","flag":false,"a":{"x":[1,{"d":2}],"d":-1e5},"n":-93}',
    b'{"x": {"n": 1}, "n": 0 , "a": {"d": 0.5 } }',
    b'{"a":null,"n":null,"flag":null,"s":""}',
    b"93",
    b"[1, 2]",
]


def scan(values: list[bytes]) -> list[tuple[Any, ...]]:
    """The properties of each value, as filters see them."""
    records = [Record(i, 0, None, value, []) for i, value in enumerate(values)]
    columns: list[list[Any]] = [[] for _ in PATHS]
    for piece in plan_for(*PATHS).decode(np.frombuffer(build(records), np.uint8)):
        assert isinstance(piece, Records)
        for slot, kind in enumerate(PATHS.values()):
            at, size = piece.at[slot, : len(piece)], piece.size[slot, : len(piece)]
            array = gather(piece.buf, at, size, kind, Origin.JSON).array
            columns[slot] += (array.cast("int64") if kind == "timestamp" else array).to_pylist()
    return list(zip(*columns, strict=True))


def decode(spark: SparkSession, values: list[bytes]) -> list[tuple[Any, ...]]:
    """The same as Spark decodes them for readers of deliveries."""
    declared = {f"p{i}": {"type": kind, "from": f"{{value:{path}}}"} for i, (path, kind) in enumerate(PATHS.items())}
    rows = spark.createDataFrame([(i, value) for i, value in enumerate(values)], "i int, value binary")
    decoded = decode_properties(rows, describe_topic("t", declared)).orderBy("i")
    names = [f"application_properties.p{i}" for i in range(len(PATHS))]
    times = [F.unix_millis(n) if k == "timestamp" else F.col(n) for n, k in zip(names, PATHS.values(), strict=True)]
    return [tuple(row) for row in decoded.select(*times).collect()]


def test_spark_takes_no_cut_document_for_a_whole_one(spark: SparkSession) -> None:
    """Spark decodes a document as a whole, the scan as far as it must: where Spark has a value, the scan has the same."""
    values = [document[:size] for document in DOCUMENTS for size in range(1, len(document) + 1)]
    for value, decoded, scanned in zip(values, decode(spark, values), scan(values), strict=True):
        for path, found, expected in zip(PATHS, decoded, scanned, strict=True):
            assert found == expected or found is None, (value, path)
    assert decode(spark, DOCUMENTS) == scan(DOCUMENTS)


def test_spark_and_the_scan_agree_on_documents_that_go_on(spark: SparkSession) -> None:
    """Neither reads what stands behind a document."""
    whole = DOCUMENTS[0]
    values = [whole + more for more in (b" garbage", b"}", b"{", b" 1", b'{"n":94}')]
    values += [b'{"n":1_000}', b'{"n":tru}', b'{"n":1', b'{"n":12a}', b'{"n":-}', b'{"n":1e}', b"{}"]
    found, expected = decode(spark, values), scan(values)
    assert dict(zip(values, found, strict=True)) == dict(zip(values, expected, strict=True))


def test_of_two_equal_keys_spark_takes_the_last_and_the_scan_the_first(spark: SparkSession) -> None:
    """As docs/spark.md says: Spark's parser has no other way."""
    values = [b'{"n":1,"n":2}', b'{"a":{"d":1.5},"a":{"d":2.5}}']
    assert [row[:2] for row in decode(spark, values)] == [(2, None), (None, 2.5)]
    assert [row[:2] for row in scan(values)] == [(1, None), (None, 1.5)]
