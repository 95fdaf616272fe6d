"""overlay/output/produce.py against the broker, over connections that stall and break. confluent-kafka reads what came of it.

Where a break falls is said in bytes: the proxy lets so much of a request through, or no answer, before it cuts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pytest
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from overlay.errors import DeliveryFailed
from overlay.output.assemble import Body
from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import EncodedBatch
from overlay.output.produce import REQUEST_BYTES, WINDOW, Produce
from overlay.output.transaction import PlainSender, Transactions
from overlay.scan.codec import Codec
from tests.oracle.batches import Record
from tests.support.batches import encode_record
from tests.support.kafka import NewTopicFixture, delete_topic, make_topic
from tests.support.proxy import Proxy, lead_through, run_proxy
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, await_records, read_committed

NOW = 1_700_000_000_000
DEADLINE_S = 60.0
EACH = 3
"""Records of a batch."""


@pytest.fixture
async def proxy(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    async with run_proxy(bootstrap) as running:
        lead_through(running, monkeypatch)
        yield running


@pytest.fixture
async def sender(bootstrap: str, proxy: Proxy) -> AsyncIterator[PlainSender]:
    made = PlainSender({"bootstrap.servers": bootstrap})
    await made.start([])
    yield made
    proxy.open()
    await made.close()


@pytest.fixture
def produce(sender: PlainSender) -> Produce:
    return sender._produce


def make_batch(
    topic: str, first: int, partition: int = 0, *, size: int = 8, transactional: bool = False
) -> OutputBatch:
    """EACH records, whose values count on from `first` and have `size` bytes: batches of one size are equally long."""
    records = [Record(i, NOW, None, (b"%08d" % (first + i)).ljust(size, b"."), []) for i in range(EACH)]
    payload = b"".join(encode_record(record, 0, NOW) for record in records)
    body = Body(np.frombuffer(payload, np.uint8), len(payload), EACH, NOW, NOW)
    return OutputBatch(topic, partition, EncodedBatch(body, Codec.NONE, transactional=transactional))


def make_batches(topic: str, count: int, first: int = 0, partition: int = 0) -> list[OutputBatch]:
    return [make_batch(topic, first + EACH * number, partition) for number in range(count)]


def check_log(bootstrap: str, topic: str, counts: Sequence[int], first: int = 0) -> None:
    """Each partition holds so many numbers from `first` on, each once and in order."""
    seen = read_committed(bootstrap, topic)
    for partition, count in enumerate(counts):
        mine = [(record.offset, int((record.value or b"")[:8])) for record in seen if record.partition == partition]
        assert mine == [(number, first + number) for number in range(count)]


async def await_in_thread(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, DEADLINE_S, what)


async def measure_request(produce: Produce, proxy: Proxy, topic: str) -> int:
    """Send the first two batches of a topic: afterwards the window is open. Returns the bytes of a request with one batch."""
    await produce.send([make_batch(topic, 0)], DEADLINE_S)
    before = proxy.up.passed
    await produce.send([make_batch(topic, EACH)], DEADLINE_S)
    return proxy.up.passed - before


@pytest.mark.parametrize("reached", [0, 2, WINDOW])
async def test_a_connection_breaks_with_requests_under_way(
    sender: PlainSender, proxy: Proxy, bootstrap: str, new_topic: NewTopicFixture, reached: int
) -> None:
    """So many of them, and a part of one more, have reached the broker; no answer comes back."""
    topic, produce = new_topic(), sender._produce
    await sender.look_up([topic])
    size = await measure_request(produce, proxy, topic)
    before, budget = proxy.up.passed, reached * size + size // 2
    proxy.up.allow(budget)
    proxy.down.allow(0)
    sending = asyncio.create_task(produce.send(make_batches(topic, 20, 2 * EACH), DEADLINE_S))
    passed = min(budget, WINDOW * size)
    await await_in_thread(lambda: proxy.up.passed == before + passed, "the requests are with the broker")
    with CommittedReader(bootstrap, topic) as reader:
        await asyncio.to_thread(await_records, reader, (2 + reached) * EACH)
    assert proxy.up.passed == before + passed, "more is under way than the window has room for"
    proxy.cut()
    assert await sending == [EACH * number for number in range(2, 22)]
    check_log(bootstrap, topic, [22 * EACH])


async def send_on(
    produce: Produce, topic: str, partitions: int, enough: asyncio.Event, *, deadline_s: float = DEADLINE_S
) -> list[int]:
    """Two sends at a time that fill the window of every partition, until `enough`; the records of each partition."""
    counts = [0] * partitions
    while not enough.is_set():
        parts = []
        for _ in range(2):
            batches = [make_batches(topic, WINDOW, counts[p], p) for p in range(partitions)]
            counts = [count + WINDOW * EACH for count in counts]
            parts.append(produce.send([batch for some in batches for batch in some], deadline_s))
        await asyncio.gather(*parts)
    return counts


async def test_breaks_anywhere(sender: PlainSender, proxy: Proxy, bootstrap: str, new_topic: NewTopicFixture) -> None:
    """Connections break again and again, in the middle of requests and of answers."""
    topic, rng, enough = new_topic(partitions=3), random.Random(7), asyncio.Event()
    await sender.look_up([topic])
    sending = asyncio.create_task(send_on(sender._produce, topic, 3, enough))
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(12):
            valve, size = rng.choice([(proxy.up, 20_000), (proxy.down, 2_000)])
            valve.allow(rng.randrange(size))
            await valve.shut.wait()
            proxy.cut()
        enough.set()
        counts = await sending
    assert min(counts) > 12 * EACH
    check_log(bootstrap, topic, counts)


async def test_a_transaction_outlives_a_break(proxy: Proxy, bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic, state = new_topic(), new_topic()
    transactions = Transactions({"bootstrap.servers": bootstrap}, f"{topic}-id", state, 0)
    await transactions.start([topic, state])
    try:
        batches = [make_batch(topic, EACH * number, transactional=True) for number in range(12)]
        await transactions.begin()
        await transactions.send(batches[:1])
        proxy.down.allow(0)
        before = proxy.up.passed
        sending = asyncio.create_task(transactions.send(batches[1:6]))
        await await_in_thread(lambda: proxy.up.passed > before, "requests are with the broker")
        proxy.cut()
        await sending
        assert read_committed(bootstrap, topic) == []
        assert (await transactions.finish(b"{}", batches[6:]))[0] == 0
        check_log(bootstrap, topic, [12 * EACH])
    finally:
        proxy.open()
        await transactions.close()


async def test_a_leader_that_is_unknown_for_a_while(
    sender: PlainSender, produce: Produce, proxy: Proxy, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    """News of a topic may come later than what is to be sent there; its neighbours do not wait for it."""
    known = new_topic()
    late = f"{known}-late"
    await sender.look_up([known, late])
    before = proxy.up.passed
    await sender.look_up([])
    asked = proxy.up.passed - before
    waiting = asyncio.create_task(produce.send(make_batches(late, 8), DEADLINE_S))
    assert await produce.send(make_batches(known, 8), DEADLINE_S) == [EACH * number for number in range(8)]
    before = proxy.up.passed
    await await_in_thread(lambda: proxy.up.passed >= before + 3 * asked, "it has been asked for several times")
    assert not waiting.done()
    await asyncio.to_thread(make_topic, bootstrap, late)
    assert await waiting == [EACH * number for number in range(8)]
    check_log(bootstrap, late, [8 * EACH])


async def test_a_topic_created_again_under_way(
    sender: PlainSender, produce: Produce, proxy: Proxy, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    """All that is under way is refused, and goes once more in the same order when the partition is there again."""
    topic = new_topic()
    await sender.look_up([topic])
    await measure_request(produce, proxy, topic)
    proxy.up.allow(0)
    sending = asyncio.create_task(produce.send(make_batches(topic, 20, 2 * EACH), DEADLINE_S))
    queue = produce._queues[TopicPartition(topic, 0)]
    await await_in_thread(lambda: queue.sent == WINDOW, "the window is full")
    await asyncio.to_thread(delete_topic, bootstrap, topic)
    proxy.open()
    await await_in_thread(lambda: queue.not_before > 0, "all of them are back")
    await asyncio.to_thread(make_topic, bootstrap, topic)
    assert await sending == [EACH * number for number in range(20)]
    check_log(bootstrap, topic, [20 * EACH], 2 * EACH)


async def test_a_topic_that_was_dropped_goes_on_with_its_sequence_numbers(
    sender: PlainSender, produce: Produce, proxy: Proxy, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    """Nothing is kept for its partitions meanwhile, but for batches that are under way."""
    topic = new_topic()
    await sender.look_up([topic])
    await produce.send(make_batches(topic, 2), DEADLINE_S)
    produce.drop_topics({topic})
    assert not produce._queues
    proxy.up.allow(0)
    sending = asyncio.create_task(produce.send(make_batches(topic, 2, 2 * EACH), DEADLINE_S))
    await asyncio.sleep(0)
    produce.drop_topics({topic})
    assert len(produce._queues) == 1
    proxy.open()
    assert await sending == [2 * EACH, 3 * EACH]
    produce.drop_topics({"another"})
    assert len(produce._queues) == 1
    check_log(bootstrap, topic, [4 * EACH])


async def test_a_topic_deleted_under_way(
    sender: PlainSender,
    produce: Produce,
    bootstrap: str,
    new_topic: NewTopicFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("overlay.output.produce.UNKNOWN_S", 0.3)
    topic = new_topic(partitions=2)
    await sender.look_up([topic])
    sending = asyncio.create_task(send_on(produce, topic, 2, asyncio.Event(), deadline_s=DEADLINE_S))
    await asyncio.to_thread(delete_topic, bootstrap, topic)
    with pytest.raises(DeliveryFailed, match="UnknownTopicOrPartition") as raised:
        await sending
    assert (raised.value.topic, raised.value.final) == (topic, False)


async def test_requests_of_many_sizes_keep_their_order(
    sender: PlainSender, produce: Produce, bootstrap: str, new_topic: NewTopicFixture
) -> None:
    """Some partitions have more to send than others, and their batches do not all go into one request."""
    topic = new_topic(partitions=3)
    await sender.look_up([topic])
    sizes = {0: 8, 1: REQUEST_BYTES // EACH // 2, 2: REQUEST_BYTES // EACH - 100}
    batches = [
        make_batch(topic, EACH * number, partition, size=size)
        for partition, size in sizes.items()
        for number in range(20 - 6 * partition)
    ]
    offsets = await produce.send(batches, DEADLINE_S)
    assert offsets == [EACH * number for partition in sizes for number in range(20 - 6 * partition)]
    check_log(bootstrap, topic, [EACH * (20 - 6 * partition) for partition in sizes])


async def test_a_batch_that_the_topic_does_not_take(
    sender: PlainSender, produce: Produce, new_topic: NewTopicFixture
) -> None:
    """It cannot be sent again, and so nothing can: those behind it would leave a hole."""
    topic, other = new_topic(partitions=2, max_message_bytes=1_000), new_topic()
    await sender.look_up([topic, other])
    with pytest.raises(DeliveryFailed, match="MessageSizeTooLarge") as raised:
        await produce.send([*make_batches(topic, 3), make_batch(topic, 0, 1, size=1_000)], DEADLINE_S)
    assert (raised.value.topic, raised.value.partition, raised.value.final) == (topic, 1, True)
    with pytest.raises(DeliveryFailed, match="MessageSizeTooLarge"):
        await produce.send(make_batches(other, 1), DEADLINE_S)


async def test_a_broker_that_does_not_answer(
    sender: PlainSender, produce: Produce, proxy: Proxy, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    await sender.look_up([topic])
    proxy.down.allow(0)
    with pytest.raises(DeliveryFailed, match=f"not taken within 0 s: {topic}-0 .nor by any other") as raised:
        await produce.send(make_batches(topic, 3), 0.2)
    assert not raised.value.final


async def test_a_lost_answer_leaves_a_batch_in_doubt(
    sender: PlainSender, produce: Produce, proxy: Proxy, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    await measure_request(produce, proxy, topic)
    proxy.down.allow(0)
    before = proxy.up.passed
    sending = asyncio.create_task(produce.send(make_batches(topic, 2, 2 * EACH), DEADLINE_S))
    await await_in_thread(lambda: proxy.up.passed > before, "a request is under way")
    assert not await produce.settle(0.1)  # no answer yet
    with pytest.raises(KafkaError, match="sends nothing more"):
        await sending
    proxy.cut()
    assert not await produce.settle(DEADLINE_S)  # and none will come


async def test_no_batch_is_in_doubt_after_a_break_that_was_mended(
    sender: PlainSender, produce: Produce, proxy: Proxy, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    await measure_request(produce, proxy, topic)
    proxy.down.allow(0)
    before = proxy.up.passed
    sending = asyncio.create_task(produce.send(make_batches(topic, 2, 2 * EACH), DEADLINE_S))
    await await_in_thread(lambda: proxy.up.passed > before, "a request is under way")
    proxy.cut()
    await sending
    assert await produce.settle(DEADLINE_S)


async def test_closing_gives_up_what_is_under_way(
    sender: PlainSender, produce: Produce, proxy: Proxy, new_topic: NewTopicFixture
) -> None:
    topic = new_topic()
    await sender.look_up([topic])
    proxy.down.allow(0)
    before = proxy.up.passed
    sending = asyncio.create_task(produce.send(make_batches(topic, 3), DEADLINE_S))
    await await_in_thread(lambda: proxy.up.passed > before, "a request is under way")
    await produce.close()
    with pytest.raises(Exception, match="the producer was closed"):
        await sending
