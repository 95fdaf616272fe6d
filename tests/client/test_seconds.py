"""Calls that take seconds or counts, with any number: they work, or raise an error of the overlay. No NaN and no number
beyond int64 reaches Kafka."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.client import BadQuestion, Client, Control, NoAnswer
from overlay.client.arguments import LONGEST_WAIT_S, check_wait, write_delay
from overlay.client.subscribe.ack_answers import AckAnswers
from overlay.client.subscribe.pulling import PullConsumer
from overlay.config.consumer import ConsumerConfig
from overlay.consumer.acks import Verb
from overlay.errors import OverlayError
from overlay.units import INT64_MAX

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
TOKEN = "$JS.ACK._.1x1.S.c.1.7.1.0.0"
NUMBERS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e300, 10**400, 2**63 / 1e9]),
)
ZONES = [timezone(timedelta(hours=-12)), timezone(timedelta(hours=12))]
ANYTHING = st.one_of(NUMBERS, st.timedeltas(), st.text(max_size=3), st.none())


class Inbox:
    """An inbox whose requests have no answer. It checks what they hold."""

    def ask(self, topic: str, key: bytes, value: bytes, timeout: float, *_: Any, **__: Any) -> Iterator[Any]:
        text = value[value.find(b"{") :] if b"{" in value else b"{}"
        numbers = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in {text!r}")).values()
        assert all(abs(number) <= INT64_MAX for number in numbers if isinstance(number, int)), text
        assert abs(timeout) <= threading.TIMEOUT_MAX or timeout < 0
        raise NoAnswer("none")

    def close(self) -> None:
        pass


def open_control(timeout: Any = 1.0) -> Control:
    control = Control(NOWHERE, timeout=timeout)
    control._inbox = Inbox()  # type: ignore[assignment]
    return control


CALLS: dict[str, Callable[[Any], object]] = {
    "nak": lambda number: open_control().nak(TOKEN, number),
    "expires": lambda number: open_control().next("S", "c", expires=number),
    "timeout of next": lambda number: open_control(number).next("S", "c"),
    "timeout of a request": lambda number: open_control(number).info("S", "c"),
    "timeout of an ack": lambda number: open_control(number).ack(TOKEN),
    "idle": lambda number: Client(NOWHERE).pull("c", idle=number),
    "batch": lambda number: Client(NOWHERE).pull("c", batch=number),
    "prefetch": lambda number: Client(NOWHERE).subscribe("c", prefetch=number),
    "text of a nak": write_delay,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_any_number_is_taken_or_refused_by_an_error_of_the_overlay(
    call: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(client: Client, name: str, stream: str = "") -> ConsumerConfig:
        raise NoAnswer("no service is asked for a consumer that no file describes")

    monkeypatch.setattr(Client, "find_consumer", find)

    @given(ANYTHING)
    def run(number: Any) -> None:
        with suppress(OverlayError):
            call(number)

    run()


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), -1, 1e300, timedelta.max, "5"])
def test_a_nak_with_a_delay_that_the_service_would_ignore_is_refused(delay: Any) -> None:
    with pytest.raises(BadQuestion, match="delay"):
        open_control().nak(TOKEN, delay)


def test_a_nak_takes_a_timedelta() -> None:
    told: list[tuple[Verb, str]] = []
    control = open_control()
    control.tell = lambda token, verb, text="": told.append((verb, text))  # type: ignore[method-assign]
    control.nak(TOKEN, timedelta(seconds=2))
    assert told == [(Verb.NAK, '{"delay": 2000000000}')]


@given(st.one_of(st.timedeltas(), st.datetimes(), st.datetimes(timezones=st.sampled_from(ZONES))))
@example(timedelta.max)
@example(timedelta.min)
@example(datetime(9999, 12, 31, 23, tzinfo=ZONES[0]))
@example(datetime(1, 1, 1, 1, tzinfo=ZONES[1]))
def test_a_pause_until_any_time(until: timedelta | datetime) -> None:
    with suppress(BadQuestion, NoAnswer):
        open_control().pause("S", "c", until)


@given(NUMBERS)
def test_waits_are_what_locks_take(number: float) -> None:
    try:
        found = check_wait("timeout", number)
    except BadQuestion:
        assert number != number
    else:
        assert threading.Lock().acquire(timeout=max(0.0, found))
        assert found == number or abs(number) > LONGEST_WAIT_S


@given(count=ANYTHING, timeout=ANYTHING)
def test_a_fetch_of_any_number_for_any_time(count: Any, timeout: Any) -> None:
    work = PullConsumer(NOWHERE, "p", ConsumerConfig(stream="S", durable_name="c"), AckAnswers(NOWHERE, "p.replies"))
    work._control = open_control()
    with suppress(OverlayError):
        work.fetch(count, timeout)
