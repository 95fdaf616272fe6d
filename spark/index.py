"""Index an existing topic with many tasks: `python -m spark.index --config DIR --stream NAME`.

The chunks are those that a service makes (chunks.py). They are written with a service's right: in
transactions of the shard that keeps the stream's index, whose transactional id fences the former
owner. So the job does not begin while the group of workers has members, and a service that starts
meanwhile fences the job. What is committed stays. The next job, or a service, continues after it.

Tasks run in waves. The headers of a wave are written in the order of their partitions, before those
of the next wave. A hole in an index would stay for ever, because both a job and a service continue
after the last header. The next wave runs meanwhile, so that no core waits for the last task of a
wave or for Kafka.

Only chunk headers are written into the index topic. The sequences of a stream of several partitions
come from the ledger, which the service writes, or a job (job/keeping.py).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
from aiokafka.client import AIOKafkaClient
from pyspark.sql import SparkSession

from overlay.client.read.bounds import DEADLINE_S
from overlay.clock import now_ms
from overlay.config import IndexConfig, Loaded, StreamConfig, load
from overlay.config.service import TopicsConfig
from overlay.credentials import resolve
from overlay.errors import OverlayError
from overlay.index.log_check import void
from overlay.index.retention import index_config
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, new_topic
from overlay.kafka.connection import open_client, reach
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import index_topic, shard_of
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.partitions import list_sources
from overlay.state.shard_state import Delta, ShardState, encode
from overlay.state.takeover import ensure_state_topic, refuse_running_service, take_over

from .chunks import Batches, Range, count_batches, deal_chunks, find_ends, join_batches, seal

TASK_BYTES = 32 << 20
TASK_OFFSETS = 250_000
"""Offsets of a task that reads only batch headers, whose bytes are not known before."""
WAVE = 4
"""Tasks of a wave per core."""
AHEAD = 1
"""Waves that run at the same time as the one whose headers are written next."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class IndexingResult:
    """The result of a job that has reached the logs' ends. `chunks`: headers that it wrote. `total`:
    offsets in the logs of all partitions when it began. `done`: how many of them are in the index
    now, by this job or before it.
    """

    chunks: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class _Ground:
    """The starting point of a job: the index topic, the first offset to index by partition, the
    first and next offset of each log, and the transactions of the shard that the job has taken
    over. `generation`: that of the last owner among the workers, -1 if there was none.
    """

    topic: str
    starts: dict[TopicPartition, int]
    bounds: dict[TopicPartition, tuple[int, int]]
    transactions: Transactions
    signature: Delta
    """What the state gets with each transaction (`ShardState.sign`)."""
    identities: dict[tuple[str, str], str]
    """Kafka's ids of the topics that the index is made from, by stream and topic."""


def index_stream(spark: SparkSession, config: str | Path | Loaded, stream: str) -> IndexingResult:
    """Index a stream up to the last stable offset that each partition has now.

    Raises OverlayError, for an unknown stream or while a service runs among other reasons, and Spark's error if a
    task fails. What was committed before stays, and the next call continues after it.
    """
    loaded = config if isinstance(config, Loaded) else load(Path(config))
    if stream not in loaded.streams:
        known = ", ".join(sorted(loaded.streams)) or "none"
        raise OverlayError(f"there is no stream {stream!r} in the config folder; there is {known}")
    return asyncio.run(_index(spark, loaded, stream))


async def _index(spark: SparkSession, loaded: Loaded, name: str) -> IndexingResult:
    stream, kafka = loaded.streams[name], resolve(loaded.service.kafka)
    async with _stand(loaded, name) as ground:
        wanted = {s: (start, ground.bounds[s][1]) for s, start in ground.starts.items() if start < ground.bounds[s][1]}
        parts = await asyncio.to_thread(plan_ranges, spark, kafka, stream.index, wanted)
        chunks = 0
        async with aclosing(_run_waves(spark, lambda part: seal(kafka, stream, part), parts)) as waves:
            async for sealed in waves:
                entries = [Entry(ground.topic, Record(*pair)) for pairs in sealed for pair in pairs]
                await ground.transactions.begin()
                state = encode(ground.signature.merge(Delta(topics=ground.identities)))
                await ground.transactions.finish(state, press_entries(entries, now_ms()))
                chunks += len(entries)
    total = sum(end - first for first, end in ground.bounds.values())
    return IndexingResult(chunks, total, total)


def plan_ranges(
    spark: SparkSession, kafka: dict[str, str], index: IndexConfig, wanted: dict[TopicPartition, tuple[int, int]]
) -> list[Range]:
    """Return the ranges to index, one for each task, partition after partition. Each begins where a
    chunk begins. Runs a Spark job that counts the batches. `wanted`: by partition, the first offset
    to index, where a chunk has to begin, and the next one after the last.
    """
    cuts = [
        Range(source, at, min(at + TASK_OFFSETS, end))
        for source, (start, end) in wanted.items()
        for at in range(start, end, TASK_OFFSETS)
    ]
    counted = run_tasks(spark, lambda part: count_batches(kafka, part), cuts)
    by_source: dict[TopicPartition, list[Batches]] = {source: [] for source in wanted}
    for cut, batches in zip(cuts, counted, strict=True):
        by_source[cut.source].append(batches)
    parts: list[Range] = []
    for source, (start, end) in wanted.items():
        batches = join_batches(by_source[source])
        parts += deal_chunks(source, start, end, find_ends(batches, index), batches, TASK_BYTES)
    return parts


async def _run_waves(
    spark: SparkSession, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]
) -> AsyncGenerator[list[ResultT], None]:
    """Yield the results of `work` for the items, wave by wave, in order; the items of a wave are Spark
    tasks that run at the same time.

    A wave that fails raises after those before it were yielded. If the generator is closed early, at
    most AHEAD waves still run to their end.
    """
    size = WAVE * spark.sparkContext.defaultParallelism
    under_way: deque[asyncio.Task[list[ResultT]]] = deque()
    try:
        for at in range(0, len(items), size):
            under_way.append(asyncio.create_task(asyncio.to_thread(run_tasks, spark, work, items[at : at + size])))
            if len(under_way) > AHEAD:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        for wave in under_way:
            wave.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def run_tasks(spark: SparkSession, work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
    """Return the result of `work` for each item, in order. Each item is a Spark task of its own."""
    if not items:
        return []
    found: list[ResultT] = spark.sparkContext.parallelize(items, len(items)).map(work).collect()
    return found


@asynccontextmanager
async def _stand(loaded: Loaded, name: str) -> AsyncIterator[_Ground]:
    """Take over the shard of the stream's index, which fences its former owner, and yield the
    starting point of the job. The transactions are closed at the end of the block. Raises
    OverlayError while a service runs.
    """
    service, stream = loaded.service, loaded.streams[name]
    await reach(service.kafka, DEADLINE_S)
    prefix = service.topics.prefix
    async with AsyncExitStack() as closing:
        admin = await closing.enter_async_context(Admin(service.kafka))
        await refuse_running_service(admin, prefix)
        shards = await ensure_state_topic(admin, prefix, service.shards, service.topics.replication)
        client = await open_client(service.kafka)
        closing.push_async_callback(client.close)
        topic = await ensure_index(admin, stream, service.topics)

        async def confirm(state: ShardState) -> int | None:
            await refuse_running_service(admin, prefix)
            return state.generation or 0

        shard = shard_of((name,), shards)
        transactions, state = await take_over(service.kafka, client, admin, prefix, shard, confirm)
        closing.push_async_callback(transactions.close)
        # before the index is read: a former owner's transaction may be open there
        await transactions.end_lost(await transactions.find_partitions([topic]))
        facts = await admin.find_topics(stream.topic_names, with_config=True)
        found = list_sources(stream, facts, state)
        sources = found.partitions
        bound = {topic for each, topic in state.topics if each == name}
        identities = {(name, source): identity for source, identity in found.identities.items()}
        compacted = [t for t, f in facts.items() if "compact" in f.config.get("cleanup.policy", "")]
        bounds = await admin.find_bounds(sources)
        starts = await find_starts(client, admin, Index(stream), topic, bounds, compacted, bound)
        yield _Ground(topic, starts, bounds, transactions, state.sign(), identities)


async def ensure_index(admin: Admin, stream: StreamConfig, topics: TopicsConfig) -> str:
    """Create the index topic of a stream if it is missing. Return its name. Raises OverlayError."""
    topic = index_topic(topics.prefix, stream.name)
    if topic not in await admin.find_topics([topic], with_config=False):
        facts = await admin.find_topics(stream.topic_names)
        config = index_config(facts.values())
        _, refused = await admin.create_topics([new_topic(topic, 1, topics.replication, config)])
        if refused:
            raise OverlayError(refused[topic])
    return topic


async def find_starts(
    client: AIOKafkaClient,
    admin: Admin,
    index: Index,
    topic: str,
    bounds: dict[TopicPartition, tuple[int, int]],
    compacted: Collection[str],
    bound: Collection[str],
) -> dict[TopicPartition, int]:
    """Read the index topic up to its end into `index`, and return the first offset to index of each
    partition in `bounds`, as a service resumes (overlay/worker/kept/indexes.py).

    `topic`: the index topic. `bounds`, `compacted`, `bound`: as for `find_resumes`.
    """
    await client.add_topic(topic)
    index.position, end = (await admin.find_bounds([(topic, 0)]))[topic, 0]
    await index.read(client, topic, end)
    for source in bounds:
        await client.add_topic(source[0])
    resumes = await find_resumes(client, index, bounds, compacted, bound)
    return {source: resume.position for source, resume in resumes.items()}


async def find_resumes(
    client: AIOKafkaClient,
    index: Index,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    compacted: Collection[str],
    bound: Collection[str],
) -> dict[TopicPartition, LogPosition]:
    """Return where indexing continues by partition. Remove from `index`, in memory, the chunks that are
    not of the present log.

    `bounds`: log start and end. `compacted`: names of topics with compaction. `bound`: names of topics
    whose ids the shard's state has. All chunks of a compacted topic that is not in `bound` are removed:
    its log may be a new one, and in a compacted log only ends and epochs of batches could be compared.
    The client has to know the topics. Raises SourceUnavailable.
    """
    resumes = {}
    for source, (first, stop) in bounds.items():
        chunks, is_compacted = index.of(source), source[0] in compacted
        chunks.drop(first)
        if is_compacted and source[0] not in bound:
            chunks.truncate(0)
        await void(client, index.stream.name, source, chunks, (first, stop), compacted=is_compacted)
        resumes[source] = index.find_resume(source, first)
    return resumes


@click.command()
@click.option("--config", "folder", required=True, type=click.Path(path_type=Path), help="The config folder.")
@click.option("--stream", required=True, help="The stream to index.")
@click.option("--master", default=None, help="Spark's master; spark-submit's own where left out.")
def main(folder: Path, stream: str, master: str | None) -> None:
    """Index STREAM up to the present end of its topics, in parallel. Can be stopped, and goes on where it was."""
    from .session import overlay_session

    spark = overlay_session(f"index {stream}", master)
    try:
        done = index_stream(spark, folder, stream)
    except OverlayError as error:
        click.echo(f"overlay: {error}", err=True)
        raise SystemExit(1) from None
    finally:
        spark.stop()
    click.echo(f"{stream}: {done.chunks} chunk headers written, {done.done} of {done.total} offsets indexed")


if __name__ == "__main__":
    sys.exit(main())
