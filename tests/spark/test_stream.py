"""`readStream.format("overlay")`: every record once over triggers, limits and restarts, and positions that Spark can keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from overlay.client import BadQuestion
from overlay.clock import now_ms
from overlay.kafka.log_position import TopicPartition
from spark.figures import count_offsets
from spark.form import make_schema
from spark.options import read_options
from spark.partitions import LEAST_BYTES
from spark.plan import DataLoss
from spark.stream import OverlayStreamReader, read_position, share_out, write_position
from tests.index.test_start_positions import delete_below
from tests.support.kafka import NewTopicFixture, SureProducer, create_again

pytestmark = pytest.mark.timeout(300)

HOUR_MS = 3_600_000


class Feed:
    """Numbered records, dealt to the partitions in turn; every third one passes the filter."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic, self.sent, self._partitions = topic, 0, partitions
        self._producer = SureProducer(bootstrap, {"batch.num.messages": 20})
        self.options = {
            "bootstrap": bootstrap,
            "definition": f"{{name: S, topics: [{topic}], properties: {{n: long}}}}",
            "columns": "partition,offset,value",
            "sql": "n % 3 = 0",
            "startingOffsets": "earliest",
        }

    def produce(self, count: int, age_ms: int = 0) -> None:
        time = now_ms() - age_ms
        for number in range(self.sent, self.sent + count):
            headers: list[tuple[str, str | bytes | None]] = [("n", str(number))]
            to = number % self._partitions
            self._producer.produce(self.topic, b"%d" % number, partition=to, headers=headers, timestamp=time)
        self._producer.flush(30)
        self.sent += count

    @property
    def wanted(self) -> list[int]:
        return [number for number in range(self.sent) if number % 3 == 0]

    def reader(self, **options: str) -> OverlayStreamReader:
        ask = read_options(self.options | options)
        return OverlayStreamReader(ask, make_schema(ask.request.stream, ask.columns))


@pytest.fixture
def feed(bootstrap: str, new_topic: NewTopicFixture) -> Feed:
    return Feed(bootstrap, new_topic(partitions=2), 2)


def take(reader: OverlayStreamReader, start: Any, end: Any) -> list[int]:
    parts = reader.partitions(start, end)
    return [int(value) for part in parts for batch in reader.read(part) for value in batch["value"].to_pylist()]


@given(
    st.dictionaries(st.tuples(st.text(min_size=1), st.integers(0, 99)), st.integers(0, 2**63 - 1)),
    st.dictionaries(st.text(min_size=1), st.text()),
)
def test_positions_are_kept_as_json(spots: dict[TopicPartition, int], ids: dict[str, str]) -> None:
    position = json.loads(json.dumps(write_position(spots, ids)))
    assert read_position(position) == spots
    again = write_position(dict(reversed(spots.items())), dict(reversed(ids.items())))
    assert json.dumps(position) == json.dumps(again)


@given(
    st.dictionaries(st.tuples(st.just("t"), st.integers(0, 9)), st.tuples(st.integers(0, 999), st.integers(0, 9999))),
    st.integers(1, 20_000),
    st.floats(0.5, 500),
)
def test_limits_are_shared_out(waiting: dict[TopicPartition, tuple[int, int]], most: int, weight: float) -> None:
    waiting = {source: (start, start + count) for source, (start, count) in waiting.items()}
    shared = share_out(waiting, most, dict.fromkeys(waiting, weight))
    given = sum((end - start) * weight for start, end in shared.values())
    assert given <= most + len(waiting) * weight
    for source, (start, end) in shared.items():
        assert start == waiting[source][0] and start <= end <= waiting[source][1]
        assert (end > start) is (waiting[source][1] > start)  # no partition starves


def test_limits(feed: Feed) -> None:
    feed.produce(600)
    reader = feed.reader(maxRecordsPerTrigger="100")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    at, found = reader.initialOffset(), list[int]()
    for _ in range(6):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        assert sum(read_position(end).values()) - sum(read_position(at).values()) <= 100
        found += take(reader, at, end)
        at = end
    assert sorted(found) == feed.wanted
    assert reader.latestOffset(at, ReadMaxRows(100)) == at and reader.partitions(at, at) == []
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) == at == reader.reportLatestOffset()
    slim = feed.reader(maxBytesPerTrigger="3000", maxRecordsPerTrigger="5000")
    first = slim.latestOffset(slim.initialOffset(), slim.getDefaultReadLimit())
    assert 0 < sum(first[feed.topic].values()) < 300
    assert feed.reader(maxBytesPerTrigger="3000").getDefaultReadLimit() == ReadMaxBytes(3000)


def test_available_now_ends_where_the_log_was(feed: Feed) -> None:
    feed.produce(100)
    reader = feed.reader()
    reader.prepareForTriggerAvailableNow()
    feed.produce(100)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end[feed.topic] == {"0": 50, "1": 50} and reader.latestOffset(end, ReadAllAvailable()) == end


def test_where_it_begins(feed: Feed) -> None:
    feed.produce(100)
    del feed.options["startingOffsets"]
    at_end, at_time = feed.reader(), feed.reader(startingTime="2h")
    there = feed.reader(startingOffsets=json.dumps({feed.topic: {"0": 7}}))
    assert at_end.initialOffset()[feed.topic] == {"0": 50, "1": 50}
    assert at_time.initialOffset()[feed.topic] == {"0": 0, "1": 0}
    assert there.initialOffset()[feed.topic] == {"0": 7, "1": 50}
    with pytest.raises(BadQuestion, match="a stream has no end"):
        feed.reader(endingOffsets="latest")


def test_a_time_to_begin_at_is_no_filter(feed: Feed) -> None:
    """Nor does it become another one when a query that has a checkpoint is started anew."""
    del feed.options["startingOffsets"]
    for age_ms in (3 * HOUR_MS, HOUR_MS, 3 * HOUR_MS):
        feed.produce(100, age_ms)
    reader, later = feed.reader(startingTime="2h"), feed.reader(startingTime="1ms")
    start = reader.initialOffset()
    assert start[feed.topic] == {"0": 50, "1": 50}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sorted(take(reader, start, end)) == sorted(take(later, start, end)) == [n for n in feed.wanted if n >= 100]


def test_a_time_that_no_record_has_yet(feed: Feed, bootstrap: str) -> None:
    """Begins at the end, also where the log has lost its beginning and brokers cannot be asked."""
    del feed.options["startingOffsets"]
    feed.produce(50)
    feed.produce(50, 3 * HOUR_MS)
    delete_below(bootstrap, feed.topic, 30)
    assert feed.reader(startingTime="2h").initialOffset()[feed.topic] == {"0": 50, "1": 0}


def test_what_retention_removed(feed: Feed, bootstrap: str) -> None:
    feed.produce(100)
    strict, lax = feed.reader(), feed.reader(failOnDataLoss="false")
    start = strict.initialOffset()
    delete_below(bootstrap, feed.topic, 30)
    end = strict.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLoss, match="offset 0 is gone: the log begins at 30"):
        strict.partitions(start, end)
    assert sorted(take(lax, start, end)) == [n for n in feed.wanted if n % 2 or n >= 60]


@pytest.mark.parametrize("count", [20, 300])
def test_a_topic_that_was_created_again(feed: Feed, bootstrap: str, count: int) -> None:
    """With fewer records than had been read, and with more: also after a restart of the query."""
    feed.produce(100)
    strict, lax = feed.reader(), feed.reader(failOnDataLoss="false")
    start = strict.initialOffset()
    at = strict.latestOffset(start, ReadAllAvailable())
    assert sorted(take(strict, start, at)) == feed.wanted
    create_again(bootstrap, feed.topic, 2)
    feed.sent = 0
    feed.produce(count)
    for reader in (strict, feed.reader()):
        with pytest.raises(DataLoss, match=f"{feed.topic}: the topic was deleted and created again"):
            reader.latestOffset(at, ReadAllAvailable())
    end = lax.latestOffset(at, ReadAllAvailable())
    assert sorted(take(lax, at, end)) == feed.wanted
    assert lax.latestOffset(end, ReadAllAvailable()) == end
    assert strict.latestOffset(end, ReadAllAvailable()) == end


def test_a_batch_that_was_begun_before_its_topic_was_created_again(feed: Feed, bootstrap: str) -> None:
    """It reads nothing of the new topic, although that has its offsets; the next one reads that from its start."""
    feed.produce(100)
    strict, lax = feed.reader(), feed.reader(failOnDataLoss="false")
    start = strict.initialOffset()
    at = strict.latestOffset(start, ReadAllAvailable())
    create_again(bootstrap, feed.topic, 2)
    feed.sent = 0
    feed.produce(300)
    with pytest.raises(DataLoss, match=f"{feed.topic}: the topic was deleted and created again"):
        strict.partitions(start, at)
    assert lax.partitions(start, at) == []
    assert sorted(take(lax, at, lax.latestOffset(at, ReadAllAvailable()))) == feed.wanted


def test_a_log_that_ends_before_the_position(feed: Feed) -> None:
    feed.produce(100)
    strict, lax = feed.reader(), feed.reader(failOnDataLoss="false")
    start = strict.initialOffset()
    at = strict.latestOffset(start, ReadAllAvailable())
    ahead = at | {feed.topic: {"0": 80, "1": 50}}
    with pytest.raises(DataLoss, match=f"{feed.topic}-0: offset 80 is behind the log's end, 50"):
        strict.latestOffset(ahead, ReadAllAvailable())
    with pytest.raises(DataLoss, match=f"{feed.topic}-0: the log ends at 50, before 80"):
        strict.partitions(start, ahead)
    assert lax.latestOffset(ahead, ReadAllAvailable()) == at
    assert take(lax, ahead, at) == []
    assert sorted(take(lax, start, ahead)) == feed.wanted
    feed.produce(20)
    end = lax.latestOffset(at, ReadAllAvailable())
    assert sorted(take(lax, at, end)) == [number for number in feed.wanted if number >= 100]


def test_positions_of_earlier_versions_go_on(feed: Feed) -> None:
    """They have no ids of topics; the next ones do."""
    feed.produce(100)
    reader = feed.reader()
    start = {feed.topic: {"0": 10, "1": 10}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sorted(take(reader, start, end)) == [number for number in feed.wanted if number >= 20]
    assert set(end) == {feed.topic, "topic ids"}
    assert count_offsets(json.dumps(end)) == 100


def test_the_end_that_a_query_tells_is_a_place_to_begin_at(feed: Feed) -> None:
    """As it is copied from a query's progress, ids of topics and all."""
    feed.produce(100)
    told = feed.reader().reportLatestOffset()
    feed.produce(100)
    there = feed.reader(startingOffsets=json.dumps(told))
    assert there.initialOffset() == told
    end = there.latestOffset(told, ReadAllAvailable())
    assert sorted(take(there, told, end)) == [number for number in feed.wanted if number >= 100]
    other = {feed.topic: told[feed.topic], "topic ids": {feed.topic: "another"}}
    with pytest.raises(DataLoss, match="created again"):
        feed.reader(startingOffsets=json.dumps(other)).initialOffset()
    lax = feed.reader(startingOffsets=json.dumps(other), failOnDataLoss="false")
    assert lax.initialOffset()[feed.topic] == {"0": 0, "1": 0}
    with pytest.raises(BadQuestion, match="topic ids"):
        feed.reader(startingOffsets=json.dumps(told | {"topic ids": 7}))


def start_query(frame: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(**trigger).start(str(folder / "out"))


def test_a_query_goes_on_where_it_was(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def run() -> StreamingQuery:
        frame = spark.readStream.format("overlay").options(**feed.options, maxRecordsPerTrigger="150").load()
        query = start_query(frame, tmp_path, availableNow=True)
        assert query.awaitTermination(120)
        return query

    feed.produce(400)
    progress = [p for p in run().recentProgress if p["numInputRows"]]
    assert len(progress) >= 3 and json.loads(progress[-1]["sources"][0]["endOffset"])[feed.topic]["0"] == 200
    feed.produce(200)
    run()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in rows) == feed.wanted
    assert all(row.offset == int(row.value) // 2 for row in rows)


def test_errors_come_with_the_overlays_message(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    frame = spark.readStream.format("overlay").options(bootstrap=bootstrap, topic="no-such-topic").load()
    with pytest.raises(StreamingQueryException, match="TopicNotFound"):
        start_query(frame, tmp_path, availableNow=True).awaitTermination(120)


def test_small_logs_are_few_tasks(feed: Feed) -> None:
    feed.produce(100)
    reader = feed.reader(minPartitions="50")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert len(reader.partitions(reader.initialOffset(), end)) == 1 and LEAST_BYTES > 100_000
