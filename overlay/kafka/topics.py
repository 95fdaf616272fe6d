"""Topics as Kafka describes them, topics to create, and ways to name an offset of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created. `replication`: its replication factor."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


def new_topic(name: str, partitions: int, replication: int, config: Mapping[str, str]) -> NewTopic:
    """Return a topic to be created, with a copy of the configuration."""
    return NewTopic(name, partitions, replication, dict(config))


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """An offset of a partition to ask for: a timestamp in ms since 1970, or a negative number with
    a special meaning.
    """

    timestamp: int

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """Return the spec that asks for the log start."""
        return cls(-2)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """Return the spec that asks for the log end: the last stable offset, or the high watermark if
        the request is not for committed records.
        """
        return cls(-1)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """Return the spec that asks for the offset of the record with the newest timestamp."""
        return cls(-3)

    @classmethod
    def for_timestamp(cls, ms: int) -> OffsetSpec:
        """Return the spec that asks for the offset of the first record at or after a time in ms
        since 1970.
        """
        return cls(ms)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of one partition: how many are assigned, how many are in sync, and whether one
    of them leads.
    """

    assigned: int
    in_sync: int
    has_leader: bool = True


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A description of an existing topic. `identity`: Kafka's topic id, which changes if the topic
    is created anew. `config`: empty if it was not asked for, or if this user may not read it.
    """

    name: str
    identity: str
    partitions: int
    config: Mapping[str, str]
    replicas: tuple[Replicas, ...] = ()
    """One per partition."""


def count_replicas(partitions: Iterable[Any]) -> tuple[Replicas, ...]:
    """Return the replicas of each partition, in partition order. `partitions`: entries of a topic's
    metadata response.
    """
    ordered = sorted(partitions, key=lambda found: found[1])
    return tuple(Replicas(len(replicas), len(isr), leader >= 0) for _, _, leader, _, replicas, isr, *_ in ordered)
