"""Reading of a sample: a bounded number of committed records from both ends of every partition."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import AdminClient

from overlay.config.suggestion import suggest
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.confluent import check_reachable
from overlay.kafka.message_headers import read_headers
from overlay.kafka.properties import Properties, for_confluent

from .sample import SampledRecord, TopicSample

DEADLINE_S = 30.0
REACH_S = 10.0
MAX_BYTES = 64 << 20
_BATCH = 500
_POLL_S = 0.2
_SHOWN = 10
_OWN_PREFIX = "overlay."
"""Of the overlay's own topics, unless a config folder says otherwise."""

# the consumer must name a group but never joins it, so a refusal for the group does not matter
_IGNORED = (RdKafkaError.GROUP_AUTHORIZATION_FAILED, RdKafkaError._ALL_BROKERS_DOWN, RdKafkaError._TRANSPORT)
_DENIED = (RdKafkaError.TOPIC_AUTHORIZATION_FAILED,)


class TopicNotFound(OverlayError):
    """The topic does not exist, or this user may not see it. The user has to name another one."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The number of brokers, and the visible topics with their numbers of partitions."""

    brokers: int
    topics: Mapping[str, int]


def look_around(kafka: Properties, deadline_s: float = REACH_S) -> Cluster:
    """Return the number of brokers of a cluster and its visible topics. Blocks. `deadline_s`: seconds to wait until
    Kafka can be reached. Raises CredentialsRefused or SourceUnavailable.
    """
    check_reachable(kafka, deadline_s)
    try:
        found = AdminClient({**for_confluent(kafka), "log_level": "0"}).list_topics(timeout=DEADLINE_S)
    except KafkaException as error:
        raise SourceUnavailable(f"{kafka['bootstrap.servers']}: {error.args[0].str()}. Try again") from error
    return Cluster(len(found.brokers), {name: len(topic.partitions) for name, topic in found.topics.items()})


def check_topics(cluster: Cluster, topics: Iterable[str]) -> None:
    """Raise TopicNotFound for the first topic that is not in the cluster."""
    names = (name for name in cluster.topics if not name.startswith("__"))
    # the overlay's own come last: a user looks for others
    visible = sorted(names, key=lambda name: (name.startswith(_OWN_PREFIX), name))
    for topic in topics:
        if topic not in cluster.topics:
            shown = ", ".join(visible[:_SHOWN]) + (" ..." if len(visible) > _SHOWN else "")
            raise TopicNotFound(
                f"topic {topic!r}: there is no such topic, or this user may not describe it.{suggest(topic, visible)}"
                f" Topics that can be seen: {shown or 'none'}"
            )


def read_sample(
    kafka: Properties, topic: str, partitions: int, size: int, deadline_s: float = DEADLINE_S
) -> TopicSample:
    """Return the records at the first and at the last offsets of each partition of `topic`: up to `size` offsets of
    all partitions together, or one at either end of each if that is more. `partitions`: how many the topic has.
    Blocks; after `deadline_s` seconds no more records are read.

    Only committed records are read; no group is joined and no offset committed. If the deadline or the memory limit
    cuts the read short, the sample has a note. Raises CredentialsRefused if the topic may not be read. Raises
    SourceUnavailable if Kafka does not tell the offsets, if it answers with an error that is not a lost connection,
    or if the topic has offsets and no record came before the deadline.
    """
    each = max(1, size // (2 * max(1, partitions)))
    reading = _Reading(topic, time.monotonic() + deadline_s)
    consumer = _open_consumer(kafka)
    try:
        bounds = {number: _find_bounds(consumer, topic, number) for number in range(partitions)}
        heads = {number: (first, min(end, first + each)) for number, (first, end) in bounds.items()}
        tails = {number: (max(heads[number][1], end - each), end) for number, (_, end) in bounds.items()}
        for ranges in (heads, tails):
            reading.read(consumer, {number: span for number, span in ranges.items() if span[0] < span[1]})
    finally:
        consumer.close()
    span = sum(end - first for first, end in bounds.values())
    if span and not reading.records and reading.cut:
        raise SourceUnavailable(
            f"{topic}: no record came within {deadline_s:.0f} s. Check that all partitions have leaders"
        )
    records = tuple(sorted(reading.records, key=lambda record: (record.partition, record.offset)))
    return TopicSample(topic, partitions, span, records, (reading.cut,) if reading.cut else ())


def _find_bounds(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition and its end, as Kafka tells them to a consumer of committed records.
    Raises CredentialsRefused, SourceUnavailable.
    """
    try:
        found = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=DEADLINE_S)
    except KafkaException as error:
        raise _explain(error.args[0], topic, partition) from error
    if found is None:
        raise SourceUnavailable(f"{topic}-{partition}: its offsets did not come in {DEADLINE_S:.0f} s. Try again")
    first, end = found
    return int(first), int(end)


def _explain(error: RdKafkaError, topic: str, partition: int | None) -> OverlayError:
    if error.code() in _DENIED:
        return CredentialsRefused(f"{topic}: this user may not read it. Grant Read and Describe on the topic")
    return SourceUnavailable(f"{topic}-{partition}: {error.str()}. Try again, or look into the broker's log")


def _open_consumer(kafka: Properties) -> Consumer:
    return Consumer(
        {
            **for_confluent(kafka),
            "group.id": "overlay-init",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 16_384,
            "fetch.message.max.bytes": 262_144,
            "log_level": 0,
        }
    )


@dataclass(slots=True)
class _Reading:
    topic: str
    end: float
    records: list[SampledRecord] = field(default_factory=list)
    size: int = 0
    cut: str = ""

    def read(self, consumer: Consumer, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Add the records at the offsets [first, end) of each partition to `records`. If deadline
        or memory limit ends it early, `cut` says so, and later calls read nothing.
        """
        left = {number: end for number, (_, end) in ranges.items()}
        if not left or self.cut:
            return
        consumer.assign([TopicPartition(self.topic, number, first) for number, (first, _) in ranges.items()])
        while left:
            if time.monotonic() > self.end:
                self.cut = f"the reading was cut short by its deadline after {len(self.records)} records"
            elif self.size > MAX_BYTES:
                self.cut = f"the reading was cut short at {MAX_BYTES >> 20} MiB, after {len(self.records)} records"
            if self.cut:
                break
            for message in consumer.consume(_BATCH, timeout=_POLL_S):
                self._take(message, left)
        consumer.unassign()

    def _take(self, message: Message, left: dict[int, int]) -> None:
        error = message.error()
        if error is not None:
            self._answer(error, message, left)
            return
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or partition not in left:
            return
        if offset < left[partition]:
            key, value = _as_bytes(message.key()), _as_bytes(message.value())
            headers = tuple((name, _as_bytes(header)) for name, header in read_headers(message))
            self.records.append(SampledRecord(partition, offset, key, value, headers))
            self.size += len(key or b"") + len(value or b"")
        if offset >= left[partition] - 1:
            del left[partition]

    def _answer(self, error: RdKafkaError, message: Message, left: dict[int, int]) -> None:
        partition = message.partition()
        if error.code() == RdKafkaError._PARTITION_EOF and partition is not None:
            left.pop(partition, None)
        elif error.code() not in _IGNORED:
            raise _explain(error, self.topic, partition)


def _as_bytes(value: str | bytes | None) -> bytes | None:
    """Return a value as bytes. The client's types allow str, which only a deserialiser returns."""
    return value.encode() if isinstance(value, str) else value
