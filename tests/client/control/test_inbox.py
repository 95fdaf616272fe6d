"""Questions to a service that is not there, or goes away in the middle of its answer."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from overlay.client import BadQuestion
from overlay.client.control.control import Control
from overlay.client.control.inbox import Inbox, NoAnswer, NoService
from overlay.client.control.presence import count_workers
from overlay.errors import CredentialsRefused, SourceUnavailable
from tests.support.kafka import SureProducer, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

TOKEN = b"$JS.ACK._.1x1.S.c.1.7.1.0.0"


@pytest.fixture
def prefix(bootstrap: str) -> str:
    """A prefix whose control and reply topics are there, and whose service is not."""
    name = f"inbox-{uuid.uuid4().hex[:8]}"
    for topic in ("control", "replies"):
        make_topic(bootstrap, f"{name}.{topic}")
    return name


def test_after_no_answer_the_next_question_opens_another_consumer(bootstrap: str, prefix: str) -> None:
    """Whatever kept the answer from coming, a consumer that stands still must not keep the next one as well."""
    with Inbox({"bootstrap.servers": bootstrap}, prefix) as inbox:
        consumers = []
        for _ in range(2):
            asking = inbox.ask(f"{prefix}.control", b"request 1", b"{}", 0.5)
            consumers.append(inbox._open())
            with pytest.raises(NoAnswer):
                next(asking)
            assert inbox._consumer is None
    assert consumers[0] is not consumers[1]


def test_messages_of_a_pull_that_was_broken_off_are_returned(
    bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute passes without a further one, which is as soon as the first is there."""
    taken, pull_records = threading.Event(), Control.pull_records

    def pull_and_tell(
        control: Control, stream: str, name: str, batch: int, expires: float, more: Any, take: Any
    ) -> None:
        def take_and_tell(message: Any) -> None:
            take(message)
            taken.set()

        pull_records(control, stream, name, batch, expires, more, take_and_tell)

    monkeypatch.setattr(Control, "pull_records", pull_and_tell)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (60 if taken.is_set() else 0))
    monkeypatch.setattr("overlay.client.control.inbox.time", clock)
    requests = Consumer({"bootstrap.servers": bootstrap, "group.id": prefix})
    requests.assign([TopicPartition(f"{prefix}.control", 0, 0)])

    def answer() -> None:
        request = wait_until(lambda: requests.poll(0.2), 60, "the request comes")
        correlation = dict(request.headers())["Overlay-Correlation-Id"]
        headers = [("Nats-Reply-To", TOKEN), ("Nats-Subject", b"a"), ("Overlay-Correlation-Id", correlation)]
        producer = SureProducer(bootstrap)
        producer.produce(f"{prefix}.replies", b"value", correlation, headers=headers)
        producer.flush()

    control = Control({"bootstrap.servers": bootstrap}, prefix, timeout=58.0)
    thread = threading.Thread(target=answer)
    thread.start()
    found = control.next("S", "c", 5, expires=1.0)
    thread.join()
    requests.close()
    control.close()
    assert [(message.token, message.value) for message in found] == [(TOKEN.decode(), b"value")]


def open_impatient(bootstrap: str, prefix: str, timeout: float) -> Control:
    return Control({"bootstrap.servers": bootstrap}, prefix, timeout=timeout, is_patient=False)


def test_without_a_service_a_request_is_withdrawn(bootstrap: str, prefix: str) -> None:
    """Otherwise a service that starts a moment later makes a consumer of which the user was told that it is not there."""
    with closing(open_impatient(bootstrap, prefix, 60)) as control:
        with pytest.raises(NoService, match=rf"group {prefix}\.workers has no members .* The request is withdrawn"):
            control.add("S", durable_name="c")
        with pytest.raises(NoService):
            control.next("S", "c", expires=60)
    records = read_committed(bootstrap, f"{prefix}.control")
    assert [seen.value is None for seen in records] == [False, True, False, True]
    assert [records[0].key, records[2].key] == [records[1].key, records[3].key]


def test_without_a_service_an_ack_stays(bootstrap: str, prefix: str) -> None:
    make_topic(bootstrap, f"{prefix}.S.acks")
    with (
        closing(open_impatient(bootstrap, prefix, 60)) as control,
        pytest.raises(NoService, match=rf"\+ACK is written to {prefix}\.S\.acks, and counts once a service reads it"),
    ):
        control.ack(TOKEN.decode())
    (record,) = read_committed(bootstrap, f"{prefix}.S.acks")
    assert (record.value, dict(record.headers)[b"Nats-Reply-To"]) == (b"+ACK", TOKEN)


def test_a_service_that_is_there_is_waited_for(bootstrap: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow it is; and a patient control waits for one that is not there yet."""
    worker = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{prefix}.workers"})
    worker.subscribe([f"{prefix}.control"])
    wait_until(lambda: worker.poll(0.1) or worker.assignment(), 60, "the worker is in its group")
    monkeypatch.setattr("overlay.client.control.inbox.LOOK_S", 0.1)
    monkeypatch.setattr("overlay.client.control.inbox.REACH_S", 60.0)
    late = pytest.raises(NoAnswer, match="no answer within 2 s")
    with closing(worker), closing(open_impatient(bootstrap, prefix, 2)) as control, late:
        control.info("S", "c")
    late = pytest.raises(NoAnswer, match="no answer within 1 s")
    with closing(Control({"bootstrap.servers": bootstrap}, prefix, timeout=1)) as control, late:
        control.info("S", "c")


async def test_a_group_that_cannot_be_asked_says_nothing() -> None:
    assert await count_workers({"bootstrap.servers": "localhost:1"}, "p") is None


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    kafka = {"bootstrap.servers": "localhost:1", "security.protocol": "SSL", "ssl.ca.location": str(missing)}
    with Inbox(kafka, "p") as inbox:
        asking = inbox.ask("p.control", b"request 1", b"{}", 0.5)
        with pytest.raises(CredentialsRefused, match=f"ssl.ca.location {missing}: "):
            next(asking)


class Refusing:
    """A producer whose record a broker refuses with one error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def produce(self, *_: Any, on_delivery: Callable[[KafkaError, None], None], **__: Any) -> None:
        on_delivery(KafkaError(self._code), None)

    def flush(self, _: float) -> int:
        return 0


def count_requests(bootstrap: str, prefix: str) -> int:
    with Inbox({"bootstrap.servers": bootstrap}, prefix) as inbox:
        consumer = inbox._open()
        return int(consumer.get_watermark_offsets(TopicPartition(f"{prefix}.control", 0), 10, cached=False)[1])


def test_the_first_request_is_repeated_only_if_it_is_not_in_the_log(bootstrap: str, prefix: str) -> None:
    """A service would carry out both, so it is not repeated if the broker may have written it."""
    with Inbox({"bootstrap.servers": bootstrap}, prefix) as inbox:
        for code, exception, count in (
            (KafkaError.REQUEST_TIMED_OUT, SourceUnavailable, 0),
            (KafkaError.NOT_LEADER_FOR_PARTITION, NoAnswer, 1),
            (KafkaError.UNKNOWN_TOPIC_OR_PART, NoAnswer, 2),
        ):
            inbox._open()
            inbox._first = Refusing(code)
            with pytest.raises(exception):
                next(inbox.ask(f"{prefix}.control", b"request 1", b"{}", 0.5))
            assert count_requests(bootstrap, prefix) == count


class Answering:
    """A reader of answers that polls what `poll` returns."""

    def __init__(self, poll: Callable[[], Any]) -> None:
        self._poll = poll

    def poll(self, _: float) -> Any:
        return self._poll()

    def close(self) -> None:
        """Nothing is open."""


class Failed:
    """What a poll returns for an error."""

    def __init__(self, code: int) -> None:
        self._code = code

    def error(self) -> KafkaError:
        return KafkaError(self._code)


def make_inbox(monkeypatch: pytest.MonkeyPatch, poll: Callable[[], Any]) -> tuple[Inbox, list[str]]:
    """An inbox without Kafka, and the topics to which it sends."""
    inbox, sent = Inbox({"bootstrap.servers": "localhost:1"}, "p"), list[str]()
    monkeypatch.setattr(inbox, "_open", lambda: Answering(poll))
    monkeypatch.setattr(inbox, "_send", lambda topic, *_: sent.append(topic))
    return inbox, sent


def test_a_request_that_is_stopped_ends_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    inbox, sent = make_inbox(monkeypatch, stop.set)
    assert list(inbox.ask("p.control", b"request 1", b"{}", 60, stop=stop)) == []
    assert sent == ["p.control"]


def test_a_refused_reading_of_answers_is_no_missing_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request was sent, so it is not sent to the requests topic as well."""
    inbox, sent = make_inbox(monkeypatch, lambda: Failed(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    control = Control({"bootstrap.servers": "localhost:1"}, "p", timeout=60)
    monkeypatch.setattr(control, "_inbox", inbox)
    monkeypatch.setattr(inbox, "has_topic", lambda _: True)
    with pytest.raises(CredentialsRefused, match=r"p\.replies: Kafka does not allow Read"):
        control.info("S", "c")
    assert sent == ["p.control"]


def test_a_request_that_is_too_large_is_refused(bootstrap: str, prefix: str) -> None:
    with closing(open_impatient(bootstrap, prefix, 60)) as control:
        for _ in range(2):  # by the producer of the first request, and by the one of all others
            with pytest.raises(BadQuestion, match=r"too large for Kafka: 2,000,\d\d\d bytes"):
                control.add("S", durable_name="c", description="x" * 2_000_000)
