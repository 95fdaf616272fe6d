"""The content of an output topic, read by a plain confluent-kafka consumer (read_committed)."""

from __future__ import annotations

import time
import uuid
from collections import Counter

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from .home import DemoError
from .verdict import Content

_SILENCE_S = 30.0
_BATCH = 10_000
_SEQUENCE = -4
"""Index of the stream sequence in an ack token.

A token is `...<deliveries>.<stream_seq>.<consumer_seq>.<time>.<num_pending>`.
"""


def read_output(bootstrap: str, topic: str) -> Content:
    """Read all committed records of a topic of one partition, from its start to its present end. Return
    how many records each subject has, and the records' stream sequences in topic order.

    Raises DemoError if the records cannot be read, or are no deliveries of the overlay.
    """
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"demo-{uuid.uuid4().hex}", **settings})
    counts: Counter[str] = Counter()
    sequences: list[int] = []
    try:
        # assign() waits silently for a missing topic; this question fails at once
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_SILENCE_S)
        consumer.assign([TopicPartition(topic, 0, 0)])
        heard = time.monotonic()
        while True:
            messages = consumer.consume(_BATCH, 0.5)
            for message in messages:
                if message.error():
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        return Content(counts, np.array(sequences, np.int64))
                    raise KafkaException(message.error())
                subject, sequence = _read_headers(message)
                counts[subject] += 1
                sequences.append(sequence)
            if messages:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise DemoError(f"{topic}: Kafka sent nothing for {_SILENCE_S:.0f} s. See the broker's log")
    except KafkaException as error:
        raise DemoError(f"{topic}: the output cannot be read: {error.args[0].str()}. See the service's log") from error
    finally:
        consumer.close()


def _read_headers(message: Message) -> tuple[str, int]:
    headers = dict(message.headers() or [])
    try:
        return headers["Nats-Subject"].decode(), int(headers["Nats-Reply-To"].split(b".")[_SEQUENCE])
    except (KeyError, IndexError, ValueError) as error:
        place = f"{message.topic()}-{message.partition()}@{message.offset()}"
        raise DemoError(f"{place}: not a delivery of the overlay: {error!r} in its headers") from error
