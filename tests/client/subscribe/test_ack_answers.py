"""Answers to acks while their client closes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from overlay.client.control.replies import open_replies
from overlay.client.subscribe.ack_answers import AckAnswers, AnswerWait
from overlay.errors import SourceUnavailable
from overlay.kafka.confluent import Contact
from overlay.kafka.header_names import CORRELATION
from overlay.kafka.properties import Properties
from tests.client.deliveries import DEADLINE_S
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until


class Gated(AckAnswers):
    """Waits at a gate before it registers anything."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__({"bootstrap.servers": bootstrap}, topic)
        self.is_there, self.gate = threading.Event(), threading.Event()

    def make_waiting(self) -> AnswerWait:
        self.is_there.set()
        self.gate.wait(DEADLINE_S)
        return super().make_waiting()


def test_an_ack_during_close_hears_of_it(bootstrap: str, new_topic: NewTopicFixture) -> None:
    """It does not wait for its timeout with a listener that has ended."""
    answers = Gated(bootstrap, new_topic())
    with ThreadPoolExecutor(2) as threads:
        expecting = threads.submit(answers.expect)
        assert answers.is_there.wait(DEADLINE_S)
        closing = threads.submit(answers.close)
        with pytest.raises(TimeoutError):
            closing.result(1)  # it waits for the one that is about to register
        answers.gate.set()
        with expecting.result(DEADLINE_S) as waiting, pytest.raises(SourceUnavailable, match="closed"):
            waiting.wait(DEADLINE_S)
        closing.result(DEADLINE_S)


def test_answers_come_after_a_client_was_lost(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    class Noted(Contact):
        def __init__(self, kafka: Properties) -> None:
            super().__init__(kafka)
            opened.append(self)

    monkeypatch.setattr("overlay.client.subscribe.ack_answers.Contact", Noted)
    topic = new_topic()
    answers = AckAnswers({"bootstrap.servers": bootstrap}, topic)
    with answers.expect() as waiting:
        monkeypatch.setattr(opened[0], "_missed", 2)
        wait_until(lambda: len(opened) > 1, DEADLINE_S, "another client is made")
        await_answer(bootstrap, topic, waiting)
    answers.close()


def await_answer(bootstrap: str, topic: str, waiting: AnswerWait) -> None:
    """Answer an ack again and again until that is heard: a new client reads from the end that the topic has when it is
    ready."""
    producer = SureProducer(bootstrap)

    def is_answered() -> bool:
        producer.produce(topic, b"", dict(waiting.headers)[CORRELATION])
        producer.flush()
        return waiting._future.done()

    wait_until(is_answered, DEADLINE_S, "the answer is heard")
    waiting.wait(DEADLINE_S)


def test_listening_goes_on_once_the_settings_can_be_used_again(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A certificate is missing while the client is made anew, as in the middle of its replacement."""
    kafka = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "PLAINTEXT",
        "ssl.ca.location": str(tmp_path / "missing.pem"),
    }
    topic, tried = new_topic(), threading.Event()

    def try_to_open(*given: Any, **more: Any) -> Consumer:
        try:
            return open_replies(*given, **more)
        finally:
            tried.set()

    answers = AckAnswers(kafka, topic)
    with answers.expect() as waiting:
        monkeypatch.setattr("overlay.client.subscribe.ack_answers.open_replies", try_to_open)
        kafka["security.protocol"] = "SSL"
        monkeypatch.setattr(Contact, "is_lost", True)
        assert tried.wait(DEADLINE_S)
        monkeypatch.undo()
        kafka["security.protocol"] = "PLAINTEXT"
        await_answer(bootstrap, topic, waiting)
    answers.close()


def test_a_client_that_was_lost_is_closed_while_kafka_is_away(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack that waits hears of it, as while Kafka is there."""
    topic, tried = new_topic(), threading.Event()
    answers = AckAnswers({"bootstrap.servers": bootstrap}, topic)
    with answers.expect() as waiting:

        def fail(*_: object, **__: object) -> None:
            tried.set()
            raise SourceUnavailable("away")

        monkeypatch.setattr("overlay.client.subscribe.ack_answers.open_replies", fail)
        monkeypatch.setattr(Contact, "is_lost", True)
        assert tried.wait(DEADLINE_S)
        answers.close()
        with pytest.raises(SourceUnavailable, match="closed"):
            waiting.wait(DEADLINE_S)
