"""The chunk index that a job keeps: its headers are those of one sealer, whichever jobs and services took turns.

But for the last test the tasks run in this thread, without Spark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import overlay
from overlay.client.read.bounds import ReadBounds
from overlay.config import IndexConfig, load
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.encode import decode, encode
from overlay.kafka.admin import connect
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import index_topic
from overlay.state.job_reads import Ends
from overlay.state.partitions import Sources
from spark import index as plain
from spark.job import keeping
from spark.job.indexing import IndexProgress
from spark.job.keeping import StreamKeeper
from spark.pipeline import start_pipeline
from tests.client.indexing import seal, write_index
from tests.client.logs import by_partition, read_offsets
from tests.client.read.test_indexes import PROPERTIES, WHERE, draw_question, fill
from tests.client.read.test_indexes import gaps_cost_nothing as gaps_cost_nothing
from tests.support.index import check_chunks, read_index
from tests.support.kafka import NewTopicFixture, await_markers, delete_topic, make_topic, remove_records
from tests.worker.kept.test_indexes import await_indexed
from tests.worker.scenes import Scene, await_caught_up, produce, read_committed, serve
from tests.worker.scenes import scene as scene

CHUNK = 40
SOURCE: TopicPartition = ("t", 0)
Work = Callable[[Any], Any]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A stand-in for Spark that runs tasks in this thread."""

    def run(_: SparkSession, work: Work, items: list[Any]) -> list[Any]:
        return [work(item) for item in items]

    monkeypatch.setattr(keeping, "run_tasks", run)
    monkeypatch.setattr(plain, "run_tasks", run)
    return cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2)))


NO_LEDGER = ReadBounds((), Sources((), {}))


def keep(scene: Scene, stream: str = "S") -> StreamKeeper:
    loaded = load(scene.folder)
    return StreamKeeper(loaded.service, loaded.streams[stream], lambda: NO_LEDGER, with_chunks=True)


def add_stream(scene: Scene, topic: str) -> None:
    scene.add_stream("S", topic, subject={"header": "to"}, index={"chunk_records": CHUNK, "chunk_age": "200ms"})


def write(scene: Scene, topic: str, partitions: int, bursts: int = 4) -> None:
    """Add small batches to each partition, since a chunk never divides one."""
    for _ in range(bursts):
        for partition in range(partitions):
            produce(scene.bootstrap, topic, ["a.x", "a.y", "b.x"] * 5, partition=partition)


def find_ends(scene: Scene, topic: str, partitions: int) -> Ends:
    """A batch that has all of the log."""

    async def look() -> Ends:
        async with connect({"bootstrap.servers": scene.bootstrap}) as (admin, _):
            return await admin.find_bounds([(topic, partition) for partition in range(partitions)])

    return asyncio.run(look())


def read_headers(scene: Scene) -> dict[bytes, bytes]:
    """The chunk headers of the index topic by key; of a key that was written again, the last one."""
    await_markers(scene.bootstrap, index_topic(scene.prefix, "S"))
    seen = read_committed(scene.bootstrap, index_topic(scene.prefix, "S"))
    return {record.key or b"": record.value or b"" for record in seen if not (record.key or b"").startswith(b"run ")}


def check(scene: Scene, topic: str, partitions: int = 1, stream: str = "S", first: int = 0) -> None:
    """Every chunk is true of the log, and they lie one behind the other up to its end."""
    await_markers(scene.bootstrap, index_topic(scene.prefix, stream))
    index = read_index(scene, stream)
    for source, (_, end) in find_ends(scene, topic, partitions).items():
        chunks = index.of(source)
        chunks.drop(first)
        check_chunks(chunks, scene, topic, first=first, partition=source[1])
        assert chunks.next_offset[-1] == end


def seal_alone(scene: Scene, topic: str, partitions: int) -> dict[bytes, bytes]:
    """The headers that one sealer makes of the present log."""
    stream = load(scene.folder).streams["S"]
    headers = seal({"bootstrap.servers": scene.bootstrap}, stream, [(topic, number) for number in range(partitions)])
    return dict(map(encode, headers))


# The progress of an index, against a model of a log: batches of records, and chunks of four records.


def seal_model(batches: list[int], start: int, stop: int) -> Iterator[Header]:
    """The headers of a range. `batches`: the records of each; a batch without records is one offset."""
    first, records, offset = start, 0, 0
    for size in batches:
        begin, offset = offset, offset + max(size, 1)
        if begin < start:
            continue
        if offset > stop:
            # a batch that is cut off: the chunk that grows is not handed out
            if begin < stop:
                return
            break
        records += size
        if records >= 4:
            yield make_header(first, offset, records)
            first, records = offset, 0
    if records:
        yield make_header(first, min(offset, stop), records)


def make_header(first: int, after: int, records: int) -> Header:
    return Header(*SOURCE, first, after, records, records, 1, -1, -1, 0, after, exact=True, config_fingerprint=0)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 9), st.sampled_from([1, 4])), max_size=12),
)
def test_headers_do_not_depend_on_where_calls_end(batches: list[int], calls: list[tuple[int, int, int]]) -> None:
    """Ends in the midst of batches and chunks, limits, and calls that come too early."""
    progress, found = IndexProgress({SOURCE: LogPosition(0)}), dict[int, Header]()
    end, index = sum(max(size, 1) for size in batches), IndexConfig(chunk_records=4)
    whole = {header.first_offset: header for header in seal_model(batches, 0, end)}
    reached = 0

    def seal_once(stop: int, limit: int, least: int) -> bool:
        chosen = progress.choose({SOURCE: stop}, limit, least)
        for source, (start, stop) in chosen.items():
            for header in seal_model(batches, start, stop):
                found[header.first_offset] = header
                progress.add(header, index)
            progress.pass_over(source, stop)
        return bool(chosen)

    for stop, limit, least in calls:
        reached = max(reached, min(stop, end))
        seal_once(reached, limit, least)
        assert all(header == whole[first] for first, header in found.items() if header.records >= 4)
        assert found.keys() <= whole.keys()
    rounds = 0
    while seal_once(end, 3, 1):
        rounds += 1
        assert rounds <= end  # a limit does not keep it from the end
    assert {first: header for first, header in found.items() if header.records >= 4} == {
        first: header for first, header in whole.items() if header.records >= 4
    }


def test_a_limit_is_shared_by_the_partitions() -> None:
    progress = IndexProgress({("t", number): LogPosition(10 * number) for number in range(3)})
    ends = {("t", 0): 8, ("t", 1): 30, ("t", 2): 90}
    assert progress.choose(ends, 20, 1) == {("t", 0): (0, 8), ("t", 1): (10, 22)}
    assert progress.choose(ends, 1000, 21) == {("t", 2): (20, 90)}


@pytest.mark.parametrize("partitions", [1, 2])
def test_jobs_and_a_service_take_turns(
    scene: Scene, new_topic: NewTopicFixture, here: SparkSession, partitions: int
) -> None:
    """Each goes on behind the chunks of the one before, and none makes a full chunk twice."""
    topic = new_topic(partitions)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c")

    with keep(scene) as first, keep(scene) as second:
        for keeper in (first, second, first):
            write(scene, topic, partitions)
            assert keeper.index(here, find_ends(scene, topic, partitions)) >= partitions
            check(scene, topic, partitions)
        assert read_headers(scene) == seal_alone(scene, topic, partitions)
        with serve(scene) as served:
            write(scene, topic, partitions)
            ends = find_ends(scene, topic, partitions)
            assert first.index(here, ends) == second.index(here, ends) == 0
            for partition in range(partitions):
                await_indexed(scene, topic, 4 * 4 * 15, partition)
            await_caught_up(served, "c")
        check(scene, topic, partitions)
    write(scene, topic, partitions)
    with keep(scene) as third:
        assert third.index(here, find_ends(scene, topic, partitions)) >= partitions
        assert third.index(here, find_ends(scene, topic, partitions)) == 0
    assert read_headers(scene) == seal_alone(scene, topic, partitions)
    # a full chunk is written again only if a shorter header was replaced by it
    records = read_committed(scene.bootstrap, index_topic(scene.prefix, "S"))
    values = [decode(seen.value) for seen in records]
    full = [(h.partition, h.first_offset) for h in values if isinstance(h, Header) and h.records >= CHUNK]
    assert len(full) == len(set(full))
    # chunks of a job do not make a service take the stream for one with a ledger
    assert any((seen.key or b"").startswith(b"run ") for seen in records) == (partitions > 1)
    assert len(read_committed(scene.bootstrap, output)) == 16 * 15 * partitions


@pytest.mark.parametrize("other", ["job", "service"])
def test_a_driver_that_is_fenced_between_sealing_and_writing(
    scene: Scene, new_topic: NewTopicFixture, here: SparkSession, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """What it has sealed is not written; another owner has written the headers, by what it has read."""
    topic = new_topic(1)
    add_stream(scene, topic)
    write(scene, topic, 1, 3)
    run: Callable[..., list[Any]] = vars(keeping)["run_tasks"]
    with ExitStack() as stack:
        late, early = stack.enter_context(keep(scene)), stack.enter_context(keep(scene))

        def interrupt(spark: SparkSession, work: Work, items: list[Any]) -> list[Any]:
            sealed = run(spark, work, items)
            monkeypatch.setattr(keeping, "run_tasks", run)
            write(scene, topic, 1, 3)
            if other == "job":
                assert early.index(spark, find_ends(scene, topic, 1)) > 0
            else:
                stack.enter_context(serve(scene))
                await_indexed(scene, topic, 6 * 15)
            return sealed

        ends = find_ends(scene, topic, 1)
        monkeypatch.setattr(keeping, "run_tasks", interrupt)
        assert late.index(here, ends) == 0
        assert read_headers(scene) == seal_alone(scene, topic, 1)


def test_a_job_of_another_stream_on_the_same_shard(
    scene: Scene, new_topic: NewTopicFixture, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the shard while chunks are sealed. They are written all the same, and not sealed again."""
    topic, beside = new_topic(1), new_topic(1)
    add_stream(scene, topic)
    scene.add_stream("T", beside, subject={"header": "to"}, index={"chunk_records": CHUNK})
    for one in (topic, beside):
        write(scene, one, 1)
    run: Callable[..., list[Any]] = vars(keeping)["run_tasks"]
    with keep(scene) as keeper, keep(scene, "T") as other:

        def interrupt(spark: SparkSession, work: Work, items: list[Any]) -> list[Any]:
            sealed = run(spark, work, items)
            with monkeypatch.context() as patch:
                patch.setattr(keeping, "run_tasks", run)
                assert other.index(spark, find_ends(scene, beside, 1)) == 2
            return sealed

        monkeypatch.setattr(keeping, "run_tasks", interrupt)
        assert keeper.index(here, find_ends(scene, topic, 1)) == 2
    assert read_headers(scene) == seal_alone(scene, topic, 1)
    check(scene, beside, stream="T")


def test_tasks_that_fail_hold_up_no_batch(
    scene: Scene, new_topic: NewTopicFixture, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(1)
    add_stream(scene, topic)
    write(scene, topic, 1)
    monkeypatch.setattr(keeping, "LOOK_S", 0.0)
    with keep(scene) as keeper:
        with monkeypatch.context() as patch:
            patch.setattr(keeping, "seal", lambda *_: 1 // 0)
            assert keeper.index(spark, find_ends(scene, topic, 1)) == 0
        assert keeper.index(spark, find_ends(scene, topic, 1)) == 2
    assert read_headers(scene) == seal_alone(scene, topic, 1)


def test_retention_passes_what_was_to_be_indexed(scene: Scene, new_topic: NewTopicFixture, here: SparkSession) -> None:
    topic = new_topic(1)
    add_stream(scene, topic)
    write(scene, topic, 1)
    with keep(scene) as keeper:
        assert keeper.index(here, find_ends(scene, topic, 1)) == 2
        write(scene, topic, 1, 6)
        remove_records(scene.bootstrap, topic, 0, 90)
        assert keeper.index(here, find_ends(scene, topic, 1)) > 0
    check(scene, topic, first=90)


def test_a_topic_that_is_created_again_is_not_indexed_as_the_old_one(scene: Scene, here: SparkSession) -> None:
    topic = make_topic(scene.bootstrap, f"{scene.prefix}-again")
    add_stream(scene, topic)
    write(scene, topic, 1)
    with keep(scene) as keeper:
        assert keeper.index(here, find_ends(scene, topic, 1)) == 2
        before = read_headers(scene)
        delete_topic(scene.bootstrap, topic)
        make_topic(scene.bootstrap, topic)
        produce(scene.bootstrap, topic, ["b.y"] * 200)
        assert keeper.index(here, find_ends(scene, topic, 1)) == 0
    with keep(scene) as keeper:
        assert keeper.index(here, find_ends(scene, topic, 1)) == 0
    assert read_headers(scene) == before


@pytest.mark.parametrize("by", ["a job with consumers", "spark.index"])
def test_headers_of_a_compacted_topic_that_may_be_another_are_made_anew(
    scene: Scene, new_topic: NewTopicFixture, here: SparkSession, by: str
) -> None:
    """Of a compacted log only ends and epochs of batches can be compared, and the shard's state does not know its id."""
    topic, other = new_topic(1, cleanup_policy="compact"), new_topic(1)
    add_stream(scene, other)
    produce(scene.bootstrap, other, ["b.y"] * CHUNK)
    foreign = seal({"bootstrap.servers": scene.bootstrap}, load(scene.folder).streams["S"], [(other, 0)])
    add_stream(scene, topic)
    produce(scene.bootstrap, topic, ["a.x"] * CHUNK)
    write_index(scene.bootstrap, scene.prefix, "S", [replace(header, topic=topic) for header in foreign])
    with keep(scene) as keeper:
        if by == "spark.index":
            assert plain.index_stream(here, scene.folder, "S").chunks == len(foreign)
        else:
            assert keeper.index(here, find_ends(scene, topic, 1)) == len(foreign)
    with keep(scene) as keeper:
        # these headers are believed
        assert keeper.index(here, find_ends(scene, topic, 1)) == 0
    check(scene, topic)


def test_readings_through_the_index_find_the_same_records(
    scene: Scene, new_topic: NewTopicFixture, here: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with aborted transactions, indexed up to offsets anywhere in its batches; the rest of it is read as before."""
    monkeypatch.setattr(keeping, "ONE_TASK", 300)
    monkeypatch.setattr(plain, "TASK_OFFSETS", 200)
    monkeypatch.setattr(plain, "TASK_BYTES", 6_000)
    monkeypatch.setattr(keeping, "INDEX_S", 0.0)
    partitions, rng = 2, random.Random(1)
    topic = new_topic(partitions, retention_ms=-1)
    index = {"chunk_records": 25, "terms": ["delay", "n"], "zones": ["n", "raw"]}
    scene.add_stream("S", topic, properties=PROPERTIES, index=index)
    fill(scene.bootstrap, topic, partitions, rng, 20 * partitions)
    ends = find_ends(scene, topic, partitions)

    def cut(part: float) -> Ends:
        return {source: (first, first + round((end - first) * part)) for source, (first, end) in ends.items()}

    client = overlay.open(scene.folder)
    try:
        for parts in ((0.2,), (0.5, 0.55, 0.8), (0.97,)):
            with keep(scene) as keeper:
                for part in parts:
                    keeper.index(here, cut(part))
            unread = 0
            for _ in range(6):
                question = draw_question(rng, partitions)
                question.pop("from_seq", None)
                through = client.read("S", columns=WHERE, **question)
                found = read_offsets(through)
                wanted = read_offsets(client.read("S", columns=WHERE, index=False, **question))
                assert by_partition(found) == by_partition(wanted), question
                unread += through.progress.unread
            assert unread > 0
    finally:
        client.close()
    whole, headers = seal_alone(scene, topic, partitions), read_headers(scene)
    full = {key for key, value in headers.items() if isinstance(one := decode(value), Header) and one.records >= 25}
    assert len(full) > 10 * partitions and {key: headers[key] for key in full}.items() <= whole.items()
    assert headers.keys() <= whole.keys()


@pytest.mark.timeout(400)
def test_a_pipeline_keeps_the_chunk_index(
    spark: SparkSession, scene: Scene, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """A consumer that reads only a part of the log makes no difference to the index, nor does the index to its records."""
    topic = new_topic(2)
    add_stream(scene, topic)
    output = scene.add_consumer("S", "c", "b.x", engine="spark")

    write(scene, topic, 2)
    with start_pipeline(spark, scene.folder, "c", str(tmp_path / "checkpoint"), index=True) as query:
        assert query.awaitTermination(150)
    assert read_headers(scene) == seal_alone(scene, topic, 2)
    sequences = sorted(seen.token.sequence for seen in read_committed(scene.bootstrap, output))
    assert sequences == sorted(set(sequences)) and len(sequences) == 2 * 4 * 5 and sequences[0] > 0
