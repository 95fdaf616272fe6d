"""Offsets by partition as the JSON of a Spark job's state has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlay.kafka.log_position import TopicPartition

from .job_reads import Ends


def spell_spans(ends: Mapping[TopicPartition, tuple[int, int]]) -> dict[str, list[int]]:
    """Return spans of offsets by `topic/partition`, in their order."""
    return {f"{topic}/{partition}": list(span) for (topic, partition), span in sorted(ends.items())}


def spell_offsets(values: Mapping[TopicPartition, int]) -> dict[str, int]:
    """Return offsets by `topic/partition`, in their order."""
    return {f"{topic}/{partition}": value for (topic, partition), value in sorted(values.items())}


def parse_offsets(values: Mapping[str, Any]) -> dict[TopicPartition, Any]:
    """Return what is under each `topic/partition` by its partition. Raises ValueError for another name."""
    found: dict[TopicPartition, Any] = {}
    for name, value in values.items():
        topic, _, partition = name.rpartition("/")
        found[topic, int(partition)] = value
    return found


def parse_spans(values: Mapping[str, Any]) -> Ends:
    """Return the spans under each `topic/partition`. Raises ValueError, also for a span that is no pair; TypeError."""
    return {source: (start, stop) for source, (start, stop) in parse_offsets(values).items()}
