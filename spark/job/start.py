"""The start of a job: its journal is opened, its consumers are prepared, and its query begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from overlay.client import BadQuestion
from overlay.clock import now_ms
from overlay.kafka.log_position import TopicPartition
from overlay.state.job_plan import BatchPlan, ConsumerPlan
from overlay.state.job_reads import Ends
from spark.lease import run_apart
from spark.options import Ask, read_options
from spark.plan import Planner

from .checkpoint import check_stream
from .folder import Chosen, JobFolder
from .job import Job, find_only
from .journal import Journal
from .keeping import CreatedAgain, StreamKeeper
from .opening import check_state
from .ranges import RangesReader
from .ranges_server import RangesServer
from .ranges_source import NAME, SERVER, RangesSource

CATCH_UP = 1_000_000
"""How many offsets a batch reads at most for a consumer that is behind the others, unless maxRecordsPerTrigger is less."""

CATCH_UP_BYTES = 1 << 30
"""How many bytes of the log that may be, by estimate, unless maxBytesPerTrigger is less."""

BATCH: Mapping[str, str] = MappingProxyType(
    {"maxRecordsPerTrigger": str(10 * CATCH_UP), "maxBytesPerTrigger": str(1 << 30)}
)
"""Limits of a batch where the options have none: the batches of a long log have to end within their transactions."""

FINISH_S = 60.0
"""How long the batch under way may go on after the query is told to stop."""


@contextmanager
def start_job(
    spark: SparkSession,
    chosen: Chosen,
    names: Sequence[str],
    name: str,
    checkpoint: str,
    *,
    once: bool,
    options: Mapping[str, str],
    index: bool,
    patience_s: float,
    note: Callable[[BatchPlan], None],
) -> Iterator[StreamingQuery]:
    """Run the job of some consumers as a query, which is stopped at the end of the block.

    `chosen`: the consumers to begin with. `names`: of those to follow in the folder, empty for all of the
    stream with `engine: spark`. `name`: of the job, under which its state is kept. `once`: end with what
    there is now; otherwise the query runs on. `options`: more options of format("overlay").
    `index`: also keep the chunk index while no service does. `patience_s`: how long to wait for another
    pipeline's lease. `note`: called with the plan of each batch that has ended. Raises OverlayError; later
    errors come out of the query.
    """
    source = fill_options(chosen, options)
    ask = read_options(source)
    if ask.request.until is not None:
        raise BadQuestion("endingTime has no meaning for a job, which delivers all that comes. Leave it out")
    with ExitStack() as stack:
        keeper = stack.enter_context(make_keeper(chosen, ask, index=index))
        folder = JobFolder(chosen, name, names, ask, patience_s, lambda: keeper.ledger)
        stack.callback(folder.close)
        folder.own()
        place = f"{checkpoint}/query"
        journal = stack.enter_context(open_journal(chosen, name, has_batches=has_batches(spark, place)))
        log_ends = {source: (0, end) for source, (_, end) in folder.look().items()}
        # before consumers look where they begin: some ask the ledger
        only = find_only(journal.last, log_ends, folder.find_ids())
        with suppress(CreatedAgain):  # the first batch says so
            keeper.extend({source: end for source, (_, end) in log_ends.items()}, only, is_batch=False)
        if journal.last is not None and not journal.last.is_complete:
            # the batch has to end as it was begun; consumers that were added since come afterwards
            folder.restrict(tuple(journal.last.consumers))
        consumers = folder.prepare(journal.last)
        job = Job(
            open_session(spark), name, journal, chosen.stream, consumers,
            renew=lambda: folder.renew(journal.last), check_owner=folder.check_owner, note=note, clock=now_ms,
            catch_up=min(CATCH_UP, ask.pace.records or CATCH_UP), extend_ledger=keeper.extend,
            index=partial(keeper.index, spark), is_start_given="startingOffsets" in options,
            catch_up_bytes=min(CATCH_UP_BYTES, ask.pace.bytes or CATCH_UP_BYTES),
        )  # fmt: skip
        begin = spell_start(consumers.begins, consumers.look())
        starting = {"startingOffsets": begin} if "startingOffsets" not in options else {}
        whole = read_options({**starting, **source})
        reader = RangesReader(whole, name, chosen.folder, keeper.find_reach, lambda: folder.retry_mark)
        server = stack.enter_context(RangesServer(reader))
        spark.dataSource.register(RangesSource)
        frame = spark.readStream.format(NAME).option(SERVER, server.address).load()
        query = start_query(frame, job, place, once=once)
        stack.callback(query.stop)
        # first, so that no batch is left half delivered: the next owner of a consumer would have to wait for its end
        stack.callback(job.finish, FINISH_S)
        yield query


def fill_options(chosen: Chosen, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a job's source: those of the caller, with BATCH if they do not limit a batch."""
    limits = {} if BATCH.keys() & options.keys() else BATCH
    own = {"config": str(chosen.folder), "stream": chosen.stream.name}
    return {"columns": "sequence,offset", **limits, **options, **own}


def make_keeper(chosen: Chosen, ask: Ask, *, index: bool) -> StreamKeeper:
    """Return the keeper of a stream's ledger and, if `index` is set, of its chunk index. `ask`: of the job's source."""
    look = partial(Planner(ask).look, with_ledger=True)
    may_lose = not ask.fails_on_loss
    return StreamKeeper(chosen.loaded.service, chosen.stream, look, with_chunks=index, may_lose=may_lose)


@contextmanager
def open_journal(chosen: Chosen, name: str, *, has_batches: bool) -> Iterator[Journal]:
    """Open the journal of the job `name` for the block, which fences the job's former driver. Raises OverlayError, such
    as ForeignCheckpoint before anything is created or fenced. `has_batches`: as in check_state.
    """
    stream = chosen.stream.name
    run_apart(check_state(chosen.kafka, chosen.prefix, name, stream, has_batches=has_batches))
    with Journal(chosen.kafka, chosen.prefix, name, chosen.loaded.service.topics.replication) as journal:
        # once more, by what a driver has written before it was fenced
        check_stream(name, journal.topic, journal.last, stream)
        yield journal


def start_query(frame: DataFrame, job: Job, place: str, *, once: bool) -> StreamingQuery:
    """Start the query of a job, with its checkpoint at `place`. `frame`: the rows of its batches. `once`: as in start_job."""
    writer = frame.writeStream.foreachBatch(job.deliver).option("checkpointLocation", place)
    return (writer.trigger(availableNow=True) if once else writer).queryName(f"overlay {job.name}").start()


def has_batches(spark: SparkSession, place: str) -> bool:
    """Return whether a query has begun a batch by the checkpoint at `place`, in any file system that Spark knows: whether
    its offset log has an entry.
    """
    java: Any = spark._jvm
    offsets = java.org.apache.hadoop.fs.Path(f"{place}/offsets")
    system = offsets.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    if not system.exists(offsets):
        return False
    return any(each.getPath().getName().isdigit() for each in system.listStatus(offsets))


def open_session(spark: SparkSession) -> SparkSession:
    """Return a session for the batches of a job, in the same application.

    Adaptive execution is off in it: its plans are as the job wants them, and Spark would plan each of
    their stages anew once the stage before has ended.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def spell_start(begins: Mapping[str, ConsumerPlan], log: Ends) -> str:
    """Return the first offset that any consumer wants of each partition, as the option startingOffsets.

    `log`: start and end of each partition's log. Where retention has removed the offset, it is the log's start, and where
    the log has not come to it, the log's end: a consumer that another owner was late with does not keep the job from
    beginning, and neither does one that waits for a later offset.
    """
    lowest: dict[TopicPartition, int] = {}
    for begin in begins.values():
        for source, at in begin.floors.items():
            lowest[source] = min(at, lowest.get(source, at))
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(lowest.items()):
        first, end = log.get((topic, partition), (at, at))
        found.setdefault(topic, {})[str(partition)] = min(max(at, first), end)
    return json.dumps(found)
