"""Output topics: created if missing, used as they are if present, and checked for faults that would
block a shard.

A transaction ends on all of its partitions or not at all. So one output partition that takes no
writes blocks the shard with all of its consumers. That happens if too few of its replicas are in
sync, or if it has no leader. Kafka can then neither commit nor abort, and a new owner of the shard
waits as well. Such a topic has to be found before anything is sent to it
(docs/exactly-once.md#refusing-outputs).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from overlay.config.consumer import ConsumerConfig, Delivery, HeaderStyle, Timestamps
from overlay.kafka.admin import Admin, TopicFacts, new_topic
from overlay.logs import get_logger
from overlay.scan.codec import Codec

from .assemble import make_envelope
from .batch_builder import MAX_MESSAGE_BYTES, NO_LIMIT, OutputTopic

log = get_logger(__name__)

_CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
DEFAULT_CODEC = Codec.LZ4
"""The codec if the topic's compression.type is `producer`, which leaves the choice to us."""

_SEGMENT_BYTES = 1 << 30
_NEWEST_MS = 3_600_000  # Kafka's default
_TIME_TYPE = {Timestamps.APPEND: "LogAppendTime", Timestamps.SOURCE: "CreateTime"}


def topic_config(config: ConsumerConfig) -> dict[str, str]:
    """Return the Kafka topic settings with which a consumer's output topic is created, and with
    which an existing one is compared.
    """
    given = {key: str(value) for key, value in config.output.config.items()}
    return {**given, "message.timestamp.type": _TIME_TYPE[config.output.timestamps]}


async def ensure_topics(
    admin: Admin, configs: Iterable[ConsumerConfig], replication: int
) -> tuple[dict[str, TopicFacts], dict[str, str]]:
    """Create the output topics of push consumers that are missing, with replication factor `replication`. If several
    consumers have the same topic, the config of the first is used. Return the description of each topic that exists
    now, and by name the reason for each that this user may not describe, that was not created, or that takes no
    records now. One of the last kind is in both.

    A topic that existed before and differs from a consumer's file is used as it is, and the difference is logged.
    """
    writers = list(configs)
    wanted = {config.deliver_subject: config for config in reversed(writers)}
    refused: dict[str, str] = {}
    present = await admin.find_topics(wanted, denied=refused)
    missing = [config for name, config in wanted.items() if name not in present and name not in refused]
    created, not_created = await admin.create_topics(
        new_topic(config.deliver_subject, config.output.partitions, replication, topic_config(config))
        for config in missing
    )
    refused |= not_created
    for name, facts in created.items():
        log.info("output topic created", topic=name, partitions=facts.partitions)
    found = present | created
    refused |= {name: f"topic {name}: {fault}" for name, facts in found.items() if (fault := find_fault(facts))}
    for config in writers:
        if there := present.get(config.deliver_subject):
            for difference in find_differences(there, config):
                log.warning(
                    "output topic differs from the consumer's file; used as it is",
                    topic=there.name, stream=config.stream, consumer=config.id[1], why=difference,
                )  # fmt: skip
    return found, refused


def find_fault(facts: TopicFacts) -> str:
    """Return why Kafka would take no record for a partition of a topic now, and what to do: of the first such
    partition. Empty if it would take records for all.

    A broker needs no more replicas in sync than the partition has, whatever min.insync.replicas says (seen with 4.3).
    """
    wanted = int(facts.config.get("min.insync.replicas") or 1)
    for number, replicas in enumerate(facts.replicas):
        if not replicas.has_leader:
            return f"its partition {number} has no leader. Bring back the brokers that hold it"
        if replicas.in_sync < min(wanted, replicas.assigned):
            return (
                f"its partition {number} has {replicas.in_sync} of {replicas.assigned} replicas in sync, fewer than its"
                f" min.insync.replicas of {wanted}: Kafka takes no record for it. Bring the other brokers back, or lower that"
            )
    return ""


def find_differences(facts: TopicFacts, config: ConsumerConfig) -> list[str]:
    """Return a clause for each difference between an existing topic and what the consumer's file
    asks for: number of partitions, and the settings of `topic_config`. A setting that `facts` does
    not have is not compared. Empty if there is none.
    """
    found = []
    if facts.partitions != config.output.partitions:
        found.append(f"it has {facts.partitions} partitions, output.partitions says {config.output.partitions}")
    for key, wanted in topic_config(config).items():
        if key in facts.config and facts.config[key] != wanted:
            found.append(f"its {key} is {facts.config[key]}, the file asks for {wanted}")
    return found


def make_output_topic(facts: TopicFacts, config: ConsumerConfig) -> OutputTopic:
    """Return how to write a consumer's deliveries to a topic, from the topic's settings and the consumer's config. A
    setting that `facts` does not have counts as Kafka's default, but without a message.timestamp.type the topic
    counts as one that accepts any time. Tokens name no incarnation (`name_incarnation`).
    """
    stream, name = config.id
    envelope = make_envelope(
        stream,
        name,
        full=config.output.headers is HeaderStyle.FULL,
        source_time=config.output.timestamps is Timestamps.SOURCE,
        headers_only=config.headers_only,
    )
    created = _TIME_TYPE[Timestamps.SOURCE]  # Kafka's default
    keeps_times = facts.config.get("message.timestamp.type", created) == created
    return OutputTopic(
        topic=facts.name,
        partitions=facts.partitions,
        partition_by=config.output.partition_by,
        max_message_bytes=min(
            int(facts.config.get("max.message.bytes", MAX_MESSAGE_BYTES)),
            int(facts.config.get("segment.bytes", _SEGMENT_BYTES)),
        ),
        codec=_CODECS.get(facts.config.get("compression.type", "producer"), DEFAULT_CODEC),
        transactional=config.delivery is Delivery.EXACTLY_ONCE,
        envelope=envelope,
        needs_key="compact" in facts.config.get("cleanup.policy", ""),
        oldest_ms=int(facts.config.get("message.timestamp.before.max.ms", NO_LIMIT)) if keeps_times else NO_LIMIT,
        newest_ms=int(facts.config.get("message.timestamp.after.max.ms", _NEWEST_MS)) if keeps_times else NO_LIMIT,
    )


def make_dead_letter_topic(facts: TopicFacts, config: ConsumerConfig) -> OutputTopic:
    """Return how to write a consumer's dead letters to a topic: like deliveries, but always with
    their values, and with the time when they were given up.
    """
    envelope = make_envelope(*config.id, full=config.output.headers is HeaderStyle.FULL, source_time=False)
    return replace(make_output_topic(facts, config), envelope=envelope)
