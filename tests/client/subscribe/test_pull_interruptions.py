"""Pulls that an error, a cancellation or an interrupt ends midway: no message that has come is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from overlay.client.control.answers import PullRefused
from overlay.client.control.inbox import NoAnswer
from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.pulling import PullConsumer
from overlay.config.consumer import AckPolicy, ConsumerConfig
from overlay.errors import CredentialsRefused, OverlayError, SourceUnavailable

KAFKA = {"bootstrap.servers": "localhost:1"}
DEADLINE_S = 30.0


@dataclass(slots=True)
class Record:
    """A record as a service would answer a pull with."""

    number: int

    def headers(self) -> list[tuple[str, bytes]]:
        return [("Nats-Subject", b"t.a"), ("Nats-Reply-To", f"$JS.ACK._.1x1.S.c.1.{self.number}.1.0.0".encode())]

    def value(self) -> bytes:
        return str(self.number).encode()


@dataclass(slots=True)
class Requests:
    """A Control whose pulls are answered by a script: for each request numbers of messages, then an error, a wait until
    the request is stopped, or a failure elsewhere while the request waits."""

    script: list[tuple[list[int], BaseException | str | None]]
    fail: Callable[[], object] | None = None
    """Called when a request waits to the end of the loop's `idle` and then ends with nothing."""
    waits: threading.Event = field(default_factory=threading.Event)
    """Set while a request waits."""
    go: threading.Event = field(default_factory=threading.Event)
    """Lets a request that was stopped end."""

    def pull_records(self, *request: Any, quiet_s: float = 0.0, stop: threading.Event, **_: Any) -> None:
        take: Callable[[Record], object] = request[-1]
        numbers, end = self.script.pop(0) if self.script else ([], None)
        for number in numbers:
            take(Record(number))
        if isinstance(end, BaseException):
            raise end
        if end == "fail" and self.fail is not None:
            time.sleep(quiet_s)  # as a request without messages
            self.fail()
        if end == "wait":
            self.waits.set()
            assert stop.wait(DEADLINE_S)
            assert self.go.wait(DEADLINE_S)
            take(Record(9))

    def close(self) -> None:
        pass


@pytest.fixture
def requests() -> Requests:
    return Requests([])


@pytest.fixture
def work(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> Iterator[PullConsumer]:
    monkeypatch.setattr("overlay.client.subscribe.pulling.Control", lambda *_, **__: requests)
    config = ConsumerConfig(stream="S", durable_name="c", ack_policy=AckPolicy.EXPLICIT)
    with PullConsumer(KAFKA, "p", config, AckAnswers(KAFKA, "p.replies"), idle=0.2) as opened:
        yield opened


def numbers_of(messages: Any) -> list[int]:
    return [int(message.data) for message in messages]


@pytest.mark.parametrize("error", [PullRefused("409 Consumer Deleted"), CredentialsRefused("no right")])
def test_messages_before_an_error_come_first(requests: Requests, work: PullConsumer, error: Exception) -> None:
    requests.script = [([1, 2], None), ([3], error), ([4], None)]
    assert numbers_of(work.fetch(4, timeout=DEADLINE_S)) == [1, 2, 3]
    with pytest.raises(type(error), match=str(error)):
        work.fetch(4, timeout=DEADLINE_S)
    assert numbers_of(work.fetch(1, timeout=DEADLINE_S)) == [4]


@pytest.mark.parametrize("error", [NoAnswer("none"), SourceUnavailable("away")])
def test_an_error_that_passes_is_not_kept(requests: Requests, work: PullConsumer, error: Exception) -> None:
    requests.script = [([1], error), ([2], None), ([], error)]
    assert numbers_of(work.fetch(4, timeout=DEADLINE_S)) == [1]
    assert numbers_of(work.fetch(1, timeout=DEADLINE_S)) == [2]
    with pytest.raises(type(error)):
        work.fetch(1, timeout=DEADLINE_S)


def test_a_loop_hands_out_what_came_before_an_error(requests: Requests, work: PullConsumer) -> None:
    requests.script = [([1, 2], PullRefused("409 Consumer Deleted"))]
    messages = iter(work)
    assert numbers_of([next(messages), next(messages)]) == [1, 2]
    with pytest.raises(PullRefused):
        next(messages)


@pytest.mark.parametrize("error", [SourceUnavailable("an ack was not taken"), CredentialsRefused("no right")])
def test_a_loop_raises_the_failure_of_acks(requests: Requests, work: PullConsumer, error: OverlayError) -> None:
    """At once, as `fetch` does, and not only when no message waits any more."""
    requests.script = [([1, 2], None)]
    messages = iter(work)
    assert numbers_of([next(messages)]) == [1]
    work._failures.append(error)
    for take in (lambda: next(messages), lambda: work.fetch(1)):
        with pytest.raises(type(error), match=str(error)):
            take()


async def test_a_loop_that_waits_raises_the_failure_of_acks(requests: Requests, work: PullConsumer) -> None:
    """It may come while a request waits, which then ends with nothing."""
    requests.script = [([], None), ([], "fail")]
    requests.fail = lambda: work._failures.append(SourceUnavailable("an ack was not taken"))
    with pytest.raises(SourceUnavailable, match="an ack was not taken"):
        await anext(aiter(work))
    with pytest.raises(SourceUnavailable, match="an ack was not taken"):
        list(work)


def test_an_error_waits_for_all_that_came_before_it(requests: Requests, work: PullConsumer) -> None:
    requests.script = [([1, 2, 3], PullRefused("409 Consumer Deleted"))]
    assert numbers_of([next(iter(work))]) == [1]
    assert numbers_of(work.fetch(1)) == [2]
    assert numbers_of(work.fetch(5, timeout=DEADLINE_S)) == [3]
    with pytest.raises(PullRefused):
        work.fetch(5)


def test_messages_before_an_interrupt_are_kept(requests: Requests, work: PullConsumer) -> None:
    requests.script = [([1, 2], KeyboardInterrupt()), ([3], None)]
    with pytest.raises(KeyboardInterrupt):
        work.fetch(3, timeout=DEADLINE_S)
    assert numbers_of(work.fetch(3, timeout=DEADLINE_S)) == [1, 2, 3]


async def cancel_when_waiting(requests: Requests, call: Any) -> None:
    """Cancel a call once its request waits for further messages."""
    task = asyncio.ensure_future(call)
    await asyncio.to_thread(requests.waits.wait, DEADLINE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_fetch_leaves_its_messages_to_the_next(requests: Requests, work: PullConsumer) -> None:
    """Its thread has ended before the next request begins, and what it has received comes first."""
    requests.script = [([1], None), ([2], "wait"), ([10], None)]
    await cancel_when_waiting(requests, work.fetch_async(5, timeout=DEADLINE_S))
    after = asyncio.ensure_future(work.fetch_async(4, timeout=DEADLINE_S))
    await asyncio.sleep(0)
    assert len(requests.script) == 1  # waits for the thread of the cancelled call
    requests.go.set()
    assert numbers_of(await after) == [1, 2, 9, 10]


async def test_a_cancelled_loop_leaves_its_messages_to_the_next(requests: Requests, work: PullConsumer) -> None:
    requests.script = [([], None), ([], "wait"), ([10], None)]
    await cancel_when_waiting(requests, anext(aiter(work)))
    requests.go.set()
    assert numbers_of(await asyncio.to_thread(work.fetch, 2, DEADLINE_S)) == [9, 10]
    assert work.fetch(1, timeout=0) == []


async def test_a_call_that_waits_for_a_cancelled_one_may_be_cancelled(requests: Requests, work: PullConsumer) -> None:
    requests.script = [([1], "wait"), ([10], None)]
    await cancel_when_waiting(requests, work.fetch_async(5, timeout=DEADLINE_S))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work.fetch_async(5, timeout=DEADLINE_S), 0.05)
    requests.go.set()
    assert numbers_of(await work.fetch_async(3, timeout=DEADLINE_S)) == [1, 9, 10]
