"""Telling the service that somebody reads: offsets committed for the consumer's reader group (interfaces.md, Interest).

Structured Streaming keeps its positions in the checkpoint and commits nothing to Kafka. After each batch it says how far it
came, though, and that is committed here. Nothing is ever read from these offsets: a commit that fails is told in the log, and
the next one makes up for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from confluent_kafka import Consumer, KafkaException, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from overlay.connection import Properties, for_confluent
from overlay.logs import get_logger

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = get_logger(__name__)

_followed: WeakKeyDictionary[SparkSession, set[tuple[str, str]]] = WeakKeyDictionary()
_lock = threading.Lock()


def follow_progress(spark: SparkSession, kafka: Properties, topic: str, group: str) -> None:
    """Commit, for the group, how far the session's queries have come in a topic. Once for each topic and group."""
    with _lock:
        known = _followed.setdefault(spark, set())
        is_new = (topic, group) not in known
        known.add((topic, group))
    if is_new:
        spark.streams.addListener(Interest(kafka, topic, group))


class Interest(StreamingQueryListener):
    """Commits the end of each finished batch."""

    def __init__(self, kafka: Properties, topic: str, group: str) -> None:
        self._topic, self._group = topic, group
        self._client = Consumer(
            {**for_confluent(kafka), "group.id": group, "enable.auto.commit": False, "log_level": 0}
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            offsets = read_offsets(source.endOffset, self._topic)
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


def read_offsets(text: str | None, topic: str) -> dict[int, int]:
    """The offsets of a topic by partition, from what a source of Spark says of its end; empty for another kind of source."""
    try:
        found = json.loads(text or "null")
        return {int(partition): int(offset) for partition, offset in found[topic].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
