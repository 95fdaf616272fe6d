"""The index that Spark makes, against the one that a single sealer makes of the same log: the same chunks to the last byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from overlay.config import IndexConfig, load
from overlay.errors import Fenced, OverlayError
from overlay.index.skip.encode import encode
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import index_topic
from spark import index as job
from spark.chunks import Batches, Range, deal_chunks, find_ends, join_batches
from spark.index import index_stream
from tests.client.indexing import seal
from tests.client.logs import KEPT, Log, fill, open_log
from tests.support.kafka import make_topic
from tests.worker.scenes import read_committed

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 2
SOURCE: TopicPartition = ("t", 0)
sizes = st.lists(st.tuples(st.integers(0, 40), st.integers(60, 5000), st.integers(1, 5)), max_size=60)


def make_batches(rows: list[tuple[int, int, int]]) -> Batches:
    """Records, bytes and offsets of each batch."""
    last = np.cumsum([offsets for *_, offsets in rows], dtype=np.int64) - 1
    records, size = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    return Batches(last, records, size, np.zeros(len(rows), np.bool_))


@given(sizes, st.integers(1, 50), st.integers(1024, 8000), st.integers(1, 20_000))
def test_ends_are_where_a_sealer_ends_chunks(
    rows: list[tuple[int, int, int]], chunk_records: int, chunk_bytes: int, size: int
) -> None:
    batches = make_batches(rows)
    ends, records, weight = list[int](), 0, 0
    for last, count, bytes in zip(batches.last_offset, batches.records, batches.bytes, strict=True):
        records, weight = records + int(count), weight + int(bytes)
        if records >= chunk_records or weight >= chunk_bytes:
            ends.append(int(last) + 1)
            records = weight = 0
    index = IndexConfig(chunk_records=chunk_records, chunk_bytes=chunk_bytes)
    assert find_ends(batches, index) == ends
    stop = int(batches.last_offset[-1]) + 1 if rows else 0
    parts = deal_chunks(SOURCE, 0, stop, ends, batches, size)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert all(part.stop in (*ends, stop) for part in parts) and (not parts or parts[-1].stop == stop)


def test_a_batch_that_cannot_be_read_ends_a_chunk() -> None:
    batches = make_batches([(10, 100, 10)] * 6)
    batches.broken[2] = True
    assert find_ends(batches, IndexConfig(chunk_records=20)) == [20, 30, 50]


def test_batches_of_neighbouring_parts_are_joined() -> None:
    whole = make_batches([(1, 100, 1), (2, 200, 2), (3, 300, 3)])
    names = ("last_offset", "records", "bytes", "broken")
    parts = [Batches(*(getattr(whole, name)[at] for name in names)) for at in (slice(0, 1), slice(1, 3))]
    joined = join_batches(parts)
    assert joined.last_offset.tolist() == [0, 2, 5] and joined.records.tolist() == [1, 2, 3]
    assert join_batches([]).last_offset.size == 0


@pytest.fixture
def log(bootstrap: str, tmp_path: Path) -> Log:
    """Transactions, aborted ones among them, in small chunks."""
    topic = make_topic(bootstrap, f"to-index-{tmp_path.name}", PARTITIONS, KEPT)
    fill(bootstrap, topic, PARTITIONS)
    folder = tmp_path / "config"
    opened = open_log(bootstrap, folder, topic)
    file = folder / "streams" / "s.yaml"
    file.write_text(file.read_text() + "index: {chunk_records: 50, terms: [delay], zones: [n]}\n")
    return opened


def read_index(bootstrap: str, log: Log) -> dict[bytes, bytes]:
    topic = index_topic(log.client.prefix, "S")
    return {record.key or b"": record.value or b"" for record in read_committed(bootstrap, topic)}


def seal_alone(log: Log) -> dict[bytes, bytes]:
    stream = load(Path(log.client.origin)).streams["S"]
    headers = seal(log.client.kafka, stream, [(log.topic, p) for p in range(PARTITIONS)])
    return dict(map(encode, headers))


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "TASK_OFFSETS", 333)
    monkeypatch.setattr(job, "TASK_BYTES", 6_000)


@pytest.mark.usefixtures("small_tasks")
def test_the_index_is_that_of_a_service(spark: SparkSession, bootstrap: str, log: Log) -> None:
    done = index_stream(spark, log.client.origin, "S")
    wanted = seal_alone(log)
    assert read_index(bootstrap, log) == wanted and len(wanted) > 15
    assert done.chunks == len(wanted) and done.done == done.total
    again = index_stream(spark, log.client.origin, "S")
    assert again.chunks <= PARTITIONS  # the last chunk of each partition may still grow


@pytest.mark.usefixtures("small_tasks")
def test_it_goes_on_where_it_was(
    spark: SparkSession, bootstrap: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fenced in the midst, as by a service that starts: what was committed stays, and nothing is missing in the end."""
    monkeypatch.setattr(job, "WAVE", 1)
    waves: list[int] = []
    run: Callable[..., list[Any]] = job.run_tasks

    def run_and_fence(spark: SparkSession, work: Callable[[Any], Any], items: list[Range]) -> list[Any]:
        if len(waves) == 3:
            raise Fenced("another writer has the shard now")
        waves.append(len(items))
        return run(spark, work, items)

    monkeypatch.setattr(job, "run_tasks", run_and_fence)
    with pytest.raises(Fenced):
        index_stream(spark, log.client.origin, "S")
    monkeypatch.setattr(job, "run_tasks", run)
    wanted = seal_alone(log)
    before = read_index(bootstrap, log)
    assert 0 < len(before) < len(wanted) and before.items() <= wanted.items()
    done = index_stream(spark, log.client.origin, "S")
    assert read_index(bootstrap, log) == wanted and done.chunks <= len(wanted) - len(before) + PARTITIONS


async def test_a_wave_is_at_work_while_the_one_before_it_is_written(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "WAVE", 1)
    size, loop = spark.sparkContext.defaultParallelism, asyncio.get_running_loop()
    begun = [asyncio.Event() for _ in range(3)]

    def run(_: SparkSession, work: Callable[[int], int], items: list[int]) -> list[int]:
        loop.call_soon_threadsafe(begun[items[0] // size].set)
        return [work(item) for item in items]

    monkeypatch.setattr(job, "run_tasks", run)
    seen: list[int] = []
    async with aclosing(job._run_waves(spark, lambda item: -item, range(3 * size))) as waves:
        async for wave in waves:
            seen += wave
            await asyncio.wait_for(begun[min(len(seen) // size, 2)].wait(), 10)
    assert seen == [-item for item in range(3 * size)]


async def test_waves_before_one_that_fails_are_handed_out(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "WAVE", 1)
    size, seen = spark.sparkContext.defaultParallelism, list[int]()
    monkeypatch.setattr(job, "run_tasks", lambda _, work, items: [work(item) for item in items])
    with pytest.raises(ZeroDivisionError):
        async with aclosing(job._run_waves(spark, lambda item: 1 // (2 * size - item), range(4 * size))) as waves:
            async for wave in waves:
                seen += wave
    assert len(seen) == 2 * size


def test_what_is_wrong(spark: SparkSession, log: Log) -> None:
    with pytest.raises(OverlayError, match="there is no stream 'SS' in the config folder; there is S"):
        index_stream(spark, log.client.origin, "SS")
