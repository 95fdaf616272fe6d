"""Step 1: the bytes of source partitions, fetched ahead of whoever reads them.

A fetcher serves partition fetches. A partition fetch reads one partition from a position on; two partition fetches
may read the same partition at different places (the tail, and a consumer that is catching up). Each broker gets one
fetch at a time, for every partition fetch it leads that has nothing waiting, so one response is decoded while the
next one travels and no more than one response a partition fetch is held.

That is right for those who read on and on, and for the tail, where a fetch that waits for records would hold up the one
behind it: brokers answer the requests of a connection one after the other. Whoever reads many small parts of a log, which
are all there, spends his time waiting for answers; such a fetcher has several `requests` under way.

A log may lose its end in an unclean election and grow past the place where a partition fetch stands before the next
fetch. All that is written afterwards has a higher leader epoch. So a partition fetch knows the epoch of the batch
before its position, and if the first batch that comes is of another one, the batch before it is fetched once more and
compared: an epoch has one leader, who writes each offset once, so the same epoch there means the same log below.
Elections are rare, and so is that fetch.

Fetches are raw: aiokafka's client keeps metadata, TLS and SASL and hands back the record batches as bytes. Isolation is
read committed: the response ends at the last stable offset and lists the aborted transactions within it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

from overlay.errors import SourceUnavailable
from overlay.logs import get_logger
from overlay.scan.commit import NO_ABORTS, Aborted
from overlay.scan.decode import NO_STOP
from overlay.scan.header import HEADER_SIZE, Batches, Bytes, read_end, split
from overlay.waits import is_set_within

from .fetch_response import fetch
from .log_position import LogPosition

log = get_logger(__name__)

READ_COMMITTED = 1
PARTITION_BYTES = 2 << 20
"""Larger responses are slower: their copies no longer fit the cache, and the thread that decodes waits for them."""
RESPONSE_BYTES = 8 << 20
READY_BYTES = 24 << 20
"""While so much is waiting to be taken, nothing more is fetched, however many partition fetches there are, but for
urgent ones."""
LONG_WAIT_MS = 500
SHORT_WAIT_MS = 20
"""While some partition fetches of a broker have data waiting, a fetch for its others must end soon, so that those can
join again."""
BACKOFF_S = (0.05, 2.0)
NO_EPOCH = -1
_EPOCH_AT, _MAGIC_AT, _MAGIC = 12, 16, 2

_STALE_LEADER = (
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.ReplicaNotAvailableError,
    kafka_errors.KafkaStorageError,
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A partition's part of a fetch response: whole record batches from the one that holds `position` on."""

    position: int
    data: Bytes
    batches: Batches
    """Where they lie in `data`, and what their headers say."""
    aborted: Aborted
    stable_end: int
    """The last stable offset: what lies beyond is not committed yet."""
    log_start: int
    log_position: LogPosition
    """Where the next fetch goes on, at `position` itself when there was no whole batch, and what the last batch was."""
    unreadable: int = -1
    """Base offset of a batch whose header cannot be read, at which `batches` end; -1 where there is none."""

    @property
    def next_offset(self) -> int:
        return self.log_position.position

    @property
    def reach(self) -> int:
        """Up to where it says something: of the records below `next_offset`, and of a batch that cannot be read."""
        return max(self.next_offset, self.unreadable + 1)

    @property
    def records(self) -> int:
        """As the batches' headers count them."""
        return int(self.batches["count"].clip(0).sum())


@dataclass(frozen=True, slots=True)
class Lost:
    """The position is not in the log: retention passed it, or the log is shorter than it was."""

    position: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The log below the position is not the one that was read: it lost its end and grew again.

    `cut`: where it was cut off; the start of the log if it is another one altogether.
    """

    position: int
    cut: int


@dataclass(frozen=True, slots=True)
class Denied:
    """Kafka does not let us read the partition."""

    reason: str


class PartitionFetch:
    """One reading position. `take` what is `ready`; the fetcher fetches on by itself."""

    def __init__(
        self,
        fetcher: Fetcher,
        topic: str,
        partition: int,
        position: int,
        stop: int,
        size: int | None = None,
        epoch: int = NO_EPOCH,
    ) -> None:
        self.topic, self.partition, self.position, self.stop = topic, partition, position, stop
        self.tp = TopicPartition(topic, partition)
        self.epoch = epoch
        """Leader epoch of the batch before `position`; NO_EPOCH if it is not known, and then nothing is compared."""
        self.size = size
        """Bytes from `position` to `stop`, where that is known."""
        self.stable_end = -1
        """Last known, -1 before the first response."""
        self.ready: Fetched | Lost | Changed | Denied | None = None
        self.in_flight = False
        self._urgent = False
        self._fetcher = fetcher

    @property
    def is_idle(self) -> bool:
        """Whether there is something to fetch for it now."""
        return self.ready is None and not self.in_flight and self.position < self.stop

    def holds(self, position: int) -> bool:
        """Whether what it has ready goes on from `position`, or else what it fetches next does."""
        if isinstance(self.ready, Fetched):
            return self.ready.position <= position < self.position
        return position == self.position

    @property
    def urgent(self) -> bool:
        """Whether the others wait for what comes here: it is fetched for however much they have ready."""
        return self._urgent

    @urgent.setter
    def urgent(self, is_urgent: bool) -> None:
        if is_urgent and not self._urgent:
            self._fetcher.wake()
        self._urgent = is_urgent

    def take(self) -> Fetched | Lost | Changed | Denied | None:
        """What has come, and let the fetcher fetch more."""
        taken, self.ready = self.ready, None
        if isinstance(taken, Fetched):
            self._fetcher.wake()
        return taken

    def rest(self) -> None:
        """Fetch nothing more, and keep nothing."""
        self.stop, self.ready = 0, None
        self._fetcher.wake()

    def seek(self, position: int, epoch: int = NO_EPOCH) -> None:
        """Go on at another position; what has come is dropped. `epoch`: of the batch before it, where that is known."""
        self.position, self.epoch, self.ready = position, epoch, None
        self._fetcher.wake()


def _find_epoch(data: Any) -> int:
    """Return the leader epoch that the header of the first of some batches says; NO_EPOCH if there is no whole header."""
    if data is None or len(data) < HEADER_SIZE or data[_MAGIC_AT] != _MAGIC:
        return NO_EPOCH
    return int.from_bytes(bytes(data[_EPOCH_AT : _EPOCH_AT + 4]), "big", signed=True)


def log_position_after(batches: Batches, position: int) -> LogPosition:
    """The log position behind the last of some batches; `position` alone where there are none beyond it."""
    if not batches.size or int(batches[-1]["last_offset"]) < position:
        return LogPosition(position)
    last = batches[-1]
    return LogPosition(int(last["last_offset"]) + 1, int(last["leader_epoch"]), int(last["crc"]))


class Fetcher:
    """Fetches for its partition fetches until it is closed. `changed` is set whenever a partition fetch has something ready."""

    def __init__(
        self,
        client: AIOKafkaClient,
        *,
        partition_bytes: int = PARTITION_BYTES,
        requests: int = 1,
        apart: int = 0,
    ) -> None:
        """`requests`: that may be under way to a broker; more than one for partition fetches that never wait for what
        is not there yet. `apart`: fetchers of a client with different numbers have connections of their own, and do
        not wait for each other."""
        self.changed = asyncio.Event()
        self.bytes_fetched = 0
        self._client = client
        self._partition_bytes = partition_bytes
        self._partition_fetches: list[PartitionFetch] = []
        self._requests = requests
        self._apart = apart
        self._nodes: dict[int, set[asyncio.Task[None]]] = {}
        self._idle = asyncio.Event()
        self._dispatcher = asyncio.create_task(self._dispatch(), name="feed")

    async def close(self) -> None:
        """Stop fetching. The client belongs to whoever gave it."""
        tasks = [self._dispatcher, *(task for tasks in self._nodes.values() for task in tasks)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        self._idle.set()

    async def open(
        self,
        topic: str,
        partition: int,
        position: int,
        stop: int = NO_STOP,
        size: int | None = None,
        epoch: int = NO_EPOCH,
    ) -> PartitionFetch:
        """Start reading a partition. At `stop` the fetches end, rather than wait for more.

        `size`: the bytes between, where they are known: no more than these are asked for. `epoch`: as `PartitionFetch` has it.
        """
        await self._client.add_topic(topic)
        partition_fetch = PartitionFetch(self, topic, partition, position, stop, size, epoch)
        self._partition_fetches.append(partition_fetch)
        self.wake()
        return partition_fetch

    def shut(self, partition_fetch: PartitionFetch) -> None:
        """Stop reading it."""
        self._partition_fetches.remove(partition_fetch)

    async def _dispatch(self) -> None:
        """Keep fetches going on each broker that leads a partition fetch with nothing waiting."""
        pause = BACKOFF_S[0]
        while True:
            self._idle.clear()
            while self._send(groups := self._group_idle()):
                pass
            if any(node is None or node < 0 for node in groups):
                await is_set_within(self._idle, pause)
                pause = min(pause * 2, BACKOFF_S[1])
                await self._refresh()
            else:
                pause = BACKOFF_S[0]
                await self._idle.wait()

    def _send(self, groups: dict[int | None, list[PartitionFetch]]) -> bool:
        """Ask each broker that may be asked for its partition fetches; whether there was one."""
        sent = False
        for node, partition_fetches in groups.items():
            if node is None or node < 0 or len(under_way := self._nodes.setdefault(node, set())) >= self._requests:
                continue
            for partition_fetch in partition_fetches:
                partition_fetch.in_flight = True
            task = asyncio.create_task(self._fetch(node, partition_fetches), name=f"fetch-{node}")
            under_way.add(task)
            task.add_done_callback(functools.partial(self._finish, node))
            sent = True
        return sent

    def _finish(self, node: int, task: asyncio.Task[None]) -> None:
        self._nodes[node].discard(task)
        if not task.cancelled() and task.exception():
            log.error("fetch failed", broker=node, error=str(task.exception()))
        self.wake()

    def _group_idle(self) -> dict[int | None, list[PartitionFetch]]:
        """Partition fetches to fetch for by leading broker; of each partition those that stand at one position, which
        share a fetch."""
        groups: dict[int | None, list[PartitionFetch]] = {}
        # whoever takes some of it wakes the fetcher
        is_full = (
            sum(
                partition_fetch.ready.data.size
                for partition_fetch in self._partition_fetches
                if isinstance(partition_fetch.ready, Fetched)
            )
            >= READY_BYTES
        )
        positions: dict[TopicPartition, int] = {}
        for partition_fetch in self._partition_fetches:
            may_fetch = partition_fetch.is_idle and (partition_fetch.urgent or not is_full)
            if (
                may_fetch
                and positions.setdefault(partition_fetch.tp, partition_fetch.position) == partition_fetch.position
            ):
                groups.setdefault(self._client.cluster.leader_for_partition(partition_fetch.tp), []).append(
                    partition_fetch
                )
        return groups

    async def _fetch(self, node: int, partition_fetches: list[PartitionFetch]) -> None:
        asked: dict[TopicPartition, list[PartitionFetch]] = {}
        for partition_fetch in partition_fetches:
            asked.setdefault(partition_fetch.tp, []).append(partition_fetch)
        positions = {partition_fetch.tp: partition_fetch.position for partition_fetch in partition_fetches}
        asked_partition_fetches = set(partition_fetches)
        request = self._request(
            asked.values(), SHORT_WAIT_MS if self._has_others(node, asked_partition_fetches) else LONG_WAIT_MS
        )
        try:
            response = await fetch(self._client, node, request, apart=self._apart)
            is_stale = False
            for topic, rows in response.topics:
                for row in rows:
                    tp = TopicPartition(topic, row[0])
                    for partition_fetch in asked[tp]:
                        is_stale |= await self._take_in(node, partition_fetch, positions[tp], row)
            if is_stale:
                await self._refresh()
        except (TimeoutError, KafkaError, OSError) as error:
            log.warning("fetch failed, trying again", broker=node, error=str(error) or type(error).__name__)
            await asyncio.sleep(BACKOFF_S[0])
            await self._refresh()
        finally:
            for partition_fetch in partition_fetches:
                partition_fetch.in_flight = False
        # those that were served go to the end: two places of one partition take turns, and so do partition fetches of
        # a full response
        self._partition_fetches.sort(
            key=lambda partition_fetch: (
                (partition_fetch in asked_partition_fetches)
                + (partition_fetch in asked_partition_fetches and partition_fetch.ready is not None)
            )
        )

    def _has_others(self, node: int, asked: Collection[PartitionFetch]) -> bool:
        """Return whether a broker leads partition fetches that read on and are not asked for now. Those of other
        brokers do not count: they have fetches of their own."""
        leader = self._client.cluster.leader_for_partition
        return any(
            partition_fetch not in asked
            and partition_fetch.position < partition_fetch.stop
            and leader(partition_fetch.tp) == node
            for partition_fetch in self._partition_fetches
        )

    def _request(self, asked: Iterable[list[PartitionFetch]], wait_ms: int) -> FetchRequest:
        """Return the request for some partitions; of each, the partition fetches that it is asked for."""
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for partition_fetches in asked:
            most = max(
                min(self._partition_bytes, partition_fetch.size or self._partition_bytes)
                for partition_fetch in partition_fetches
            )
            topics.setdefault(partition_fetches[0].topic, []).append(
                (partition_fetches[0].partition, partition_fetches[0].position, most)
            )
        return FetchRequest(wait_ms, 1, RESPONSE_BYTES, READ_COMMITTED, list(topics.items()))

    async def _refresh(self) -> None:
        with contextlib.suppress(KafkaError, OSError):
            await self._client.force_metadata_update()

    async def _take_in(self, node: int, partition_fetch: PartitionFetch, position: int, row: tuple[Any, ...]) -> bool:
        """As `_accept`, of a log that is still the one that was read; else the partition fetch has Changed ready.
        Raises KafkaError."""
        _, code, _, _, log_start, *_, data = row
        epoch = partition_fetch.epoch
        if code or partition_fetch.position != position or epoch < 0 or _find_epoch(data) in (NO_EPOCH, epoch):
            return self._accept(partition_fetch, position, row)
        base_offset, before = await self._look_at(node, partition_fetch.tp, position - 1)
        if base_offset >= position or before in (NO_EPOCH, epoch):
            return self._accept(
                partition_fetch, position, row
            )  # it is the same, or compaction or retention has taken it
        cut = (
            await self._find_cut(node, partition_fetch.tp, epoch, log_start, position - 1)
            if before > epoch
            else log_start
        )
        if partition_fetch.position == position:
            partition_fetch.ready = Changed(position, cut)
            self.changed.set()
        return False

    async def _look_at(self, node: int, tp: TopicPartition, offset: int) -> tuple[int, int]:
        """Return base offset and leader epoch of the batch that holds an offset, or of the next one if there is none; both -1
        if retention has passed the offset. Raises KafkaError."""
        # the first batch of the answer comes whole, however little is asked for
        wanted = [(tp.topic, [(tp.partition, offset, 1)])]
        request = FetchRequest(0, 0, 1, READ_COMMITTED, wanted)
        response = await fetch(self._client, node, request, apart=self._apart)
        ((_, code, *_, data),) = response.topics[0][1]
        error = kafka_errors.for_code(code)
        if error is kafka_errors.OffsetOutOfRangeError:
            return -1, NO_EPOCH
        if error is not kafka_errors.NoError:
            raise error(f"{tp.topic}-{tp.partition}@{offset}")
        return int.from_bytes(bytes(data[:8] if data else b""), "big"), _find_epoch(data)

    async def find_cut(self, partition_fetch: PartitionFetch, first: int, end: int) -> int:
        """Return where a log was cut off that does not hold a partition fetch's position.

        That is the first offset from `first` on, below `end`, that was written after the partition fetch's epoch;
        `end` if there is none, or the epoch is not known.

        Raises SourceUnavailable.
        """
        node = self._client.cluster.leader_for_partition(partition_fetch.tp)
        try:
            if node is None or node < 0:
                raise kafka_errors.LeaderNotAvailableError(
                    f"{partition_fetch.topic}-{partition_fetch.partition} has no leader"
                )
            return (
                end
                if partition_fetch.epoch < 0
                else await self._find_cut(node, partition_fetch.tp, partition_fetch.epoch, first, end)
            )
        except (KafkaError, OSError) as error:
            raise SourceUnavailable(
                f"{partition_fetch.topic}-{partition_fetch.partition}: {str(error) or type(error).__name__}"
            ) from error

    async def _find_cut(self, node: int, tp: TopicPartition, epoch: int, first: int, position: int) -> int:
        """Return the first offset from `first` on that was written after an epoch; `position` if none below it was.

        Raises KafkaError."""
        low, high = first, position
        while low < high:
            middle = (low + high) // 2
            if (await self._look_at(node, tp, middle))[1] > epoch:
                high = middle
            else:
                low = middle + 1
        return low

    def _accept(self, partition_fetch: PartitionFetch, position: int, row: tuple[Any, ...]) -> bool:
        """Give a partition fetch the part of a response that was asked for from `position` on; True when the metadata
        is out of date."""
        _, code, _, stable_end, log_start, aborted, *_, data = row
        if partition_fetch.position != position:
            return False  # somebody moved it meanwhile
        error = kafka_errors.for_code(code)
        if error is kafka_errors.NoError:
            self._fill(partition_fetch, position, data, aborted, stable_end, log_start)
            return False
        if error is kafka_errors.OffsetOutOfRangeError:
            partition_fetch.ready = Lost(position)
        elif error is kafka_errors.TopicAuthorizationFailedError:
            partition_fetch.ready = Denied(f"{partition_fetch.topic}: not authorized to read")
        elif not issubclass(error, _STALE_LEADER) and error is not kafka_errors.UnknownTopicOrPartitionError:
            log.warning(
                "partition cannot be fetched",
                topic=partition_fetch.topic,
                partition=partition_fetch.partition,
                error=error.__name__,
            )
        if partition_fetch.ready is not None:
            self.changed.set()
        return partition_fetch.ready is None

    def _fill(
        self, partition_fetch: PartitionFetch, position: int, data: Any, aborted: Any, stable_end: int, log_start: int
    ) -> None:
        """`data`: bytes or a view of them, None when there are none; `aborted`: pairs of producer and first offset."""
        buf = np.frombuffer(data or b"", np.uint8)
        has_learnt, partition_fetch.stable_end = partition_fetch.stable_end != stable_end, stable_end
        if not buf.size:
            if has_learnt:  # that the log ends here
                self.changed.set()
            return
        found = split(buf)
        log_position = log_position_after(found.batches, position)
        if found.batches.size and not found.fault and log_position.position == position:
            # the broker means that the batch reaches the position: it is damaged, and was passed over as far as it can be read
            log_position = LogPosition(max(position + 1, min(read_end(buf, found.batches[-1]), stable_end)))
        pairs = np.array(aborted, np.int64).reshape(-1, 2) if aborted else NO_ABORTS
        partition_fetch.ready = Fetched(
            position,
            buf,
            found.batches,
            pairs,
            stable_end,
            log_start,
            log_position,
            found.base_offset if found.fault else -1,
        )
        if log_position.position > position:
            partition_fetch.epoch = log_position.epoch
        partition_fetch.position = log_position.position
        if partition_fetch.size is not None:
            partition_fetch.size = max(0, partition_fetch.size - buf.size)
        self.bytes_fetched += buf.size
        self.changed.set()
