"""One iteration at a time: loops that overlap are refused, and loops that follow one another lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

import overlay
from overlay.client import ConcurrentIteration, Subscription
from overlay.client.read.reading import ROOM
from overlay.client.turns import AsyncIteration, IterationGuard
from overlay.errors import OverlayError
from tests.client.deliveries import DEADLINE_S, Output, make_output, read_numbers
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_thread_of_a_subscription_is_left")


@pytest.fixture
def output(bootstrap: str, new_topic: NewTopicFixture) -> Output:
    return make_output(bootstrap, new_topic)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def await_refusal(take: Callable[[], object]) -> ConcurrentIteration:
    """Take until it is refused: the other loop may not have come to its wait yet."""
    with pytest.raises(ConcurrentIteration) as refused:
        while True:
            take()
    return refused.value


def is_taken(messages: Subscription) -> bool:
    """Whether a loop waits for the next message."""
    return messages._turn._lock.locked()


def test_a_turn_says_what_to_do() -> None:
    turn = IterationGuard("subscription to S/c", "open another subscription")
    with (
        turn,
        pytest.raises(ConcurrentIteration, match=r"subscription to S/c: .* One iteration at a time; open another"),
        turn,
    ):
        raise AssertionError
    with turn:  # free again
        pass
    assert issubclass(ConcurrentIteration, OverlayError)


def test_two_threads_on_a_subscription(output: Output, threads: ThreadPoolExecutor) -> None:
    """The second one is refused, the first one goes on and misses nothing."""
    with output.subscribe() as messages:
        first = threads.submit(lambda: read_numbers(islice(messages, 50)))
        wait_until(lambda: is_taken(messages), DEADLINE_S, "the first loop waits")
        await_refusal(lambda: next(iter(messages)))
        output.deliver(50)
        assert first.result(DEADLINE_S) == list(range(1, 51))


def test_threads_that_share_an_iterator(output: Output, threads: ThreadPoolExecutor) -> None:
    with output.subscribe() as messages:
        iterator = iter(messages)
        first = threads.submit(next, iterator)
        wait_until(lambda: is_taken(messages), DEADLINE_S, "the first call waits")
        await_refusal(lambda: next(iterator))
        output.deliver(1)
        assert int(first.result(DEADLINE_S).data) == 1


async def test_tasks_and_threads_mixed(output: Output) -> None:
    async with output.subscribe() as messages:
        first = asyncio.ensure_future(anext(aiter(messages)))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentIteration):
            await anext(aiter(messages))
        with pytest.raises(ConcurrentIteration):
            next(iter(messages))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.to_thread(output.deliver, 2)
        async with asyncio.timeout(DEADLINE_S):
            assert int((await anext(aiter(messages))).data) == 1
        assert int((await asyncio.to_thread(next, iter(messages))).data) == 2


def test_calls_that_do_not_overlap(output: Output, threads: ThreadPoolExecutor) -> None:
    """Of two iterators in turns, each call in another thread: all messages once, in order, and nothing stays behind in either
    when it is dropped."""
    output.deliver(300)
    with output.subscribe(prefetch=4) as messages:  # many small batches
        found = []
        for _ in range(100):
            one, other = iter(messages), iter(messages)
            found += [int(threads.submit(next, each).result(DEADLINE_S).data) for each in (one, other, one)]
        assert found == list(range(1, 301))
        wait_until(lambda: output.read_committed_offsets() == {0: 300}, DEADLINE_S, "all of them are committed")


def test_acks_of_other_threads(output: Output, threads: ThreadPoolExecutor) -> None:
    output.deliver(200)
    with output.subscribe() as messages:
        for acking in [threads.submit(message.ack) for message in islice(messages, 200)]:
            acking.result(DEADLINE_S)
        output.await_acks(lambda acks: sorted(acks.acked) == list(range(1, 201)), "all are acked")


def test_two_threads_on_a_reading(bootstrap: str, new_topic: NewTopicFixture, threads: ThreadPoolExecutor) -> None:
    """The one that came late is refused at once. It would wait for an end that the other one takes."""
    topic = new_topic()
    with overlay.open(bootstrap=bootstrap) as client, client.read(topic=topic, follow=True) as batches:
        first = threads.submit(next, batches)
        wait_until(lambda: batches._turn._lock.locked(), DEADLINE_S, "the first thread waits")
        await_refusal(lambda: next(batches))
        producer = SureProducer(bootstrap)
        producer.produce(topic, b"x")
        assert producer.flush(30) == 0
        assert first.result(DEADLINE_S).num_rows == 1
        waiting = threads.submit(next, batches, None)
        wait_until(lambda: batches._turn._lock.locked(), DEADLINE_S, "the thread waits again")
        batches.close()  # allowed in any thread
        assert waiting.result(DEADLINE_S) is None


def test_a_reading_goes_from_thread_to_thread(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    producer = SureProducer(bootstrap)
    for _ in range(ROOM + 1):
        producer.produce(topic, b"x")
        assert producer.flush(30) == 0
    with overlay.open(bootstrap=bootstrap) as client:
        found = []
        batches = client.read(topic=topic)
        while True:
            with ThreadPoolExecutor(1) as own:
                batch = own.submit(next, batches, None).result(DEADLINE_S)
            if batch is None:
                break
            found += batch["offset"].to_pylist()
    assert found == list(range(ROOM + 1))


async def test_two_tasks_on_an_async_reading(bootstrap: str, new_topic: NewTopicFixture) -> None:
    with overlay.open(bootstrap=bootstrap) as client:
        async with client.read_async(topic=new_topic(), follow=True) as batches:
            first = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            with pytest.raises(ConcurrentIteration):
                await anext(batches)
            with pytest.raises(ConcurrentIteration):
                await batches.aclose()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first


async def test_an_iteration_from_a_function() -> None:
    items = iter([1, 2, None])

    async def take() -> int | None:
        return next(items)

    assert [item async for item in AsyncIteration(take)] == [1, 2]
