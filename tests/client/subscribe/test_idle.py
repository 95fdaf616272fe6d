"""When a loop over a subscription ends because nothing comes: only the time that a loop waits counts. In virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.acking import Head
from overlay.client.subscribe.message_buffer import Batch
from overlay.client.subscribe.subscription import Subscription
from overlay.client.subscribe.target import Target
from overlay.config.consumer import AckPolicy

KAFKA = {"bootstrap.servers": "localhost:1"}
IDLE_S = 10.0


@dataclass(slots=True)
class Silence:
    """A message buffer to which nothing comes, and the clock of its subscription: it only moves while a loop waits."""

    now: float = 1_000.0
    events: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    """What happens while a loop waits, with the time. It may end the wait by an error."""
    batches: list[Batch] = field(default_factory=list)
    """What comes at the end of a wait all the same."""
    is_ended: bool = False

    def monotonic(self) -> float:
        return self.now

    def take(self, timeout: float) -> Batch | None:
        until = self.now + timeout
        while self.events and self.events[0][0] <= until:
            self.now, act = self.events.pop(0)
            act()
            if self.batches:
                return self.batches.pop()
        self.now = until
        return None

    async def take_async(self, timeout: float) -> Batch | None:  # noqa: ASYNC109 - as the buffer has it
        return self.take(timeout)


@dataclass(slots=True)
class Intake:
    """An intake without Kafka."""

    message_buffer: Silence
    has_joined: bool = True
    acks: None = None

    def join(self) -> None:
        self.has_joined = True


@pytest.fixture
def silence() -> Silence:
    return Silence()


@pytest.fixture
def intake(silence: Silence) -> Intake:
    return Intake(silence)


@pytest.fixture
def messages(silence: Silence, intake: Intake, monkeypatch: pytest.MonkeyPatch) -> Subscription:
    monkeypatch.setattr("overlay.client.subscribe.subscription.time", silence)
    monkeypatch.setattr("overlay.client.subscribe.subscription.RecordIntake", lambda *_, **__: intake)
    target = Target(Head("S", "c"), "out", "c", AckPolicy.EXPLICIT, 0.0)
    return Subscription(KAFKA, target, "acks", AckAnswers(KAFKA, "replies"), idle=IDLE_S)


def break_off(silence: Silence, after_s: float, error: BaseException) -> None:
    """Have the next wait end by an error, as by a cancellation."""

    def act() -> None:
        raise error

    silence.events.append((silence.now + after_s, act))


def test_each_loop_waits_as_long(silence: Silence, messages: Subscription) -> None:
    for _ in range(2):
        began = silence.now
        assert list(messages) == []
        assert silence.now == began + IDLE_S
        silence.now += 100


async def test_time_after_a_cancelled_call_does_not_count(silence: Silence, messages: Subscription) -> None:
    iterator = aiter(messages)
    for _ in range(2):
        break_off(silence, 4, asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await anext(iterator)
        silence.now += 100  # the application does something else
    began = silence.now
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert silence.now == began + 2  # the loop has waited for the rest of its time already


async def test_a_call_that_is_cancelled_behind_a_batch_of_statuses_stops_the_count(
    silence: Silence, messages: Subscription
) -> None:
    iterator = aiter(messages)
    taking = asyncio.ensure_future(anext(iterator))
    silence.events.append((silence.now + 4, taking.cancel))
    silence.batches.append(Batch(0, deque(), 0))
    with pytest.raises(asyncio.CancelledError):
        await taking
    silence.now += 100
    began = silence.now
    with pytest.raises(StopAsyncIteration):
        await anext(iterator)
    assert silence.now == began + 6


async def test_the_loop_after_a_cancelled_one_waits_as_long(silence: Silence, messages: Subscription) -> None:
    break_off(silence, 9, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await anext(aiter(messages))
    silence.now += 100
    began = silence.now
    assert [message async for message in messages] == []
    assert silence.now == began + IDLE_S


def test_the_loop_after_an_interrupted_one_waits_as_long(silence: Silence, messages: Subscription) -> None:
    break_off(silence, 9, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        list(messages)
    silence.now += 100
    began = silence.now
    assert list(messages) == []
    assert silence.now == began + IDLE_S


def test_the_count_begins_when_the_group_is_joined(silence: Silence, intake: Intake, messages: Subscription) -> None:
    """Not when the loop began to wait for that."""
    intake.has_joined = False
    joined = silence.now + 1.99 * IDLE_S
    silence.events.append((joined, intake.join))
    assert list(messages) == []
    assert joined + IDLE_S <= silence.now < joined + IDLE_S + 1
