"""A Kafka client that forgets its brokers: when it is known to be lost, and that it comes to that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from overlay.kafka.confluent import Contact
from overlay.kafka.properties import for_confluent
from overlay.kafka.protocol import Code, TopicsRequest
from tests.support.security import make_security
from tests.support.stub import Stub, run_stub
from tests.support.waiting import wait_until


def say(*sources: str) -> str:
    return json.dumps({"brokers": {str(n): {"source": source} for n, source in enumerate(sources)}})


def test_a_client_is_lost_that_knows_no_broker_twice_in_a_row() -> None:
    contact = Contact()
    for sources, is_lost in [
        (("learned", "logical"), False),
        (("logical", "internal"), False),
        (("configured",), False),
        (("logical",), False),
        ((), True),
        (("logical",), True),
        (("learned",), False),
    ]:
        contact.hear(say(*sources))
        assert contact.is_lost == is_lost, sources


def test_a_client_is_outdated_when_its_files_were_replaced(tmp_path: Path) -> None:
    """But not in the middle of that, when the files cannot be used."""
    password, ca = tmp_path / "password", make_security(tmp_path).ca
    password.write_text("first")
    kafka = {
        "bootstrap.servers": "nowhere:1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(ca),
        "sasl.username": "me",
        "sasl.password": f"file:{password}",
    }
    trusted, notes = ca.read_bytes(), list[str]()
    log = SimpleNamespace(info=lambda event, **_: notes.append(event), warning=lambda event, **_: notes.append(event))
    contact = Contact(kafka)
    for file, content, is_outdated in [
        (password, b"first", False),
        (password, b"", False),
        (ca, b"-----BEGIN", False),
        (password, b"second", False),
        (ca, trusted, True),
        (ca, b"", True),
    ]:
        if content != b"first":
            file.write_bytes(content)
        contact.hear(say("learned"))
        assert (contact.is_outdated, contact.is_spent) == (is_outdated, is_outdated), (file.name, content)
    contact.announce(log)
    assert not contact.is_lost and "credentials for Kafka were replaced" in notes[0]


def test_files_that_become_readable_later_outdate_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of rights leaves a file as it was, by its time and size."""
    password, is_readable = tmp_path / "password", [False, True]
    password.write_text("first")
    monkeypatch.setattr("overlay.kafka.confluent._is_usable", lambda _: is_readable.pop(0))
    contact = Contact({"bootstrap.servers": "nowhere:1", "sasl.password": f"file:{password}"})
    password.write_text("second")
    for is_outdated in (False, True):
        contact.hear(say("learned"))
        assert contact.is_outdated == is_outdated
    contact.hear(say("learned"))
    assert contact.is_outdated and is_readable == []


def tell_of_no_broker(stub: Stub) -> tuple[Any, ...]:
    """Return the metadata of a cluster whose last broker shuts down: no broker, and a topic without a leader."""
    throttle, _, cluster, _, topics, *rest = stub.tell_topics({"t": Code.NONE})
    topic: tuple[Any, ...] = (
        Code.LEADER_NOT_AVAILABLE,
        "t",
        topics[0][2],
        False,
        [(5, 0, -1, 0, [1], [], [], {})],
        0,
        {},
    )
    return throttle, [], cluster, -1, [topic], *rest


async def test_a_broker_that_shuts_down_makes_a_client_forget_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """When this fails with a newer librdkafka, that one no longer needs to be made anew."""
    monkeypatch.setattr("overlay.kafka.confluent.LOOK_MS", 100)
    async with run_stub() as stub:
        stub.on(TopicsRequest, lambda _: tell_of_no_broker(stub))
        contact = Contact()
        often = {"topic.metadata.refresh.interval.ms": 100, "group.id": "g", "log_level": 0}
        with polled({**for_confluent({"bootstrap.servers": stub.address}), **often, **contact.settings}):
            await asyncio.to_thread(wait_until, lambda: contact.is_lost, 30, "the client forgets its broker")


@contextlib.contextmanager
def polled(settings: dict[str, Any]) -> Iterator[None]:
    """Run a consumer with these settings, polled in a thread."""
    consumer, stop = Consumer(settings), threading.Event()

    def poll() -> None:
        while not stop.is_set():
            consumer.poll(0.05)

    consumer.assign([TopicPartition("t", 0, 0)])
    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        consumer.close()
