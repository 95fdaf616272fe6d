"""The producers of a storm outlive a Kafka client that forgets its brokers, and say what stands still."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from overlay.kafka.confluent import Contact
from tests.chaos.flights import producers
from tests.chaos.flights import traffic as traffics
from tests.chaos.flights.judge import Source, read_source
from tests.chaos.flights.plan import PARTITIONS
from tests.chaos.flights.producers import ClientLost, WatchedProducer
from tests.chaos.flights.traffic import BURST, CODECS, Traffic
from tests.support.kafka import NewTopicFixture, await_markers
from tests.support.partitions import describe_partitions
from tests.support.waiting import wait_until

DEADLINE_S = 60


def test_a_lost_producer_gives_up_and_drops_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """That metadata without a broker makes a client lost, tests/kafka/test_confluent.py shows."""
    monkeypatch.setattr(producers, "STATISTICS_MS", 100)
    reported: list[KafkaError] = []

    def note(error: KafkaError, _: Message) -> None:
        reported.append(error)

    # no broker listens there
    producer = WatchedProducer("first", {"bootstrap.servers": "127.0.0.1:1", "on_delivery": note})
    producer.produce("t", b"value", partition=0)
    wait_until(lambda: producer.flush(0.1) and "queued" in producer.describe(), DEADLINE_S, "statistics have come")
    lose(producer)
    with pytest.raises(ClientLost, match=r"producer first: brokers .* 1 queued, 0 in flight, leader -1"):
        producer.drain(DEADLINE_S)
    producer.drop()
    assert [error.code() for error in reported] == [KafkaError._PURGE_QUEUE]


def test_a_producer_that_waits_for_its_broker_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "STATISTICS_MS", 100)
    producer = WatchedProducer("first", {"bootstrap.servers": "127.0.0.1:1"})
    producer.produce("t", b"value", partition=0)
    assert producer.drain(0.5) == 1
    assert "127.0.0.1:1/bootstrap (configured" in producer.describe()
    producer.drop()


def lose_plain(traffic: Traffic) -> None:
    lose(traffic._plain[CODECS[0]])


def lose_transactional(traffic: Traffic) -> None:
    lose(traffic._transactional)


def lose(producer: WatchedProducer) -> None:
    """Have a producer take its client for lost, whatever the client says from now on."""
    producer._contact = LostContact()


class LostContact(Contact):
    @property
    def is_lost(self) -> bool:
        return True


@pytest.mark.kafka
@pytest.mark.parametrize("lose_one", [lose_plain, lose_transactional])
def test_a_lost_client_is_replaced_and_no_number_is_written_twice(
    bootstrap: str, new_topic: NewTopicFixture, lose_one: Callable[[Traffic], None]
) -> None:
    topic = new_topic(PARTITIONS)
    traffic = Traffic(bootstrap, topic, 5_000, random.Random(1))
    wait_until(lambda: traffic.written >= 10 * BURST, DEADLINE_S, "the traffic flows")
    lose_one(traffic)
    wait_until(lambda: traffic.replaced or traffic.error, DEADLINE_S, "the lost client is replaced")
    more = traffic.written + 10 * BURST
    wait_until(lambda: traffic.written >= more, DEADLINE_S, "the traffic flows on")
    traffic.stop()
    source: Source = read_source(bootstrap, topic)  # raises if a number is there twice
    assert len(traffic.replaced) == 1
    # of what was written behind the loss all arrives but what was in an aborted transaction
    assert max(source.flights) > more - 5 * BURST


@pytest.mark.kafka
def test_traffic_that_is_not_taken_says_where_it_stands_still(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(PARTITIONS)

    def open_astray(_: Traffic, codec: str) -> WatchedProducer:
        return WatchedProducer(codec, {"bootstrap.servers": "127.0.0.1:1"})

    monkeypatch.setattr(Traffic, "_open_plain", open_astray)
    traffic = Traffic(bootstrap, topic, 2_000, random.Random(1))
    wait_until(lambda: traffic.written >= 10 * BURST, DEADLINE_S, "the traffic flows")
    monkeypatch.setattr(traffics, "PATIENCE_S", 1.0)
    with pytest.raises(AssertionError) as told:
        traffic.stop()
    message = str(told.value)
    assert "records of the producer lz4 were not taken" in message
    assert "producer lz4: brokers ['127.0.0.1:1/bootstrap (configured" in message
    for partition in range(PARTITIONS):
        assert f"{topic}-{partition}: leader 1, committed up to" in message


@pytest.mark.kafka
def test_an_open_transaction_is_told(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=1)
    producer.flush(DEADLINE_S)
    with pytest.raises(
        AssertionError,
        match=rf"{topic}-1: leader 1, committed up to 0 of 1, open: producer \d+ \(epoch \d+\) since offset 0",
    ):
        await_markers(bootstrap, topic, 0.1)
    producer.commit_transaction(DEADLINE_S)
    await_markers(bootstrap, topic)
    assert describe_partitions(bootstrap, topic).splitlines() == [
        f"{topic}-0: leader 1, committed up to 0 of 0, open: nothing",
        f"{topic}-1: leader 1, committed up to 2 of 2, open: nothing",
    ]
