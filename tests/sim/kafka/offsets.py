"""ListOffsets and DeleteRecords: positions in the logs of one broker's partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .codes import Code
from .session import Answer
from .topics import Partition

if TYPE_CHECKING:
    from .cluster import Cluster

LATEST, EARLIEST, NEWEST = -1, -2, -3
_NONE = (-1, -1, -1)


def list_offsets(cluster: Cluster, answer: Answer) -> None:
    """ListOffsets of version 2 to 7: by time, or the end, the start, the record with the largest timestamp."""
    request = answer.request
    is_flexible = request.FLEXIBLE_VERSION
    has_epochs = request.API_VERSION >= 4
    is_committed = request.isolation_level == 1
    topics: list[Any] = []
    for topic, partitions, *_ in request.topics:
        found: list[Any] = []
        for index, *wanted in partitions:
            if is_flexible:
                wanted.pop()
            epoch = wanted[0] if has_epochs else -1
            code, timestamp, offset, written = _find(
                cluster, answer.session.broker, (topic, index, epoch), wanted[-1], is_committed
            )
            entry: tuple[Any, ...] = (index, int(code), timestamp, offset)
            if has_epochs:
                entry = (*entry, written)
            found.append((*entry, {}) if is_flexible else entry)
        topics.append((topic, found, {}) if is_flexible else (topic, found))
    if is_flexible:
        answer.give(0, topics, {})
    else:
        answer.give(0, topics)


def _find(
    cluster: Cluster, broker: int, place: tuple[str, int, int], timestamp: int, is_committed: bool
) -> tuple[int, int, int, int]:
    """Return (code, timestamp, offset, leader epoch)."""
    partition = cluster.find_led(broker, *place)
    if not isinstance(partition, Partition):
        return (partition, *_NONE)
    log = partition.log
    end = log.last_stable if is_committed else log.high_watermark
    if timestamp == LATEST:
        return Code.NONE, -1, end, partition.epoch
    if timestamp == EARLIEST:
        return Code.NONE, -1, log.start, log.epoch_at(log.start)
    found = log.find_newest(end) if timestamp == NEWEST else log.find_time(timestamp, end)
    if found is None:
        return (Code.NONE, *_NONE)
    # the newest record may be one that was deleted
    return Code.NONE, *found, log.epoch_at(max(found[1], log.start))


def delete_records(cluster: Cluster, answer: Answer) -> None:
    """DeleteRecords of version 2: before an offset, or before the high watermark for -1."""
    topics: list[Any] = []
    for topic, partitions, *_ in answer.request.topics:
        found: list[Any] = []
        for index, offset, *_ in partitions:
            partition = cluster.find_led(answer.session.broker, topic, index)
            if not isinstance(partition, Partition):
                found.append((index, -1, int(partition), {}))
                continue
            config, log = partition.topic.config, partition.log
            before = log.high_watermark if offset == -1 else offset
            if not config.is_expiring:
                found.append((index, -1, int(Code.POLICY_VIOLATION), {}))
            elif not 0 <= before <= log.high_watermark:
                found.append((index, -1, int(Code.OFFSET_OUT_OF_RANGE), {}))
            else:
                log.advance_start(before)
                partition.wake()
                found.append((index, log.start, 0, {}))
        topics.append((topic, found, {}))
    answer.give(0, topics, {})
