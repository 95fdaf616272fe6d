"""The consumers of a job as its tasks see them. They are sent to the executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.config.stream import StreamConfig
from overlay.filter import Filter
from overlay.kafka.log_position import TopicPartition
from overlay.match import Values
from overlay.output.batch_builder import OutputTopic
from overlay.subject import Pattern

ConsumerId = tuple[str, str]


@dataclass(frozen=True, slots=True)
class JobReader:
    """One consumer of a job, as its tasks see it.

    `filter`, `values`: each None if it leaves out no record. `first_writer`: the number of the writer
    of its output's partition 0; those of the others follow.
    """

    id: ConsumerId
    patterns: tuple[Pattern, ...]
    filter: Filter | None
    values: Values | None
    output_topic: OutputTopic
    first_writer: int
    dead_letter_topic: OutputTopic | None = None
    """For records that the output can never take; None if the job ends at such a record."""
    floors: Mapping[TopicPartition, int] = field(default_factory=dict)
    """By partition, the offset below which nothing is delivered."""


@dataclass(frozen=True, slots=True)
class JobScan:
    """What every scan task of a batch has to know. `now`: ms since 1970, for UTC() in filters, and
    the time of the deliveries."""

    kafka: Mapping[str, str] = field(repr=False)
    prefix: str
    stream: StreamConfig
    readers: tuple[JobReader, ...]
    now: int
    fails_on_loss: bool = True
