"""What a topic of the simulated cluster holds, as a reader of committed data finds it, without any requests."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tests.sim.kafka.batches import COMMIT, MARKER_KIND_AT, Batch
from tests.sim.kafka.cluster import Cluster
from tests.sim.kafka.topics import Partition


@dataclass(frozen=True, slots=True)
class Found:
    """A record of a topic."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def header(self, name: str) -> bytes | None:
        """Return the value of a header, None if there is none."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


def read_topic(cluster: Cluster, topic: str) -> list[Found]:
    """Return a topic's records, by partition and offset; none if there is no such topic."""
    found = cluster.topics.get(topic)
    if found is None:
        return []
    return [record for partition in found.partitions for record in read_partition(partition)]


def read_partition(partition: Partition, *, committed: bool = True) -> list[Found]:
    """Return the committed records of a partition, in the order of their offsets, up to the last stable offset.

    What is committed is found out from the markers alone, not from what the cluster remembers of transactions. With
    `committed=False`: all that are not aborted, up to the end of the log.
    """
    log = partition.log
    batches = log.segments[-1].batches
    # the same batch at the end of as many bytes: nothing was written, lost, or compacted meanwhile
    mark = (log.start, log.end, log.size, len(log.segments), batches[-1] if batches else None)
    return _read_log(partition, log.last_stable if committed else log.end, committed, mark)


@functools.lru_cache(maxsize=1_000)
def _read_log(partition: Partition, end: int, committed: bool, _: tuple[object, ...]) -> list[Found]:
    log = partition.log
    found: list[Found] = []
    open_: dict[int, list[Found]] = {}
    for segment in log.segments:
        for batch in segment.batches:
            if batch.is_control:
                ended = open_.pop(batch.producer, [])
                # compaction empties a marker's batch once it has removed what was aborted
                if len(batch.data) <= MARKER_KIND_AT or batch.data[MARKER_KIND_AT] == COMMIT:
                    found += ended
                continue
            records = [one for one in _decode(partition.index, batch.data) if log.start <= one.offset < end]
            (open_.setdefault(batch.producer, []) if batch.is_transactional else found).extend(records)
    if not committed:
        found += [record for records in open_.values() for record in records]
    found.sort(key=lambda record: record.offset)
    return found


def forget() -> None:
    """Forget what was read of the batches of a history that is over."""
    _decode.cache_clear()
    _read_log.cache_clear()


@functools.cache  # who waits for a record looks at the same batches again and again
def _decode(partition: int, batch: bytes) -> list[Found]:
    return [
        Found(partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
        for one in Batch(batch).records()
    ]
