"""Step 1: the fetcher, which fetches the bytes of source partitions ahead of their readers.

A fetcher serves partition fetches. A partition fetch reads one partition from a position on. Two
partition fetches may read the same partition at different positions (one at the tail, one for a
consumer that is catching up). Each broker gets one fetch request at a time, for the partition
fetches that it leads and that have no data waiting; of those of one partition, for those at one
position. So one response is decoded while the next one is in flight, and at most one response per
partition fetch is held.

One request at a time suits readers of long ranges. It also suits the tail, where a request that
waits for records would delay the one behind it: a broker answers the requests of a connection one
after the other. A reader of many small ranges that are all in the log would mostly wait for
answers, so its fetcher has several `requests` in flight.

Fetches are raw: aiokafka's client handles metadata, TLS and SASL, and returns record batches as
bytes. The isolation level is read committed: a response ends at the last stable offset and lists
the aborted transactions within it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Collection, Iterable
from typing import Any, Protocol

import numpy as np
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.structs import TopicPartition

from overlay.arrays import Bytes
from overlay.clock import monotonic
from overlay.errors import SourceUnavailable
from overlay.logs import get_logger
from overlay.scan.commit import NO_ABORTS
from overlay.scan.decode import NO_STOP
from overlay.scan.header import Split, read_end, split
from overlay.scan.rows import find_batches
from overlay.waits import Backoff

from .fetch_response import READ_COMMITTED, fetch
from .fetched import Changed, Denied, Fetched, Lost, log_position_after
from .gate import Gate, pass_through
from .log_cut import NO_EPOCH, LogReader, find_epoch
from .log_position import LogPosition
from .partition_fetch import PartitionFetch

log = get_logger(__name__)

PARTITION_BYTES = 2 << 20
"""Bytes to ask for per partition. Larger responses are slower: they no longer fit the CPU cache,
and the decoding thread waits for them.
"""
RESPONSE_BYTES = 8 << 20
READY_BYTES = 24 << 20
"""While this much data waits to be taken, nothing more is fetched, except for urgent partition
fetches.
"""
LONG_WAIT_MS = 500
SHORT_WAIT_MS = 20
"""Maximum wait of a fetch while other partition fetches of the broker are not part of it, so that
they can join the next one soon.
"""
BACKOFF_S = (0.05, 2.0)
CANCEL_S = 1.0
"""Seconds after which a fetch that goes on is cancelled once more."""

_STALE_LEADER = (
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.ReplicaNotAvailableError,
    kafka_errors.KafkaStorageError,
)


class Sharing(Protocol):
    """Fetches that several fetchers share; see shared_fetches.py, which has the rules."""

    def join(self, fetcher: Fetcher, fetch: PartitionFetch) -> None:
        """Note that a fetcher has begun a partition fetch."""

    def leave(self, fetch: PartitionFetch) -> None:
        """Note that a partition fetch has ended. Does nothing if that is known."""

    def serve(self, fetch: PartitionFetch) -> bool:
        """Fill a partition fetch that wants data, or have it wait for a shared fetch. Return False if it has to fetch for
        itself.
        """

    def waits(self, fetch: PartitionFetch) -> bool:
        """Return whether a partition fetch waits for a shared fetch."""

    def note(self, fetch: PartitionFetch, fetched: Fetched | None) -> None:
        """Take up the answer to a fetcher's own fetch, which has moved it; None if the answer had no data."""


class Fetcher:
    """A loop that keeps fetches in flight for its partition fetches until it is closed.

    It sets `changed` whenever one of them has something ready, or learns another `stable_end`.
    """

    def __init__(
        self,
        client: AIOKafkaClient,
        *,
        partition_bytes: int | None = None,
        requests: int = 1,
        plain: bool = False,
        apart: int = 0,
        sharing: Sharing | None = None,
    ) -> None:
        """Start fetching with a connected client.

        `partition_bytes`: bytes to ask for per partition, None for PARTITION_BYTES. `requests`:
        most fetches in flight to one broker. Set it above 1 only if no partition fetch waits for
        records that are not in the log yet. `plain`: find batches without kernels, which a command
        would have to load first. `apart`: fetchers with different numbers use separate
        connections, so that they do not wait for each other. `sharing`: fetches that it shares with
        other fetchers, None if it fetches everything for itself.
        """
        self.changed = asyncio.Event()
        self.bytes_fetched = 0
        self._client = client
        self._partition_bytes = partition_bytes or PARTITION_BYTES
        self._partition_fetches: list[PartitionFetch] = []
        self._requests = requests
        self._apart = apart
        self._log = LogReader(client, apart)
        self._plain = plain
        self._sharing = sharing
        self._nodes: dict[int, set[asyncio.Task[None]]] = {}
        self._failures: dict[int, int] = {}
        """By broker whose last fetch has failed, how many in a row have; those that were in flight together count once."""
        self._holding: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._dispatcher = asyncio.create_task(self._dispatch(), name="fetching")

    async def close(self) -> None:
        """Cancel all fetches and wait for their end. The caller still has to close the client."""
        if self._sharing is not None:
            for partition_fetch in self._partition_fetches:
                self._sharing.leave(partition_fetch)
        left = tasks = {self._dispatcher, *self._holding, *(task for tasks in self._nodes.values() for task in tasks)}
        while left:
            for task in left:
                task.cancel()
            # aiokafka may take a cancellation for its own, and go on until its request times out
            _, left = await asyncio.wait(left, timeout=CANCEL_S)
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Have the fetcher check again which partition fetches need a fetch."""
        self._idle.set()

    async def open(
        self,
        topic: str,
        partition: int,
        position: int,
        stop: int = NO_STOP,
        size: int | None = None,
        epoch: int = NO_EPOCH,
        gate: Gate | None = None,
    ) -> PartitionFetch:
        """Start reading a partition at `position`. If the client does not know the topic yet, have it ask for the
        metadata first, and wait for that. The data comes later, through the partition fetch returned. The reading
        waits for new records up to the offset `stop`, and ends there; the last data may reach beyond it.

        `size`: bytes from `position` to `stop` if known; a fetch asks for no more, unless another partition fetch
        shares it or these bytes have been fetched already. `epoch`: leader epoch of the batch before `position`, see
        PartitionFetch. `gate`: decides when data is ready; None to have it ready at once.
        """
        await self._client.add_topic(topic)
        return self.start(topic, partition, position, stop, size, epoch, gate)

    def start(
        self,
        topic: str,
        partition: int,
        position: int,
        stop: int = NO_STOP,
        size: int | None = None,
        epoch: int = NO_EPOCH,
        gate: Gate | None = None,
    ) -> PartitionFetch:
        """Start reading as `open` does, in a topic that the client knows already."""
        partition_fetch = PartitionFetch(self, topic, partition, position, stop, size, epoch, gate)
        self._partition_fetches.append(partition_fetch)
        if self._sharing is not None:
            self._sharing.join(self, partition_fetch)
        self.wake()
        return partition_fetch

    def shut(self, partition_fetch: PartitionFetch) -> None:
        """Remove a partition fetch: no more fetches are sent for it, and one in flight may still fill
        it. What it holds is dropped. Raises ValueError if it was removed before.
        """
        self._partition_fetches.remove(partition_fetch)
        partition_fetch.held = None
        if self._sharing is not None:
            self._sharing.leave(partition_fetch)

    async def _dispatch(self) -> None:
        """Keep fetches in flight, up to `requests`, to each broker that leads an idle partition
        fetch, until cancelled. Refresh metadata while a leader is unknown.
        """
        backoff = Backoff(*BACKOFF_S)
        while True:
            self._idle.clear()
            while self._send(groups := self._group_idle()):
                pass
            if any(node is None or node < 0 for node in groups):
                await backoff.rest(self._idle)
                await self._refresh()
            else:
                backoff.reset()
                await self._idle.wait()

    def _send(self, groups: dict[int | None, list[PartitionFetch]]) -> bool:
        """Send one fetch to each broker in `groups` that is known and has fewer than `requests` in
        flight. Return whether any was sent.
        """
        sent = False
        for node, partition_fetches in groups.items():
            if node is None or node < 0 or len(under_way := self._nodes.setdefault(node, set())) >= self._requests:
                continue
            for partition_fetch in partition_fetches:
                partition_fetch.in_flight, partition_fetch.asked = True, monotonic()
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
        """Return the partition fetches that need a fetch now, by the leading broker (None or
        negative if it is unknown).

        Of a partition, only those at one position are included, since they share a fetch. While
        READY_BYTES of data wait to be taken, only urgent ones are. Those that a shared fetch serves are
        not; they may be filled by this call.
        """
        groups: dict[int | None, list[PartitionFetch]] = {}
        # `take` wakes the fetcher, so a full buffer needs no timer.
        is_full = (
            sum(
                partition_fetch.ready.data.size
                for partition_fetch in self._partition_fetches
                if isinstance(partition_fetch.ready, Fetched)
            )
            >= READY_BYTES
        )
        # what is held keeps only those back that may be held as well
        is_holding = sum(each.held.data.size for each in self._partition_fetches if each.held) >= READY_BYTES
        positions: dict[TopicPartition, int] = {}
        for partition_fetch in self._partition_fetches:
            may_fetch = partition_fetch.is_idle and (partition_fetch.urgent or not is_full)
            may_fetch = may_fetch and (partition_fetch.gate is None or not is_holding)
            if may_fetch and self._sharing is not None and self._sharing.serve(partition_fetch):
                continue
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
        failures = self._failures.get(node, 0)
        try:
            response = await fetch(self._client, node, request, apart=self._apart)
            is_stale = False
            is_empty = not any(row[-1] for _, rows in response.topics for row in rows)
            for topic, rows in response.topics:
                for row in rows:
                    tp = TopicPartition(topic, row[0])
                    for partition_fetch in asked[tp]:
                        is_stale |= await self._take_in(node, partition_fetch, positions[tp], row)
                        if is_empty and not row[1] and partition_fetch.is_compacted:
                            self._pass_hole(partition_fetch, positions[tp], row[4])
            if is_stale:
                await self._refresh()
        except (TimeoutError, KafkaError, OSError) as error:
            log.warning("fetch failed, trying again", broker=node, error=str(error) or type(error).__name__)
            await self._rest(node, failures)
            await self._refresh()
        else:
            self._failures.pop(node, None)
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

    async def _rest(self, node: int, failures: int) -> None:
        """Count a failed fetch of a broker, and wait before the next one. `failures`: how many there were when it was
        sent; if there are more now, one that was in flight with it has been counted."""
        if self._failures.get(node, 0) == failures:
            self._failures[node] = failures + 1
        await Backoff(*BACKOFF_S, failures=failures).rest()

    def _has_others(self, node: int, asked: Collection[PartitionFetch]) -> bool:
        """Return whether the broker leads partition fetches that have not reached their `stop`, are
        not in `asked`, and do not wait for a shared fetch.
        """
        leader = self._client.cluster.leader_for_partition
        return any(
            partition_fetch not in asked
            and partition_fetch.position < partition_fetch.stop
            and not (self._sharing is not None and self._sharing.waits(partition_fetch))
            and leader(partition_fetch.tp) == node
            for partition_fetch in self._partition_fetches
        )

    def _request(self, asked: Iterable[list[PartitionFetch]], wait_ms: int) -> FetchRequest:
        """Return one fetch request for several partitions. `asked`: for each partition the
        partition fetches that share the fetch, all at one position. `wait_ms`: most time that the
        broker waits for records.
        """
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
        """Process one partition's part of a response (`row`), which was requested at `position`.
        Return whether the metadata seems out of date.

        If the leader epoch differs from the one before, the batch before `position` is read again.
        If the log has changed there, Changed becomes ready. Otherwise this does what `_accept`
        does. Raises KafkaError.
        """
        _, code, _, _, log_start, *_, data = row
        epoch = partition_fetch.epoch
        if code or partition_fetch.position != position or epoch < 0 or find_epoch(data) in (NO_EPOCH, epoch):
            return self._accept(partition_fetch, position, row)
        base_offset, before = await self._log.look_at(node, partition_fetch.tp, position - 1)
        if base_offset >= position or before in (NO_EPOCH, epoch):
            return self._accept(
                partition_fetch, position, row
            )  # it is the same, or compaction or retention has taken it
        cut = (
            await self._log.find_cut(node, partition_fetch.tp, epoch, log_start, position - 1)
            if before > epoch
            else log_start
        )
        if partition_fetch.position == position:
            partition_fetch.ready = Changed(position, cut)
            self.changed.set()
        return False

    async def find_cut(self, partition_fetch: PartitionFetch, first: int, end: int) -> int:
        """Return the offset at which a log lost its end, after it turned out not to hold the
        position of a partition fetch any more.

        That is the first offset from `first` on, below `end`, that was written after the partition
        fetch's epoch; `end` if there is none, or the epoch is not known. Raises SourceUnavailable.
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
                else await self._log.find_cut(node, partition_fetch.tp, partition_fetch.epoch, first, end)
            )
        except (KafkaError, OSError) as error:
            raise SourceUnavailable(
                f"{partition_fetch.topic}-{partition_fetch.partition}: {str(error) or type(error).__name__}"
            ) from error

    def _accept(self, partition_fetch: PartitionFetch, position: int, row: tuple[Any, ...]) -> bool:
        """Process one partition's part of a response (`row`), which was requested at `position`:
        make the data, Lost or Denied ready.

        Return True if there was another error, for which the caller has to refresh the metadata. Do
        nothing and return False if `seek` has moved the partition fetch meanwhile.
        """
        _, code, end, stable_end, log_start, aborted, *_, data = row
        if partition_fetch.position != position:
            return False  # `seek` moved it meanwhile
        error = kafka_errors.for_code(code)
        if error is kafka_errors.NoError:
            partition_fetch.end = end
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

    def _split(self, buf: Bytes) -> Split:
        return split(buf, find_batches) if self._plain else split(buf)

    def _pass_hole(self, partition_fetch: PartitionFetch, position: int, log_start: int) -> None:
        """If the log of a compacted topic has no batch between `position` and the partition fetch's `stop`, make an
        empty Fetched ready, and move the partition fetch to its `stop`. Call it after a response without any data,
        asked for at `position`: one that has data of other partitions may be full, and proves nothing.
        """
        stop, stable_end = partition_fetch.stop, partition_fetch.stable_end
        if partition_fetch.ready is None and partition_fetch.position == position < stop <= stable_end:
            nothing = np.empty(0, np.uint8)
            batches, log_position = self._split(nothing).batches, LogPosition(stop)
            partition_fetch.ready = Fetched(position, nothing, batches, NO_ABORTS, stable_end, log_start, log_position)
            partition_fetch.position = stop
            self.changed.set()

    def _fill(
        self, partition_fetch: PartitionFetch, position: int, data: Any, aborted: Any, stable_end: int, log_start: int
    ) -> None:
        """Make a response the ready data of a partition fetch, and move its position past the whole
        batches in it. A damaged batch that ends below the position is passed over. Without data
        only its stable end is updated.

        `data`: bytes or a view, None if there are none. `aborted`: pairs of producer id and first
        offset, None if there are none.
        """
        buf = np.frombuffer(data or b"", np.uint8)
        has_learnt, partition_fetch.stable_end = partition_fetch.stable_end != stable_end, stable_end
        partition_fetch.answered = partition_fetch.asked
        if not buf.size:
            if has_learnt:  # the reader learns where the log ends
                self.changed.set()
            self._note(partition_fetch, None)
            return
        found = self._split(buf)
        log_position = log_position_after(found.batches, position)
        if found.batches.size and not found.fault and log_position.position == position:
            # The broker says that this batch reaches the position, but its header ends below: the
            # batch is damaged. Move on past what can be read.
            log_position = LogPosition(max(position + 1, min(read_end(buf, found.batches[-1]), stable_end)))
        pairs = np.array(aborted, np.int64).reshape(-1, 2) if aborted else NO_ABORTS
        fetched = Fetched(
            position,
            buf,
            found.batches,
            pairs,
            stable_end,
            log_start,
            log_position,
            found.base_offset if found.fault else -1,
        )
        if partition_fetch.size is not None:
            partition_fetch.size = max(0, partition_fetch.size - buf.size)
        self.bytes_fetched += buf.size
        self.hand(partition_fetch, fetched)
        self._note(partition_fetch, fetched)

    def _note(self, partition_fetch: PartitionFetch, fetched: Fetched | None) -> None:
        if self._sharing is not None:
            self._sharing.note(partition_fetch, fetched)

    def hand(self, partition_fetch: PartitionFetch, fetched: Fetched) -> None:
        """Make data the ready data of a partition fetch, or hold it for its gate, and move its position behind it.

        `fetched`: data from that position on, as its `position` says.
        """
        before, log_position = partition_fetch.epoch, fetched.log_position
        partition_fetch.stable_end = fetched.stable_end
        if log_position.position > partition_fetch.position:
            partition_fetch.epoch = log_position.epoch
        partition_fetch.position = log_position.position
        if partition_fetch.gate is None:
            partition_fetch.ready = fetched
        else:
            partition_fetch.held = fetched
            task = asyncio.create_task(
                self._hold(partition_fetch, fetched, partition_fetch.gate, before), name="holding"
            )
            self._holding.add(task)
            task.add_done_callback(self._holding.discard)
        self.changed.set()

    async def _hold(self, partition_fetch: PartitionFetch, fetched: Fetched, gate: Gate, before: int) -> None:
        """Make held data ready when its gate lets it through. If batches at its front need not wait, they become ready
        at once; the rest is fetched again. Ends without effect if the partition fetch has moved. `before`: the leader
        epoch before the data.
        """
        passed: Fetched | None = None
        try:
            source = partition_fetch.topic, partition_fetch.partition
            passed = await pass_through(gate, fetched, source, lambda: partition_fetch.held is fetched)
        except Exception:
            log.exception("records are held back", topic=partition_fetch.topic, partition=partition_fetch.partition)
            await asyncio.sleep(BACKOFF_S[1])
        if partition_fetch.held is not fetched:
            return
        if passed is None:
            partition_fetch.seek(fetched.position, before)
            return
        if passed is not fetched:
            partition_fetch.position, partition_fetch.epoch = passed.next_offset, passed.log_position.epoch
        partition_fetch.held, partition_fetch.ready = None, passed
        self.changed.set()
