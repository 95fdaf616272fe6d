"""The peers of `ack`: nats-py with a pull consumer, and confluent-kafka's share consumer.

nats-py: `fetch(500)` and `await message.ack()` for each, on nats-server with file storage; the same messages under one
subject. It has ended when the server has nothing pending.

The share consumer reads the same topic as we do. In explicit mode the application acknowledges every record, and these
acknowledgements are sent with the next poll; the last ones by `commit_sync`. Its group starts at the topic's beginning.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import nats
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig

from bench.errors import PeerUnavailable
from bench.messages import MessageTopic, list_values
from bench.peers.nats import Server, copy
from bench.sides import Tally

FETCH = 500
MAX_ACK_PENDING = 100_000
ACK_WAIT_S = 30.0
DEADLINE_S = 60.0
LOOK_S = 0.005


class NatsAck:
    name = "nats"
    warm = True

    def __init__(self) -> None:
        self._server: Server | None = None
        self._copied: set[str] = set()

    def run(self, topic: MessageTopic) -> Tally:
        if self._server is None:
            self._server = Server()
        stream = f"first{topic.records}"
        if stream not in self._copied:
            messages = (("m", value, dict[str, str]()) for value in list_values(topic.records))
            asyncio.run(copy(self._server.url, stream, messages, topic.records))
            self._copied.add(stream)
        return asyncio.run(_ack_all(self._server.url, stream, topic.records))

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


async def _ack_all(url: str, stream: str, records: int) -> Tally:
    client = await nats.connect(url)
    durable = f"bench-{uuid.uuid4().hex[:8]}"
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S, max_ack_pending=MAX_ACK_PENDING)
    try:
        jetstream = client.jetstream()
        pulling = await jetstream.pull_subscribe(f"{stream}.m", durable, stream=stream, config=config)
        began, taken = time.perf_counter(), 0
        while taken < records:
            for message in await pulling.fetch(min(FETCH, records - taken), timeout=DEADLINE_S):
                await message.ack()
                taken += 1
        while True:
            if not (await pulling.consumer_info()).num_ack_pending:
                break
            await asyncio.sleep(LOOK_S)
        seconds = time.perf_counter() - began
        await jetstream.delete_consumer(stream, durable)
        return Tally(records, taken, seconds)
    except NatsTimeout as error:
        raise PeerUnavailable(
            f"nats: {taken} of {records} messages came, and then none for {DEADLINE_S:.0f} s"
        ) from error
    finally:
        await client.close()


class ShareAck:
    """`mode`: explicit or implicit."""

    warm = True

    def __init__(self, name: str, mode: str) -> None:
        self.name, self._mode = name, mode

    def run(self, topic: MessageTopic) -> Tally:
        try:
            from confluent_kafka import ShareConsumer
        except ImportError as error:
            raise PeerUnavailable(
                "this confluent-kafka has no ShareConsumer. `make venv` installs one that has"
            ) from error
        group = f"bench-{uuid.uuid4().hex}"
        _start_at_the_beginning(topic.bootstrap, group)
        settings = {"group.id": group, "share.acknowledgement.mode": self._mode, "log_level": 3}
        consumer = ShareConsumer({"bootstrap.servers": topic.bootstrap, **settings})
        try:
            consumer.subscribe([topic.name])
            return _take_all(consumer, topic, acknowledge=self._mode == "explicit")
        except KafkaException as error:
            raise PeerUnavailable(f"share: {error.args[0].str()}") from error
        finally:
            consumer.close()

    def close(self) -> None:
        """Nothing is kept between runs."""


def _start_at_the_beginning(bootstrap: str, group: str) -> None:
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    try:
        client.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    except KafkaException as error:
        raise PeerUnavailable(f"share: this broker has no share groups: {error.args[0].str()}") from error


def _take_all(consumer: Any, topic: MessageTopic, *, acknowledge: bool) -> Tally:
    began, heard, taken = 0.0, time.monotonic(), 0
    while taken < topic.records:
        messages = consumer.poll(1.0)
        if not len(messages):
            if time.monotonic() - heard > DEADLINE_S:
                raise PeerUnavailable(f"share: {taken} of {topic.records} messages came, and then none")
            continue
        heard, began = time.monotonic(), began or time.perf_counter()
        for message in messages:
            if failed := message.error():
                raise PeerUnavailable(f"share: {failed.str()}")
            if acknowledge:
                consumer.acknowledge(message)
        taken += len(messages)
    answers = consumer.commit_sync(DEADLINE_S)
    seconds = time.perf_counter() - began
    if refused := next((error for error in answers.values() if error), None):
        raise PeerUnavailable(f"share: the last acks were refused: {refused}")
    return Tally(topic.records, taken, seconds)
