"""The consumers of a job as its driver sees them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from overlay.arrays import Ints
from overlay.config import ConsumerConfig, StreamConfig
from overlay.config.consumer import DeliverPolicy
from overlay.errors import OverlayError
from overlay.index.start_positions import find_first
from overlay.kafka.log_position import TopicPartition
from overlay.state.job_pace import Pace
from overlay.state.job_plan import ConsumerPlan
from overlay.state.job_reads import Ends
from spark.options import Ranges
from spark.partitions import TaskPartition

from .readers import JobReader, JobScan

NS_PER_MS = 1_000_000


class Plan(Protocol):
    """Returns the tasks that read the offsets `ends` for the consumers with these numbers. `may_lose`, `ranges`: as
    in Planner.plan_between.
    """

    def __call__(
        self, ends: Ends, numbers: Sequence[int], *, may_lose: bool = False, ranges: Ranges | None = None
    ) -> list[TaskPartition]: ...


class CountSpans(Protocol):
    """Returns how many records with wanted subjects the chunk index counts in each span (partition, first and next offset),
    int64 [consumers, spans]; UNKNOWN where it does not tell. `numbers`: of the consumers."""

    def __call__(self, numbers: Sequence[int], spans: Sequence[tuple[TopicPartition, int, int]]) -> Ints: ...


class Search(Protocol):
    """Returns the offsets of the last message of each subject that a consumer wants, by partition (int64, ascending).

    `number`: the consumer's. `offsets`: by partition, the first offset that the consumer has not been given.
    `snapshot`: by partition, the offset before which the last messages are searched.
    """

    def __call__(
        self, number: int, offsets: Mapping[TopicPartition, int], snapshot: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Ints]: ...


@dataclass(frozen=True, slots=True)
class JobConsumers:
    """The consumers of a job, with what its tasks have to know of them.

    `configs`: in the order of their numbers. `plan`: returns the tasks that read some offsets for some of them.
    `look`: asks Kafka for the log start and the last stable offset of each partition. `find_ids`: asks Kafka for the
    ids of the stream's topics. `find_lasts`: searches for the
    last messages of a consumer. `weigh`: estimates the bytes of each offset, by partition. `is_limited`: whether the options
    limit a batch, so that it may end before the log does. `writers`: every output partition, by the number that blocks have
    for it. `begins`: by name, a plan for each consumer. A batch takes only `floors`, `claim`, `snapshot` and `before` from
    it, and nothing but the claim if the
    job's last plan knows the consumer by this claim.
    """

    configs: tuple[ConsumerConfig, ...]
    scan: JobScan
    plan: Plan
    look: Callable[[], Ends]
    find_ids: Callable[[], Mapping[str, str]]
    find_lasts: Search
    count_spans: CountSpans
    weigh: Callable[[Ends], Mapping[TopicPartition, float]]
    is_limited: bool
    writers: tuple[TopicPartition, ...]
    begins: Mapping[str, ConsumerPlan]

    @property
    def outputs(self) -> dict[str, int]:
        """How many partitions each output topic has, by which records are placed."""
        return {reader.output_topic.topic: reader.output_topic.partitions for reader in self.scan.readers}

    def place_by(self, partitions: Mapping[str, int]) -> JobConsumers:
        """Return these consumers with their records placed as in output topics of so many partitions: a batch that is run again
        puts each record where it was put before. `partitions`: by topic; others stay. Raises OverlayError if a topic has
        fewer now.
        """
        first, writers, readers = dict[str, int](), list[TopicPartition](), list[JobReader]()
        for reader in self.scan.readers:
            topic = reader.output_topic
            count = partitions.get(topic.topic, topic.partitions)
            if count > topic.partitions:
                raise OverlayError(
                    f"output topic {topic.topic} has {topic.partitions} partitions, and had {count} when the batch was begun"
                    " that is run again: it was made anew. Give it as many as before until that batch has ended"
                )
            if topic.topic not in first:
                first[topic.topic] = len(writers)
                writers += ((topic.topic, number) for number in range(count))
            readers.append(
                replace(reader, output_topic=replace(topic, partitions=count), first_writer=first[topic.topic])
            )
        return replace(self, scan=replace(self.scan, readers=tuple(readers)), writers=tuple(writers))

    def find_firsts(self, partitions: int) -> dict[str, int]:
        """Return the offset of the first record that each consumer is to have by its file, by name (`find_first_offset`).
        `partitions`: of the stream."""
        return {name_of(config): find_first_offset(config, partitions) for config in self.configs}

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each config, by name."""
        return {name_of(config): digest(config) for config in self.configs}

    @property
    def paces(self) -> dict[str, Pace]:
        """The limits of the consumers that have any, by name."""
        return {name_of(config): pace for config in self.configs if (pace := find_pace(config)) != Pace()}


def find_pace(config: ConsumerConfig) -> Pace:
    """Return the rate limit and the pause in a consumer's file; equal to Pace() if it has neither."""
    return Pace(config.rate_limit_bps, -(-(config.pause_until or 0) // NS_PER_MS))


def find_first_offset(config: ConsumerConfig, partitions: int) -> int:
    """Return the offset before which a consumer is given nothing, also if it is above the end of the log: that of its start
    sequence by `by_start_sequence`, in a stream of one partition; 0 for others. `partitions`: of the stream."""
    is_awaited = config.deliver_policy is DeliverPolicy.BY_START_SEQUENCE and partitions == 1
    return find_first(config) - 1 if is_awaited else 0


def name_of(config: ConsumerConfig) -> str:
    """Return the name of a consumer, by which plans know it: names are unique within a stream."""
    return config.id[1]


def digest(config: ConsumerConfig | StreamConfig) -> str:
    """Return a fingerprint of a config, 16 hexadecimal digits: equal for configs with equal fields."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
