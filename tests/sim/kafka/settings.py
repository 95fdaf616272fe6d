"""Settings of a simulated cluster and of its topics, with the defaults of Kafka 4.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LONGEST = 9223372036854775807


@dataclass(slots=True)
class Settings:
    """What a cluster's configuration files would say, and how long its brokers take. May be changed while a history runs."""

    wall_ms0: float = 1_700_000_000_000.0
    """The cluster's wall clock at second 0 of the simulation, ms since 1970."""
    host: str = "broker-{}"
    port: int = 9092
    first_broker: int = 0
    """The id of the first broker; the others follow."""
    cluster_id: str = "simulated-cluster-0000"
    replication_factor: int = 3
    """Of topics that do not say; never more than there are brokers."""
    auto_create_topics: bool = False
    default_partitions: int = 1
    stamps: bool = False
    """Whether topics that do not say have the time of the append as the timestamps of their records (LogAppendTime)."""
    marker_s: float = 0.01
    """From the end of a transaction until its markers are written and the next one may begin."""
    loses_markers_of: str | tuple[str, ...] = ()
    """How transactional ids begin whose coordinator leaves out the markers of partitions without a leader, as Kafka 4.3
    does for all of them; () for none. Producers of source topics would need an operator then."""
    replication_s: float = 0.0
    """From an append until the followers have it and the high watermark passes it."""
    failover_s: float = 0.0
    """From a broker's end until the controller lets others lead; Kafka's default is 9 s."""
    metadata_s: float = 0.0
    """From a change of topics or leaders until brokers have heard of it; the first broker hears at once."""
    max_transaction_timeout_ms: int = 900_000
    transaction_sweep_s: float = 10.0
    """Transactions past their timeout are looked for so often."""
    producer_id_expiration_s: float = 86_400.0
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_s: float = 0.0
    max_offset_metadata_bytes: int = 4_096
    fetch_max_bytes: int = 57_671_680
    retention_check_s: float = 300.0
    first_retention_check_s: float = 30.0
    cleaner_s: float = 15.0
    """Compacted topics are looked at so often; 0 leaves compaction to `Cluster.compact`."""


TOPIC_DEFAULTS: Mapping[str, str] = {
    "compression.type": "producer",
    "remote.log.delete.on.disable": "false",
    "leader.replication.throttled.replicas": "",
    "remote.storage.enable": "false",
    "min.insync.replicas": "1",
    "segment.jitter.ms": "0",
    "remote.log.copy.disable": "false",
    "local.retention.ms": "-2",
    "cleanup.policy": "delete",
    "flush.ms": str(LONGEST),
    "follower.replication.throttled.replicas": "",
    "compression.lz4.level": "9",
    "segment.bytes": str(1 << 30),
    "retention.ms": str(7 * 86_400_000),
    "compression.gzip.level": "-1",
    "flush.messages": str(LONGEST),
    "compression.zstd.level": "3",
    "max.compaction.lag.ms": str(LONGEST),
    "file.delete.delay.ms": "60000",
    "max.message.bytes": "1048588",
    "min.compaction.lag.ms": "0",
    "message.timestamp.type": "CreateTime",
    "local.retention.bytes": "-2",
    "preallocate": "false",
    "index.interval.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.5",
    "unclean.leader.election.enable": "false",
    "retention.bytes": "-1",
    "delete.retention.ms": "86400000",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(LONGEST),
    "segment.ms": "604800000",
    "segment.index.bytes": "10485760",
}
"""What a topic's configuration says without overrides, in the order in which Kafka lists it."""

_TEXTS = {
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "preallocate": ("true", "false"),
    "unclean.leader.election.enable": ("true", "false"),
    "remote.storage.enable": ("true", "false"),
    "remote.log.copy.disable": ("true", "false"),
    "remote.log.delete.on.disable": ("true", "false"),
}
_LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_INTS = ("max.message.bytes", "segment.bytes", "segment.index.bytes", "index.interval.bytes", "min.insync.replicas")
_LEAST = {
    "retention.ms": -1,
    "retention.bytes": -(1 << 63),
    "segment.ms": 1,
    "segment.bytes": 1 << 20,
    "min.insync.replicas": 1,
    "local.retention.ms": -2,
    "local.retention.bytes": -2,
    "segment.index.bytes": 4,
    "compression.gzip.level": -1,
    "compression.zstd.level": -131072,
}


def refuse_config(name: str, value: str | None) -> str | None:
    """Return why Kafka refuses a setting of a topic, None if it takes it."""
    if name not in TOPIC_DEFAULTS:
        return f"Unknown topic config name: {name}"
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    if name == "cleanup.policy":
        bad = [part for part in map(str.strip, value.split(",")) if part not in ("delete", "compact")]
        return (
            f"Invalid value {bad[0]} for configuration {name}: String must be one of: compact, delete" if bad else None
        )
    if name in _TEXTS:
        return None if value in _TEXTS[name] else f"Invalid value {value} for configuration {name}"
    if name in _LISTS:
        return None
    if name == "min.cleanable.dirty.ratio":
        try:
            return None if 0 <= float(value) <= 1 else f"Invalid value {value} for configuration {name}"
        except ValueError:
            return f"Invalid value {value} for configuration {name}: Not a number of type DOUBLE"
    kind, longest = ("INT", 1 << 31) if name in _INTS else ("LONG", 1 << 63)
    try:
        number = int(value)
    except ValueError:
        return f"Invalid value {value} for configuration {name}: Not a number of type {kind}"
    if not -longest <= number < longest:
        return f"Invalid value {value} for configuration {name}: Not a number of type {kind}"
    if number < (least := _LEAST.get(name, 0)):
        return f"Invalid value {value} for configuration {name}: Value must be at least {least}"
    return None


class TopicConfig:
    """A topic's settings as numbers, for what looks at them often. `overrides` is what was asked for."""

    __slots__ = (
        "after_max_ms",
        "before_max_ms",
        "delete_retention_ms",
        "index_interval",
        "is_compacted",
        "is_expiring",
        "is_stamped",
        "max_compaction_lag_ms",
        "max_message",
        "min_compaction_lag_ms",
        "min_insync",
        "overrides",
        "retention_bytes",
        "retention_ms",
        "segment_bytes",
        "segment_ms",
    )

    def __init__(self, overrides: Mapping[str, str]) -> None:
        self.overrides = dict(overrides)
        get = {**TOPIC_DEFAULTS, **overrides}.__getitem__
        policy = {part.strip() for part in get("cleanup.policy").split(",")}
        self.is_compacted = "compact" in policy
        self.is_expiring = "delete" in policy
        self.is_stamped = get("message.timestamp.type") == "LogAppendTime"
        self.retention_ms = int(get("retention.ms"))
        self.retention_bytes = int(get("retention.bytes"))
        self.segment_ms = int(get("segment.ms"))
        self.segment_bytes = int(get("segment.bytes"))
        self.max_message = int(get("max.message.bytes"))
        self.min_insync = int(get("min.insync.replicas"))
        self.index_interval = int(get("index.interval.bytes"))
        self.delete_retention_ms = int(get("delete.retention.ms"))
        self.min_compaction_lag_ms = int(get("min.compaction.lag.ms"))
        self.max_compaction_lag_ms = int(get("max.compaction.lag.ms"))
        self.before_max_ms = int(get("message.timestamp.before.max.ms"))
        self.after_max_ms = int(get("message.timestamp.after.max.ms"))
