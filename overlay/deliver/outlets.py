"""Output topics: created when missing, used as they are when present, and watched for what they take."""

from __future__ import annotations

import structlog

from overlay.admin import Admin, TopicFacts
from overlay.config.consumer import ConsumerConfig, Delivery, HeaderStyle, Timestamps
from overlay.errors import OverlayError
from overlay.scan.codec import Codec

from .assemble import make_envelope
from .outbox import Outlet

log = structlog.get_logger(__name__)

_CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
DEFAULT_CODEC = Codec.LZ4
"""Where the topic says `producer`, which leaves it to us."""

_TIME_TYPE = {Timestamps.APPEND: "LogAppendTime", Timestamps.SOURCE: "CreateTime"}


def topic_config(config: ConsumerConfig) -> dict[str, str]:
    """The topic properties with which a consumer's output topic is created."""
    given = {key: str(value) for key, value in config.output.config.items()}
    return {**given, "message.timestamp.type": _TIME_TYPE[config.output.timestamps]}


async def ensure_outlet(admin: Admin, config: ConsumerConfig, replication: int, *, sequenced: bool) -> Outlet:
    """The output topic of a consumer. `sequenced`: whether the stream gives sequences. Raises OverlayError."""
    name = config.deliver_subject
    facts = (await admin.find_topics([name])).get(name)
    if facts is None:
        await admin.create_topic(name, config.output.partitions, replication, topic_config(config))
        log.info("output topic created", topic=name, partitions=config.output.partitions)
        facts = (await admin.find_topics([name])).get(name)
        if facts is None:
            raise OverlayError(f"output topic {name} was created but cannot be found. Check that we may describe it")
    else:
        for difference in find_differences(facts, config):
            log.warning("output topic differs from the consumer's file; it is used as it is", topic=name, why=difference)
    return make_outlet(facts, config, sequenced=sequenced)


def find_differences(facts: TopicFacts, config: ConsumerConfig) -> list[str]:
    """How an existing topic differs from what the consumer's file asks for, in words."""
    found = []
    if facts.partitions != config.output.partitions:
        found.append(f"it has {facts.partitions} partitions, output.partitions says {config.output.partitions}")
    for key, wanted in topic_config(config).items():
        if key in facts.config and facts.config[key] != wanted:
            found.append(f"its {key} is {facts.config[key]}, the file asks for {wanted}")
    return found


def make_outlet(facts: TopicFacts, config: ConsumerConfig, *, sequenced: bool) -> Outlet:
    """How to write a consumer's deliveries to the topic as it stands."""
    stream, name = config.id
    envelope = make_envelope(
        stream,
        name,
        full=config.output.headers is HeaderStyle.FULL,
        source_time=config.output.timestamps is Timestamps.SOURCE,
    )
    return Outlet(
        topic=facts.name,
        partitions=facts.partitions,
        partition_by=config.output.partition_by,
        max_message_bytes=int(facts.config.get("max.message.bytes", 1_048_588)),
        codec=_CODECS.get(facts.config.get("compression.type", "producer"), DEFAULT_CODEC),
        transactional=config.delivery is Delivery.EXACTLY_ONCE,
        sequenced=sequenced,
        envelope=envelope,
    )
