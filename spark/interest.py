"""Commits for a consumer's reader group, by which the service knows that there is a reader.

The rule is in docs/consumers.md#when-ack_wait-begins. Structured Streaming keeps its positions in
the checkpoint and commits nothing to Kafka. But it reports after each batch how far it has come,
and that is committed here. These offsets are never read back. If a commit fails, that is logged,
and the next one replaces it, by a new Kafka client if one can be made.

Spark reports all queries of a session and the topics they read. Several consumers may share an
output topic. So a frame of a consumer's deliveries has an observed metric with a unique name. A
query whose progress has that metric reads this consumer.
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

from overlay.errors import SourceUnavailable
from overlay.kafka.properties import Properties, for_confluent
from overlay.logs import get_logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = get_logger(__name__)

_followed: WeakKeyDictionary[SparkSession, dict[tuple[str, str], InterestListener]] = WeakKeyDictionary()
_lock = threading.Lock()


def follow_progress(spark: SparkSession, frame: DataFrame, kafka: Properties, topic: str, group: str) -> DataFrame:
    """Begin to commit, for the group, how far the queries that read a consumer's deliveries have
    come in `topic`, after each of their batches.

    Return `frame` with an observed metric, by which these queries are known: read this frame.
    """
    with _lock:
        known = _followed.setdefault(spark, {})
        is_new = (topic, group) not in known
        if is_new:
            known[topic, group] = InterestListener(kafka, topic, group)
        interest = known[topic, group]
        # Spark refuses a query in which two frames have a metric of the same name
        name = f"overlay.{group}.{uuid.uuid4().hex}"
        interest.names.add(name)
    if is_new:
        spark.streams.addListener(interest)
    return frame.observe(name, F.count(F.lit(1)).alias("deliveries"))


class InterestListener(StreamingQueryListener):
    """A listener that commits the end of each finished batch of the queries that read the group's
    deliveries.
    """

    def __init__(self, kafka: Properties, topic: str, group: str) -> None:
        self.names: set[str] = set()
        """Names of the observed metrics by which these queries are known."""
        self._kafka, self._topic, self._group = kafka, topic, group
        self._client = self._make_client()

    def _make_client(self) -> Consumer:
        """Return a new client. Raises SourceUnavailable or KafkaException while secrets or certificates cannot be read."""
        settings = {"group.id": self._group, "enable.auto.commit": False, "log_level": 0}
        return Consumer({**for_confluent(self._kafka), **settings})

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the end of a finished batch, if the query reads the group's deliveries. A failure
        is logged.
        """
        progress = event.progress
        if self.names.isdisjoint(progress.observedMetrics):
            return
        # it is unknown which source of a query is this consumer's, but none of them has read less
        # than the slowest
        offsets = find_lowest([read_offsets(source.endOffset, self._topic) for source in progress.sources])
        if offsets:
            self._commit(offsets)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: what was committed stays valid."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the offsets stay, and a restarted pipeline continues from there."""

    def _commit(self, offsets: Mapping[int, int]) -> None:
        positions = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            self._client.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            log.warning("offsets not committed", group=self._group, topic=self._topic, reason=str(error))
            # if the client has lost all brokers, it never commits again (overlay/kafka/confluent.py, Contact)
            self._replace_client()

    def _replace_client(self) -> None:
        """Replace the client by a new one. If none can be made, log that and keep the client: its next
        commit fails, and then this is called again."""
        try:
            client = self._make_client()
        except (SourceUnavailable, KafkaException) as error:
            log.warning("no new client for commits", group=self._group, topic=self._topic, reason=str(error))
            return
        former, self._client = self._client, client
        former.close()


def find_lowest(ends: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the lowest offset of each partition over all sources. `ends`: offsets by partition, of
    each source.

    Partitions that one of them lacks are left out.

    A source without any offsets is one of another topic, and does not count.
    """
    known = [end for end in ends if end]
    partitions = set[int].intersection(*(set(end) for end in known)) if known else set[int]()
    return {partition: min(end[partition] for end in known) for partition in sorted(partitions)}


def read_offsets(text: str | None, topic: str) -> dict[int, int]:
    """Return the offsets of a topic by partition, from Spark's description of a source's end; empty
    for another kind of source.
    """
    try:
        found = json.loads(text or "null")
        return {int(partition): int(offset) for partition, offset in found[topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
