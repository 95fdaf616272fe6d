"""What goes to reply topics: how fast, in which order, and what passing faults do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import cast

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, NotLeaderForPartitionError, TopicAuthorizationFailedError
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.memory_records import MemoryRecords

from overlay.kafka.admin import Admin
from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import EncodedBatch, encode_records
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.replies.reply_batches import pack
from overlay.replies.reply_sender import AVOID_PASSING_S, AVOID_S, ReplySender
from overlay.replies.reply_topics import ReplyTopics
from tests.support.kafka import NewTopicFixture
from tests.worker.scenes import read_committed

NOW = 1_700_000_000_000
MANY = 5_000


@asynccontextmanager
async def answer(bootstrap: str, admin: Admin) -> AsyncIterator[ReplySender]:
    reply_sender = ReplySender({"bootstrap.servers": bootstrap}, ReplyTopics(admin), lambda _, __: None)
    try:
        yield reply_sender
    finally:
        await reply_sender.close()


async def await_sent(reply_sender: ReplySender) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*reply_sender._tasks.values())


def make_message(topic: str, number: int, partition: int = 0) -> OutputBatch:
    """A message as one of two pull requests gets it: a batch by itself."""
    record = Record(b"%d" % number, b"value", [("n", b"%d" % (number % 2))])
    batch = encode_records([record], NOW + number % 7, transactional=False)
    return OutputBatch(topic, partition, batch, reply=f"{topic}/{partition}/{number % 2}")


def count_requests(reply_sender: ReplySender, monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """Return what the sender's requests from now on are, by class."""
    sent, client = Counter[type](), reply_sender._client
    assert client is not None
    send = client.send

    async def count_and_send(node: int, request: object, **more: object) -> object:
        sent[type(request)] += 1
        return await send(node, request, **more)

    monkeypatch.setattr(client, "send", count_and_send)
    return sent


async def test_messages_of_two_pulls_share_requests(
    bootstrap: str, admin: Admin, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(partitions=2)
    messages = [make_message(topic, number, number % 2) for number in range(MANY)]
    async with answer(bootstrap, admin) as reply_sender:
        reply_sender.put([make_message(topic, 0)])
        await await_sent(reply_sender)
        sent = count_requests(reply_sender, monkeypatch)
        reply_sender.put(messages)
        await await_sent(reply_sender)
    found = read_committed(bootstrap, topic)
    assert len(found) == MANY + 1
    for partition in (0, 1):
        numbers = [int(r.key or b"") for r in found if r.partition == partition][1 - partition :]
        assert numbers == list(range(partition, MANY, 2))
    assert sent[ProduceRequest] <= MANY // 50


def test_batches_are_joined_in_order() -> None:
    """Records keep what they hold and their times; the batch that was first may be the later one."""
    parts = [
        encode_records(
            [Record(b"%d" % n, None, [("h", b"v" * n)]) for n in range(first, first + 3)],
            NOW - first,
            transactional=False,
        )
        for first in (0, 3, 200)
    ]
    joined = EncodedBatch.join(parts)
    found = list(MemoryRecords(joined.build()).next_batch())
    assert joined.count == 9
    assert [(row.key, row.timestamp, row.offset) for row in found] == [
        (b"%d" % n, NOW - first, at)
        for at, (first, n) in enumerate((f, n) for f in (0, 3, 200) for n in range(f, f + 3))
    ]
    assert [dict(row.headers)["h"] for row in found] == [b"v" * n for f in (0, 3, 200) for n in range(f, f + 3)]


def test_reply_batches_can_be_taken_apart() -> None:
    """One piece that is too large is named by its reply address; its neighbours are not."""
    (lane,) = pack([make_message("t", n) for n in range(4)], NOW).values()
    (reply_batch,) = lane
    assert (reply_batch.count, reply_batch.reply) == (4, "")
    halves = reply_batch.split(NOW)
    assert [half.count for half in halves] == [2, 2]
    assert [part.reply for half in halves for part in half.split(NOW)] == ["t/0/0", "t/0/1", "t/0/0", "t/0/1"]
    assert not halves[0].split(NOW)[0].split(NOW)


class HeldAdmin:
    """Stands in for Kafka's answer, which comes when `may_answer` is set."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def find_topics(self, names: Iterable[str], **_: object) -> dict[str, object]:
        self.is_asked.set()
        await self.may_answer.wait()
        return {}


async def test_what_is_known_may_be_forgotten_while_kafka_is_asked() -> None:
    admin = HeldAdmin()
    reply_topics = ReplyTopics(cast("Admin", admin))
    reply_topics.avoid(["known"], 60)
    sorting = asyncio.create_task(reply_topics.sort([Entry(topic, Record(None, None)) for topic in ("known", "new")]))
    await admin.is_asked.wait()
    reply_topics._known.clear()
    admin.may_answer.set()
    reachable, lost = await sorting
    assert not reachable
    assert [entry.topic for entry in lost] == ["known", "new"]


class FaultyClient:
    """Refuses every request with one error."""

    def __init__(self, fault: type[KafkaError]) -> None:
        self.fault = fault
        self.refreshed = 0
        self.is_closed = False
        self.cluster = self

    def leader_for_partition(self, _: object) -> int:
        return 0

    async def add_topic(self, _: str) -> None:
        pass

    def force_metadata_update(self) -> asyncio.Future[bool]:
        self.refreshed += 1
        done = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done

    async def send(self, *_: object) -> None:
        raise self.fault

    async def close(self) -> None:
        self.is_closed = True


def make_reply_sender(client: FaultyClient, counts: Counter[str]) -> ReplySender:
    def count(reason: str, number: int) -> None:
        counts[reason] += number

    reply_topics = ReplyTopics(cast("Admin", None))
    reply_topics._known["t"] = (1, float("inf"))
    reply_sender = ReplySender({}, reply_topics, count)
    reply_sender._client = cast("AIOKafkaClient", client)
    return reply_sender


@pytest.mark.parametrize(
    ("fault", "seconds"), [(NotLeaderForPartitionError, AVOID_PASSING_S), (TopicAuthorizationFailedError, AVOID_S)]
)
async def test_a_passing_fault_bars_a_topic_for_a_short_while(
    fault: type[KafkaError], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlay.replies.reply_sender.PATIENCE_S", 0.2)
    monkeypatch.setattr("overlay.replies.reply_topics.monotonic", lambda: 1_000.0)
    counts = Counter[str]()
    reply_sender = make_reply_sender(client := FaultyClient(fault), counts)
    reply_sender.put([make_message("t", n) for n in range(3)])
    await await_sent(reply_sender)
    assert reply_sender.reply_topics._known["t"][1] == 1_000.0 + seconds
    assert client.refreshed
    assert counts == {"refused": 3}
    await reply_sender.close()


async def test_answers_that_an_unforeseen_error_loses_are_counted() -> None:
    class Unforeseen(FaultyClient):
        async def add_topic(self, _: str) -> None:
            raise RuntimeError("unforeseen")

    counts = Counter[str]()
    reply_sender = make_reply_sender(Unforeseen(KafkaError), counts)
    reply_sender.put([make_message("t", n) for n in range(3)])
    await await_sent(reply_sender)
    assert counts == {"refused": 3}


async def test_a_cancelled_close_leaves_nothing_open() -> None:
    class Hanging(FaultyClient):
        async def add_topic(self, _: str) -> None:
            await asyncio.Event().wait()

    reply_sender = make_reply_sender(client := Hanging(KafkaError), Counter())
    reply_sender.put([make_message("t", 0)])
    (task,) = reply_sender._tasks.values()
    closing = asyncio.create_task(reply_sender.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert task.done()
    assert client.is_closed


async def test_room_counts_what_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped: the dispatcher waits until there is room, or until the session that announced it has ended."""
    monkeypatch.setattr("overlay.replies.reply_sender.ROOM", 1_000)
    monkeypatch.setattr("overlay.replies.reply_sender.TOPIC_ROOM", 500)
    reply_sender = make_reply_sender(FaultyClient(KafkaError), Counter())
    pieces = [make_message("t", n) for n in range(100)]
    reply_sender.announce(pieces)
    assert reply_sender.full == {"t"}
    waiting = asyncio.create_task(reply_sender.make_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    reply_sender.leave()
    await waiting
    assert not reply_sender.full
