"""Streams and consumers as operators see them: one shape, whether the service or the state topic tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.state.shard_state import ConsumerId


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
class IndexPartFacts:
    """The chunks of a partition, up to `position`; `end` is that of the log. What only a look into the index topic tells is
    None without one: where the chunks begin, how many offsets none covers, and how many chunks an older config made."""

    chunks: int
    position: int
    end: int | None = None
    start: int | None = None
    unindexed: int | None = None
    outdated: int | None = None

    @property
    def behind(self) -> int | None:
        """Offsets that no chunk covers; without a look into the index topic those at the end of the log."""
        if self.unindexed is not None or self.end is None:
            return self.unindexed
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The ledger of a stream of several partitions: the sequences that it has given out, from that of the first record which
    the logs may still have, and in how many runs."""

    first_sequence: int
    last_sequence: int
    runs: int


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The chunk index of a stream. `reason`: why there is none, or why it is not kept. `rate` (records a second that go into
    chunks) comes from a running service only, topic, bytes and `foreign` (records passed over) from the index topic."""

    reason: str = ""
    partitions: Mapping[str, IndexPartFacts] = field(default_factory=dict)
    """By `topic-partition`."""
    rate: float | None = None
    topic: str = ""
    bytes: int | None = None
    foreign: int | None = None
    ledger: LedgerFacts | None = None
    """None where offsets give the sequences."""

    @property
    def chunks(self) -> int:
        return sum(part.chunks for part in self.partitions.values())

    @property
    def behind(self) -> int | None:
        """Over all partitions of which it is known."""
        known = [part.behind for part in self.partitions.values() if part.behind is not None]
        return sum(known) if known else None

    @property
    def remaining_seconds(self) -> float | None:
        """Until the end of the log is reached at the present rate; None while nothing moves."""
        return self.behind / self.rate if self.behind is not None and self.rate else None


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
    index: IndexFacts | None = None
    """None where nobody has said."""

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
    num_pending: int | None = None
    """Records that match ahead of it; None where nobody has said."""
    num_pending_is: str = ""
    """`exact`, `estimate` or `at least`, and empty where there is no telling."""
    acks: Mapping[str, Any] | None = None
    """What waits for acks and the rest of a ConsumerInfo (control/responses.py); None where nobody has said, and of consumers
    without acks."""

    @property
    def id(self) -> ConsumerId:
        return self.stream, self.name


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The worker that answered, and which config it runs (config/identity.py)."""

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
