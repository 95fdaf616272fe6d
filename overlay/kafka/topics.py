"""Topics as Kafka describes them, topics to be created, and which offset of a partition is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> NewTopic:
    return NewTopic(name, partitions, replication, dict(config))


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Which offset of a partition is asked for: a timestamp in ms since 1970, or a negative number with a meaning."""

    timestamp: int

    @classmethod
    def earliest(cls) -> OffsetSpec:
        return cls(-2)

    @classmethod
    def latest(cls) -> OffsetSpec:
        return cls(-1)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """The record with the newest timestamp."""
        return cls(-3)

    @classmethod
    def for_timestamp(cls, ms: int) -> OffsetSpec:
        """The first record at or after a time."""
        return cls(ms)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The copies of one partition: how many there should be, how many are in sync, and whether one of them leads."""

    assigned: int
    in_sync: int
    has_leader: bool = True


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as it stands. `identity` is Kafka's topic id, which a recreated topic does not keep."""

    name: str
    identity: str
    partitions: int
    config: Mapping[str, str]
    replicas: tuple[Replicas, ...] = ()
    """By partition."""


def count_replicas(partitions: Iterable[Any]) -> tuple[Replicas, ...]:
    """The copies of each partition, from a topic's metadata."""
    ordered = sorted(partitions, key=lambda found: found[1])
    return tuple(Replicas(len(replicas), len(isr), leader >= 0) for _, _, leader, _, replicas, isr, *_ in ordered)
