"""Requests to the service, many at once: a program that does not wait for one answer before it sends more (docs/control.md)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping

from bench.errors import WrongAnswer
from bench.peers.confluent_push import open_producer
from overlay.client.control.replies import open_replies
from overlay.control.records import Subject, make_key
from overlay.kafka.own_topics import control_topic, reply_topic

ANSWER_S = 600.0
"""Seconds within which the answers must come."""
FLUSH_S = 60.0
BATCH = 1_000


def ask_all(bootstrap: str, prefix: str, requests: Iterable[Mapping[str, object]]) -> float:
    """Send the requests to the service with this prefix, and return when the last answer was here, seconds by the clock of
    the figures. Raises WrongAnswer when a request is refused, or has no answer in time.
    """
    replies = open_replies({"bootstrap.servers": bootstrap}, reply_topic(prefix), f"bench-{uuid.uuid4().hex}")
    try:
        producer = open_producer(bootstrap, transactional=False, idempotent=True)
        waiting: set[str] = set()
        for request in requests:
            waiting.add(id := uuid.uuid4().hex)
            value = json.dumps({"v": 1, "timeout": f"{ANSWER_S:.0f}s", **request})
            producer.produce(control_topic(prefix), value, make_key(Subject.REQUEST, id))
        if left := producer.flush(FLUSH_S):
            raise WrongAnswer(f"{left} requests were not taken by Kafka")
        deadline = time.perf_counter() + ANSWER_S
        while waiting:
            for record in replies.consume(BATCH, 1.0):
                if (error := record.error()) is not None:
                    raise WrongAnswer(f"the answers cannot be read: {error.str()}")
                answer = json.loads(record.value())
                if "error" in answer:
                    raise WrongAnswer(f"a request was refused: {answer['error']}")
                waiting.discard(record.key().decode())
            if time.perf_counter() > deadline:
                raise WrongAnswer(f"{len(waiting)} requests have no answer after {ANSWER_S:.0f} s")
        return time.perf_counter()
    finally:
        replies.close()
