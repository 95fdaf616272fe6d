"""The overlay's own topics, groups and transactional ids: names, settings, partitions and keys.

`prefix` is `topics.prefix` of overlay.yaml. Services, clients and Spark jobs find each other by
these names. docs/glossary.md#topics-groups-and-ids lists them with what they hold.
"""

from __future__ import annotations

import re

import mmh3

HOUR_MS = 3_600_000
_DAY_MS = 24 * HOUR_MS

MESSAGE_BYTES = 1_048_588
"""Kafka's default for max.message.bytes. Topics that others write to have it whatever the broker's
default is: it bounds what one batch may cost, and lets the largest acks, requests and answers in."""
_BOUNDED = {"max.message.bytes": str(MESSAGE_BYTES)}

STATE_CONFIG = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # a checkpoint is one record, with some 40 bytes for each position
    "max.message.bytes": str(16 << 20),
}
CONTROL_CONFIG = {
    **_BOUNDED,
    "cleanup.policy": "compact",
    # one clock decides whether a request has expired, not those of all clients
    "message.timestamp.type": "LogAppendTime",
    # answered requests are tombstones; compaction takes whole segments, so they must not grow old
    "segment.ms": str(HOUR_MS),
    "delete.retention.ms": str(HOUR_MS),
    "min.cleanable.dirty.ratio": "0.1",
}
REPLY_CONFIG = {
    **_BOUNDED,
    "cleanup.policy": "delete",
    "retention.ms": str(HOUR_MS),
    "segment.ms": str(HOUR_MS // 2),
}
REQUESTS_CONFIG = {
    **REPLY_CONFIG,
    # as in the control topic
    "message.timestamp.type": "LogAppendTime",
}
EVENTS_CONFIG = {**_BOUNDED, "cleanup.policy": "delete", "retention.ms": str(7 * _DAY_MS)}
ACKS_CONFIG = _BOUNDED
FLEET_CONFIG = {
    **_BOUNDED,
    "cleanup.policy": "delete",
    # each status is repeated within a minute, so an hour is for readers that come late and for people
    "retention.ms": str(HOUR_MS),
    "segment.ms": str(HOUR_MS // 6),
    # one clock puts the statuses of all workers in order, and shows whose clock differs
    "message.timestamp.type": "LogAppendTime",
}
"""Settings with which the topics are created. The settings of an index topic follow from its
sources (overlay/index/retention.py). Retention of the ack topics is the broker's, and so are the
settings of dead-letter topics."""


def state_topic(prefix: str) -> str:
    """Return the name of the state topic: one partition for each shard (`shard_of`)."""
    return f"{prefix}.state"


def shard_of(owned: tuple[str, ...], shards: int) -> int:
    """Return the number, from 0, of the shard that owns a consumer (`owned` is stream and name) or
    a stream's index (`owned` is a tuple of the stream's name alone).

    The shard is the unsigned 32-bit murmur3 hash of `stream/consumer`, or of the stream's name,
    modulo `shards`, the number of shards.
    """
    return mmh3.hash("/".join(owned), signed=False) % shards


def control_topic(prefix: str) -> str:
    """Return the name of the control topic: one partition. A key says what a record is about
    (overlay/control/records.py)."""
    return f"{prefix}.control"


def reply_topic(prefix: str) -> str:
    """Return the name of the reply topic that the overlay provides: one partition. The key of an answer is the
    correlation id. A pulled message has the source record's key, and a status has none.
    """
    return f"{prefix}.replies"


def requests_topic(prefix: str) -> str:
    """Return the name of the topic for open requests: one partition. The key names the request, as
    in the control topic (overlay/control/open_requests.py)."""
    return f"{prefix}.requests"


def events_topic(prefix: str) -> str:
    """Return the name of the events topic: one partition. The key is the subject to which JetStream
    would publish the event, or `$OVERLAY.EVENT.FLEET.<KIND>` for a finding of the fleet."""
    return f"{prefix}.events"


def fleet_topic(prefix: str) -> str:
    """Return the name of the topic with the statuses of all workers: one partition. The key is the
    worker's name (docs/fleet.md)."""
    return f"{prefix}.fleet"


def fleet_app(prefix: str) -> str:
    """Return the id of the Faust application of `overlay fleet run`: the name of its consumer group,
    and how the names of its changelog topics begin."""
    return f"{prefix}.fleet"


def index_topic(prefix: str, stream: str) -> str:
    """Return the name of a stream's index topic: one partition. The key names the chunk or the
    ledger entry (docs/index.md)."""
    return f"{prefix}.{stream}.index"


def acks_topic(prefix: str, stream: str) -> str:
    """Return the name of the topic that takes a stream's acks.

    The overlay creates it with one partition and reads any number. Keys mean nothing.
    """
    return f"{prefix}.{stream}.acks"


ORDERED = "ordered-"
"""How the names of clients' ordered consumers begin."""


def ordered_topic(prefix: str, name: str) -> str:
    """Return the name of the temporary output topic of a client's ordered consumer. `name`: that of
    the consumer, which begins with ORDERED. No dot follows the prefix, since names of outputs must
    not begin with prefix and dot.
    """
    return f"{prefix}-{name}"


def is_ordered_topic(prefix: str, topic: str) -> bool:
    """Return whether a topic has the name of the output of a client's ordered consumer."""
    return re.fullmatch(re.escape(prefix) + "-ordered-[0-9a-f]{12}", topic) is not None


def list_shared_topics(prefix: str, *, requests: bool = False) -> dict[str, dict[str, str]]:
    """Return the settings of the topics that all shards share and that have one partition, by name:
    control, reply and events topic. `requests`: with the requests topic, which only some services
    have.
    """
    shared = {
        control_topic(prefix): CONTROL_CONFIG,
        reply_topic(prefix): REPLY_CONFIG,
        events_topic(prefix): EVENTS_CONFIG,
    }
    return shared | ({requests_topic(prefix): REQUESTS_CONFIG} if requests else {})


def workers_group(prefix: str) -> str:
    """Return the name of the consumer group that assigns the shards to workers."""
    return f"{prefix}.workers"


def lease_group(prefix: str, consumer: tuple[str, str]) -> str:
    """Return the name of the consumer group whose members are the Spark pipelines that run a
    consumer. `consumer`: stream and name.
    """
    stream, name = consumer
    return f"{prefix}.spark.{stream}.{name}"


def job_topic(prefix: str, job: str) -> str:
    """Return the name of the state topic of a Spark job: partition 0 is the driver's, and each
    output partition that the job writes has one of the others."""
    return f"{prefix}.spark.{job}"


def job_id(prefix: str, job: str) -> str:
    """Return the transactional id of a Spark job's driver."""
    return f"{prefix}.spark.{job}"


def writer_id(prefix: str, job: str, output: tuple[str, int]) -> str:
    """Return the transactional id of the task that writes one output partition of a Spark job.
    `output`: topic and partition number.
    """
    topic, partition = output
    return f"{prefix}.spark.{job}.{topic}.{partition}"


def replay_group(prefix: str, consumer: tuple[str, str]) -> str:
    """Return the name of the consumer group whose committed offsets say which dead letters of a
    consumer were replayed. `consumer`: stream and name.
    """
    stream, name = consumer
    return f"{prefix}.replay.{stream}.{name}"


def shard_id(prefix: str, shard: int) -> str:
    """Return the transactional id of a shard's owner."""
    return f"{prefix}.shard.{shard}"


def journal_id(prefix: str, shard: int) -> str:
    """Return the transactional id of a shard's journal (overlay/control/journal.py)."""
    return f"{prefix}.control.{shard}"
