"""What is handed out and what is passed, with real records and whatever order of events."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import pytest
from confluent_kafka import Message as KafkaRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from overlay.client.subscribe.message_buffer import Batch, MessageBuffer
from overlay.errors import SourceUnavailable
from tests.support.waiting import wait_until


def make_batch(partition: int, first: int, count: int) -> Batch:
    records = deque(KafkaRecord(topic="out", partition=partition, offset=first + at) for at in range(count))
    return Batch(partition, records, first + count)


class Handing(RuleBasedStateMachine):
    """Two partitions; the model is what was handed out, and what the application has come back for."""

    def __init__(self) -> None:
        super().__init__()
        self.message_buffer, self.batch = MessageBuffer(1_000), Batch(0, deque(), 0)
        self.next = {0: 0, 1: 0}
        self.handed: dict[int, int] = {}
        self.finished: dict[int, int] = {}
        self.in_hand: KafkaRecord | None = None
        self.passed: dict[int, int] = {}
        self.with_last = True

    @initialize(with_last=st.booleans())
    def choose(self, with_last: bool) -> None:
        self.with_last = with_last

    @rule(partition=st.integers(0, 1), count=st.integers(1, 4), behind=st.integers(0, 2))
    def put(self, partition: int, count: int, behind: int) -> None:
        """`behind`: offsets without records, as markers have them."""
        self.message_buffer.put(make_batch(partition, self.next[partition], count))
        self.next[partition] += count + behind

    @precondition(lambda self: self.batch.records or self.message_buffer.room < 1_000 or self.in_hand)
    @rule()
    def come_back(self) -> None:
        if self.in_hand is not None:
            self.finished[self.in_hand.partition()] = self.in_hand.offset() + 1
        self.in_hand = self.batch.pop()
        if self.in_hand is None and self.message_buffer.room < 1_000:
            batch = self.message_buffer.take()
            assert batch is not None
            self.batch, self.in_hand = batch, batch.pop()
        if self.in_hand is not None:
            self.handed[self.in_hand.partition()] = self.in_hand.offset() + 1

    @rule(partition=st.integers(0, 1))
    def lose(self, partition: int) -> None:
        """A partition goes away and comes back, at what was handed out of it."""
        self.next[partition] = self.handed.get(partition, 0)
        self.message_buffer.drop([partition])
        if self.in_hand is not None and self.in_hand.partition() == partition:
            self.in_hand = None
        for known in (self.handed, self.finished, self.passed):
            known.pop(partition, None)

    @invariant()
    def positions_are_what_was_handed_out(self) -> None:
        self.passed |= self.message_buffer.find_positions(with_last=self.with_last)
        expected = dict(self.handed if self.with_last else self.finished)
        if not self.with_last and self.in_hand is not None:
            expected[self.in_hand.partition()] = self.in_hand.offset()
        assert self.passed == expected


TestHanding = Handing.TestCase


def test_room_is_what_waits() -> None:
    message_buffer = MessageBuffer(5)
    assert message_buffer.wait_for_room(0)
    message_buffer.put(make_batch(0, 0, 3))
    message_buffer.put(make_batch(1, 0, 4))
    assert (message_buffer.room, message_buffer.wait_for_room(0)) == (-2, False)
    assert message_buffer.take() is not None
    assert message_buffer.room == 1
    message_buffer.drop([1])
    assert message_buffer.room == 5


def test_without_the_last_the_message_in_hand_is_not_passed() -> None:
    message_buffer = MessageBuffer(10)
    message_buffer.put(make_batch(3, 100, 2))
    batch = message_buffer.take()
    assert batch is not None
    assert message_buffer.find_positions(with_last=False) == {}
    batch.pop()
    assert message_buffer.find_positions(with_last=False) == {3: 100}
    assert message_buffer.find_positions(with_last=True) == {3: 101}
    batch.pop()
    assert message_buffer.find_positions(with_last=False) == {3: 101}
    assert batch.pop() is None
    assert message_buffer.find_positions(with_last=False) == {3: 102}
    assert message_buffer.find_positions(with_last=False) == {}


def test_messages_that_were_not_handed_out_go_with_their_partition() -> None:
    message_buffer = MessageBuffer(10)
    message_buffer.put(make_batch(0, 0, 3))
    message_buffer.put(make_batch(1, 0, 2))
    batch = message_buffer.take()
    assert batch is not None
    batch.pop()
    message_buffer.drop([0])
    assert batch.pop() is None
    assert message_buffer.find_positions(with_last=True) == {}
    other = message_buffer.take()
    assert other is not None
    assert (other.partition, len(other.records)) == (1, 2)


def test_the_end_comes_after_what_lies_there() -> None:
    message_buffer = MessageBuffer(10)
    message_buffer.put(make_batch(0, 0, 1))
    message_buffer.end(SourceUnavailable("gone"))
    message_buffer.end(None)
    message_buffer.put(make_batch(0, 1, 1))
    assert message_buffer.take() is not None
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="gone"):
            message_buffer.take()


async def test_a_loop_is_woken_by_another_thread() -> None:
    message_buffer = MessageBuffer(10)
    taking = asyncio.create_task(message_buffer.take_async())
    await asyncio.sleep(0)
    threading.Thread(target=message_buffer.put, args=(make_batch(0, 0, 1),)).start()
    assert await asyncio.wait_for(taking, 10) is not None
    ending = asyncio.create_task(message_buffer.take_async())
    await asyncio.sleep(0)
    threading.Thread(target=message_buffer.end).start()
    assert await asyncio.wait_for(ending, 10) is None


def test_a_thread_waits_for_room() -> None:
    message_buffer = MessageBuffer(1)
    message_buffer.put(make_batch(0, 0, 1))
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(message_buffer.wait_for_room(10)))
    thread.start()
    message_buffer.take()
    thread.join(10)
    wait_until(lambda: waited == [True], 10, "there is room")


@given(st.integers(1, 5), st.integers(0, 5))
def test_a_batch_that_is_foreign_says_nothing(count: int, taken: int) -> None:
    batch = make_batch(0, 0, count)
    for _ in range(taken):
        batch.pop()
    batch.is_foreign = True
    assert batch.find_position(with_last=True) is None


def test_a_taker_with_a_limit_stops_waiting() -> None:
    message_buffer = MessageBuffer(10)
    assert message_buffer.take(0.01) is None
    assert asyncio.run(message_buffer.take_async(0.01)) is None
    message_buffer.put(Batch(0, deque(), 1))
    assert message_buffer.take(0) is not None
    message_buffer.put(Batch(0, deque(), 2))
    assert asyncio.run(message_buffer.take_async(30)) is not None
    message_buffer.end(ValueError("over"))
    with pytest.raises(ValueError, match="over"):
        message_buffer.take(30)
