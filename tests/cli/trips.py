"""A config folder with one stream and some consumers on it, its records, and the `overlay` command run on it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from overlay.cli import overlay
from overlay.config import load
from tests.support.kafka import SureProducer, make_topic
from tests.support.service import RunningService, write_service_file
from tests.support.waiting import wait_until

DEADLINE_S = 60


@dataclass(slots=True)
class Trips:
    """Stream TRIPS over `topic`; half of its records go to rome, half to oslo."""

    folder: Path
    bootstrap: str
    topic: str

    def __post_init__(self) -> None:
        write_service_file(self.folder, self.bootstrap)
        for part in ("streams", "consumers"):
            (self.folder / part).mkdir()
        (self.folder / "streams" / "trips.yaml").write_text(
            f"name: TRIPS\ntopics: [{self.topic}]\nsubject: {{template: 'trips.{{header:to}}'}}\n"
            "subjects: ['trips.>']\n"
        )

    @property
    def prefix(self) -> str:
        return load(self.folder).service.topics.prefix

    def consumer_file(self, name: str) -> Path:
        return self.folder / "consumers" / f"{name}.yaml"

    def output(self, name: str) -> str:
        return f"{self.topic}-{name}"

    def add_consumer(self, name: str, to: str = "", **fields: str) -> None:
        """A push consumer for the subject `trips.<to>`, by default `trips.<name>`."""
        more = "".join(f"{field}: {value}\n" for field, value in fields.items())
        self.consumer_file(name).write_text(
            f"stream: TRIPS\ndurable_name: {name}\ndeliver_subject: {self.output(name)}\n"
            f"filter_subject: trips.{to or name}\nack_policy: none\n{more}"
        )

    def produce(self, count: int) -> None:
        producer = SureProducer(self.bootstrap)
        for number in range(count):
            to = b"rome" if number % 2 == 0 else b"oslo"
            producer.produce(self.topic, str(number).encode(), headers=[("to", to)])
        assert producer.flush(30) == 0

    def produce_until(self, condition: Callable[[], bool], what: str) -> int:
        """Write two records again and again until a condition holds, and return how many were written. For rates, which are 0
        ten seconds after the last record."""
        written = 0

        def is_so() -> bool:
            nonlocal written
            self.produce(2)
            written += 2
            return condition()

        wait_until(is_so, DEADLINE_S, what)
        return written

    def delete_topic(self) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap})
        client.delete_topics([self.topic], operation_timeout=30)[self.topic].result(30)
        wait_until(lambda: self.topic not in client.list_topics(timeout=10).topics, DEADLINE_S, f"{self.topic} is gone")

    def create_topic(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                make_topic(self.bootstrap, self.topic)
            except KafkaException:  # the controller may still be at the deletion
                if time.monotonic() > end:
                    raise
            else:
                return

    def run(self, *words: str, code: int = 0) -> str:
        """`overlay WORDS --config FOLDER`, within this process; what it printed, with the error if there is one."""
        done = CliRunner().invoke(overlay, [*words, "--config", str(self.folder)])
        said = done.output + ("" if isinstance(done.exception, SystemExit) else str(done.exception or ""))
        assert done.exit_code == code, f"{words} ended with {done.exit_code}\n{said}"
        return said

    def run_json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def run_process(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same as a program of its own, as a user calls it."""
        command = [sys.executable, "-m", "overlay", *words, "--config", str(self.folder)]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * DEADLINE_S)


def get_consumer(service: RunningService, name: str) -> Any:
    """What the service says of a consumer."""
    return next(found for found in service.get_json("/consumers") if found["name"] == name)


def get_stream(service: RunningService) -> Any:
    return service.get_json("/streams")[0]


def await_delivered(service: RunningService, name: str, count: int) -> None:
    """Wait until a consumer has delivered so many since the service started, and has met the end of the log."""

    def has_come_to() -> bool:
        found = get_consumer(service, name)
        is_there = found["delivered"] >= count and found["state"] == "running"
        return bool(is_there and found.get("lag_records") == 0)

    wait_until(has_come_to, DEADLINE_S, f"{name} has delivered {count}")
