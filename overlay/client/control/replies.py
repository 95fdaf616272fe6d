"""A reader of the reply topic from its current end.

All clients of an overlay share the topic; each knows its own answers.
"""

from __future__ import annotations

import contextlib
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError

from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable
from overlay.kafka.confluent import refuse_settings
from overlay.kafka.properties import Properties, for_confluent
from overlay.waits import comes_true

OPEN_S = 10.0
WAIT_MS = 50
"""Milliseconds for which a broker may hold back a fetch: short, because a caller waits for the answer."""
_NO_LEADER = (RdKafkaError.NOT_LEADER_FOR_PARTITION, RdKafkaError.LEADER_NOT_AVAILABLE)
_REFUSALS = (RdKafkaError.TOPIC_AUTHORIZATION_FAILED, RdKafkaError.CLUSTER_AUTHORIZATION_FAILED)


def open_replies(kafka: Properties, topic: str, group: str, **more: Any) -> Consumer:
    """Return a Kafka consumer that reads all partitions of `topic`, the reply topic, from the high
    watermarks that they have now. The caller closes it.

    `group`: a consumer group for which nothing is ever committed. `more`: further settings by
    librdkafka's names, which replace others. Raises SourceUnavailable, also if the topic does not
    exist, and CredentialsRefused, also if the settings cannot be used, as while a certificate file is
    missing.
    """
    settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed", "log_level": 0}
    with refuse_settings(kafka):
        consumer = Consumer({**for_confluent(kafka), **settings, "fetch.wait.max.ms": WAIT_MS, **more})
    with contextlib.ExitStack() as closing:
        closing.callback(consumer.close)
        try:
            found = consumer.list_topics(topic, OPEN_S).topics[topic]
            if found.error is not None:
                if is_refusal(found.error):
                    raise judge(topic, "Describe and Read", found.error)
                raise SourceUnavailable(
                    f"{topic}: {found.error.str()}. The service makes this topic when it starts: does it run?"
                )
            places = [TopicPartition(topic, partition) for partition in found.partitions]
            # the end as it is now: "latest" would be looked up later, perhaps after the answer has
            # come
            ends = [_find_end(consumer, place) for place in places]
            consumer.assign([TopicPartition(topic, p.partition, end) for p, end in zip(places, ends, strict=True)])
        except KafkaException as error:
            raise judge(topic, "Read", error.args[0]) from error
        closing.pop_all()
    return consumer


def _find_end(consumer: Consumer, place: TopicPartition) -> int:
    """Return the offset after the last record of a partition (its high watermark). A partition that
    was made a moment ago may have no leader yet; this waits for one.

    Raises KafkaException, and SourceUnavailable if it has no leader for OPEN_S seconds.
    """
    ends: list[int] = []

    def look() -> bool:
        try:
            ends.append(consumer.get_watermark_offsets(place, OPEN_S, cached=False)[1])
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER:
                raise
        return bool(ends)

    if not comes_true(look, OPEN_S, pause_s=WAIT_MS / 1000):
        raise SourceUnavailable(f"{place.topic}-{place.partition}: has had no leader for {OPEN_S:.0f} s")
    return ends[0]


def is_refusal(error: RdKafkaError) -> bool:
    """Return whether an error of Kafka says that this user lacks a right. Trying again does not help."""
    return error.code() in _REFUSALS


def judge(topic: str, operation: str, error: RdKafkaError) -> OverlayError:
    """Return, without raising it, the exception for an error of Kafka about `topic`:
    CredentialsRefused if a right is missing, else SourceUnavailable.

    `operation`: the right to name in that case, such as Read.
    """
    if is_refusal(error):
        return CredentialsRefused(f"{topic}: Kafka does not allow {operation}. Grant it")
    return SourceUnavailable(f"{topic}: {error.str()}")
