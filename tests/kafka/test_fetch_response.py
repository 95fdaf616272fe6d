"""overlay/kafka/fetch_response.py: against a real broker, and byte by byte."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import CorrelationIdError, KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchResponse_v4
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.connection import open_client
from overlay.kafka.fetch_response import GROUP, READ_COMMITTED, VIEW_BYTES, Frames, fetch, hang_up
from tests.support.kafka import NewTopicFixture, produce_values
from tests.worker.scenes import DEADLINE_S


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[AIOKafkaClient]:
    opened = await open_client({"bootstrap.servers": bootstrap})
    yield opened
    await opened.close()


def ask(topic: str, position: int = 0, *, wait_ms: int = 100) -> FetchRequest:
    return FetchRequest(wait_ms, 1, 8 << 20, READ_COMMITTED, [(topic, [(0, position, 4 << 20)])])


def data_of(response: Any) -> memoryview | bytes:
    ((_, ((*_, data),)),) = response.topics
    return cast(memoryview | bytes, data)


async def test_a_response_is_what_aiokafka_reads_and_its_data_is_a_view(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"%d" % number * 500 for number in range(2_000)])
    node = await find_leader(client, topic)
    theirs, ours = await client.send(node, ask(topic)), await fetch(client, node, ask(topic))
    assert bytes(data_of(ours)) == bytes(data_of(theirs))
    assert len(data_of(ours)) > 1 << 20
    assert isinstance(data_of(ours), memoryview) and cast(memoryview, data_of(ours)).readonly
    assert [row[:-1] for row in ours.topics[0][1]] == [row[:-1] for row in theirs.topics[0][1]]


async def test_a_connection_that_breaks_fails_what_waits_and_is_opened_again(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"x"])
    node = await find_leader(client, topic)
    assert data_of(await fetch(client, node, ask(topic)))
    waiting = asyncio.create_task(fetch(client, node, ask(topic, 1, wait_ms=30_000)))
    connection = client._conns[node, GROUP]
    await asyncio.sleep(0)  # the connection is there, so sending takes one step
    assert connection._requests
    async with asyncio.timeout(DEADLINE_S):
        connection._writer.transport.abort()
        with pytest.raises(KafkaConnectionError):
            await waiting
        assert data_of(await fetch(client, node, ask(topic)))
    assert client._conns[node, GROUP] is not connection


async def test_a_fetch_that_is_apart_does_not_wait_for_another(
    client: AIOKafkaClient, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"x"])
    node = await find_leader(client, topic)
    assert data_of(await fetch(client, node, ask(topic)))
    waiting = asyncio.create_task(fetch(client, node, ask(topic, 1, wait_ms=30_000)))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert data_of(await fetch(client, node, ask(topic), apart=1))
    assert not waiting.done()
    hang_up(client)
    with pytest.raises(KafkaConnectionError):
        await waiting


async def test_an_unknown_broker(client: AIOKafkaClient, new_topic: NewTopicFixture) -> None:
    with pytest.raises(NodeNotReadyError):
        await fetch(client, 4711, ask(new_topic()))


async def find_leader(client: AIOKafkaClient, topic: str) -> int:
    async with asyncio.timeout(DEADLINE_S):
        await client.add_topic(topic)
        while (node := client.cluster.leader_for_partition(TopicPartition(topic, 0))) in (None, -1):
            await client.force_metadata_update()
    return cast(int, node)


def make_frame(correlation_id: int, data: bytes) -> bytes:
    response: bytes = FetchResponse_v4(0, [("t", [(0, 0, 7, 7, [], data)])]).encode()
    body = struct.pack(">i", correlation_id) + response
    return struct.pack(">i", len(body)) + body


def receive(stream: bytes, sizes: list[int], ids: list[int]) -> list[Any]:
    """What the requests with these ids are answered when `stream` comes in pieces of at most these sizes."""
    loop = asyncio.new_event_loop()
    try:
        futures = [loop.create_future() for _ in ids]
        requests = deque((number, FetchRequest_v4(), future) for number, future in zip(ids, futures, strict=True))
        connection = SimpleNamespace(_requests=requests, _protocol=None, _last_action=0.0)
        frames = Frames(cast(AIOKafkaConnection, connection))
        turn = 0
        while stream:
            room = frames.get_buffer(-1)
            size = min(len(room), len(stream), sizes[turn % len(sizes)])
            room[:size] = stream[:size]
            stream, turn = stream[size:], turn + 1
            frames.buffer_updated(size)
        return [future.result() for future in futures if future.done()]
    finally:
        loop.close()


@given(
    st.lists(
        st.sampled_from([b"", b"a", b"b" * 100, b"c" * VIEW_BYTES, b"d" * 3 * VIEW_BYTES]), min_size=1, max_size=4
    ),
    st.lists(st.integers(1, 5_000), min_size=1, max_size=20),
)
def test_frames_in_pieces_of_any_size(loads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(make_frame(number, load) for number, load in enumerate(loads))
    answers = receive(stream, sizes, list(range(len(loads))))
    assert [bytes(data_of(answer)) for answer in answers] == loads


def test_an_answer_to_something_else_ends_the_connection() -> None:
    """asyncio closes a transport whose protocol raises, and aiokafka fails what still waits."""
    with pytest.raises(CorrelationIdError, match="sent 5, received 6"):
        receive(make_frame(6, b""), [100], [5])
