"""`format("overlay")` on a log with everything in it: the rows of Spark's own Kafka source under the same filter, those that an
independent client reads, and the columns of a reading in process. What is wrong is told at planning, in the overlay's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from structlog.testing import capture_logs

from overlay.client import BadQuestion
from overlay.client.read.bounds import NoSequence
from overlay.errors import OverlayError
from overlay.filter import Filter, compile_sql
from spark.columns import find_in_envelope, to_column
from spark.datasource import OverlaySource
from spark.form import check_schema, make_schema
from spark.options import read_options
from spark.plan import Planner
from spark.scan import read
from tests.client.logs import (
    BASE,
    KEPT,
    Log,
    by_partition,
    fill,
    is_wanted,
    name_offsets,
    open_log,
    passes,
    read_properties,
)
from tests.support.kafka import NewTopicFixture, SureProducer, await_markers, make_topic
from tests.support.ledger import read_ledger
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene, Seen, await_caught_up, produce, read_committed, serve
from tests.worker.scenes import scene as scene
from tests.worker.test_faults import alter_topic

# a planner that has just started loads the package anew
pytestmark = pytest.mark.timeout(300)

PARTITIONS = 3
FILTERS = [
    "delay > 60",
    "NOT delay > 60",
    "delay IS NULL OR delay <= 5",
    "raw = 0xFF00",
    "to IN ('rome', 'oslo') AND NOT delay = 5",
    "delay * 2 > 10 AND p.to LIKE '%'",
]

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
}
ROUND = 40
"""Records of a transaction in the compacted topic, each key once."""


@pytest.fixture(scope="module")
def compacting(bootstrap: str) -> str:
    """A topic that the broker's cleaner goes through while other tests run; it looks every fifteen seconds."""
    topic = make_topic(bootstrap, "spark-compacted", 1, COMPACTED)
    fill_compacted(bootstrap, topic)
    return topic


def fill_compacted(bootstrap: str, topic: str) -> None:
    """Transactions, the third one aborted, that write the same keys again; tombstones; a segment each."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": "lz4"})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for n in range(ROUND):
            headers: list[tuple[str, str | bytes | None]] = [("to", ("rome", "oslo", "bonn")[n % 3])]
            headers += [("delay", str(5 * n))] if n % 4 else []
            headers += [("odd", b"\xff\x00")] if n % 5 else []
            producer.produce(topic, None if n % 9 == 0 else b"%d" % number, f"k{n + number}", headers=headers)
        producer.flush(30)
        if number == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    await_markers(bootstrap, topic)


@pytest.fixture(scope="module")
def log(bootstrap: str, compacting: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    topic = make_topic(bootstrap, "spark-source", PARTITIONS, KEPT)
    fill(bootstrap, topic, PARTITIONS)
    produce(bootstrap, compacting, ["rome"])  # the segment before it can be compacted
    opened = open_log(bootstrap, tmp_path_factory.mktemp("log") / "config", topic)
    consumers = Path(opened.client.origin) / "consumers"
    consumers.mkdir()
    (consumers / "late.yaml").write_text(
        f"stream: S\ndurable_name: late\ndeliver_subject: {topic}-late\nfilter_subjects: [t.rome]\n"
        "ack_policy: none\nfilter: {sql: 'delay > 60'}\n"
    )
    yield opened
    opened.client.close()


def load(spark: SparkSession, log: Log, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("overlay").options(config=log.client.origin, **({"stream": "S"} | given)).load()


def list_places(frame: DataFrame) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in frame.select("partition", "offset").collect()]


def load_native(spark: SparkSession, bootstrap: str, log: Log) -> DataFrame:
    """What Spark's Kafka source has, by the names of the envelope."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": log.topic,
        "includeHeaders": "true",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    frame = spark.read.format("kafka").options(**options).load()
    headers = F.transform("headers", lambda h: F.struct(h["key"].alias("name"), h["value"].alias("value")))
    to = F.filter("headers", lambda h: h["key"] == "to")
    subject = F.concat(F.lit("t."), F.get(to, F.size(to) - 1)["value"].cast("string"))
    return frame.withColumns({"subject": subject, "headers": headers}).where("subject IS NOT NULL")


def answer(compiled: Filter, record: Seen) -> bool | None:
    """The row evaluator's."""
    message = {"application_properties": read_properties(record), "properties": {"to": record.topic}}
    return compiled.matches(message)


def test_rows_are_those_of_the_native_source(spark: SparkSession, bootstrap: str, log: Log) -> None:
    """Transactions, aborted ones, tombstones and values of all kinds."""
    check_rows(spark, bootstrap, log)


def check_rows(spark: SparkSession, bootstrap: str, log: Log) -> None:
    """Every filter, in one pass of the native source."""
    stream = log.client.find_stream("S")
    compiled = [compile_sql(text, stream.properties) for text in FILTERS]
    answers = [to_column(each, find_in_envelope(stream)).alias(f"a{i}") for i, each in enumerate(compiled)]
    native = load_native(spark, bootstrap, log).select("partition", "offset", *answers).collect()
    assert len(native) == sum(map(len, log.addressed.values()))
    for number, text in enumerate(FILTERS):
        found = list_places(load(spark, log, sql=text, columns="partition,offset"))
        assert found and sorted(found) == sorted((r.partition, r.offset) for r in native if r[f"a{number}"])
        wanted = [seen for of in log.addressed.values() for seen in of if answer(compiled[number], seen)]
        assert by_partition(sorted(found)) == by_partition(sorted(name_offsets(wanted)))


def test_columns_are_those_of_a_reading(spark: SparkSession, log: Log) -> None:
    frame = load(spark, log, subjects="t.rome, t.oslo")
    assert frame.schema == make_schema(log.client.find_stream("S"), None)
    found = frame.toArrow().sort_by([("partition", "ascending"), ("offset", "ascending")])
    own = pa.table(log.client.read("S", subjects=["t.rome", "t.oslo"]))
    own = own.sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert own.num_rows > 100
    for name in own.schema.names:
        mine, theirs = found[name].to_pylist(), own[name].to_pylist()
        if name == "timestamp":
            theirs = [time.replace(tzinfo=UTC) for time in theirs]
        assert mine == theirs, name
    seen = {(s.partition, s.offset): s for of in log.addressed.values() for s in of}
    for row in found.select(["partition", "offset", "application_properties"]).to_pylist():
        record = seen[row["partition"], row["offset"]]
        delay = record.header(b"delay")
        assert row["application_properties"]["delay"] == (None if delay in (None, b"x") else float(delay or b""))
        assert row["application_properties"]["raw"] == record.header(b"odd")


def test_only_what_is_asked_for_is_built(spark: SparkSession, log: Log) -> None:
    frame = load(spark, log, columns="value, application_properties.n, header")
    assert frame.schema.simpleString() == (
        "struct<value:binary,application_properties:struct<n:bigint>,header:struct<priority:bigint>>"
    )
    assert frame.count() == sum(map(len, log.addressed.values()))
    own = load(spark, log, columns="delay, offset")
    assert own.schema.simpleString() == "struct<delay:double,offset:bigint>"
    assert (
        own.where("delay = 70.5").count() == load(spark, log).where("application_properties.delay = 70.5").count() > 0
    )
    narrow = spark.read.format("overlay").schema("offset bigint, properties struct<subject: string>")
    rows = narrow.options(config=log.client.origin, stream="S").load().select("properties.subject").distinct().collect()
    assert {row.subject for row in rows} == {"t.rome", "t.oslo", "t.bonn"}


def test_where_it_begins_and_ends(spark: SparkSession, log: Log) -> None:
    places = [(seen.partition, seen.offset) for of in log.addressed.values() for seen in of]
    offsets = json.dumps({log.topic: {"0": 100, "1": -1, "2": -2}})
    found = list_places(load(spark, log, startingOffsets=offsets, endingOffsets=json.dumps({log.topic: {"2": 50}})))
    wanted = [(p, o) for p, o in places if (p == 0 and o >= 100) or (p == 2 and o < 50)]
    assert sorted(found) == sorted(wanted) and len(found) > 10
    since, until = (datetime.fromtimestamp(BASE / 1000, UTC) + timedelta(milliseconds=ms) for ms in (1000, 2000))
    times = load(spark, log, startingTime=since.isoformat(), endingTime=until.isoformat())
    timely = [s for of in log.addressed.values() for s in of if is_wanted(s, ["t.>"], BASE + 1000, BASE + 2000)]
    assert sorted(list_places(times)) == sorted(name_offsets(timely))
    assert load(spark, log, startingOffsets="latest").count() == 0


def test_a_consumer_says_what_passes(spark: SparkSession, log: Log) -> None:
    frame = spark.read.format("overlay").options(config=log.client.origin, consumer="late").load()
    compiled = compile_sql("delay > 60", log.client.find_stream("S").properties)
    wanted = [s for of in log.addressed.values() for s in of if s.header(b"to") == b"rome" and passes(compiled, s)]
    assert sorted(list_places(frame)) == sorted(name_offsets(wanted)) and wanted


def test_filter_values(log: Log) -> None:
    """By rows of a task in this process: those of a reading with the same values."""
    definition = (
        f"{{name: S, topics: [{log.topic}], subject: {{template: 't.{{header:to}}'}}, filter_value: {{header: delay}}}}"
    )
    options = {
        "bootstrap": log.client.kafka["bootstrap.servers"],
        "definition": definition,
        "columns": "partition,offset",
    }
    for given, values in (("5", [b"5"]), ("x, 70.5", [b"x", b"70.5"]), ('["5", "a,b"]', [b"5"])):
        for unfiltered in ("false", "true"):
            ask = read_options(options | {"values": given, "matchUnfiltered": unfiltered})
            schema = make_schema(ask.request.stream, ask.columns)
            rows = [
                row for part in Planner(ask).plan() for batch in read(ask, schema, part) for row in batch.to_pylist()
            ]
            also = [None] if unfiltered == "true" else []
            wanted = [s for of in log.addressed.values() for s in of if s.header(b"delay") in [*values, *also]]
            assert sorted((r["partition"], r["offset"]) for r in rows) == sorted(name_offsets(wanted)) and wanted


def test_sequences_of_one_partition(spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    producer = SureProducer(bootstrap)
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    producer.flush(30)
    options = {"bootstrap": bootstrap, "topic": topic, "startingSequence": "11", "endingSequence": "21"}
    rows = spark.read.format("overlay").options(**options).load().select("sequence", "value", "subject").collect()
    assert [(r.sequence, r.value, r.subject) for r in rows] == [(n + 1, b"%d" % n, topic) for n in range(10, 20)]


def test_sequences_of_several_partitions(spark: SparkSession, scene: Scene, new_topic: NewTopicFixture) -> None:
    """Those that a service has given out; what has come since has none yet, and is behind all of them."""
    topic = new_topic(partitions=3)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c")
    with serve(scene) as served:
        produce(scene.bootstrap, topic, ["a", "b", "c"] * 100)
        await_caught_up(served, "c")
    ledger = read_ledger(scene)
    produce(scene.bootstrap, topic, ["d"] * 5, partition=1)
    given = {(partition, offset): n for ((_, partition), offset), n in ledger.sequences.items()}

    def read_sequences(**options: str) -> dict[tuple[int, int], int | None]:
        reader = spark.read.format("overlay").options(config=str(scene.folder), stream="S", **options)
        rows = reader.option("columns", "partition,offset,sequence").load().collect()
        return {(row.partition, row.offset): row.sequence for row in rows}

    whole = read_sequences()
    wanted = {(record.partition, record.offset) for record in read_committed(scene.bootstrap, topic)}
    assert whole.keys() == wanted and len(wanted) == 305
    assert {place: n for place, n in whole.items() if n is not None} == {p: given[p] for p in wanted & given.keys()}
    assert sum(n is None for n in whole.values()) == 5
    first, end = sorted(given[place] for place in wanted & given.keys())[100:201:100]
    part = read_sequences(startingSequence=str(first), endingSequence=str(end))
    assert part == {place: n for place, n in whole.items() if n is not None and first <= n < end} and len(part) == 100


def test_a_compacted_topic(spark: SparkSession, bootstrap: str, compacting: str, tmp_path: Path) -> None:
    """Batches with holes and batches that are empty."""
    total = 5 * ROUND

    def is_compacted() -> bool:
        produce(bootstrap, compacting, ["rome"])
        return len(read_committed(bootstrap, compacting)) < total // 2

    wait_until(is_compacted, 60, "keys that were written again are gone")
    alter_topic(bootstrap, compacting, cleanup_policy="delete", retention_ms="-1")
    log = open_log(bootstrap, tmp_path / "config", compacting)
    assert any(record.value is None for record in log.seen[0])
    check_rows(spark, bootstrap, log)
    log.client.close()


BAD: list[tuple[dict[str, str], str]] = [
    ({"sql": "delay >"}, "column 8"),
    ({"sql": "gate > 5"}, "gate"),
    ({"subjects": "t..x"}, "t..x"),
    ({"stream": "SS"}, "there is no stream 'SS'"),
    ({"consumer": "lat"}, "no file describes a consumer 'lat'. Did you mean late?"),
    (
        {"consumer": "asked"},
        "consumer 'asked'. If it was made by request, `overlay consumer export asked --out ",
    ),
    ({"consumer": "asked"}, "/consumers/asked.yaml` writes its file. There is late"),
    ({"consumer": "late", "sql": "delay > 5"}, "consumer and sql each say what passes"),
    ({"topic": "t"}, "stream and topic each say what to read"),
    ({"columns": "valeu"}, "there is no column 'valeu'"),
    ({"columns": ""}, "columns is empty"),
    ({"sbujects": "t.>"}, "there is no option 'sbujects'"),
    ({"startingOffsets": "{"}, "startingOffsets is no JSON"),
    ({"startingOffsets": '{"x": {"0": 1}}'}, "topic x is not in the stream"),
    ({"startingOffsets": '{"spark-source": {"0": -3}}'}, "an offset is 0 or more"),
    ({"startingOffsets": "earliest", "startingSequence": "3"}, "exclude each other"),
    ({"startingOffsets": "earliest", "startingTime": "3h"}, "both say where to begin"),
    ({"startingTime": "yesterday"}, "is no point in time"),
    ({"endingSequence": "0"}, "1 or more"),
    ({"minPartitions": "many"}, "whole number"),
    ({"failOnDataLoss": "maybe"}, "true or false"),
    ({"values": "[1]"}, "values is a JSON list, and has to hold texts only"),
    ({"values": ","}, "values is empty"),
    ({"values": "t..x"}, "t..x"),
    ({"matchUnfiltered": "true"}, "goes with `values`"),
    ({"consumer": "late", "values": "t.rome"}, "consumer and values each say what passes"),
    ({"offsetRanges": "[]"}, "offsetRanges is no JSON object"),
    ({"offsetRanges": '{"x": {"0": [[1, 2]]}}'}, "topic x is not in the stream"),
    ({"offsetRanges": '{"spark-source": {"0": [[1, 2], [2, 3]]}}'}, "with a gap between two pairs"),
    ({"offsetRanges": '{"spark-source": {"0": [1, 2]}}'}, "write a list of pairs"),
    ({"offsetRanges": '{"spark-source": []}'}, "offsetRanges is a JSON object such as"),
    ({"offsetRanges": "{}", "endingOffsets": "latest"}, "each say which offsets to read"),
    ({"columns": "dealy"}, "there is no column 'dealy'"),
    ({"value": "t..x"}, "t..x"),
    ({"match_unfiltered": "true"}, "goes with `values`"),
    ({"subjects": "t.>", "Subject": "t.rome"}, "subjects is given twice"),
]


@pytest.mark.parametrize(
    ("options", "message"), BAD, ids=[f"{i} {list(options)[-1]}" for i, (options, _) in enumerate(BAD)]
)
def test_options_that_are_wrong(log: Log, options: dict[str, str], message: str) -> None:
    with pytest.raises(OverlayError, match=re.escape(message)):
        read_options({"config": log.client.origin, "stream": "S"} | options)


def test_other_spellings_of_options() -> None:
    topic = {"bootstrap": "localhost:1", "topic": "t", "sql": "a = 'x'"}
    assert read_options({**topic, "subject": "t"}).request == read_options({**topic, "SUBJECTS": "t"}).request


def test_a_subject_outside_of_the_stream_is_warned_of(log: Log) -> None:
    said = "no record of stream S has a subject like x.>: its subject rule builds t.*"
    options = {"config": log.client.origin, "stream": "S", "subjects": "t.rome,x.>"}
    with capture_logs() as logged:
        reader = OverlaySource(options).reader(make_schema(log.client.find_stream("S"), None))
        assert reader.partitions()
        OverlaySource(options).streamReader(make_schema(log.client.find_stream("S"), None))
        OverlaySource(options | {"subjects": "t.rome"}).streamReader(make_schema(log.client.find_stream("S"), None))
    assert [each["reason"] for each in logged if "one of its subjects" in each["event"]] == [said, said]


def test_a_column_of_another_type(log: Log) -> None:
    stream = log.client.find_stream("S")
    with pytest.raises(BadQuestion, match=r"column application_properties\.delay is double, not string"):
        check_schema(stream, StructType().add("application_properties", StructType().add("delay", "string")))
    with pytest.raises(BadQuestion, match=r"there is no column 'application_properties\.dealy'"):
        check_schema(stream, StructType().add("application_properties", StructType().add("dealy", "double")))


def test_what_is_wrong_is_told_at_planning(spark: SparkSession, log: Log) -> None:
    """A filter when the frame is made, what Kafka says when it is planned; no executor has a part in either."""
    with pytest.raises(AnalysisException, match="FilterSyntaxError: line 1, column 8"):
        load(spark, log, sql="delay >")
    with pytest.raises(AnalysisException, match="TopicNotFound"):
        options = {"bootstrap": log.client.kafka["bootstrap.servers"], "topic": "no-such-topic"}
        spark.read.format("overlay").options(**options).load().collect()


def test_a_sequence_where_there_is_none(log: Log) -> None:
    ask = read_options({"config": log.client.origin, "stream": "S", "startingSequence": "5"})
    with pytest.raises(NoSequence, match="the stream has 3 partitions"):
        Planner(ask).plan()
