"""Streams and consumers as operators see them: one shape, whether the service or the state topic tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.deliver.state import ConsumerId


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """`position`: the next offset that the foremost consumer reads, None before the first read. `end`: the committed
    end of the log, None where it is not known."""

    position: int | None = None
    end: int | None = None

    @property
    def behind(self) -> int | None:
        """Offsets between the two."""
        if self.position is None or self.end is None:
            return None
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """`decoded` (records since the service started) and `rate` (records a second) come from a running service only."""

    name: str
    topics: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    state: str = ""
    reason: str = ""
    consumers: tuple[str, ...] = ()
    partitions: Mapping[str, PartitionFacts] = field(default_factory=dict)
    """By `topic-partition`."""
    decoded: int | None = None
    rate: float | None = None

    @property
    def behind(self) -> int | None:
        """Offsets that the foremost consumers have still to read, over all partitions whose ends are known."""
        known = [facts.behind for facts in self.partitions.values() if facts.behind is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """`delivered` (since the service started), `rate` (records a second) and `lag_seconds` come from a running
    service only."""

    stream: str
    name: str
    deliver_subject: str = ""
    filters: tuple[str, ...] = ()
    state: str = ""
    reason: str = ""
    consumer_sequence: int | None = None
    positions: Mapping[str, int] = field(default_factory=dict)
    """The next offset to read, by `topic-partition`."""
    lag_records: int | None = None
    """Offsets between the positions and the ends of the log."""
    lag_seconds: float | None = None
    delivered: int | None = None
    rate: float | None = None

    @property
    def id(self) -> ConsumerId:
        return self.stream, self.name


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The worker that answered, and which config it runs (worker/identity.py)."""

    url: str
    version: str = ""
    prefix: str = ""
    bootstrap: str = ""
    cluster: str = ""
    """Kafka's id of the cluster; empty until the worker has reached it."""
    folder: str = ""
    digest: str = ""
    shards: tuple[int, ...] = ()
    """Those that it owns, of `shard_count`, which is 0 until it has reached Kafka."""
    shard_count: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at everything. `service`: the worker that answered, None when none did. `notes`: what the reader must know
    about where this comes from."""

    streams: Mapping[str, StreamFacts]
    consumers: Mapping[ConsumerId, ConsumerFacts]
    service: ServiceFacts | None = None
    notes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Of the worker that answered; empty when none did."""
        return self.service.url if self.service else ""
