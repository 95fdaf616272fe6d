"""Leases and claims: a consumer is run by one pipeline or by the service, never by both.

Among pipelines Kafka's group protocol decides. A pipeline joins the group
`<prefix>.spark.<stream>.<consumer>` on the output topic; nothing is read or committed through it.
It begins when it has been assigned all partitions, that is, when it is alone. It continues as long
as it is assigned any. A later pipeline gets at most a share, and is refused. If a driver was
killed, its membership ends after the session timeout, and a new pipeline waits for that.

The lease only keeps two owners from beginning at all: a driver that is cut off from Kafka loses it
without noticing. The lock is the entry that the consumer has in the service's state
(overlay/state/handover.py): a job writes its name and a claim into it before its first batch, and
looks from batch to batch, at most every LOOK_S seconds, whether they are still there.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from overlay.errors import OverlayError, SourceUnavailable
from overlay.kafka.admin import Admin, connect
from overlay.kafka.groups import Group
from overlay.kafka.own_topics import lease_group
from overlay.kafka.properties import for_confluent
from overlay.state.handover import find_lost

from .output import Output

T = TypeVar("T")

SESSION_MS = 6_000
PATIENCE_S = 12.0
"""Longer than the session timeout of a driver that was killed."""
LOOK_S = 10.0
_POLL_S = 0.5


class NotOwner(OverlayError):
    """This pipeline does not own a consumer: another pipeline or the service runs it or may run it, or its state was
    dropped. The operator acts.
    """


class Lease:
    """The right of one pipeline to run one consumer: membership in the consumer's lease group. `take` gets it, and a
    thread holds it until `release`. `check` raises while it is lost.
    """

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
        """Wait for the lease, and hold it from then on.

        Raises NotOwner if it is not to be had within `patience_s` seconds, as a rule since another pipeline has it,
        and SourceUnavailable if Kafka does not tell the topic's partitions.
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
        """Raise NotOwner if the lease is not held: because it was lost, or because `take` was not called yet."""
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
        """Return the other members of the group as the end of a message, `: CLIENT at HOST, ...`; empty
        if there are none, or if Kafka does not tell.
        """
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


class ClaimWatch:
    """A periodic check whether the consumers of a job are still the job's.

    `claims`: by name, the claim under which the service's state names the job as their owner.
    """

    def __init__(self, kafka: Mapping[str, str], prefix: str, stream: str, job: str) -> None:
        self._kafka, self._prefix, self._stream, self._job = kafka, prefix, stream, job
        self.claims: dict[str, str] = {}
        self._next_look = 0.0

    def check(self, names: Collection[str], *, now: bool = False) -> None:
        """Raise NotOwner if one of the consumers `names` with a claim is not the job's any more: the service or
        another job has taken it or asks for it, or its state was dropped.

        Reads the service's state only if the last reading that raised nothing was LOOK_S seconds ago or more, or
        `now` is set; between two readings it raises nothing. Raises OverlayError if the state cannot be read.
        """
        if not now and time.monotonic() < self._next_look:
            return
        if lost := sorted(run_apart(self._find_lost()) & set(names)):
            raise NotOwner(
                f"consumers {', '.join(lost)} of stream {self._stream!r} are not the job's any more: the service or another job"
                " has taken them over, or `overlay consumer rm` has dropped them. Start the job again; it goes on with the"
                " consumers whose files say `engine: spark`"
            )
        self._next_look = time.monotonic() + LOOK_S

    async def _find_lost(self) -> set[str]:
        async with connect(self._kafka) as (admin, client):
            return await find_lost(client, admin, self._prefix, self._stream, self._job, self.claims)


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own, and return its result; raises what it raises. In
    a notebook a loop is running in the caller's thread.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
