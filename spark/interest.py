"""Telling the service that somebody reads: offsets committed for the consumer's reader group (interfaces.md, Interest).

Structured Streaming keeps its positions in the checkpoint and commits nothing to Kafka. After each batch it says how far it
came, though, and that is committed here. Nothing is ever read from these offsets: a commit that fails is told in the log, and
the next one makes up for it.

Spark tells of all queries of a session, and which topics they read. Several consumers may share an output topic, so a frame of
a consumer's deliveries carries an observed metric of a name of its own. A query whose progress has that metric reads this
consumer.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from overlay.kafka.connection import Properties, for_confluent
from overlay.logs import get_logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = get_logger(__name__)

_followed: WeakKeyDictionary[SparkSession, dict[tuple[str, str], Interest]] = WeakKeyDictionary()
_lock = threading.Lock()


def follow_progress(spark: SparkSession, frame: DataFrame, kafka: Properties, topic: str, group: str) -> DataFrame:
    """Commit, for the group, how far the queries come that read `frame` from a topic. Return the frame to read."""
    with _lock:
        known = _followed.setdefault(spark, {})
        is_new = (topic, group) not in known
        if is_new:
            known[topic, group] = Interest(kafka, topic, group)
        interest = known[topic, group]
        # Spark refuses a query in which two frames have a metric of one name
        name = f"overlay.{group}.{uuid.uuid4().hex}"
        interest.names.add(name)
    if is_new:
        spark.streams.addListener(interest)
    return frame.observe(name, F.count(F.lit(1)).alias("deliveries"))


class Interest(StreamingQueryListener):
    """Commits the end of each finished batch of the queries that read the group's deliveries."""

    def __init__(self, kafka: Properties, topic: str, group: str) -> None:
        self.names: set[str] = set()
        """Observed metrics by which these queries are known."""
        self._topic, self._group = topic, group
        self._client = Consumer(
            {**for_confluent(kafka), "group.id": group, "enable.auto.commit": False, "log_level": 0}
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if self.names.isdisjoint(progress.observedMetrics):
            return
        # which of a query's sources is this consumer's cannot be told: none of them has read less than the slowest
        offsets = find_lowest([read_offsets(source.endOffset, self._topic) for source in progress.sources])
        if offsets:
            self._commit(offsets)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """What was committed stands."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The offsets stay: a pipeline that is started again goes on from there."""

    def _commit(self, offsets: Mapping[int, int]) -> None:
        positions = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            self._client.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            log.warning("offsets not committed", group=self._group, topic=self._topic, reason=str(error))


def find_lowest(ends: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return by partition the lowest offset of those that sources have; of partitions that one of them lacks none.

    A source without any offsets is one of another topic.
    """
    known = [end for end in ends if end]
    partitions = set[int].intersection(*(set(end) for end in known)) if known else set[int]()
    return {partition: min(end[partition] for end in known) for partition in sorted(partitions)}


def read_offsets(text: str | None, topic: str) -> dict[int, int]:
    """The offsets of a topic by partition, from what a source of Spark says of its end; empty for another kind of source."""
    try:
        found = json.loads(text or "null")
        return {int(partition): int(offset) for partition, offset in found[topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
