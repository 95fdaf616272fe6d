"""What a message says, and that it is settled once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Message as KafkaRecord
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.arguments import Delay, write_delay
from overlay.client.subscribe.ack_answers import AckAnswers, AnswerWait
from overlay.client.subscribe.kind import FlowRequest
from overlay.client.subscribe.message import (
    AlreadySettled,
    AsyncMessage,
    BadToken,
    Message,
    Metadata,
    read_metadata,
)
from overlay.consumer.acks import MAX_REASON, Ack, Token, Verb, parse_ack
from overlay.waits import until
from tests.client.test_html import Page

TOKEN = b"$JS.ACK.ORDERS.late.2.41.7.1700000000123000000.5"
HEADERS = [("from", b"oslo"), ("from", b"rome"), ("Nats-Subject", b"t.a"), ("Nats-Reply-To", TOKEN)]


class Spoken:
    """Keeps what is said."""

    def __init__(self) -> None:
        self.words: list[tuple[bytes, Verb, str]] = []

    def ack(self, token: bytes) -> None:
        self.tell(token, Verb.ACK)

    def tell(self, token: bytes, verb: Verb, text: str = "") -> None:
        self.words.append((token, verb, text))

    def ask(self, token: bytes) -> AnswerWait:
        return AckAnswers({}, "replies").make_waiting()

    def answer_flow(self, flow: FlowRequest) -> None:
        raise AssertionError("nothing of a message does this")


def make(spoken: Spoken, headers: list[tuple[str, bytes]] | None = None, value: bytes | None = b"v") -> Message:
    record = KafkaRecord(topic="out", partition=3, offset=9, key=b"k", value=value, headers=headers or HEADERS)
    return Message(record, TOKEN, spoken)


def test_what_a_message_says() -> None:
    message = make(Spoken())
    assert (message.subject, message.key, message.value, message.data) == ("t.a", b"k", b"v", b"v")
    assert message.headers == [("from", b"oslo"), ("from", b"rome")]
    assert (message.header("from"), message.header("to")) == (b"rome", None)
    assert message.place == ("out", 3, 9)
    assert message.metadata == Metadata(
        "ORDERS", "late", 41, 7, 2, 5, datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    )
    empty = make(Spoken(), value=None)
    assert (empty.value, empty.data) == (None, b"")


def test_a_notebook_shows_what_a_message_says() -> None:
    message = make(Spoken(), [*HEADERS, ("x", b"<b>")], b"<script>\xff")
    message.ack()
    assert Page(message._repr_html_()).rows == [
        ["subject", "t.a"],
        ["consumer", "ORDERS/late"],
        ["sequence", "41"],
        ["consumer_sequence", "7"],
        ["num_delivered", "2"],
        ["timestamp", "2023-11-14T22:13:20.123Z"],
        ["key", "k"],
        ["headers", "from=oslo from=rome x=<b>"],
        ["value", "<script>\\xff"],
        ["is_settled", "True"],
    ]


def test_headers_spelled_out_are_ours_as_well() -> None:
    full = [*HEADERS, ("Nats-Stream", b"ORDERS"), ("Nats-Num-Pending", b"5")]
    assert make(Spoken(), full).headers == [("from", b"oslo"), ("from", b"rome")]
    assert make(Spoken(), [*HEADERS, ("Nats-Msg-Size", b"12")]).header("Nats-Msg-Size") == b"12"


@given(st.tuples(*[st.integers(0, 1 << 62)] * 2, st.integers(1, 1 << 31), st.integers(0, 1 << 62)))
def test_any_token_reads_as_the_oracle_reads_it(numbers: tuple[int, ...]) -> None:
    sequence, consumer_sequence, deliveries, pending = numbers
    token = Token("S", "c", deliveries, sequence, consumer_sequence, 1_000_000, pending)
    found = read_metadata(str(token).encode())
    assert (found.sequence, found.consumer_sequence) == (sequence, consumer_sequence)
    assert (found.num_delivered, found.num_pending) == (deliveries, pending)


@pytest.mark.parametrize("token", [b"", b"$JS.ACK.S.c.1.2.3", TOKEN + b".6", TOKEN[:-1] + b"x", b"\xff"])
def test_what_is_no_token(token: bytes) -> None:
    with pytest.raises(BadToken):
        read_metadata(token)


Word = Callable[[Message], object]
WORDS: dict[str, tuple[Word, Verb, str]] = {
    "ack": (lambda m: m.ack(), Verb.ACK, ""),
    "nak": (lambda m: m.nak(), Verb.NAK, ""),
    "nak later": (lambda m: m.nak(1.5), Verb.NAK, '{"delay": 1500000000}'),
    "term": (lambda m: m.term("broken"), Verb.TERM, "broken"),
}


@pytest.mark.parametrize("first", WORDS)
@pytest.mark.parametrize("second", [*WORDS, "in_progress", "ack_sync"])
def test_a_message_is_settled_once(first: str, second: str) -> None:
    spoken = Spoken()
    message = make(spoken)
    message.in_progress()
    message.in_progress()
    say, verb, text = WORDS[first]
    say(message)
    assert message.is_settled
    with pytest.raises(AlreadySettled, match="settled already"):
        {
            **{name: word[0] for name, word in WORDS.items()},
            "in_progress": Message.in_progress,
            "ack_sync": Message.ack_sync,
        }[second](message)
    assert spoken.words == [(TOKEN, Verb.PROGRESS, "")] * 2 + [(TOKEN, verb, text)]


async def test_the_same_words_can_be_awaited() -> None:
    spoken = Spoken()

    def renew() -> AsyncMessage:
        return AsyncMessage(KafkaRecord(topic="out", headers=HEADERS), TOKEN, spoken)

    await renew().ack()
    await renew().nak(timedelta(seconds=2))
    await renew().term("no")
    progressing = renew()
    await progressing.in_progress()
    await progressing.ack()
    with pytest.raises(AlreadySettled):
        await progressing.ack()
    assert [(verb, text) for _, verb, text in spoken.words] == [
        (Verb.ACK, ""),
        (Verb.NAK, '{"delay": 2000000000}'),
        (Verb.TERM, "no"),
        (Verb.PROGRESS, ""),
        (Verb.ACK, ""),
    ]


@given(st.one_of(st.none(), st.floats(0, 1e9), st.timedeltas(timedelta(0), timedelta(days=100))))
def test_delays_are_what_the_overlay_reads(delay: Delay | None) -> None:
    text = write_delay(delay)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    found = parse_ack(TOKEN, b"-NAK " + text.encode())
    assert isinstance(found, Ack)
    assert not found.is_flawed
    assert found.delay == (None if seconds is None else round(seconds * 1e9))


@pytest.mark.parametrize("delay", [-1, float("-inf"), timedelta(seconds=-1)])
def test_no_delay_goes_back_in_time(delay: Delay) -> None:
    with pytest.raises(ValueError, match="back in time"):
        write_delay(delay)


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), 1e300, 2**63 / 1e9, timedelta.max])
def test_a_delay_that_the_service_would_not_read_is_refused(delay: Delay) -> None:
    """It ignores such a nak, and the message would come again after ack_wait."""
    message = make(Spoken())
    with pytest.raises(ValueError, match=r"a delay of .* s: .* at most 9,223,372,036 s"):
        message.nak(delay)
    assert not message.is_settled


def test_the_longest_delay_is_read() -> None:
    found = parse_ack(TOKEN, b"-NAK " + write_delay(9_223_372_036).encode())
    assert isinstance(found, Ack) and found.delay == 9_223_372_036 * 10**9


def test_an_ack_without_an_answer_may_be_said_again() -> None:
    message = make(Spoken())
    with pytest.raises(TimeoutError, match="no answer"):
        message.ack_sync(0.01)
    assert not message.is_settled
    again = AsyncMessage(KafkaRecord(topic="out", headers=HEADERS), TOKEN, Spoken())
    with pytest.raises(TimeoutError, match="no answer"):
        asyncio.run(again.ack_sync(0.01))
    assert not again.is_settled


def test_a_reason_is_cut_as_the_service_cuts_it() -> None:
    """Kafka takes no record of megabytes, and what refuses one ends the subscription with all later acks."""
    spoken = Spoken()
    make(spoken).term("x" * 2_000_000)
    asyncio.run(AsyncMessage(KafkaRecord(topic="out", headers=HEADERS), TOKEN, spoken).term("x" * 2_000_000))
    assert [text for _, _, text in spoken.words] == ["x" * MAX_REASON] * 2
    found = parse_ack(TOKEN, b"+TERM " + spoken.words[0][2].encode())
    assert isinstance(found, Ack) and found.text == "x" * MAX_REASON


async def test_a_double_ack_that_is_cancelled_while_it_connects_leaves_nothing() -> None:
    """A client that gives up again and again while Kafka is away would keep a registration for each time."""
    answers, gate, came = AckAnswers({}, "replies"), threading.Event(), threading.Event()

    class Slow(Spoken):
        def ask(self, token: bytes) -> AnswerWait:
            gate.wait(10)
            try:
                return answers.make_waiting()
            finally:
                came.set()

    message = AsyncMessage(KafkaRecord(topic="out", headers=HEADERS), TOKEN, Slow())
    acking = asyncio.ensure_future(message.ack_sync())
    await asyncio.sleep(0.01)
    acking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acking
    gate.set()
    async with asyncio.timeout(60):
        await until(lambda: came.is_set(), pause_s=0.01)
        await until(lambda: not answers._listener.waiting, pause_s=0.01)
    assert not message.is_settled
