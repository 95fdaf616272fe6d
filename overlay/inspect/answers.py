"""What Kafka said of topics, groups and itself, as plain values: what the asking hands over and the verdict judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlay.kafka.admin import Replicas

Operations = frozenset[str] | None
"""What this user may do, in Kafka's words; None when Kafka does not say."""


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """A topic as this user sees it. `exists` is None when the user may not even ask."""

    exists: bool | None
    partitions: int = 0
    identity: str = ""
    operations: Operations = None
    config: Mapping[str, str] | None = None
    refusal: str = ""
    """Why a missing topic could not be created; empty when it could."""
    creation_denied: bool = False
    replicas: tuple[Replicas, ...] = ()
    """By partition."""


@dataclass(frozen=True, slots=True)
class Answers:
    """All that was asked."""

    brokers: int
    operations: Operations
    topics: Mapping[str, TopicAnswer]
    groups: Mapping[str, Operations]
    visible: tuple[str, ...] = ()
    """Names of all topics that this user can see, for a did-you-mean."""
