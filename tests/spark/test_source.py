"""Output topics as DataFrames: which records show, what stands in their columns, and what is told when something is wrong."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyspark.sql
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import spark as package
from overlay.client import BadQuestion
from overlay.client.read.topic import describe_topic
from overlay.config.stream import PropertyType
from overlay.consumer.acks import parse_token
from overlay.errors import ConfigError
from overlay.inspect.reading import TopicNotFound
from overlay.scan.columns import gather
from spark.decoding import TYPES, cast_text, decode_properties
from spark.envelope import COLUMNS, split_token
from spark.interest import find_lowest, read_offsets
from spark.output import NotForStreams, UnknownConsumer
from spark.redeliveries import BLOCK, Seen
from spark.source import read_consumer, read_stream_consumer
from tests.spark.deliveries import Delivery, deliver, write_folder
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until

# an example is a job of Spark: few of them, each of many texts, and no search for a smaller one
once = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.large_base_example, HealthCheck.too_slow],
)
OLDEST = (3, 5)

numbers = st.integers(0, 3) | st.sampled_from([(1 << 63) - 1, 1 << 63, 10**19 - 1, (1 << 31) - 1])
names = st.sampled_from(["S", "c", "a-b", "", "$JS", "ä"])
tokens = st.builds(
    ".".join,
    st.lists(st.just("$JS.ACK") | names | numbers.map(str) | st.sampled_from(["+1", "01", "1 ", "x\n"]), max_size=12),
) | st.builds(
    lambda head, parts, tail: ".".join(["$JS.ACK", *head, *map(str, parts), *tail]),
    st.sampled_from([("S", "c"), ("d", "h", "S", "c"), ("", "", "S", "c"), ("d", "S", "c")]),
    st.lists(numbers, min_size=5, max_size=5),
    st.sampled_from([(), ("x",), ("", "y\n")]),
)


@once
@given(st.lists(tokens, min_size=120, max_size=120))
def test_tokens_are_taken_apart_as_acks_are(spark: SparkSession, texts: list[str]) -> None:
    frame = spark.createDataFrame([(text,) for text in texts], "token string")
    found = frame.select(split_token(F.col("token")).alias("parts")).collect()
    for text, row in zip(texts, found, strict=True):
        token = parse_token(text)
        if row.parts is None:
            # a delivery count above int32 is no count, and a sequence of 0 says that the stream gives none
            assert token is None or token.deliveries >= 1 << 31, text
        elif token is None:
            assert row.parts.sequence is None, text
            assert parse_token(re.sub(r"\.0\.(\d+\.-?\d+\.\d+)", r".1.\1", text, count=1)) is not None, text
        else:
            expected = (token.stream, token.consumer, token.stream_seq, token.consumer_seq, token.deliveries)
            assert tuple(row.parts)[:5] == expected, text


def test_times_of_tokens(spark: SparkSession) -> None:
    times = {1_700_000_000_123: 1_700_000_000_123, -1: None, -2_500: -2_500, 0: 0}
    frame = spark.createDataFrame([(f"$JS.ACK.S.c.1.2.3.{ms}000000.0",) for ms in times], "token string")
    found = frame.select(F.unix_millis(split_token(F.col("token"))["timestamp"])).collect()
    assert [row[0] for row in found] == list(times.values())


texts = st.text("0123456789+-.eE", max_size=24) | st.sampled_from(
    ["true", "FALSE", "yes", "", " 1", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "1e400"]
)
SPELLINGS = (
    "2E-688 1e-400 1.00000000000000000001 1e18 -1e18 1e19 12.50e1 12.50e0 120e-1 120e-2 -0.0 000 1. .1 1e +7.0 "
    "9223372036854775807.0 9223372036854775808e0 -9223372036854775808.000 -922337203685477580.8e1 0.000e-5 "
    "0e99999999999999999999 1e99999999999999999999 1e-99999999999999999999 5e+00000000000 "
    f"{'0' * 40}5 {'0' * 40}5.0 5{'0' * 40}e-40 5{'0' * 40}e-41 {'1' * 39}"
).split()
"""Longs in unusual forms, and numbers that are none."""
moments = st.integers(-11_000_000_000, 13_000_000_000).map(
    lambda seconds: (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, milliseconds=7)).isoformat()
)


@once
@example(SPELLINGS)
@given(st.lists(texts | moments, min_size=120, max_size=120))
def test_texts_are_read_as_the_scan_reads_them(spark: SparkSession, values: list[str]) -> None:
    kinds = [kind for kind in PropertyType if kind is not PropertyType.BINARY]
    frame = spark.createDataFrame([(value.encode(),) for value in values], "raw binary")
    columns = [cast_text(F.col("raw"), kind).cast(TYPES[kind]) for kind in kinds]
    shown = [F.unix_millis(c) if k is PropertyType.TIMESTAMP else c for c, k in zip(columns, kinds, strict=True)]
    rows = frame.select(*shown).collect()
    buf = np.frombuffer("".join(values).encode(), np.uint8)
    size = np.array([len(value) for value in values])
    for at, kind in enumerate(kinds):
        twin = gather(buf, np.cumsum(size) - size, size, kind.value).array
        wanted = twin.cast("int64") if kind is PropertyType.TIMESTAMP else twin
        for value, row, expected in zip(values, rows, wanted.to_pylist(), strict=True):
            # shown are the years 0001 to 9999
            is_beyond = kind is PropertyType.TIMESTAMP and expected is not None and abs(expected) > 62_000_000_000_000
            if not is_beyond:
                assert row[at] == expected, (value, kind)


@pytest.fixture
def output(bootstrap: str, new_topic: NewTopicFixture) -> str:
    return new_topic()


def test_the_deliveries_of_a_consumer(spark: SparkSession, bootstrap: str, output: str, tmp_path: Path) -> None:
    declared = "properties: {n: long, d: {type: double, from: '{value:a.d}'}, k: {type: string, from: '{key}'}}\n"
    folder = write_folder(tmp_path / "config", bootstrap, output, stream=declared)
    first = Delivery(
        4, b'{"a": {"d": 1.5}}', b"k", [("n", b"7"), ("n", b"8"), ("empty", None)], time_ms=1_600_000_000_007
    )
    deliver(bootstrap, output, [first, Delivery(9, None), Delivery(5, consumer="other")])
    deliver(bootstrap, output, [Delivery(10)], commit=False)
    producer = SureProducer(bootstrap)
    # a status record, a record of someone else, and one that looks like a status and is a delivery
    producer.produce(output, None, headers=[("Nats-Status", b"100"), ("Nats-Reply-To", b"$JS.FC.S.c.x")])
    producer.produce(output, b"{}", headers=[])
    producer.produce(output, None, headers=[("Nats-Status", b"100"), *Delivery(11).all_headers])
    assert producer.flush(30) == 0
    frame = read_consumer(spark, folder, "c", decode=True)
    assert frame.columns == [*COLUMNS, "application_properties"]
    rows = frame.orderBy("offset").collect()
    assert [row.sequence for row in rows] == [4, 9, 11]
    row = rows[0]
    assert (row.subject, row.stream, row.consumer, row.consumer_sequence, row.num_delivered) == ("a.b", "S", "c", 4, 1)
    assert row.timestamp.replace(tzinfo=UTC) == datetime(2020, 9, 13, 12, 26, 40, 7000, tzinfo=UTC)
    assert (row.ack_token, row.key, row.value) == (first.token, b"k", first.value)
    assert [(header.name, header.value) for header in row.headers] == [(n, v) for n, v in first.all_headers]
    assert (row.topic, row.partition, row.offset) == (output, 0, 0)
    assert row.application_properties == Row(n=8, d=1.5, k="k")
    assert rows[1].application_properties == Row(n=None, d=None, k=None)


def test_times_in_json(spark: SparkSession) -> None:
    stream = describe_topic("t", {"at": {"type": "timestamp", "from": "{value:e.at}"}})
    ms = 1_600_000_000_007
    cases = {
        f"{ms}": ms,
        f'"{datetime.fromtimestamp(ms / 1000, UTC).isoformat()}"': ms,
        '"2020-09-13T14:26:40.007+02:00"': ms,
        '"2020-09-13T12:26:40.007"': None,
        '"yesterday"': None,
        "{}": None,
        "null": None,
    }
    rows = [(f'{{"e": {{"at": {text}}}}}'.encode(),) for text in cases]
    decoded = decode_properties(spark.createDataFrame(rows, "value binary"), stream)
    assert decoded.select("application_properties.at").schema["at"].dataType == TYPES[PropertyType.TIMESTAMP]
    found = decoded.select(F.unix_millis("application_properties.at")).collect()
    assert [row[0] for row in found] == list(cases.values())


@pytest.mark.parametrize("read", [read_consumer, read_stream_consumer])
def test_an_option_that_spark_would_ignore_is_refused(read: Any, tmp_path: Path) -> None:
    """Before the folder, Kafka or Spark are looked at."""
    for name, meant in (("startingOffset", "startingOffsets"), ("MaxOffsetPerTrigger", "maxOffsetsPerTrigger")):
        with pytest.raises(BadQuestion, match=f"no option '{name}'. Did you mean {meant}[?]"):
            read(None, tmp_path / "nowhere", "c", options={name: "1"})
    for name in ("startingoffsets", "kafka.fetch.max.bytes"):
        with pytest.raises(ConfigError):
            read(None, tmp_path / "nowhere", "c", options={name: "1"})


@given(st.data())
def test_what_has_been_seen(data: st.DataObject) -> None:
    """Against a set, with the state packed and read again between batches; a bound forgets whole blocks, oldest first."""
    sequences = st.lists(st.integers(0, 3 * BLOCK).map(lambda n: n * 37 % (4 * BLOCK)), max_size=30)
    state, known = b"", set[int]()
    for batch in data.draw(st.lists(sequences, max_size=4)):
        seen = Seen(4, state)
        fresh = seen.note(np.array(batch, np.int64)).tolist()
        assert fresh == [number not in known and number not in batch[:i] for i, number in enumerate(batch)]
        known.update(batch)
        state = seen.pack()
    bounded = Seen(2)
    for block in (0, 1, 0, 2):
        bounded.note(np.array([block * BLOCK]))
    assert bounded.note(np.array([0, 2 * BLOCK])).tolist() == [False, False]
    assert bounded.note(np.array([BLOCK])).tolist() == [True]


def run_once(frame: DataFrame, folder: Path, name: str) -> list[int]:
    """Everything that is there, from a checkpoint on: the sequences, sorted."""
    found: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: found.extend(row.sequence for row in batch.collect()))
        .option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return sorted(found)


def test_redeliveries_are_left_out(spark: SparkSession, bootstrap: str, output: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "config", bootstrap, output, more="delivery: at_least_once\n")
    deliver(bootstrap, output, [Delivery(n, b"x", headers=[("h", b"1")]) for n in (1, 2, 3, 2, 5000)])
    frame = read_stream_consumer(spark, folder, "c")
    assert frame.columns == list(COLUMNS)
    assert run_once(frame, tmp_path, "a") == [1, 2, 3, 5000]
    deliver(bootstrap, output, [Delivery(3, deliveries=2), Delivery(4), Delivery(5000, deliveries=3)])
    assert run_once(frame, tmp_path, "a") == [4]
    everything = read_stream_consumer(spark, folder, "c", redeliveries=True)
    assert run_once(everything, tmp_path, "b") == [1, 2, 2, 3, 3, 4, 5000, 5000]
    assert committed(bootstrap, "c", output) == end_of(bootstrap, output)


def test_a_query_of_another_consumer_says_nothing_of_this_one(
    spark: SparkSession, bootstrap: str, output: str, tmp_path: Path
) -> None:
    """Two consumers write to one output. `d` is followed as well, and its query has not begun; `both` reads both."""
    folder = write_folder(tmp_path / "config", bootstrap, output)
    (folder / "consumers/d.yaml").write_text((folder / "consumers/c.yaml").read_text().replace("name: c", "name: d"))
    deliver(bootstrap, output, [Delivery(1), Delivery(2, consumer="d"), Delivery(3)])
    of_d, of_c = read_stream_consumer(spark, folder, "d"), read_stream_consumer(spark, folder, "c")
    assert run_once(of_c, tmp_path, "c") == [1, 3]
    # the listener of d came first: it has heard of the batch when that of c commits
    wait_until(lambda: committed(bootstrap, "c", output) == end_of(bootstrap, output), 30, "c's offsets are committed")
    assert committed(bootstrap, "d", output) < 0
    assert run_once(of_c.union(of_d), tmp_path, "both") == [1, 2, 3]
    wait_until(lambda: committed(bootstrap, "d", output) == end_of(bootstrap, output), 30, "d's offsets are committed")


def committed(bootstrap: str, group: str, topic: str) -> int:
    """What the service would see of the reader group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], 10)
    finally:
        consumer.close()
    return int(found.offset)


def end_of(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1])
    finally:
        consumer.close()


def test_a_gap_that_retention_made(spark: SparkSession, bootstrap: str, output: str, tmp_path: Path) -> None:
    """As Spark's own source has it: an error unless failOnDataLoss is off."""
    folder = write_folder(tmp_path / "config", bootstrap, output)
    deliver(bootstrap, output, [Delivery(n) for n in (1, 2)])
    options = {"maxOffsetsPerTrigger": "100"}
    assert run_once(read_stream_consumer(spark, folder, "c", options=options), tmp_path, "c") == [1, 2]
    deliver(bootstrap, output, [Delivery(n) for n in (3, 4)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([TopicPartition(output, 0, 4)])[TopicPartition(output, 0)].result(10)
    with pytest.raises(StreamingQueryException, match=r"data loss|failOnDataLoss|missing"):
        run_once(read_stream_consumer(spark, folder, "c"), tmp_path, "c")
    careless = read_stream_consumer(spark, folder, "c", options={"failOnDataLoss": "false"})
    assert run_once(careless, tmp_path, "c") == [4]


def test_who_wants_answers_is_no_source_of_a_stream(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "config", bootstrap, "out", more="flow_control: true\nidle_heartbeat: 1s\n")
    with pytest.raises(NotForStreams, match="flow_control: true"):
        read_stream_consumer(spark, folder, "c")


@pytest.mark.parametrize("read", [read_consumer, read_stream_consumer])
def test_wrong_names_are_refused_before_spark_plans(
    spark: SparkSession, bootstrap: str, tmp_path: Path, read: Any
) -> None:
    folder = write_folder(tmp_path / "config", bootstrap, "nowhere")
    with pytest.raises(UnknownConsumer, match=r"config: there is no consumer 'cc'\. Did you mean c\? There is c"):
        read(spark, folder, "cc")
    with pytest.raises(UnknownConsumer, match="there is no consumer 'c' of stream 'T'"):
        read(spark, folder, "c", stream="T")
    with pytest.raises(TopicNotFound, match="topic 'nowhere': there is no such topic"):
        read(spark, folder, "c")
    (folder / "consumers" / "c.yaml").write_text("stream: S\ndurable_name: c\nfilter: {sql: 'a = = 1'}\n")
    with pytest.raises(UnknownConsumer, match=r"Files of the folder that were refused:\n.*c\.yaml"):
        read(spark, folder, "c")
    with pytest.raises(ConfigError, match="no such file"):
        read(spark, tmp_path / "elsewhere", "c")


def test_offsets_of_other_sources_are_none() -> None:
    assert read_offsets('{"out": {"0": 7, "1": 9}, "x": {"0": 1}}', "out") == {0: 7, 1: 9}
    for text in (None, "", "null", "7", '{"x": {"0": 1}}', '{"out": 3}', "[1]", '{"sequence": 3}'):
        assert read_offsets(text, "out") == {}


def test_the_slowest_source_of_a_query_counts() -> None:
    assert find_lowest([{0: 7, 1: 9}, {}, {0: 5, 1: 11}]) == {0: 5, 1: 9}
    assert find_lowest([{0: 7, 1: 9}, {0: 8}]) == {0: 7}
    assert find_lowest([]) == find_lowest([{}]) == {}


SOURCE_FILES = (
    *("acks", "before_arrow", "connection", "decoding", "envelope", "interest"),
    *("output", "redeliveries", "source", "times", "value_fields"),
)


def find_version(thing: object) -> tuple[int, int] | None:
    """The version in which Spark says that it added something."""
    found = re.search(r"versionadded:: (\d+)\.(\d+)", getattr(thing, "__doc__", None) or "")
    return (int(found[1]), int(found[2])) if found else None


def test_nothing_is_newer_than_spark_3_5() -> None:
    """Every function, method and class of Spark that these files could mean by a name has been there in 3.5."""
    from pyspark.sql import streaming

    owners: list[Any] = [
        *(getattr(pyspark.sql, name) for name in ("DataFrame", "Column", "SparkSession", "GroupedData")),
        *(getattr(pyspark.sql, name) for name in ("DataFrameReader", "DataFrameWriter")),
        *(getattr(streaming, name) for name in ("DataStreamReader", "DataStreamWriter", "StreamingQuery")),
    ]
    looked_at = 0
    for name in SOURCE_FILES:
        tree = ast.parse((Path(package.__path__[0]) / f"{name}.py").read_text(encoding="utf-8"))
        assert "datasource" not in ast.unparse(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute):
                continue
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            candidates = {"F": [F], "state": [], "pa": [], "pc": []}.get(of, owners)
            versions = [find_version(getattr(owner, node.attr, None)) for owner in candidates]
            known = [version for version in versions if version is not None]
            looked_at += bool(known)
            assert not known or min(known) <= OLDEST, f"{name}.py: {node.attr} came with Spark {min(known)}"
    assert looked_at > 40
    # the test's own eye
    assert find_version(F.try_to_date) == (4, 0)
