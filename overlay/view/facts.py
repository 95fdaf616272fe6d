"""Facts about streams and consumers for operators, from the service or from Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from overlay.config import ConsumerConfig
from overlay.state.shard_state import ConsumerId


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """How far a stream is read in a partition.

    `position`: the next offset that the foremost consumer reads; None before the first read, or if unknown. `end`:
    the committed end of the log; None if unknown.
    """

    position: int | None = None
    end: int | None = None

    @property
    def behind(self) -> int | None:
        """Offsets between position and end; None if one of them is unknown."""
        if self.position is None or self.end is None:
            return None
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class IndexPartFacts:
    """The indexed part of a partition.

    `position`: the offset up to which there are chunks. `end`: the end of the log, None if unknown.
    `records`: of the chunks, `unaddressed`: those of them without a subject in the stream; None if a service of an earlier
    version was asked. `unaddressed_in`: first and next offset of the last chunk that has one, None if none has.
    `start`: where the chunks begin. `unindexed`: offsets that no chunk covers. `outdated`: chunks
    made under an older config. These three are None unless the index topic was read.
    """

    chunks: int
    position: int
    end: int | None = None
    start: int | None = None
    unindexed: int | None = None
    outdated: int | None = None
    records: int | None = None
    unaddressed: int | None = None
    unaddressed_in: tuple[int, int] | None = None

    @property
    def behind(self) -> int | None:
        """Offsets that no chunk covers. If the index topic was not read, only those after
        `position`; None if the end is unknown too.
        """
        if self.unindexed is not None or self.end is None:
            return self.unindexed
        return max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class LedgerFacts:
    """The ledger of a stream of several partitions: which offsets have which sequences.

    `first_sequence`: of the first record that the logs may still have. `last_sequence`: the last
    one assigned. `runs`: number of its rows; each is a run of offsets and sequences that rise
    together.
    """

    first_sequence: int
    last_sequence: int
    runs: int


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The chunk index of a stream.

    `reason`: why there is no index, or why it is not kept up to date. `rate`: records indexed per
    second, known from a running service only. `topic`, `bytes` and `foreign` (records skipped as
    unknown) are known from the index topic only. What is not known is None or empty.
    """

    reason: str = ""
    partitions: Mapping[str, IndexPartFacts] = field(default_factory=dict)
    """Facts by partition, named `topic-partition`."""
    rate: float | None = None
    topic: str = ""
    bytes: int | None = None
    foreign: int | None = None
    ledger: LedgerFacts | None = None
    """None if sequences follow from offsets, without a ledger."""

    @property
    def chunks(self) -> int:
        return sum(part.chunks for part in self.partitions.values())

    @property
    def behind(self) -> int | None:
        """Offsets that no chunk covers, over the partitions where that is known; None if it is known of none."""
        known = [part.behind for part in self.partitions.values() if part.behind is not None]
        return sum(known) if known else None

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the index reaches the end of the log at this rate.

        None if the rate is 0 or unknown, or if `behind` is unknown.
        """
        return self.behind / self.rate if self.behind is not None and self.rate else None


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts about a stream.

    `rate` (records per second) and the counts since the service started are known from a running service only, else
    None or empty. `decoded`: records read for the first time. `read_again`: records read once more, for consumers
    that catch up. `unaddressed`: those of the records in `decoded` that have no subject in the stream, by reason.
    `unaddressed_at`: the last of these, as `orders-0@146: missing`, "" if there is none.
    """

    name: str
    topics: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    state: str = ""
    reason: str = ""
    consumers: tuple[str, ...] = ()
    partitions: Mapping[str, PartitionFacts] = field(default_factory=dict)
    """Facts by partition, named `topic-partition`."""
    decoded: int | None = None
    read_again: int | None = None
    unaddressed: Mapping[str, int] = field(default_factory=dict)
    unaddressed_at: str = ""
    rate: float | None = None
    index: IndexFacts | None = None
    """None if unknown."""

    @property
    def behind(self) -> int | None:
        """Offsets that the foremost consumers have still to read, over partitions where that is
        known; None if it is known of none.
        """
        known = [facts.behind for facts in self.partitions.values() if facts.behind is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ConsumerFacts:
    """Facts about a consumer.

    `delivered` (since the service started), `lag_seconds` and `rate` (records per second) are known
    from a running service only, else None; the rate of a Spark job's consumer also without one.
    `consumer_sequence`: the last one, None if the state does not know the consumer.
    """

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
    """Offsets between the positions and the ends of the log; None if unknown."""
    lag_seconds: float | None = None
    delivered: int | None = None
    rate: float | None = None
    dead_letters: Mapping[str, int] | None = None
    """Dead letters by cause (docs/consumers.md#dead-letters) since the service started; None if unknown."""
    num_pending: int | None = None
    """Matching records that the consumer has still to deliver; None if unknown."""
    num_pending_is: str = ""
    """What `num_pending` is: `exact`, `estimate` or `at least`; "" if unknown."""
    acks: Mapping[str, Any] | None = None
    """Pending acks and the rest of a ConsumerInfo (control/responses.py).

    None if unknown, and for consumers without acks.
    """
    job: str = ""
    """The name of the Spark job that delivers the consumer; "" if none does, or if that is unknown."""
    owner: str = ""
    """The id of the Spark application that runs the job; "" if unknown."""
    config: ConsumerConfig | None = None
    """The config from its file or from the control topic, with defaults and a pause by request.

    None for a consumer that is removed, and if Kafka could not be asked and no file has the consumer.
    """

    @property
    def id(self) -> ConsumerId:
        return self.stream, self.name


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The worker that answered, and the identity of its config (config/identity.py)."""

    url: str
    version: str = ""
    prefix: str = ""
    bootstrap: str = ""
    cluster: str = ""
    """Kafka's id of the cluster; "" until the worker has reached it."""
    folder: str = ""
    digest: str = ""
    shards: tuple[int, ...] = ()
    """The shards that the worker owns, of `shard_count` (0 until the worker reaches Kafka)."""
    shard_count: int = 0


@dataclass(frozen=True, slots=True)
class OverlayFacts:
    """All facts, taken at one moment.

    `service`: the worker that answered; None if none did. `notes`: remarks about the origin of the
    facts, for the user.
    """

    streams: Mapping[str, StreamFacts]
    consumers: Mapping[ConsumerId, ConsumerFacts]
    service: ServiceFacts | None = None
    notes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """URL of the worker that answered; "" if none did."""
        return self.service.url if self.service else ""
