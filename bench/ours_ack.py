"""Our side of `ack`: the service in a process of its own, and the client library in this one."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from confluent_kafka import Message

import overlay
from bench.errors import PeerUnavailable, WrongAnswer
from bench.messages import MessageTopic
from bench.outputs import delete_topic
from bench.peers.confluent_scan import open_consumer
from bench.service import run_service, write_files
from bench.sides import Tally
from overlay.client import Client
from overlay.client.subscribe.message import read_metadata
from overlay.clock import now_ms
from overlay.config import ConsumerConfig, fill_defaults, load
from overlay.consumer.events import Offered
from overlay.consumer.machine import Machine
from overlay.consumer.queues import Run
from overlay.consumer.state import begin
from overlay.kafka.header_names import TOKEN
from overlay.waits import comes_true

STREAM, CONSUMER = "MESSAGES", "bench"
MAX_ACK_PENDING = 100_000
ACK_WAIT_S = 4
DEADLINE_S = 300.0
LOOK_S = 0.005
BATCH = 10_000
PAUSED_UNTIL = "2999-01-01T00:00:00Z"
"""Until the client is there."""
NANOSECONDS = 1_000_000_000


class OverlayAck:
    name = "overlay"
    warm = True

    def run(self, topic: MessageTopic) -> Tally:
        paused = {"pause_until": PAUSED_UNTIL}
        with _serve(topic, ack_wait="30s", max_ack_pending=MAX_ACK_PENDING, **paused) as (client, output):
            taken = 0
            with client.subscribe(CONSUMER) as messages:
                _await(lambda: bool(messages.partitions), "the group has taken in the client")
                client.control.resume(STREAM, CONSUMER)
                for message in messages:
                    message.ack()
                    taken += 1
                    if taken == topic.records:
                        break
                _await_acks(client, topic)
                ended = now_ms()
            began = _find_first_append(topic.bootstrap, output)
        return Tally(topic.records, taken, (ended - began) / 1_000)

    def close(self) -> None:
        """Nothing is kept between runs."""


@contextmanager
def _serve(topic: MessageTopic, **fields: object) -> Iterator[tuple[Client, str]]:
    """The service of a fresh folder, ready; a client, and the output topic."""
    output = f"acked-{uuid.uuid4().hex[:8]}"
    files: dict[str, object] = {
        "streams/messages.yaml": {"name": STREAM, "topics": [topic.name], "subject": {"topic": True}},
        "consumers/bench.yaml": {
            "stream": STREAM,
            "durable_name": CONSUMER,
            "deliver_subject": output,
            "filter_subject": topic.name,
            **fields,
        },
    }
    with tempfile.TemporaryDirectory(prefix="bench-overlay-") as name:
        folder = Path(name)
        url = write_files(folder, topic.bootstrap, files)
        with run_service(folder, url):
            client = overlay.open(load(folder))
            try:
                yield client, output
            finally:
                client.close()
    delete_topic(topic.bootstrap, output)


def _await_acks(client: Client, topic: MessageTopic) -> None:
    """Wait until the service has taken in every ack. Raises WrongAnswer when that does not come."""

    def are_in() -> bool:
        info = client.control.info(STREAM, CONSUMER)
        if info.delivered.consumer_seq > topic.records:
            raise WrongAnswer(f"overlay: {info.delivered.consumer_seq} deliveries of {topic.records} messages")
        return info.delivered.consumer_seq == topic.records and info.num_ack_pending == 0

    _await(are_in, "every ack has been taken in")


def _await(condition: Callable[[], bool], what: str) -> None:
    """Raises WrongAnswer when it does not come true."""
    if not comes_true(condition, DEADLINE_S, pause_s=LOOK_S):
        raise WrongAnswer(f"overlay: after {DEADLINE_S:.0f} s still not: {what}")


def _find_first_append(bootstrap: str, output: str) -> int:
    """When the first record was appended, ms since 1970."""
    with open_consumer(bootstrap, output) as consumer:
        return int(_take(consumer.consume(1, DEADLINE_S), output)[0].timestamp()[1])


def measure_redelivery(topic: MessageTopic) -> float:
    """Milliseconds from when the first delivery is due again, or is there again, until each has been appended again.

    There is no subscription: deliveries come whether they are read or not, and their time begins at once.
    """
    settings = {"ack_wait": f"{ACK_WAIT_S}s", "max_ack_pending": -1, "interest": "always"}
    first: list[int] = []
    again: list[int] = []
    with _serve(topic, **settings) as (_, output), open_consumer(topic.bootstrap, output) as consumer:
        while len(again) < topic.records:
            for message in _take(consumer.consume(BATCH, DEADLINE_S), output):
                deliveries = read_metadata(dict(message.headers())[TOKEN]).num_delivered
                if deliveries <= 2:
                    (first if deliveries == 1 else again).append(message.timestamp()[1])
    return float(again[topic.records - 1] - min(first[0] + ACK_WAIT_S * 1_000, again[0]))


def _take(messages: list[Message], output: str) -> list[Message]:
    """Raises PeerUnavailable when Kafka has nothing, or an error."""
    failed = next((error for message in messages if (error := message.error())), None)
    if failed or not messages:
        raise PeerUnavailable(f"{output}: {failed.str() if failed else f'nothing came for {DEADLINE_S:.0f} s'}")
    return messages


def count_pending_bytes(count: int) -> int:
    """What a consumer's machine holds for so many messages without an ack."""
    config = ConsumerConfig.model_validate(
        {
            "stream": STREAM,
            "durable_name": CONSUMER,
            "deliver_subject": "out",
            "max_ack_pending": -1,
            "interest": "always",
        }
    )
    now = now_ms() * 1_000_000
    machine = Machine(begin(fill_defaults(config), now))
    for first in range(1, count + 1, BATCH):
        sequences = np.arange(first, first + BATCH)
        run = Run(sequences, np.full(BATCH, now), np.full(BATCH, 200))
        machine.handle(Offered(run, int(sequences[-1])), now)
    if machine.state.window.pending.count != count:
        raise WrongAnswer(f"{machine.state.window.pending.count} of {count} messages are pending")
    return int(machine.state.window.nbytes)
