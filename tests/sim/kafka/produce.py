"""Produce requests: what a leader checks, appends and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .batches import BadBatch, Batch, has_valid_crc, split
from .codes import Code
from .session import Answer
from .topics import Partition

if TYPE_CHECKING:
    from .cluster import Cluster

ALL, LEADER, NO_ACK = -1, 1, 0
Result = tuple[int, int, int, int]
"""(code, base offset, the broker's timestamp or -1, log start offset)"""
_REFUSED = (-1, -1, -1)


class Producing:
    """A produce request whose answer may wait for the followers."""

    def __init__(self, cluster: Cluster, answer: Answer) -> None:
        self._cluster = cluster
        self._answer = answer
        self._results: dict[tuple[str, int], Result] = {}
        self._waiting = 0

    def begin(self) -> None:
        request, answer, cluster = self._answer.request, self._answer, self._cluster
        acks = request.required_acks
        for topic, partitions in request.topics:
            for index, data in partitions:
                if acks not in (ALL, LEADER, NO_ACK):
                    self._results[topic, index] = (Code.INVALID_REQUIRED_ACKS, *_REFUSED)
                    continue
                self._produce(topic, index, bytes(data))
        if acks == NO_ACK:
            if any(result[0] for result in self._results.values()):
                cluster.hang_up(answer.session)
            answer.is_silent = True
        elif self._waiting:
            # the rest of the answer is ready, and what is late is told as such
            cluster.timers.at(cluster.now + request.timeout / 1000, self._time_out)
        else:
            self._finish()

    def _produce(self, topic: str, index: int, data: bytes) -> None:
        cluster, answer = self._cluster, self._answer
        found = cluster.find_led(answer.session.broker, topic, index)
        if not isinstance(found, Partition):
            self._results[topic, index] = (found, *_REFUSED)
            return
        request = answer.request
        if cluster.views and cluster.limit(answer.session.broker, found) is not None:
            # a leader that was deposed and has not heard of it: no follower will have the batch
            self._results[topic, index] = (Code.NONE, found.log.end, -1, found.log.start)
            self._wait(topic, index, cluster.views[answer.session.broker].deposed.append)
            return
        result = append(cluster, found, data, request.transactional_id, request.required_acks)
        self._results[topic, index] = result
        end = found.log.end
        if request.required_acks != ALL or result[0] or end <= found.log.high_watermark:
            return
        self._wait(topic, index, lambda settle: found.pending.append((end, settle)))

    def _wait(self, topic: str, index: int, tell: Callable[[Callable[[bool], None]], None]) -> None:
        """Hold the answer until the followers have the batch, or there is another leader."""
        self._waiting += 1
        self._answer.session.held.add(self._answer)

        def settle(is_replicated: bool) -> None:
            if not is_replicated:
                self._results[topic, index] = (Code.NOT_LEADER_OR_FOLLOWER, *_REFUSED)
            self._waiting -= 1
            if not self._waiting:
                self._finish()

        tell(settle)

    def _time_out(self) -> None:
        if self._waiting and not self._answer.response:
            for key, (code, *_) in self._results.items():
                if not code:
                    self._results[key] = (Code.REQUEST_TIMED_OUT, *_REFUSED)
            self._finish()

    def _finish(self) -> None:
        topics: dict[str, list[Any]] = {}
        for (topic, index), (code, *rest) in self._results.items():
            topics.setdefault(topic, []).append((index, int(code), *rest))
        self._answer.give(list(topics.items()), 0)


def append(cluster: Cluster, partition: Partition, data: bytes, transactional_id: str | None, acks: int) -> Result:
    """Append what a producer sent for one partition, or say why not."""
    config, log = partition.topic.config, partition.log
    if acks == ALL and len(partition.isr) < config.min_insync:
        return (Code.NOT_ENOUGH_REPLICAS, *_REFUSED)
    if partition.refusal:
        return (partition.refusal, *_REFUSED)
    try:
        batches = split(data)
    except BadBatch:
        return (Code.CORRUPT_MESSAGE, *_REFUSED)
    if len(batches) != 1:
        return (Code.INVALID_RECORD, *_REFUSED)
    batch = batches[0]
    now_ms = cluster.wall_ms
    if batch.is_transactional and transactional_id is None:
        return (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, *_REFUSED)
    if batch.is_transactional and not log.producers.has_open(batch.producer, batch.producer_epoch):
        log.producers.expect(batch)
        if unverified := cluster.transactions.verify(transactional_id, batch, partition):
            return (unverified, *_REFUSED)
    if code := _check(cluster, partition, batch):
        is_early = code in (Code.MESSAGE_TOO_LARGE, Code.CORRUPT_MESSAGE)
        return (code, -1, -1, -1 if is_early else log.start)
    if batch.producer >= 0:
        duplicate = log.producers.find_duplicate(batch)
        if duplicate is not None:
            return Code.NONE, duplicate.base, duplicate.timestamp, log.start
        if code := log.producers.refuse(batch):
            return code, -1, -1, log.start
    if config.is_stamped:
        batch.stamp_time(int(now_ms))
    cluster.append(partition, batch)
    if batch.producer >= 0:
        log.producers.note(batch, now_ms)
    return Code.NONE, batch.base, int(now_ms) if config.is_stamped else -1, log.start


def _check(cluster: Cluster, partition: Partition, batch: Batch) -> Code | None:
    """Return what is wrong with a batch itself, None if nothing."""
    config = partition.topic.config
    if batch.size > config.max_message:
        return Code.MESSAGE_TOO_LARGE
    if not has_valid_crc(batch):
        return Code.CORRUPT_MESSAGE
    if batch.is_control or batch.count <= 0 or batch.last - batch.base + 1 != batch.count:
        return Code.INVALID_RECORD
    if batch.producer >= 0 and batch.sequence < 0:
        return Code.INVALID_RECORD
    if config.is_compacted and any(record.key is None for record in batch.records()):
        return Code.INVALID_RECORD
    if not config.is_stamped:
        now_ms = cluster.wall_ms
        is_late = batch.max_timestamp - now_ms > config.after_max_ms
        if is_late or now_ms - batch.base_timestamp > config.before_max_ms:
            return Code.INVALID_TIMESTAMP
    return None
