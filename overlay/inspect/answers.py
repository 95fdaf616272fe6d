"""Kafka's answers about topics, groups and the cluster, as plain values.

cluster.py asks for them, verdict.py judges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlay.kafka.admin import Replicas

Operations = frozenset[str] | None
"""The operations that this user may perform, by Kafka's names; None if Kafka does not say."""


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """A topic as this user sees it. `exists` is None if the user may not even describe it.
    `identity`: Kafka's id of the topic. `config`: None if the user may not read it.

    `refusal` and `creation_denied` are about a missing topic, all other fields about an existing
    one.
    """

    exists: bool | None
    partitions: int = 0
    identity: str = ""
    operations: Operations = None
    config: Mapping[str, str] | None = None
    refusal: str = ""
    """Why a missing topic could not be created, in Kafka's words; "" if it could, or if that was not asked."""
    creation_denied: bool = False
    replicas: tuple[Replicas, ...] = ()
    """Replicas of each partition, by number."""


@dataclass(frozen=True, slots=True)
class ClusterAnswers:
    """All answers about a cluster. `brokers`: their number. `operations`: those of this user on the cluster.
    `topics`: by name. `groups`: this user's operations by group; empty if no group was asked about, as in a cluster
    that has had none.
    """

    brokers: int
    operations: Operations
    topics: Mapping[str, TopicAnswer]
    groups: Mapping[str, Operations]
    visible: tuple[str, ...] = ()
    """Names of all topics that this user can see, to suggest a similar name."""
