"""What a job keeps in its state topic: plans of batches by the driver, and commits by the writers.

Both are JSON in records without a key. The last record of a partition counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from overlay.errors import OverlayError
from overlay.kafka.log_position import TopicPartition

VERSION = 1
Ends = dict[TopicPartition, tuple[int, int]]


class StateUnreadable(OverlayError):
    """A record of a job's state topic that this version cannot read. The operator acts."""


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One consumer in a batch.

    `fingerprint`: of its config. `before`, `last`: the consumer sequence before the batch, and the
    last one of it. `since`: the batch with which the consumer began. `floors`: by partition, the
    offset at which it began.
    """

    fingerprint: str
    before: int
    last: int
    since: int
    floors: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch of a job, as the driver wrote it down before any of its deliveries was sent.

    `batch`: Spark's number. `now`: ms since 1970, the time that the batch has for filters. `ends`:
    first and next offset of each source partition. `stream`: fingerprint of the stream's config.
    `writers`: by output partition, the partition of the state topic. `is_complete`: whether all
    deliveries are committed.
    """

    batch: int
    now: int
    stream: str
    ends: Ends
    consumers: Mapping[str, ConsumerPlan]
    writers: Mapping[TopicPartition, int]
    is_complete: bool = False

    @property
    def fingerprint(self) -> str:
        """What has to be the same when the batch is written again: what it reads, and for whom.

        Not the sequences: a batch that finds fewer records than before, since the log was compacted,
        numbers them behind those that it gave out before.
        """
        own = {name: each.fingerprint for name, each in sorted(self.consumers.items())}
        return json.dumps([self.batch, self.stream, _spell_ends(self.ends), own], sort_keys=True)

    def complete(self) -> BatchPlan:
        """Return the plan with all its deliveries committed."""
        return replace(self, is_complete=True)


@dataclass(frozen=True, slots=True)
class WriterCommit:
    """What a writer commits together with its deliveries. `plan`: the fingerprint of the batch's plan."""

    batch: int
    plan: str
    records: int


def encode_plan(plan: BatchPlan) -> bytes:
    """Return the record of a plan."""
    return _encode(
        "plan",
        {
            "batch": plan.batch,
            "now": plan.now,
            "stream": plan.stream,
            "ends": _spell_ends(plan.ends),
            "consumers": {
                name: {**asdict(each), "floors": _spell(each.floors)} for name, each in plan.consumers.items()
            },
            "writers": _spell(plan.writers),
            "is_complete": plan.is_complete,
        },
    )


def decode_plan(data: bytes) -> BatchPlan:
    """Return the plan of a record. Raises StateUnreadable."""
    found = _decode("plan", data)
    try:
        consumers = {
            name: ConsumerPlan(each["fingerprint"], each["before"], each["last"], each["since"], _parse(each["floors"]))
            for name, each in found["consumers"].items()
        }
        ends = {source: (start, stop) for source, (start, stop) in _parse(found["ends"]).items()}
        writers = _parse(found["writers"])
        return BatchPlan(found["batch"], found["now"], found["stream"], ends, consumers, writers, found["is_complete"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateUnreadable(f"a plan that cannot be read: {error!r}") from error


def encode_commit(commit: WriterCommit) -> bytes:
    """Return the record of a writer's commit."""
    return _encode("commit", asdict(commit))


def decode_commit(data: bytes) -> WriterCommit:
    """Return the commit of a record. Raises StateUnreadable."""
    found = _decode("commit", data)
    try:
        return WriterCommit(found["batch"], found["plan"], found["records"])
    except (KeyError, TypeError) as error:
        raise StateUnreadable(f"a commit that cannot be read: {error!r}") from error


def _encode(kind: str, fields: Mapping[str, object]) -> bytes:
    return json.dumps({"version": VERSION, "kind": kind, **fields}).encode()


def _decode(kind: str, data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(data)
        if found["kind"] != kind or found["version"] != VERSION:
            raise StateUnreadable(
                f"the state has a {found['kind']} of version {found['version']}; this version of the overlay reads a {kind}"
                f" of version {VERSION}. Use the version that wrote it"
            )
    except (ValueError, TypeError, KeyError) as error:
        raise StateUnreadable(f"a record of the state is no {kind}: {error!r}") from error
    return found


def _spell_ends(ends: Ends) -> dict[str, list[int]]:
    return {f"{topic}/{partition}": list(span) for (topic, partition), span in sorted(ends.items())}


def _spell(values: Mapping[TopicPartition, int]) -> dict[str, int]:
    return {f"{topic}/{partition}": value for (topic, partition), value in sorted(values.items())}


def _parse(values: Mapping[str, Any]) -> dict[TopicPartition, Any]:
    found: dict[TopicPartition, Any] = {}
    for name, value in values.items():
        topic, _, partition = name.rpartition("/")
        found[topic, int(partition)] = value
    return found
