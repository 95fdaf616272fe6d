"""Output topics for tests, written by confluent-kafka as the service writes them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from tests.support.kafka import await_markers

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Delivery:
    sequence: int
    value: bytes | None = b"{}"
    key: bytes | None = None
    headers: Headers = ()
    deliveries: int = 1
    consumer: str = "c"
    time_ms: int = 1_700_000_000_000

    @property
    def token(self) -> str:
        time = self.time_ms * 1_000_000
        return f"$JS.ACK.S.{self.consumer}.{self.deliveries}.{self.sequence}.{self.sequence}.{time}.0"

    @property
    def all_headers(self) -> list[tuple[str, bytes | None]]:
        return [*self.headers, ("Nats-Subject", b"a.b"), ("Nats-Reply-To", self.token.encode())]


def deliver(bootstrap: str, topic: str, deliveries: Iterable[Delivery], *, commit: bool = True) -> None:
    """Write deliveries to partition 0 in one transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    for each in deliveries:
        producer.produce(topic, each.value, each.key, headers=each.all_headers, partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    await_markers(bootstrap, topic)


def write_folder(
    folder: Path, bootstrap: str, output: str, *, source: str = "", more: str = "", stream: str = ""
) -> Path:
    """A config folder with stream S and its consumer c, whose output topic is `output`."""
    files = {
        "overlay.yaml": f"kafka: {{bootstrap.servers: '{bootstrap}'}}\ntopics: {{prefix: o-{uuid.uuid4().hex[:8]}}}\n",
        "streams/s.yaml": f"name: S\ntopics: [{source or output + '-source'}]\nsubject: {{header: subject}}\n{stream}",
        "consumers/c.yaml": f"stream: S\ndurable_name: c\ndeliver_subject: {output}\nack_policy: none\n{more}",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def write_job_folder(
    folder: Path, bootstrap: str, output: str, *, source: str = "", more: str = "", stream: str = ""
) -> Path:
    """The same with a consumer that a Spark job delivers."""
    return write_folder(folder, bootstrap, output, source=source, more=f"engine: spark\n{more}", stream=stream)
