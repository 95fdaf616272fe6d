"""Fetch requests: what a leader has from an offset on, at once or when enough of it has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .codes import Code
from .session import Answer
from .timers import Timer
from .topics import Partition

if TYPE_CHECKING:
    from .cluster import Cluster

READ_COMMITTED = 1
FINAL_EPOCH = -1
_NO_OFFSETS = (-1, -1, -1)


class Fetching:
    """A fetch request, held until there are enough bytes or its time is over."""

    __slots__ = ("_answer", "_cluster", "_epochs", "_held", "_is_committed", "_timer", "_wanted")

    def __init__(self, cluster: Cluster, answer: Answer) -> None:
        self._cluster = cluster
        self._answer = answer
        request = answer.request
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._wanted = [
            (topic, [(index, epoch, offset, max_bytes) for index, epoch, offset, _, max_bytes in partitions])
            for topic, partitions in request.topics
        ]
        self._held: list[tuple[Partition, int, int]] = []
        self._epochs: dict[Partition, int] = {}
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Answer, or wait for more."""
        request = self._answer.request
        if request.session_epoch != FINAL_EPOCH and request.session_id != 0:
            self._answer.give(0, Code.FETCH_SESSION_ID_NOT_FOUND, 0, [])
            return
        topics, taken, is_final = self._read()
        if is_final or request.max_wait_time <= 0 or not topics or taken >= request.min_bytes:
            self._give(topics)
            return
        for topic, partitions in self._wanted:
            for index, _, offset, max_bytes in partitions:
                partition = self._cluster.find(topic, index)
                if partition is None:
                    continue  # it was deleted, which this broker has not heard of: nothing more will come
                partition.waiters[self] = None
                self._epochs[partition] = partition.epoch
                self._held.append((partition, offset, max_bytes))
        self._answer.session.held.add(self._answer)
        self._timer = self._cluster.timers.at(self._cluster.now + request.max_wait_time / 1000, self._finish)

    def wake(self, _: Partition) -> None:
        """Answer if there is enough now, or if a partition is not led here any more."""
        if self._answer.session.closed:
            self._leave()
            return
        least, total = self._answer.request.min_bytes, 0
        for partition, offset, max_bytes in self._held:
            if partition.epoch != self._epochs[partition]:
                self._finish()
                return
            log = partition.log
            if (
                offset > log.end
                or offset < log.start
                or partition.topic is not self._cluster.topics.get(partition.topic.name)
            ):
                self._finish()
                return
            end = log.last_stable if self._is_committed else log.high_watermark
            if offset < end:
                total += min(log.count_bytes(offset, end, min(least, max_bytes)), max_bytes)
        if total >= least:
            self._finish()

    def _leave(self) -> None:
        for partition, *_ in self._held:
            partition.waiters.pop(self, None)
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self) -> None:
        self._leave()
        if not self._answer.session.closed:
            self._give(self._read()[0])

    def _give(self, topics: list[Any]) -> None:
        self._answer.give(0, Code.NONE, 0, topics)

    def _read(self) -> tuple[list[Any], int, bool]:
        """Return the answer's topics, how many bytes they have, and whether one of them is an error."""
        cluster, request = self._cluster, self._answer.request
        broker, is_committed = self._answer.session.broker, self._is_committed
        left = min(request.max_bytes, cluster.settings.fetch_max_bytes)
        total, is_final, is_first = 0, False, True
        topics: list[Any] = []
        for topic, partitions in self._wanted:
            found: list[Any] = []
            for index, epoch, offset, max_bytes in partitions:
                partition = cluster.find_read(broker, topic, index, epoch, request.API_VERSION)
                if not isinstance(partition, Partition):
                    # the partition that a broker knows not at all has an empty list, the others have none
                    aborted: list[Any] | None = [] if partition == Code.UNKNOWN_TOPIC_OR_PARTITION else None
                    found.append((index, int(partition), *_NO_OFFSETS, aborted, -1, b""))
                    is_final = True
                    continue
                log = partition.log
                is_leader = partition.leader == broker and not cluster.views
                limit = None if is_leader else cluster.limit(broker, partition)
                if not log.start <= offset <= (log.end if limit is None else limit):
                    found.append((index, int(Code.OFFSET_OUT_OF_RANGE), *_NO_OFFSETS, None, -1, b""))
                    is_final = True
                    continue
                stable = log.last_stable
                high = log.high_watermark
                if limit is not None:
                    high, stable = min(limit, high), min(limit, stable)
                end = stable if is_committed else high
                data, bound = b"", offset
                if offset < end:
                    size = max_bytes if max_bytes < left else left
                    data, bound = log.read(offset, end, size, at_least_one=is_first)
                aborted = None
                if is_committed and bound >= 0:
                    aborted = log.producers.find_aborted(offset, bound) if offset < end else []
                if data:
                    is_first = False
                    total += len(data)
                    left = max(0, left - len(data))
                found.append((index, 0, high, stable, log.start, aborted, -1, data))
            topics.append((topic, found))
        return topics, total, is_final
