"""Counting what a side has committed."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from bench.outputs import count_committed, make_topic


def test_records_whose_marker_is_late_are_counted(bootstrap: str) -> None:
    """A broker answers a commit before every partition has its marker."""
    topic = make_topic(bootstrap, "late")
    assert count_committed(bootstrap, topic) == 0
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"late-{uuid.uuid4().hex}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(count_committed, bootstrap, topic)
        with pytest.raises(TimeoutError):
            counting.result(1)  # the transaction is open
        producer.commit_transaction(30)
        assert counting.result(30) == 3
    assert count_committed(bootstrap, topic) == 3
