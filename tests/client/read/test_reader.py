"""Readings of a real topic against what confluent-kafka reads: transactions, codecs, partitions, bounds, the last ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

import overlay
from overlay.client import SCHEMA, Progress
from overlay.client.read.bounds import NoSequence, ReadBounds
from overlay.client.read.indexes import ReadPlan
from overlay.client.read.offset_ranges import OffsetRange
from overlay.client.read.question import make_request
from overlay.client.read.range_reading import RangeReading
from overlay.client.read.reader import Scan
from overlay.client.read.row_filter import RowFilter
from overlay.client.read.topic import describe_topic
from overlay.config.stream import OnCorrupt
from overlay.errors import CorruptBatch, SourceUnavailable
from overlay.filter import compile_properties, compile_sql
from overlay.inspect.reading import TopicNotFound
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import LogPosition
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from overlay.state.partitions import Sources
from tests.client.logs import (
    BASE,
    KEPT,
    PREFIX,
    Log,
    by_partition,
    fill,
    is_wanted,
    merge_last,
    name_offsets,
    open_log,
    passes,
    read_offsets,
    read_properties,
)
from tests.index.test_start_positions import delete_below
from tests.oracle.batches import Record
from tests.support.batches import build
from tests.support.kafka import NewTopicFixture, make_topic, produce_values
from tests.support.waiting import wait_until

WHERE = ["partition", "offset"]


@pytest.fixture(scope="module")
def log(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Log:
    topic = make_topic(bootstrap, f"reader-{tmp_path_factory.getbasetemp().name}", 3, KEPT)
    fill(bootstrap, topic, 3)
    return open_log(bootstrap, tmp_path_factory.mktemp("reader") / "config", topic)


@pytest.fixture(scope="module")
def single(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Log:
    topic = make_topic(bootstrap, f"single-{tmp_path_factory.getbasetemp().name}", 1, KEPT)
    fill(bootstrap, topic, 1, seed=2)
    return open_log(bootstrap, tmp_path_factory.mktemp("single") / "config", topic)


def test_the_log_has_what_it_should(log: Log) -> None:
    """Else the tests below compare little with little."""
    offsets = [record.offset for seen in log.seen.values() for record in seen]
    assert len(log.seen) == 3 and sum(map(len, log.seen.values())) > 900
    assert sum(max(seen, key=lambda r: r.offset).offset for seen in log.seen.values()) > len(offsets) + 300  # aborted


def as_time(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("subjects", [[], ["t.rome"], ["t.*", "x.>"], ["t.oslo", "t.bonn"], ["x.>"]])
@pytest.mark.parametrize(
    ("since", "until"), [(None, None), (1_000, None), (None, 4_000), (2_000, 2_003), (9_999, None)]
)
def test_subjects_and_times(log: Log, subjects: Sequence[str], since: int | None, until: int | None) -> None:
    """Bounds that are the exact timestamps of records: the first is in, the second is out."""
    every = [record.timestamp - BASE for seen in log.addressed.values() for record in seen]
    since, until = (
        None if at is None else min((t for t in every if t >= at), default=at) + BASE for at in (since, until)
    )
    question: dict[str, Any] = {"since": since and as_time(since), "until": until and as_time(until)}
    found = by_partition(
        read_offsets(log.client.read("S", subjects=subjects, columns=WHERE, **{k: v for k, v in question.items() if v}))
    )
    wanted = {
        partition: offsets
        for partition, seen in log.seen.items()
        if (offsets := [r.offset for r in seen if is_wanted(r, subjects, since, until)])
    }
    assert found == wanted


@pytest.mark.parametrize(
    "sql",
    ["delay > 60", "delay IS NULL AND odd IS NULL", "[to] = 'rome' OR delay < 6.0", "raw = 0xFF00", "1 = 2", "delay"],
)
def test_sql(log: Log, sql: str) -> None:
    compiled = compile_sql(sql)
    reading = log.client.read("S", sql=sql, columns=WHERE)
    found = by_partition(read_offsets(reading))
    answers = {p: [(r.offset, passes(compiled, r)) for r in seen] for p, seen in log.addressed.items()}
    wanted = {p: [offset for offset, answer in pairs if answer] for p, pairs in answers.items()}
    assert found == {partition: offsets for partition, offsets in wanted.items() if offsets}
    assert reading.progress.unknown == sum(answer is None for pairs in answers.values() for _, answer in pairs)
    records = [record for seen in log.addressed.values() for record in seen]
    unreadable = {"delay": b"x", "odd": b"\xff\x00"}
    assert sum(reading.progress.nulls.values()) == sum(
        record.header(name.encode()) == value for name, value in unreadable.items() if name in sql for record in records
    )


def test_property_filters_and_json_fields(log: Log) -> None:
    wanted = {"application_properties": {"to": "&p:r", "raw": None}}
    compiled = compile_properties(wanted)
    found = by_partition(read_offsets(log.client.read("S", properties=wanted, columns=WHERE)))
    assert found == {p: [r.offset for r in seen if passes(compiled, r)] for p, seen in log.addressed.items()}
    found = by_partition(read_offsets(log.client.read("S", sql="n < 10 AND p.subject = 't.rome'", columns=WHERE)))
    small = [b'{"n": %d}' % n for n in range(10)]
    assert found == {
        p: [r.offset for r in seen if r.header(b"to") == b"rome" and r.value in small]
        for p, seen in log.addressed.items()
    }


def test_all_columns_are_what_another_client_reads(single: Log) -> None:
    pd: Any = pytest.importorskip("pandas")
    table = pa.table(single.client.read("S"))
    table.validate(full=True)
    assert table.schema == SCHEMA
    records = single.addressed[0]
    wanted = pd.DataFrame(
        {
            "subject": [PREFIX + (r.header(b"to") or b"").decode() for r in records],
            "stream": "S",
            "sequence": [r.offset + 1 for r in records],
            "timestamp": pd.to_datetime([r.timestamp for r in records], unit="ms").astype("datetime64[ms]"),
            "key": [r.key for r in records],
            "value": [r.value for r in records],
            "topic": single.topic,
            "partition": np.zeros(len(records), np.int32),
            "offset": [r.offset for r in records],
        }
    )
    found = table.to_pandas()
    pd.testing.assert_frame_equal(found[list(wanted.columns)], wanted)
    headers = [[(pair["name"].encode(), pair["value"]) for pair in pairs] for pairs in found["headers"]]
    assert headers == [r.headers for r in records]
    assert all(
        table[name].null_count == len(records)
        for name in ("consumer", "consumer_sequence", "num_delivered", "ack_token")
    )


def test_batches_stay_valid(single: Log) -> None:
    """What the next slices overwrite is not theirs."""
    kept = list(single.client.read("S", columns=["value"]))
    values = [value for batch in kept for value in batch["value"].to_pylist()]
    assert values == [r.value for r in single.addressed[0]]


def test_several_partitions_have_no_sequence(log: Log) -> None:
    (batch,) = log.client.read("S", limit=1)
    assert batch["sequence"].to_pylist() == [None]
    with pytest.raises(NoSequence, match="3 partitions"):
        list(log.client.read("S", from_seq=1))


@pytest.mark.parametrize("columns", [[], ["offset"], ["stream", "ack_token", "value"]])
def test_only_the_columns_asked_for_are_built(
    single: Log, monkeypatch: pytest.MonkeyPatch, columns: Sequence[str]
) -> None:
    built: list[str] = []
    from overlay.match import envelope

    for name, builder in envelope._BUILDERS.items():

        def note(rows: Any, name: str = name, builder: Any = builder) -> Any:
            built.append(name)
            return builder(rows)

        monkeypatch.setitem(envelope._BUILDERS, name, note)
    reading = single.client.read("S", columns=columns)
    batches = list(reading)
    assert sum(batch.num_rows for batch in batches) == len(single.addressed[0]) == reading.progress.matched
    assert reading.schema.names == list(columns)
    assert all(batch.schema == reading.schema for batch in batches)
    assert set(built) == {name for name in columns if name in envelope.COLUMNS}


def test_declared_properties_are_columns(log: Log) -> None:
    """Also in records that are merged: the last ones of several partitions, and the last of each subject."""
    every = {(r.partition, r.offset): r for seen in log.addressed.values() for r in seen}
    numbers = {b'{"n": %d}' % n: n for n in range(100)}
    for question in ({}, {"last": 200}, {"last_per_subject": True}, {"sql": "delay > 60", "limit": 9}):
        table = log.client.read("S", columns=[*WHERE, "n", "raw", "application_properties"], **question).to_table()
        assert table.num_rows
        for row in table.to_pylist():
            record = every[row["partition"], row["offset"]]
            own = read_properties(record)
            wanted = {name: own.get(name) for name in ("delay", "raw")} | {"n": numbers.get(record.value or b"")}
            assert row["application_properties"] == wanted
            assert (row["n"], row["raw"]) == (wanted["n"], wanted["raw"])


@pytest.mark.parametrize("limit", [0, 1, 7, 10_000])
def test_a_limit(single: Log, limit: int) -> None:
    reading = single.client.read("S", limit=limit, columns=WHERE)
    assert read_offsets(reading) == name_offsets(single.addressed[0])[:limit]
    assert reading.progress.matched == min(limit, len(single.addressed[0]))


@pytest.mark.parametrize("sequence", [1, 2, 300, 100_000])
def test_a_first_sequence(single: Log, sequence: int) -> None:
    found = single.client.read("S", from_seq=sequence, columns=["sequence"])
    assert [n for batch in found for n in batch["sequence"].to_pylist()] == [
        r.offset + 1 for r in single.addressed[0] if r.offset + 1 >= sequence
    ]


@pytest.fixture(params=[20_000, 40])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first span that is searched for the last ones: the whole log, or a small part of it."""
    monkeypatch.setattr("overlay.client.read.reader.WINDOW", request.param)


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("count", [0, 1, 5, 60, 100_000])
@pytest.mark.parametrize("sql", ["", "[to] = 'rome' AND raw IS NOT NULL AND delay > 60"])
def test_the_last_ones_of_several_partitions(log: Log, count: int, sql: str) -> None:
    compiled = compile_sql(sql or "1 = 1")
    matching = {p: [r for r in seen if passes(compiled, r)] for p, seen in log.addressed.items()}
    assert sum(map(len, matching.values())) > 5
    question: dict[str, Any] = {"sql": sql} if sql else {}
    reading = log.client.read("S", last=count, columns=WHERE, **question)
    assert read_offsets(reading) == name_offsets(merge_last(matching, count))
    counted = log.client.read("S", last=count, columns=[], **question)
    assert sum(batch.num_rows for batch in counted) == min(count, sum(map(len, matching.values())))


@pytest.mark.usefixtures("window")
def test_the_last_ones_within_bounds(single: Log) -> None:
    records = single.addressed[0]
    first = records[100].offset
    found = single.client.read("S", last=30, from_seq=first + 1, until=as_time(BASE + 2_500), columns=WHERE)
    wanted = [r for r in records if r.offset >= first and r.timestamp < BASE + 2_500]
    assert read_offsets(found) == name_offsets(wanted)[-30:]


def test_the_last_ones_are_looked_for_from_the_end(single: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.client.read.reader.WINDOW", 40)
    reading = single.client.read("S", last=5, columns=WHERE)
    assert len(list(reading)) == 1
    assert reading.progress.total is not None and reading.progress.done == reading.progress.total < 300


def test_records_without_a_subject_are_counted(log: Log) -> None:
    reading = log.client.read("S", columns=[])
    list(reading)
    total, addressed = (sum(map(len, found.values())) for found in (log.seen, log.addressed))
    assert reading.progress.scanned == total
    assert reading.progress.unaddressed == {"missing": total - addressed}
    assert reading.progress.done == reading.progress.total


def test_a_topic_without_a_file(log: Log) -> None:
    found = log.client.read(
        topic=log.topic, sql="delay > 60", declare={"delay": "double"}, columns=["subject", "stream", *WHERE]
    )
    compiled = compile_sql("delay > 60")
    table = pa.table(found)
    assert set(table["subject"].to_pylist()) == {log.topic} and table["stream"].null_count == table.num_rows
    assert by_partition(read_offsets(table.to_batches())) == {
        p: [r.offset for r in seen if passes(compiled, r)] for p, seen in log.seen.items()
    }


async def test_async(log: Log) -> None:
    found = [pair async for batch in log.client.read_async("S", columns=WHERE) for pair in read_offsets([batch])]
    assert by_partition(found) == {p: [r.offset for r in seen] for p, seen in log.addressed.items()}
    async with log.client.read_async("S", columns=WHERE) as reading:
        assert (await anext(reading)).num_rows
    async with aclosing(log.client.read_async("S", limit=0)) as nothing:
        assert [batch async for batch in nothing] == []


def test_open_transactions_are_not_waited_for(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a", b"b"])
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    produce_values(bootstrap, topic, [b"behind"])
    client = overlay.open(bootstrap=bootstrap)
    try:
        assert pa.table(client.read(topic=topic))["value"].to_pylist() == [b"a", b"b"]
    finally:
        producer.abort_transaction(30)
    # the coordinator ends the transaction in the log a moment after it has said so
    wait_until(lambda: pa.table(client.read(topic=topic)).num_rows > 2, 30, "the transaction has ended")
    assert pa.table(client.read(topic=topic))["value"].to_pylist() == [b"a", b"b", b"behind"]


def test_a_log_that_begins_later_and_an_empty_one(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic, empty = new_topic(), new_topic()
    produce_values(bootstrap, topic, [b"%d" % n for n in range(20)])
    delete_below(bootstrap, topic, 12)
    client = overlay.open(bootstrap=bootstrap)
    for question in ({}, {"last": 100}, {"from_seq": 3}, {"since": timedelta(days=1)}):
        assert pa.table(client.read(topic=topic, columns=["offset"], **question))["offset"].to_pylist() == list(
            range(12, 20)
        )
    assert pa.table(client.read(topic=empty)) == SCHEMA.empty_table()
    assert list(client.read(topic=empty, last=3)) == []


def test_topics_and_brokers_that_are_not_there(log: Log, bootstrap: str) -> None:
    with pytest.raises(TopicNotFound, match=f"Did you mean {log.topic}"):
        next(overlay.open(bootstrap=bootstrap).read(topic=log.topic + "x"))
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1: Kafka cannot be reached"):
        next(overlay.open(bootstrap="127.0.0.1:1").read(topic="t"))


BAD = build([Record(3, BASE, None, b"3")], base_offset=3, crc=7)
GOOD = [build([Record(n, BASE, None, b"%d" % n) for n in (at, at + 1)], base_offset=at) for at in (0, 4)]


@pytest.mark.parametrize("policy", OnCorrupt)
async def test_a_batch_that_cannot_be_read(policy: OnCorrupt) -> None:
    """What comes before it is handed out; what comes after it only when the stream's file says so."""
    stream = describe_topic("t", {}).model_copy(update={"on_corrupt": policy})
    request = make_request(stream, is_named=True, now=0, columns=["offset"])
    fetcher = Fetcher(None)  # it has no partition fetch, so it asks for nothing
    partition_fetch = PartitionFetch(fetcher, "t", 0, 0, 6)
    data = np.frombuffer(b"".join([GOOD[0], BAD, GOOD[1]]), np.uint8)
    partition_fetch.ready, partition_fetch.position = (
        Fetched(0, data, split(data).batches, NO_ABORTS, 6, 0, LogPosition(6)),
        6,
    )
    range_reading = RangeReading(fetcher, OffsetRange(("t", 0), 0, 6))
    range_reading._partition_fetches.append((partition_fetch, range_reading._fetch_ranges.popleft()))
    bounds = ReadBounds((), Sources((), {}))
    scan = Scan(None, None, RowFilter(request, sequenced=True), request, bounds, ReadPlan(()), Progress())  # type: ignore[arg-type]
    found: list[int] = []
    try:
        with pytest.raises(CorruptBatch, match="t-0@3: the CRC") if policy is OnCorrupt.STOP else _nothing():
            async for part in scan._take(range_reading):
                found += itertools.chain(*(batch["offset"].to_pylist() for batch in part.batches))
    finally:
        await fetcher.close()
    assert found == ([0, 1] if policy is OnCorrupt.STOP else [0, 1, 4, 5])
    assert scan.progress.skipped == (policy is OnCorrupt.SKIP)


class _nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


async def test_concurrent_readings(log: Log) -> None:
    async def count() -> int:
        return sum([batch.num_rows async for batch in log.client.read_async("S", columns=[])])

    total = sum(map(len, log.addressed.values()))
    assert await asyncio.gather(*(count() for _ in range(4))) == [total] * 4
