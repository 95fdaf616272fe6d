"""Reading an output topic back."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import Producer

from overlay.demo.home import DemoError
from overlay.demo.outputs import read_output
from tests.support.kafka import NewTopicFixture, SureProducer, await_markers


def produce_deliveries(bootstrap: str, topic: str, sequences: range, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in sequences:
        token = f"$JS.ACK.S.c.1.{n}.{n}.0.0".encode()
        producer.produce(topic, b"{}", headers=[("Nats-Subject", f"s.{n % 2}".encode()), ("Nats-Reply-To", token)])
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    await_markers(bootstrap, topic)


def test_only_what_is_committed_counts(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_deliveries(bootstrap, topic, range(7, 12), commit=True)
    produce_deliveries(bootstrap, topic, range(20, 30), commit=False)
    found = read_output(bootstrap, topic)
    assert found.counts == Counter({"s.1": 3, "s.0": 2})
    assert found.sequences.tolist() == [7, 8, 9, 10, 11]


def test_an_empty_topic(bootstrap: str, new_topic: NewTopicFixture) -> None:
    assert read_output(bootstrap, new_topic()).total == 0


def test_a_record_that_is_no_delivery(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    producer = SureProducer(bootstrap)
    producer.produce(topic, b"{}", headers=[("Nats-Subject", b"a")])
    assert producer.flush(30) == 0
    with pytest.raises(DemoError, match=rf"{topic}-0@0: not a delivery of the overlay"):
        read_output(bootstrap, topic)


def test_a_topic_that_is_not_there(bootstrap: str) -> None:
    with pytest.raises(DemoError, match=r"nowhere: the output cannot be read: .*See the service's log"):
        read_output(bootstrap, "nowhere")
