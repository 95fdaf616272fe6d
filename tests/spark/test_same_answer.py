"""One answer for each JSON document from `client.read`, consumers, `format("overlay")`, `decode=True`, and a slow twin."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import overlay
from spark.source import read_consumer
from tests.oracle import values as twin
from tests.support.kafka import NewTopicFixture, produce_values
from tests.support.service import StartService, running_service, write_service_file
from tests.support.waiting import wait_until

__all__ = ["running_service"]  # a fixture

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

YEARS = tuple(
    round(datetime(*day, tzinfo=UTC).timestamp()) * 1000 + more
    for day, more in (((1, 1, 1), 0), ((9999, 12, 31), 86_399_999))
)
"""The first and the last millisecond of the times that Python and Spark know."""
PATHS = {"n": "long", "a.d": "double", "flag": "boolean", "s": "string", "at": "timestamp"}
NAMES = [f"p{i}" for i in range(len(PATHS))]
WHOLE = (
    b'{"n":93,"a":{"d":936.25},"flag":true,"s":"text","at":1600000000007}',
    b'{"at":1600000000007,"s":"te\\"xt","flag":false,"a":{"x":[1,{"d":2}],"d":-1e5},"n":-93}',
    b'{"x": {"n": 1}, "n": 0 , "a": {"d": 0.5 } }',
    b'{"a":null,"n":null,"flag":null,"s":""}',
    '{"s":"größe 航班","at":"2020-09-13T14:26:40.007+02:00","n":9223372036854775807}'.encode(),
)
NUMBERS = (
    *(
        b"01",
        b"-01",
        b"1e999",
        b"-1e999",
        b"1E2",
        b"1e-2",
        b"5.0",
        b"5.5",
        b"-0",
        b"-0.0",
        b"1_000",
        b"+1",
        b".5",
        b"5.",
    ),
    *(
        b"NaN",
        b"Infinity",
        b"0x10",
        b"9223372036854775808",
        b"-9223372036854775808",
        b"1e18",
        b"1e19",
        b"12a",
        b"-",
        b"1e",
    ),
)
TEXTS = (
    *(
        b'"5"',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\ude00"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\x"',
        b'"a\nb"',
        b'"\\u00"',
    ),
    *(
        b'"2020-09-13T12:26:40"',
        b'"2020-09-13T12:26:40Z"',
        b'"2020-02-30T00:00:00Z"',
        b'"9999-12-31T23:59:59Z"',
        b'"yesterday"',
    ),
)
OTHERS = (b"true", b"false", b"null", b"tru", b"True", b"[]", b"{}", b"[1", b'{"d":1', b"")
BEHIND = (b" garbage", b"}", b"{", b" 1", b'{"n":94}', b"\x00", b"\xff")


def list_documents() -> list[bytes]:
    """Documents that are broken in every way that the issue's users have met, in an order of their own."""
    found = [*WHOLE, b"93", b"[1, 2]", b'"n"', b"null", b" ", b"\xef\xbb\xbf{}", b"{}"]
    found += [whole[:size] for whole in WHOLE for size in range(1, len(whole))]
    found += [whole + more for whole in WHOLE for more in BEHIND]
    for text in (*NUMBERS, *TEXTS, *OTHERS):
        found += [b'{"%s":%s}' % (name.encode(), text) for name in ("n", "flag", "s", "at")]
        found += [b'{"a":{"d":%s}}' % text, b'{"n":%s,"n":7}' % text, b'{"n":7,"n":%s}' % text, b'{"s":%s' % text]
    found += [
        b'{"a":{"d":1.5},"a":{"d":2.5}}',
        b'{"a":5,"a":{"d":2.5}}',
        b'{"\\u006e":4}',
        b'{"n" :\t4\r\n}',
        b'{"n":1,}',
    ]
    draw = random.Random(20)
    for _ in range(1000):
        document = bytearray(draw.choice(WHOLE))
        for _ in range(draw.randint(1, 3)):
            document[draw.randrange(len(document))] = draw.choice(b'{}[]":,\\ 0123456789eE+-.tfn\x00\xff')
        found.append(bytes(document))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Number:
    """A number of a document as it is written."""

    text: str


def expect(document: bytes) -> list[Any] | None:
    """What the whole document says of each path. None if it is no JSON: then the answers only have to be alike."""
    try:
        parsed = json.loads(
            document.decode(),
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
            object_pairs_hook=lambda pairs: dict(reversed(pairs)),
        )
    except (ValueError, RecursionError):
        return None
    return [_convert(_look_up(parsed, path.split(".")), kind) for path, kind in PATHS.items()]


def _look_up(document: Any, path: Sequence[str]) -> Any:
    for step in path:
        document = document.get(step) if isinstance(document, Mapping) else None
    return document


def _convert(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, dict | list):
        return None
    text = value.text if isinstance(value, Number) else json.dumps(value)
    found = twin.read(text.encode(), kind, is_json=True)
    return None if found in (twin.BAD, twin.NOT_UTF8) else found


def to_rows(table: pa.Table) -> list[list[Any]]:
    columns = [table.column(name) for name in NAMES]
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return [list(row) for row in zip(*(column.to_pylist() for column in plain), strict=True)]


def to_spark(row: Sequence[Any]) -> list[Any]:
    """A row as Spark's columns have it: a time outside the years 1 to 9999 is null."""
    return [
        None if kind == "timestamp" and value is not None and not YEARS[0] <= value <= YEARS[1] else value
        for value, kind in zip(row, PATHS.values(), strict=True)
    ]


def collect(frame: DataFrame, order: str) -> list[list[Any]]:
    names = [f"application_properties.{name}" for name in NAMES]
    times = [F.unix_millis(n) if k == "timestamp" else F.col(n) for n, k in zip(names, PATHS.values(), strict=True)]
    return [list(row) for row in frame.orderBy(order).select(*times).collect()]


def write_folder(folder: Path, bootstrap: str, topic: str) -> Path:
    write_service_file(folder, bootstrap)
    properties = {
        name: {"type": kind, "from": f"{{value:{path}}}"}
        for name, (path, kind) in zip(NAMES, PATHS.items(), strict=True)
    }
    stream = {"name": "S", "topics": [topic], "subject": {"topic": True}, "properties": properties}
    files = {"streams/s.yaml": stream}
    for name, sql in {"all": None, **{name: f"{name} IS NOT NULL" for name in NAMES}}.items():
        output = {"stream": "S", "durable_name": name, "deliver_subject": f"{topic}-{name}", "ack_policy": "none"}
        files[f"consumers/{name}.yaml"] = output | ({"filter": {"sql": sql}} if sql else {})
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture
def folder(bootstrap: str, new_topic: NewTopicFixture, running_service: StartService, tmp_path: Path) -> Path:
    """A config folder whose service has delivered all documents."""
    topic = new_topic()
    produce_values(bootstrap, topic, list_documents())
    folder = write_folder(tmp_path / "config", bootstrap, topic)
    service = running_service(folder)

    def is_done() -> bool:
        consumers = service.get_json("/consumers")
        return len(consumers) == 1 + len(NAMES) and all(each.get("lag_records") == 0 for each in consumers)

    wait_until(is_done, 120, "every consumer has come to the end of the topic")
    return folder


def test_all_give_the_same_answer(spark: SparkSession, folder: Path) -> None:
    documents = list_documents()
    assert len(documents) > 1500
    read = to_rows(overlay.open(folder).read("S", columns=NAMES).to_table())
    assert len(read) == len(documents)
    for document, found in zip(documents, read, strict=True):
        assert expect(document) in (None, found), document
    source = spark.read.format("overlay").options(config=str(folder), stream="S").load()
    in_spark = dict(zip(documents, map(to_spark, read), strict=True))
    assert in_spark[b'{"at":1e18}'] == [None] * len(NAMES) != read[documents.index(b'{"at":1e18}')]
    for rows in (collect(source, "sequence"), collect(read_consumer(spark, folder, "all", decode=True), "sequence")):
        assert dict(zip(documents, rows, strict=True)) == in_spark
    for i, name in enumerate(NAMES):
        delivered = read_consumer(spark, folder, name).orderBy("sequence").select("value").collect()
        assert [bytes(row[0]) for row in delivered] == [
            d for d, row in zip(documents, read, strict=True) if row[i] is not None
        ]
    check_cuts(dict(zip(documents, read, strict=True)))


def check_cuts(answers: Mapping[bytes, Sequence[Any]]) -> None:
    """A document that was cut says what the whole one says, or nothing: never what the producer did not write."""
    for whole in WHOLE:
        for size in range(1, len(whole)):
            pairs = zip(answers[whole[:size]], answers[whole], strict=True)
            assert all(found in (None, expected) for found, expected in pairs), whole[:size]
