"""The ledger and the chunk index of a job's stream, which the job keeps while no service does.

In a stream of several partitions the ledger says which record has which sequence. The service keeps it,
on the shard to which the stream hashes, also for consumers that jobs deliver. While no service runs,
the driver of a job does: before a batch is planned it gives sequences to all of the batch's offsets. So
tokens have them, and a repeated batch finds the same ones.

The chunk index is kept as well if the job is asked to. After a batch, tasks of their own seal what has been
added to the log (spark/chunks.py): a scan task does not read what its consumers do not want, nor whole
chunks. The driver writes the headers that these tasks return, and reads from the index topic alone how far
they reach. So a batch or a task that runs again cannot change what a header says. A fault of the index
ends no batch.

A topic that was deleted and created again has other records. If the job may go on with it, its partitions restart in the
ledger, so that the new records get sequences above all former ones.

The driver writes as the owner of that shard, under its transactional id (docs/exactly-once.md#takeover).
So neither has two writers. A service that starts fences the driver, reads the ledger to its end
and continues it. A driver asks whether the group of workers has members before it takes the shard, and
again when it has it. Jobs that run beside each other take the shard from one another, and each reads what
the other has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, TransactionalIdAuthorizationFailed
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from overlay.client.read.bounds import ReadBounds
from overlay.clock import monotonic, now_ms
from overlay.config import ServiceConfig, StreamConfig
from overlay.credentials import resolve
from overlay.errors import (
    CredentialsRefused,
    DeliveryFailed,
    Fenced,
    OverlayError,
    SourceChanged,
    SourceUnavailable,
)
from overlay.index.ledger.allocate import allocate, extend, restart
from overlay.index.ledger.entries import MOST_SEQUENCE, LedgerEntry, encode
from overlay.index.ledger.ledger import Ledger
from overlay.index.log_check import check_log_position, glimpse
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.encode import decode as decode_header
from overlay.index.topic import Index
from overlay.kafka.admin import Admin, TopicFacts
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import index_topic, shard_id, shard_of, state_topic, workers_group
from overlay.kafka.range_reader import StillOpen
from overlay.logs import get_logger
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.amend import count_shards
from overlay.state.job_reads import Ends
from overlay.state.partitions import find_anew, list_sources
from overlay.state.shard_state import Delta, ShardState
from overlay.state.shard_state import encode as encode_delta
from overlay.state.takeover import ensure_state_topic, read_state, take_over
from spark.chunks import Range, seal
from spark.errors import explain
from spark.index import WAVE, ensure_index, find_resumes, plan_ranges, run_tasks

from . import following
from .following import Followed
from .indexing import IndexProgress
from .journal import LoopThread

log = get_logger(__name__)

LOOK_S = 10.0
"""Seconds after which a job that could not keep the ledger tries again."""
EXTEND_S, HEADERS_S = 60.0, 5.0
"""Seconds for which writing the ledger, or headers, is tried again while other jobs take the shard."""
PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
"""Seconds of the first pause between two attempts at most, and of any pause at most: jobs must not stay in step."""
INDEX_ATTEMPTS = 3
"""Attempts to index while another owner continues the same index."""
INDEX_S = 60.0
"""Seconds after which also what is less than a chunk is indexed."""
INDEX_CATCH_UP = 1_000_000
"""How many offsets are indexed at most after a batch, beside as many as the batch had."""
ONE_TASK = 100_000
"""Up to so many offsets of a partition are indexed by one task, without counting their batches first."""
MEMBERS_S = 1.0
"""Seconds between two looks whether a service runs."""
READABLE_S = 10.0
"""Seconds within which Kafka has to show what it has committed."""

Only = tuple[TopicPartition, int]
"""The partition that a stream had alone so far, and the offset up to which a job has read it."""


class ServiceRuns(OverlayError):
    """A service runs, which keeps the ledger and the chunk index. No action is needed."""


class ServiceUnknown(OverlayError):
    """This user may not look at the group of workers, so a service may run. The operator grants the right."""


class CreatedAgain(SourceChanged):
    """A topic of the stream was deleted and created again, and the job may not begin anew with it: failOnDataLoss is on, or
    the service has positions in the stream. The operator acts.
    """


class IndexMoved(OverlayError):
    """Another owner has continued the chunk index while tasks sealed chunks. No action is needed: they are sealed again."""


@dataclass(slots=True)
class _Kept:
    """The ledger and the chunk index as the owner of their shard knows them.

    `topic`: the index topic. `starts`: the first offset of each log. `is_served`: whether the service has delivered
    or read records of the stream. `signature`: what the state gets first (`ShardState.sign`), None once it has it.
    `identities`: Kafka's ids of the stream's topics and of the index topic, by name; `recorded`: the names of the
    topics that have their id in the shard's state. `compacted`: the stream's topics with compaction. `progress`: None
    if the chunk index is not kept.
    """

    topic: str
    ledger: Ledger
    transactions: Transactions
    starts: Mapping[TopicPartition, int]
    is_served: bool
    signature: Delta | None
    identities: Mapping[str, str]
    recorded: set[str]
    compacted: Sequence[str]
    progress: IndexProgress | None


class StreamKeeper:
    """The keeper of one stream's ledger and chunk index, at the driver. Not thread-safe.

    `look`: reads the ledger that is in Kafka, with the log's bounds, for batches whose ledger a service keeps. `with_chunks`:
    whether it keeps the chunk index. `may_lose`: whether the job goes on with a topic that was deleted and created again
    (failOnDataLoss is off).
    """

    def __init__(
        self,
        service: ServiceConfig,
        stream: StreamConfig,
        look: Callable[[], ReadBounds],
        *,
        with_chunks: bool = False,
        may_lose: bool = False,
    ) -> None:
        self._service, self._stream = service, stream
        self._followed = Followed(stream.name, index_topic(service.topics.prefix, stream.name), look, self._find_open)
        self._with_chunks, self._may_lose = with_chunks, may_lose
        self._thread = LoopThread("ledger")
        self._admin: Admin | None = None
        self._client: AIOKafkaClient | None = None
        self._kept: _Kept | None = None
        self._retry_at, self._told = 0.0, dict[str, str]()
        """When to try again, monotonic seconds, and the last reasons that were logged, by what is not kept."""
        self._was_served, self._ask_at = False, 0.0
        """Whether a service ran at the last look for `find_reach`, and when to look again, monotonic seconds."""
        self._ledger: Ledger | None = None
        self._ids = dict[str, str]()
        """Kafka's ids of the stream's topics when the job last became the owner, by name."""
        self._checked = dict[str, str]()
        """Those for which the ledger of a service was found to be that of these topics."""
        self._index_at = self._index_retry_at = 0.0
        """When to index also what is less than a chunk, and when to try again, monotonic seconds."""

    def __enter__(self) -> StreamKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._close())
        self._thread.close()

    @property
    def ledger(self) -> Ledger | None:
        """Return the ledger by the last call of `extend`: as the job keeps it, or else as it is in Kafka. None if there
        was none, or if that call tried nothing; an empty one after CreatedAgain.

        A batch takes its sequences from here. What a reading finds in Kafka may be older: a topic that was just made
        is not known at once.
        """
        return self._ledger

    def extend(self, ends: Mapping[TopicPartition, int], only: Only | None = None, *, is_batch: bool = True) -> bool:
        """Give sequences to all records below the offsets `ends` that do not have one yet. Return whether the job
        keeps the ledger.

        It does not if the stream has one partition, if a service runs, or if the job may not write the ledger or
        cannot continue it; the reason is logged once. Then a batch takes its sequences from the ledger that is in Kafka,
        and while a service runs, waits until that has come to `ends`, for following.FOLLOW_S seconds at most. A stream
        that still has no ledger after BEGIN_S gives no sequences: its records have 0, and nothing is tried for LOOK_S
        seconds unless `only` is set. While a transaction is open in the index topic, the batch waits for its end,
        for following.OPEN_S seconds at most.

        Raises NotNumbered if the ledger has not come to `ends`; CreatedAgain if a topic was created again and the job
        may not restart its partitions in the ledger, which has the sequences of other records; SourceUnavailable or
        DeliveryFailed for a fault that may pass, and Fenced if other jobs take the shard for EXTEND_S seconds. A
        batch that begins later has its sequences.

        `only`: None, unless the stream has just got a second partition; then the partition that it had alone, and the
        offset up to which a job has read that. With it, any OverlayError but ServiceRuns is raised: a later ledger
        could contradict the old sequences if they are not written down. `is_batch`: False if nothing is delivered by what
        the ledger has now, so that it need not come to `ends`.
        """
        if len(ends) < 2 or (monotonic() < self._retry_at and only is None):
            return False
        self._ledger, begun = None, monotonic()
        while True:
            try:
                self._ledger = self._thread.run(self._extend_patiently(ends, only))
            except OverlayError as error:
                if not self._awaits(error, {} if not is_batch else ends, only, monotonic() - begun):
                    return False
                self._thread.run(asyncio.sleep(following.PAUSE_S))
            else:
                self._retry_at = 0.0
                self._told.pop("ledger", None)
                return True

    def _awaits(
        self, error: OverlayError, ends: Mapping[TopicPartition, int], only: Only | None, waited_s: float
    ) -> bool:
        """Return whether a batch has to wait for the ledger, since this error keeps the job from extending it to `ends`. If
        not, the batch takes the ledger that is in Kafka. Raises `error` or NotNumbered as `extend` does. `waited_s`: for
        how long it has waited."""
        if isinstance(error, StillOpen):
            self._followed.hold(error.offset, waited_s)
            return True
        is_served = isinstance(error, ServiceRuns)
        self._tell("ledger", str(error), is_fault=not is_served)
        if isinstance(error, CreatedAgain):
            self._ledger = Ledger()
        if _may_pass(error) or isinstance(error, CreatedAgain) or (only is not None and not is_served):
            raise error
        may_come = is_served or isinstance(error, ServiceUnknown)
        if not self._followed.has_come_to(ends, waited_s, str(error), may_come=may_come):
            return True
        self._ledger = self._followed.ledger
        if self._ledger is None and ends:
            self._retry_at = monotonic() + LOOK_S
        return False

    def find_reach(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return up to where a batch that is begun now can have sequences in each partition of `ends`, at most `ends`: while a
        service keeps the stream's ledger, up to where that has come. Raises SourceUnavailable.
        """
        if len(ends) > 1 and monotonic() >= self._ask_at:
            # Spark asks for a batch many times a second
            self._was_served, self._ask_at = self._thread.run(self._is_served()), monotonic() + MEMBERS_S
        return self._followed.limit(ends) if len(ends) > 1 and self._was_served else dict(ends)

    def _find_open(self) -> int | None:
        return self._thread.run(self._find_open_transaction())

    async def _find_open_transaction(self) -> int | None:
        admin, _ = await self._connect()
        return await following.find_open(admin, self._followed.topic)

    async def _is_served(self) -> bool:
        """Return whether a service runs; False if the group of workers may not be looked at."""
        admin, _ = await self._connect()
        group, denied = workers_group(self._service.topics.prefix), dict[str, str]()
        return bool((await admin.count_members_of([group], denied=denied)).get(group))

    async def _connect(self) -> tuple[Admin, AIOKafkaClient]:
        if self._admin is None or self._client is None:
            self._admin, self._client = Admin(self._service.kafka), await open_client(self._service.kafka)
        return self._admin, self._client

    def index(self, spark: SparkSession, ends: Ends) -> int:
        """Write headers of what was added to the log before the end of a batch. Return how many were written, 0 after
        a fault.

        `ends`: first and next offset of the batch by partition. What is less than a chunk is indexed only every
        INDEX_S seconds. If that fails, for instance since a service runs, Kafka does not let the job write, or tasks
        fail, the reason is logged, and nothing is tried for LOOK_S seconds. What was committed stays, and the next
        call continues after it.
        """
        if not self._with_chunks or monotonic() < self._index_retry_at:
            return 0
        for attempt in range(INDEX_ATTEMPTS):
            try:
                written = self._index(spark, ends)
                self._told.pop("chunk index", None)
                return written
            except (OverlayError, PySparkException, Py4JError) as error:
                self._thread.run(self._let_go())
                # the index is read anew, or the log's start is looked up again
                may_help = isinstance(error, (Fenced, IndexMoved, SourceChanged))
                if not may_help or isinstance(error, CreatedAgain) or attempt == INDEX_ATTEMPTS - 1:
                    self._index_retry_at = monotonic() + LOOK_S
                    self._tell("chunk index", explain(error), is_fault=not isinstance(error, ServiceRuns))
                    break
        return 0

    def _index(self, spark: SparkSession, ends: Ends) -> int:
        progress = self._thread.run(self._own_index())
        is_late = monotonic() >= self._index_at
        limit = sum(stop - start for start, stop in ends.values()) + INDEX_CATCH_UP
        stops = {source: stop for source, (_, stop) in ends.items()}
        wanted = progress.choose(stops, limit, 1 if is_late else self._stream.index.chunk_records)
        if not wanted:
            return 0
        self._thread.run(self._check_logs(progress, wanted))
        kafka, stream = resolve(self._service.kafka), self._stream
        parts = self._divide(spark, wanted)
        size, written = WAVE * spark.sparkContext.defaultParallelism, 0
        for at in range(0, len(parts), size):
            sealed = run_tasks(spark, lambda part: seal(kafka, stream, part), parts[at : at + size])
            headers = [pair for pairs in sealed for pair in pairs]
            progress = self._thread.run(self._write_headers(progress, headers))
            written += len(headers)
        for source, (_, stop) in wanted.items():
            progress.pass_over(source, stop)
        if is_late:
            self._index_at = monotonic() + INDEX_S
        return written

    def _divide(self, spark: SparkSession, wanted: Mapping[TopicPartition, tuple[int, int]]) -> list[Range]:
        """Return the ranges to seal, one for each task; those of a partition in order. Each begins where a chunk begins."""
        large = {source: (start, end) for source, (start, end) in wanted.items() if end - start > ONE_TASK}
        parts = [Range(source, *span) for source, span in wanted.items() if source not in large]
        return parts + plan_ranges(spark, resolve(self._service.kafka), self._stream.index, large)

    def _tell(self, what: str, reason: str, *, is_fault: bool = True) -> None:
        """Log why a part is not kept, unless the last reason was the same. `is_fault`: whether an operator may have to act."""
        if reason != self._told.get(what):
            tell = log.warning if is_fault else log.info
            tell("the job does not keep a part of its stream", part=what, stream=self._stream.name, reason=reason)
        self._told[what] = reason

    async def _extend_patiently(self, ends: Mapping[TopicPartition, int], only: Only | None) -> Ledger:
        # another job has had the shard, maybe for another stream, or a change to the state was made under its id
        ledger = Ledger()
        async for attempt in _while_others_take_it(EXTEND_S):
            with attempt:
                ledger = await self._extend(ends, only)
        return ledger

    async def _extend(self, ends: Mapping[TopicPartition, int], only: Only | None) -> Ledger:
        kept = await self._own()
        assert self._admin is not None and self._client is not None
        try:
            await self._give_out(kept, self._admin, self._client, ends, only)
        except BaseException:
            await self._let_go()
            raise
        return kept.ledger

    async def _own(self) -> _Kept:
        """Return the ledger and the chunk index, with the transactions that write them.

        If the job has not taken their shard yet, or has let it go, it becomes the owner first, which fences the
        former one. It does so again if a topic of the stream was created again since. Raises ServiceRuns if a service
        runs then, and another OverlayError if the job cannot become the owner.
        """
        admin, client = await self._connect()
        if self._kept is not None and find_anew(self._ids, await self._find_ids(admin)):
            await self._let_go()
        if self._kept is None:
            self._kept = await self._take(admin, client)
            self._ids = {name: self._kept.identities[name] for name in self._stream.topic_names}
        return self._kept

    async def _find_ids(self, admin: Admin) -> dict[str, str]:
        """Return Kafka's ids of the stream's topics, by name. Raises SourceUnavailable, CredentialsRefused."""
        facts = await admin.find_topics(self._stream.topic_names, with_config=False)
        return {name: each.identity for name, each in facts.items()}

    async def _own_index(self) -> IndexProgress:
        """Return how far the chunk index reaches, as the owner of its shard. Raises OverlayError."""
        kept = await self._own()
        assert kept.progress is not None
        return kept.progress

    async def _check_logs(self, progress: IndexProgress, wanted: Iterable[TopicPartition]) -> None:
        """Raise SourceChanged if a log of `wanted` is not the one of the chunks before, or begins after the offset at which
        sealing has to begin."""
        kept = await self._own()
        assert self._admin is not None and self._client is not None
        name = self._stream.name
        for source, own in (await self._admin.find_bounds(wanted, committed=False)).items():
            resume, is_compacted = progress.resumes[source], source[0] in kept.compacted
            if resume.position < own[0]:
                raise SourceChanged(f"{source[0]}-{source[1]}@{resume.position}: the log begins at {own[0]} now", name)
            await check_log_position(self._client, name, source, resume, own, compacted=is_compacted)

    async def _write_headers(self, progress: IndexProgress, pairs: Sequence[tuple[bytes, bytes]]) -> IndexProgress:
        """Write and commit headers that were sealed where `progress` has said. Return how far the index reaches then.
        `pairs`: key and value of each.

        A job of another stream may take the shard while the tasks seal; the shard is taken back then. Raises
        IndexMoved if the index was continued meanwhile: its chunks may have been cut at other offsets. Raises Fenced
        if others still take the shard after HEADERS_S, and another OverlayError if the job cannot own or write it.
        """
        if not pairs:
            return progress
        async for attempt in _while_others_take_it(HEADERS_S):
            with attempt:
                found = await self._own_index()
                if found.resumes != progress.resumes:
                    raise IndexMoved(f"the chunk index of stream {self._stream.name} was continued by another owner")
                try:
                    await self._write(await self._own(), [Record(*pair) for pair in pairs], self._stream.topic_names)
                except BaseException:
                    await self._let_go()
                    raise
                progress = found
        for header in (decode_header(value) for _, value in pairs):
            assert isinstance(header, Header)
            progress.add(header, self._stream.index)
        return progress

    async def _write(self, kept: _Kept, records: Sequence[Record], topics: Iterable[str]) -> None:
        """Write records into the index topic, and in the same transaction the ids of `topics` into the shard's state
        as far as it lacks them. The first transaction has the signature of the owner as well.
        """
        batches = press_entries([Entry(kept.topic, record) for record in records], now_ms())
        fresh = {topic: kept.identities[topic] for topic in topics if topic not in kept.recorded}
        if not fresh and kept.signature is None:
            await kept.transactions.write(batches)
            return
        signature, kept.signature = kept.signature or Delta(), None
        delta = signature.merge(Delta(topics={(self._stream.name, topic): each for topic, each in fresh.items()}))
        await kept.transactions.begin()
        await kept.transactions.finish(encode_delta(delta), batches)
        kept.recorded |= fresh.keys()

    async def _take(self, admin: Admin, client: AIOKafkaClient) -> _Kept:
        """Become the owner of the shard, and read the ledger. Creates the state topic and the index topic if they are
        missing. Raises OverlayError.
        """
        service, stream, prefix = self._service, self._stream, self._service.topics.prefix
        try:
            await _leave_to_service(admin, prefix)
        except ServiceRuns:
            await self._check_served(admin, client)
            raise
        shards = await ensure_state_topic(admin, prefix, service.shards, service.topics.replication)
        topic = await ensure_index(admin, stream, service.topics)

        async def confirm(state: ShardState) -> int | None:
            await _leave_to_service(admin, prefix)
            return state.generation or 0

        shard = shard_of((stream.name,), shards)
        try:
            transactions, state = await take_over(service.kafka, client, admin, prefix, shard, confirm)
        except SourceUnavailable as error:
            if isinstance(error.__cause__, TransactionalIdAuthorizationFailed):
                raise CredentialsRefused(
                    f"Kafka does not allow the transactional id {shard_id(prefix, shard)}, under which the ledger of stream"
                    f" {stream.name!r} is written. Grant Write on it, or see `overlay validate --kafka`"
                ) from error
            raise
        try:
            await transactions.look_up([topic])
            await transactions.end_lost([(topic, 0)])
            facts = await admin.find_topics([topic, *stream.topic_names])
            if anew := self._find_anew(facts, state):
                await client.force_metadata_update()
            kept = await self._read(admin, client, topic, facts, transactions, state, anew)
            await self._restart(kept, admin, anew)
            return kept
        except BaseException:
            await transactions.close()
            raise

    async def _check_served(self, admin: Admin, client: AIOKafkaClient) -> None:
        """Raise CreatedAgain if a topic was created again since the ledger that a service keeps was written, by the ids in the
        shard's state. Looks again only when a topic has another id than at the last look."""
        facts = await admin.find_topics(self._stream.topic_names, with_config=False)
        prefix = self._service.topics.prefix
        ids = {name: each.identity for name, each in facts.items()}
        if ids == self._checked or not (shards := await count_shards(admin, prefix)):
            return
        shard = shard_of((self._stream.name,), shards)
        state, _ = await read_state(client, admin, state_topic(prefix), shard, plain=True)
        self._find_anew(facts, state)
        self._checked = ids

    def _find_anew(self, facts: Mapping[str, TopicFacts], state: ShardState) -> set[str]:
        """Return the topics of the stream that were created again since the shard's state, or this driver if the state
        does not tell, has known them. Raises CreatedAgain if there are any with which the job may not begin anew.
        """
        name = self._stream.name
        known = {topic: id for (stream, topic), id in state.topics.items() if stream == name}
        ids = {topic: facts[topic].identity for topic in self._stream.topic_names if topic in facts}
        anew = find_anew(self._ids | known, ids)
        if not anew:
            return anew
        is_served = any(stream == name for stream, _ in state.cursors)
        is_served |= any(stream == name and not each.job for (stream, _), each in state.consumers.items())
        if is_served or not self._may_lose:
            way_out = (
                f"the service has positions in it. Run `overlay stream reset {name}`"
                if is_served
                else "--option failOnDataLoss=false begins anew with it"
            )
            raise CreatedAgain(
                f"topic {', '.join(sorted(anew))} of stream {name} was deleted and created again, and the ledger has the"
                f" sequences of its former records: {way_out}"
            )
        return anew

    async def _restart(self, kept: _Kept, admin: Admin, topics: set[str]) -> None:
        """Write into the ledger that the partitions of these topics, which were created again, begin anew, and into the
        state which topics these are now. So their records get sequences above all former ones."""
        standing = kept.ledger.standing
        # also a partition that the topic does not have now: it may be added
        starts = {s: LogPosition(kept.starts.get(s, 0)) for s in standing.ends if s[0] in topics}
        if not starts:
            return
        entry = restart(standing, starts)
        await self._write(kept, [Record(*encode(self._stream.name, entry))], [kept.topic, *self._stream.topic_names])
        refusal = kept.ledger.append(entry)
        assert not refusal, (entry, refusal)
        await _await_readable(admin, kept.topic)
        log.warning("partitions restart in the ledger", stream=self._stream.name, topics=sorted(topics))

    async def _read(
        self,
        admin: Admin,
        client: AIOKafkaClient,
        topic: str,
        facts: Mapping[str, TopicFacts],
        transactions: Transactions,
        state: ShardState,
        anew: Collection[str],
    ) -> _Kept:
        """Read the ledger, and the chunk index if it is kept. `topic`: that of both. `facts`: of the stream's topics and
        of that one. `anew`: topics of the stream that were created again, whose ids and log positions in the state and
        the ledger do not count. Raises OverlayError."""
        stream = self._stream
        known = {pair: id for pair, id in state.topics.items() if pair[0] != stream.name or pair[1] not in anew}
        state = replace(state, topics=known)
        sources = list_sources(stream, {name: facts[name] for name in stream.topic_names if name in facts}, state)
        index = Index(stream, with_chunks=self._with_chunks)
        index.position, end = (await admin.find_bounds([(topic, 0)], committed=False))[topic, 0]
        for name in (topic, *stream.topic_names):
            await client.add_topic(name)
        await index.read(client, topic, end, following.PATIENCE_S)
        before, identity = state.topics.get((stream.name, topic)), facts[topic].identity
        is_strange = index.ledger.next_sequence > MOST_SEQUENCE
        if (before is not None and before != identity) or index.doubt >= 0 or is_strange:
            raise OverlayError(
                f"the ledger of stream {stream.name} in topic {topic} is not the one that was written, or a part of it cannot"
                " be read. The service says what to do about it: start it"
            )
        bounds = await admin.find_bounds(sources.partitions, committed=False)
        compacted = [name for name, each in facts.items() if "compact" in each.config.get("cleanup.policy", "")]
        compacted = [name for name in compacted if name != topic]
        for source, own in bounds.items():
            if source[0] in anew:
                continue
            place = index.ledger.log_position_of(source)
            await check_log_position(client, stream.name, source, place, own, compacted=source[0] in compacted)
        recorded = {name for each, name in state.topics if each == stream.name}
        progress = None
        if self._with_chunks:
            progress = IndexProgress(await find_resumes(client, index, bounds, compacted, recorded))
        starts = {source: first for source, (first, _) in bounds.items()}
        return _Kept(
            topic, index.ledger, transactions, starts, _is_served(stream.name, state, starts), state.sign(),
            {**sources.identities, topic: identity}, recorded, compacted, progress,
        )  # fmt: skip

    async def _give_out(
        self, kept: _Kept, admin: Admin, client: AIOKafkaClient, ends: Mapping[TopicPartition, int], only: Only | None
    ) -> None:
        """Write and commit what gives sequences to the records before `ends`, and wait until clients can read it.
        Raises OverlayError if the service has given out sequences that no ledger has.
        """
        rounds: list[LedgerEntry] = []
        if kept.ledger.next_sequence == 1 and kept.is_served:
            name = self._stream.name
            raise OverlayError(
                f"the service has delivered records of stream {name!r}, and topic {kept.topic} has no ledger of their"
                f" sequences. If the stream has got a second partition, run `overlay stream extend {name}`; otherwise start"
                " the service, which says what to do"
            )
        if only is not None and kept.ledger.next_sequence == 1:
            source, stop = only
            rounds.append(extend(source, await _find_place(client, source, stop)))
        standing = kept.ledger.standing if not rounds else kept.ledger.standing.after(rounds[0])
        taken = {
            source: (kept.starts.get(source, 0), await _find_place(client, source, end))
            for source, end in ends.items()
            if end > max(standing.ends.get(source, 0), kept.starts.get(source, 0))
        }
        if (entry := allocate(standing, taken)) is not None:
            rounds.append(entry)
        if not rounds:
            return
        # the id of the index topic says that the stream has a ledger, so headers alone do not record it; those of the
        # others tell later drivers whose records have these sequences
        entries = [Record(*encode(self._stream.name, round)) for round in rounds]
        await self._write(kept, entries, [kept.topic, *self._stream.topic_names])
        for round in rounds:
            refusal = kept.ledger.append(round)
            assert not refusal, (round, refusal)
        await _await_readable(admin, kept.topic)

    async def _let_go(self) -> None:
        if (kept := self._kept) is not None:
            self._kept = None
            await kept.transactions.close()

    async def _close(self) -> None:
        await self._let_go()
        if self._client is not None:
            await self._client.close()
        if self._admin is not None:
            await self._admin.close()


def _while_others_take_it(patience_s: float) -> AsyncRetrying:
    """Return attempts to write as the owner of the shard: a new one, after a pause, each time others have taken it in
    between (Fenced), for `patience_s` seconds. After that Fenced is raised."""
    return AsyncRetrying(
        retry=retry_if_exception_type(Fenced),
        stop=stop_after_delay(patience_s),
        wait=wait_random_exponential(PAUSE_S, LONGEST_PAUSE_S),
        reraise=True,
    )


def _may_pass(error: OverlayError) -> bool:
    """Return whether a fault may pass by itself, so that trying again can help without an operator."""
    return isinstance(error, (SourceUnavailable, Fenced)) or (isinstance(error, DeliveryFailed) and not error.final)


async def _leave_to_service(admin: Admin, prefix: str) -> None:
    """Raise ServiceRuns if the group of workers has members, and ServiceUnknown if it may not be looked at."""
    try:
        members = await admin.count_members(workers_group(prefix))
    except CredentialsRefused as error:
        raise ServiceUnknown(str(error)) from error
    if members:
        raise ServiceRuns(f"a service with topics.prefix {prefix!r} runs, and keeps it")


def _is_served(stream: str, state: ShardState, starts: Mapping[TopicPartition, int]) -> bool:
    """Return whether the service has delivered or read records of a stream, as far as the state of the stream's shard
    tells.
    """
    if any(known.sequence and not known.job for (name, _), known in state.consumers.items() if name == stream):
        return True
    at = {source: place.position for (name, source), place in state.cursors.items() if name == stream}
    return any(position > starts.get(source, 0) for source, position in at.items())


async def _find_place(client: AIOKafkaClient, source: TopicPartition, end: int) -> LogPosition:
    """Return an offset as a log position, with epoch and checksum of the batch that ends there if one does. Raises
    SourceUnavailable."""
    try:
        found = (await glimpse(client, source, max(0, end - 1))).log_position
    except (KafkaError, OSError) as error:
        raise SourceUnavailable(f"{source[0]}-{source[1]}@{end - 1} cannot be looked at: {error!r}") from error
    return found if found.position == end else LogPosition(end)


async def _await_readable(admin: Admin, topic: str) -> None:
    """Wait until readers of committed records see all that partition 0 of a topic has now. Raises SourceUnavailable,
    also after READABLE_S.

    Kafka answers a commit before its markers are in the log. A reader that is told of the ledger's end before that
    would take the sequences for unknown.
    """
    deadline, place = monotonic() + READABLE_S, (topic, 0)
    wanted = (await admin.find_bounds([place], committed=False))[place][1]
    while (await admin.find_bounds([place]))[place][1] < wanted:
        if monotonic() > deadline:
            raise SourceUnavailable(f"topic {topic}: what was committed is not readable within {READABLE_S:.0f} s")
        await asyncio.sleep(0.01)
