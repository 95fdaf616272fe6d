"""The ledger of a job's stream, which the job keeps while no service does.

In a stream of several partitions the ledger says which record has which sequence. The service keeps it,
on the shard to which the stream hashes, also for consumers that jobs deliver. While no service runs,
the driver of a job does: before a batch is planned it gives sequences to all of the batch's offsets. So
tokens have them, and a repeated batch finds the same ones.

The driver writes as the owner of that shard, under its transactional id (docs/exactly-once.md#takeover).
So entries never have two writers. A service that starts fences the driver, reads the ledger to its end
and continues it. A driver asks whether the group of workers has members before it takes the shard, and
again when it has it. Jobs that run beside each other take the shard from one another, and each reads what
the other has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random

from overlay.clock import monotonic, now_ms
from overlay.config import ServiceConfig, StreamConfig
from overlay.errors import Fenced, OverlayError, SourceUnavailable
from overlay.index.ledger.allocate import allocate, extend
from overlay.index.ledger.entries import LedgerEntry, encode
from overlay.index.ledger.ledger import Ledger
from overlay.index.log_check import check_log_position, glimpse
from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.own_topics import shard_of, workers_group
from overlay.logs import get_logger
from overlay.output.entry import Entry, press_entries
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.partitions import list_sources
from overlay.state.shard_state import Delta, ShardState
from overlay.state.shard_state import encode as encode_delta
from overlay.state.takeover import ensure_state_topic, take_over
from spark.index import ensure_index

from .journal import LoopThread

log = get_logger(__name__)

LOOK_S = 10.0
"""Seconds after which a job that could not keep the ledger tries again."""
ATTEMPTS, PAUSE_S = 8, 0.5
"""Attempts to write a ledger entry while others take the shard, and the longest pause between two."""
READABLE_S = 10.0
"""Seconds within which Kafka has to show what it has committed."""

Only = tuple[TopicPartition, int]
"""The partition that a stream had alone so far, and the offset up to which a job has read it."""


class ServiceRuns(OverlayError):
    """A service runs, which keeps the ledger. No action is needed."""


@dataclass(slots=True)
class _Kept:
    """The ledger as the owner of its shard knows it.

    `starts`: the first offset of each log. `is_served`: whether the service has delivered records of the
    stream. `delta`: what has to be recorded with the first entry.
    """

    topic: str
    ledger: Ledger
    transactions: Transactions
    starts: Mapping[TopicPartition, int]
    is_served: bool
    delta: Delta | None


class StreamKeeper:
    """The keeper of one stream's ledger, at the driver. Not thread-safe."""

    def __init__(self, service: ServiceConfig, stream: StreamConfig) -> None:
        self._service, self._stream = service, stream
        self._thread = LoopThread("ledger")
        self._admin: Admin | None = None
        self._client: AIOKafkaClient | None = None
        self._kept: _Kept | None = None
        self._retry_at, self._told = 0.0, ""
        """When to try again, monotonic seconds, and the last reason that was logged."""
        self._has_kept = False

    def __enter__(self) -> StreamKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._close())
        self._thread.close()

    def extend(self, ends: Mapping[TopicPartition, int], only: Only | None = None) -> bool:
        """Give sequences to all records before these offsets that have none. Return whether the job keeps the ledger.

        It does not if a service runs, or if Kafka does not let it; the reason is logged. Then records get their
        sequences from the service, later. `only`: if the stream has just got a second partition. Raises
        OverlayError if the stream has, and the old sequences cannot be written down: a later ledger could
        contradict them. Raises SourceUnavailable if the job has kept the ledger, and Kafka does not answer.
        """
        if len(ends) < 2 or (monotonic() < self._retry_at and only is None):
            return False
        try:
            self._thread.run(self._extend_patiently(ends, only))
        except OverlayError as error:
            self._retry_at = monotonic() + LOOK_S
            self._tell(str(error))
            is_away = isinstance(error, SourceUnavailable) and self._has_kept
            if is_away or (only is not None and not isinstance(error, ServiceRuns)):
                raise
            self._has_kept = False
            return False
        self._told, self._has_kept = "", True
        return True

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            log.info("the job does not keep the ledger", stream=self._stream.name, reason=reason)
        self._told = reason

    async def _extend_patiently(self, ends: Mapping[TopicPartition, int], only: Only | None) -> None:
        # another job has had the shard, maybe for another stream, or a change to the state was made under its id
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(Fenced),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_random(0.0, PAUSE_S),
            reraise=True,
        ):
            with attempt:
                await self._extend(ends, only)

    async def _extend(self, ends: Mapping[TopicPartition, int], only: Only | None) -> None:
        kept = await self._own()
        assert self._admin is not None and self._client is not None
        try:
            await self._give_out(kept, self._admin, self._client, ends, only)
        except BaseException:
            await self._let_go()
            raise

    async def _own(self) -> _Kept:
        """Return the ledger as the owner of its shard; become the owner first if the job is not. Raises OverlayError."""
        if self._admin is None or self._client is None:
            self._admin, self._client = Admin(self._service.kafka), await open_client(self._service.kafka)
        if self._kept is None:
            self._kept = await self._take(self._admin, self._client)
        return self._kept

    async def _write(self, kept: _Kept, records: Sequence[Record]) -> None:
        """Write records into the index topic in one transaction, with what the shard has to know of it."""
        batches = press_entries([Entry(kept.topic, record) for record in records], now_ms())
        if kept.delta is None:
            await kept.transactions.write(batches)
            return
        await kept.transactions.begin()
        await kept.transactions.finish(encode_delta(kept.delta), batches)
        kept.delta = None

    async def _take(self, admin: Admin, client: AIOKafkaClient) -> _Kept:
        """Become the owner of the shard, and read the ledger. Raises OverlayError."""
        service, stream, prefix = self._service, self._stream, self._service.topics.prefix
        await _leave_to_service(admin, prefix)
        shards = await ensure_state_topic(admin, prefix, service.shards, service.topics.replication)
        topic = await ensure_index(admin, stream, service.topics)

        async def confirm(state: ShardState) -> int | None:
            await _leave_to_service(admin, prefix)
            return state.generation or 0

        shard = shard_of((stream.name,), shards)
        transactions, state = await take_over(service.kafka, client, admin, prefix, shard, confirm)
        try:
            await transactions.look_up([topic])
            await transactions.end_lost([(topic, 0)])
            return await self._read(admin, client, topic, transactions, state)
        except BaseException:
            await transactions.close()
            raise

    async def _read(
        self, admin: Admin, client: AIOKafkaClient, topic: str, transactions: Transactions, state: ShardState
    ) -> _Kept:
        stream = self._stream
        facts = await admin.find_topics([topic, *stream.topic_names])
        sources = list_sources(stream, {name: facts[name] for name in stream.topic_names if name in facts}, state)
        index = Index(stream, with_chunks=False)
        index.position, end = (await admin.find_bounds([(topic, 0)], committed=False))[topic, 0]
        for name in (topic, *stream.topic_names):
            await client.add_topic(name)
        await index.read(client, topic, end)
        known, identity = state.topics.get((stream.name, topic)), facts[topic].identity
        if (known is not None and known != identity) or index.doubt >= 0:
            raise OverlayError(
                f"the ledger of stream {stream.name} in topic {topic} is not the one that was written, or a part of it cannot"
                " be read. The service says what to do about it: start it"
            )
        bounds = await admin.find_bounds(sources.partitions, committed=False)
        compacted = [name for name, each in facts.items() if "compact" in each.config.get("cleanup.policy", "")]
        compacted = [name for name in compacted if name != topic]
        for source, own in bounds.items():
            place = index.ledger.log_position_of(source)
            await check_log_position(client, stream.name, source, place, own, compacted=source[0] in compacted)
        starts = {source: first for source, (first, _) in bounds.items()}
        delta = None if known else Delta(generation=state.generation, topics={(stream.name, topic): identity})
        is_served = _is_served(stream.name, state, starts)
        return _Kept(topic, index.ledger, transactions, starts, is_served, delta)

    async def _give_out(
        self, kept: _Kept, admin: Admin, client: AIOKafkaClient, ends: Mapping[TopicPartition, int], only: Only | None
    ) -> None:
        """Write and commit what gives sequences to the records before `ends`, and wait until clients can read it."""
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
        await self._write(kept, [Record(*encode(self._stream.name, round)) for round in rounds])
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


async def _leave_to_service(admin: Admin, prefix: str) -> None:
    """Raise ServiceRuns if the group of workers has members; OverlayError if it may not be looked at."""
    if await admin.count_members(workers_group(prefix)):
        raise ServiceRuns(f"a service with topics.prefix {prefix!r} runs, and keeps it")


def _is_served(stream: str, state: ShardState, starts: Mapping[TopicPartition, int]) -> bool:
    """Return whether the service has delivered records of a stream, by the state of the stream's shard."""
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
    """Wait until readers of committed records see all of a topic. Raises SourceUnavailable.

    Kafka answers a commit before its markers are in the log. A reader that is told of the ledger's end
    before that would take the sequences for unknown.
    """
    deadline, place = monotonic() + READABLE_S, (topic, 0)
    wanted = (await admin.find_bounds([place], committed=False))[place][1]
    while (await admin.find_bounds([place]))[place][1] < wanted:
        if monotonic() > deadline:
            raise SourceUnavailable(f"topic {topic}: what was committed is not readable within {READABLE_S:.0f} s")
        await asyncio.sleep(0.01)
