"""Ownership of a consumer: it is run by one pipeline or by the service, never by both.

Among pipelines Kafka's group protocol decides. A pipeline joins the group
`<prefix>.spark.<stream>.<consumer>` on the output topic; nothing is read or committed through it.
It begins when it has been assigned all partitions, that is, when it is alone. It continues as long
as it is assigned any. A later pipeline gets at most a share, and is refused. If a driver was
killed, its membership ends after the session timeout, and a new pipeline waits for that.

The service keeps what it knows of a consumer in its state topic, from the time it first serves the
consumer until `overlay consumer rm`. A consumer in the state topic belongs to the service, whether
the service runs or not, and a pipeline refuses it. The service in turn does not begin with a
consumer whose group has members (overlay/state/leases.py). If both begin at the same moment, both
may succeed. So a pipeline checks again from batch to batch, and stops.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin, connect
from overlay.kafka.connection import for_confluent
from overlay.kafka.groups import Group
from overlay.kafka.own_topics import lease_group
from overlay.state.amend import read_states

from .output import Output

T = TypeVar("T")

SESSION_MS = 6_000
PATIENCE_S = 12.0
"""Longer than the session timeout of a driver that was killed."""
LOOK_S = 10.0
_POLL_S = 0.5


class NotOwner(OverlayError):
    """Another pipeline or the service runs this consumer. The operator acts."""


class Lease:
    """A lease that is held while its thread polls. `check` raises once it is lost."""

    def __init__(self, output: Output) -> None:
        stream, name = output.consumer.id
        self._group = lease_group(output.prefix, output.consumer.id)
        self._who = f"consumer {name!r} of stream {stream!r}"
        self._output = output
        self._me = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self._owned: set[int] = set()
        self._all: set[int] = set()
        self._held = threading.Event()
        self._enough = threading.Event()
        self._consumer = Consumer(
            {
                **for_confluent(output.kafka),
                "group.id": self._group,
                "client.id": self._me,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 4,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._poll, name="lease", daemon=True)

    def take(self, patience_s: float) -> None:
        """Get the lease.

        Raises NotOwner if another pipeline has it still after `patience_s` seconds, and
        SourceUnavailable.
        """
        topic = self._output.topic
        try:
            self._all = set(self._consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions)
        except KafkaException as error:
            raise SourceUnavailable(f"{topic}: Kafka does not answer: {error.args[0].str()}") from error
        self._consumer.subscribe([topic], on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose)
        self._thread.start()
        if not self._held.wait(patience_s):
            raise NotOwner(f"{self._who} is run by another pipeline{self._find_others()}. Stop that one first")

    def check(self) -> None:
        """Raise NotOwner if the lease is lost."""
        if not self._held.is_set():
            raise NotOwner(
                f"{self._who}: this pipeline was cut off from Kafka, and another one may run it now. Start it again"
            )

    def release(self) -> None:
        """Leave the group, so that a waiting pipeline gets the lease at once."""
        self._enough.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()

    def _find_others(self) -> str:
        """Return the other members of the group: client id and host, as far as Kafka knows."""
        try:
            found = run_apart(self._describe_group())
        except OverlayError:
            return ""
        others = [f"{one.client} at {one.host.lstrip('/')}" for one in found.members if one.client != self._me]
        return f": {', '.join(others)}" if others else ""

    async def _describe_group(self) -> Group:
        async with Admin(self._output.kafka) as admin:
            return (await admin.describe_groups([self._group]))[self._group]

    def _poll(self) -> None:
        while not self._enough.is_set():
            self._consumer.poll(_POLL_S)

    def _gain(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        self._owned |= {partition.partition for partition in partitions}
        if self._owned == self._all:
            self._held.set()

    def _lose(self, _: Any, partitions: list[TopicPartition]) -> None:
        self._owned -= {partition.partition for partition in partitions}
        if not self._owned:
            self._held.clear()


class ServiceWatch:
    """A periodic check whether the service has taken over the consumer."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._me = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self._next_look = 0.0

    def check(self) -> None:
        """Raise NotOwner if the consumer is the service's.

        Looks it up every LOOK_S seconds. Raises SourceUnavailable.
        """
        if time.monotonic() < self._next_look:
            return
        stream, name = self._output.consumer.id
        if any((stream, name) in state.consumers for state in run_apart(self._read())):
            raise NotOwner(
                f"consumer {name!r} of stream {stream!r} is the service's: its position stands in the topic"
                f" {self._output.prefix}.state. To run it here, take its file out of the service's folder and say"
                f" `overlay consumer rm {stream} {name}`"
            )
        self._next_look = time.monotonic() + LOOK_S

    async def _read(self) -> list[Any]:
        async with connect(self._output.kafka) as (admin, client):
            return list(await read_states(client, admin, self._output.prefix))


@contextmanager
def own(output: Output, patience_s: float = PATIENCE_S) -> Iterator[tuple[Lease, ServiceWatch]]:
    """Own a consumer within the block.

    Raises NotOwner at its beginning; the lease and the watch report a later loss.
    """
    watch = ServiceWatch(output)
    watch.check()
    lease = Lease(output)
    try:
        lease.take(patience_s)
        yield lease, watch
    finally:
        lease.release()


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own, because in a notebook a loop is running in
    this thread.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
