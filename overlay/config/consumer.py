"""The model of a consumer's file: all fields of JetStream's ConsumerConfig, and the overlay's own.

Unset fields of JetStream's hold its zero values (0, "", (), None, false), so that the rules in checks.py
read like the server's. `fill_defaults` (defaults.py) then sets what a server would set. One default
differs: ack_policy is explicit in a file and none on the NATS wire.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from overlay.units import Duration, Int64, Time

from .model import Model, Scalar, TopicName


class DeliverPolicy(StrEnum):
    ALL = "all"
    LAST = "last"
    NEW = "new"
    BY_START_SEQUENCE = "by_start_sequence"
    BY_START_TIME = "by_start_time"
    LAST_PER_SUBJECT = "last_per_subject"

    @property
    def begins_at_end(self) -> bool:
        """Whether the first message depends on where the log ended at the consumer's creation."""
        return self in (DeliverPolicy.LAST, DeliverPolicy.NEW, DeliverPolicy.LAST_PER_SUBJECT)


class AckPolicy(StrEnum):
    NONE = "none"
    ALL = "all"
    EXPLICIT = "explicit"
    FLOW_CONTROL = "flow_control"

    @property
    def takes_acks(self) -> bool:
        """Whether the client acks messages by their reply subject.

        With `flow_control` the answers to flow control requests count as acks instead.
        """
        return self in (AckPolicy.EXPLICIT, AckPolicy.ALL)


class ReplayPolicy(StrEnum):
    INSTANT = "instant"
    ORIGINAL = "original"


class PriorityPolicy(StrEnum):
    NONE = "none"
    OVERFLOW = "overflow"
    PINNED_CLIENT = "pinned_client"
    PRIORITIZED = "prioritized"


class PartitionBy(StrEnum):
    KEY = "key"
    SUBJECT = "subject"
    SOURCE = "source"


class Timestamps(StrEnum):
    APPEND = "append"
    SOURCE = "source"


class HeaderStyle(StrEnum):
    BRIEF = "brief"
    FULL = "full"


class OnUndeliverable(StrEnum):
    STOP = "stop"
    DEAD_LETTER = "dead_letter"


class Delivery(StrEnum):
    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Interest(StrEnum):
    GROUP = "group"
    ALWAYS = "always"


class Engine(StrEnum):
    SERVICE = "service"
    SPARK = "spark"


def _list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


OneOrMore = Annotated[
    tuple[str, ...],
    BeforeValidator(_list),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""A text, or several."""


class FilterConfig(Model):
    """Which messages of the matching subjects are delivered."""

    sql: str | None = None
    """A SQL condition over headers and properties, such as `dep_delay > 60`. Not together with `properties`."""
    properties: dict[str, object] | None = None
    """Property filters by section, instead of `sql`."""
    values: OneOrMore = ()
    """Filter values of the stream's `filter_value`, one or a list; a message must have one of them."""
    match_unfiltered: bool = False
    """Also deliver messages that have no filter value."""


class OutputConfig(Model):
    """The output topic: how it is created when it is missing, and what its records look like."""

    partitions: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Partitions of the topic when the overlay creates it."""
    partition_by: Annotated[PartitionBy, Field(strict=False)] = PartitionBy.KEY
    """Partition of a record: by key as Java's default partitioner does it, by subject, or the source's partition."""
    timestamps: Annotated[Timestamps, Field(strict=False)] = Timestamps.APPEND
    """`append`: the topic uses LogAppendTime. `source`: records keep the time of the source record."""
    headers: Annotated[HeaderStyle, Field(strict=False)] = HeaderStyle.BRIEF
    """`brief` adds Nats-Subject and Nats-Reply-To; `full` also spells out the parts of the token."""
    config: dict[str, Scalar] = Field(default_factory=dict)
    """Kafka topic properties for a topic that the overlay creates, such as `retention.ms`."""
    temporary: bool = False
    """Whether the topic is deleted when inactive_threshold ends the consumer, unless another one delivers to it."""


class ConsumerConfig(Model):
    """A consumer: a named view of a stream, with filters, an ack policy and an output."""

    stream: str
    """Name of the stream to consume, as in the stream's file."""
    durable_name: str = ""
    """Name of a durable consumer (it outlives its readers). No spaces and none of . * > \\ /"""
    name: str = ""
    """Name of the consumer; alone, without durable_name, it makes an ephemeral one."""
    description: str = ""
    """Free text, up to 4096 bytes."""
    deliver_policy: Annotated[DeliverPolicy, Field(strict=False)] = DeliverPolicy.ALL
    """Where a new consumer starts."""
    opt_start_seq: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    """First stream sequence, for by_start_sequence (with one partition: offset + 1)."""
    opt_start_time: Time | None = None
    """First message time, for by_start_time; RFC 3339 with a zone."""
    ack_policy: Annotated[AckPolicy, Field(strict=False)] = AckPolicy.EXPLICIT
    """Which messages need an ack: each (explicit), the last for all before it (all), or none."""
    ack_wait: Duration = 0
    """How long a delivery may go without an ack before it is delivered again; 30s when acks are wanted."""
    max_deliver: Int64 = 0
    """Deliveries of one message at most; -1 is no limit and the default."""
    backoff: tuple[Duration, ...] = ()
    """Waits before each redelivery; the last one repeats. Replaces ack_wait."""
    filter_subject: str = ""
    """Deliver only messages whose subject matches; `*` is one token, `>` the rest."""
    filter_subjects: tuple[str, ...] = ()
    """Several such filters, none of them within another."""
    replay_policy: Annotated[ReplayPolicy, Field(strict=False)] = ReplayPolicy.INSTANT
    """`original` keeps the pace at which the messages were stored."""
    rate_limit_bps: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    """Limit for push consumers, in bits per second."""
    sample_freq: str = ""
    """Percentage of acks that are reported, such as `10%`; up to 100%, with ack_policy explicit only."""
    max_waiting: Int64 = 0
    """Pull requests that may wait at once; 512 by default. Pull consumers only."""
    max_ack_pending: Int64 = 0
    """Deliveries that may wait for their ack at once; 1000 by default when acks are wanted, -1 is no limit."""
    flow_control: bool = False
    """Ask the reader to confirm what it has received. Push consumers with idle_heartbeat only."""
    headers_only: bool = False
    """Deliver headers without the value."""
    max_batch: Int64 = 0
    """Messages that one pull request may ask for."""
    max_expires: Duration = 0
    """Longest wait that a pull request may ask for."""
    max_bytes: Int64 = 0
    """Bytes that one pull request may ask for."""
    deliver_subject: str = ""
    """The output Kafka topic. A consumer without one is a pull consumer."""
    deliver_group: str = ""
    """Name of the group that shares the deliveries."""
    idle_heartbeat: Duration = 0
    """Send a status if nothing was delivered for so long; at least 100ms. Push consumers only."""
    inactive_threshold: Duration = 0
    """Remove the consumer after this time without a reader; 5s if ephemeral, never if durable."""
    num_replicas: Int64 = 0
    """Replicas of the consumer's state; 0 takes the stream's."""
    mem_storage: bool = False
    """Keep the consumer's state in memory."""
    direct: bool = False
    """JetStream's internal field for mirrors."""
    sourcing: bool = False
    """JetStream's internal field for sources."""
    metadata: dict[str, str] = Field(default_factory=dict)
    """Free names and values, up to 128 KiB together."""
    pause_until: Time | None = None
    """Deliver nothing before this time; RFC 3339 with a zone."""
    priority_policy: Annotated[PriorityPolicy, Field(strict=False)] = PriorityPolicy.NONE
    """How pull requests of a group compete. Pull consumers only."""
    priority_groups: tuple[str, ...] = ()
    """Names of the groups; required with a priority_policy."""
    priority_timeout: Duration = 0
    """How long a pinned client may be silent; 2m for pinned_client."""

    filter: FilterConfig = FilterConfig()
    """Overlay: deliver only messages that this filter accepts."""
    output: OutputConfig = OutputConfig()
    """Overlay: the output topic and its records."""
    on_undeliverable: Annotated[OnUndeliverable, Field(strict=False)] = OnUndeliverable.STOP
    """Overlay: what to do with a record that the output topic can never accept."""
    delivery: Annotated[Delivery, Field(strict=False)] = Delivery.EXACTLY_ONCE
    """Overlay: output and position in one transaction, or faster with possible repeats after a failure."""
    dead_letter: TopicName | None = None
    """Overlay: topic for messages that will not be delivered again."""
    nak_delay_frees_pending: bool = False
    """Overlay: a message whose redelivery a nak has delayed does not count for max_ack_pending."""
    interest: Annotated[Interest, Field(strict=False)] = Interest.GROUP
    """Overlay: ack_wait starts when the reader group's committed offset passes a delivery, or at delivery (always)."""
    engine: Annotated[Engine, Field(strict=False)] = Engine.SERVICE
    """Overlay: who delivers, the service or a Spark job (`python -m spark.pipeline`). A job takes no acks."""

    @property
    def id(self) -> tuple[str, str]:
        """The consumer's unique key: names of its stream and of the consumer itself."""
        return self.stream, self.durable_name or self.name

    @property
    def filters(self) -> tuple[str, ...]:
        """The subject filters from filter_subject or filter_subjects.

        Empty if the consumer has none.
        """
        return (self.filter_subject,) if self.filter_subject else self.filter_subjects

    @property
    def is_push(self) -> bool:
        return bool(self.deliver_subject)

    @property
    def needs_machine(self) -> bool:
        """Whether the service needs a state machine for the consumer. A consumer without one gets what matches as it
        is read. False for consumers of Spark jobs.
        """
        if self.engine is Engine.SPARK:
            return False
        is_paced = self.rate_limit_bps or self.replay_policy is ReplayPolicy.ORIGINAL or self.pause_until is not None
        is_watched = self.flow_control or self.idle_heartbeat or self.inactive_threshold
        return bool(self.ack_policy is not AckPolicy.NONE or not self.is_push or is_paced or is_watched)

    @property
    def dead_letter_topic(self) -> str:
        """The topic for the consumer's dead letters, empty if it writes none.

        A consumer that needs no state machine (`needs_machine`) gives messages up only with
        `on_undeliverable: dead_letter`.
        """
        gives_up = self.needs_machine or self.on_undeliverable is OnUndeliverable.DEAD_LETTER
        return self.dead_letter or "" if gives_up else ""

    @property
    def reader_group(self) -> str:
        """Kafka's group of the readers of a push consumer's output, whose committed offsets count: `deliver_group`, or
        the consumer's name."""
        return self.deliver_group or self.id[1]

    @property
    def follows_readers(self) -> bool:
        """Whether the committed offsets of the consumer's readers matter to it."""
        return self.needs_machine and self.is_push and self.interest is Interest.GROUP


JETSTREAM_FIELDS = tuple(ConsumerConfig.model_fields)[1 : tuple(ConsumerConfig.model_fields).index("filter")]
"""JetStream's own fields, in the order of its documentation; the others are the overlay's."""
