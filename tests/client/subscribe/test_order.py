"""An ordered consumer over a wire that loses, repeats and restarts: every message once, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from overlay.client.subscribe.order import BadOrder, Order, Reason, Verdict, begin_behind, complete, is_silent
from overlay.config.consumer import ConsumerConfig

MOST_ON_WIRE = 100
"""How many messages may be on the wire for some of them to be repeated."""


@dataclass
class Server:
    """A stream, and the consumer of it that was made last: what it has delivered is on the wire."""

    stored: int = 0
    position: int = 0
    consumer_seq: int = 0
    wire: list[tuple[str, int, int]] = field(default_factory=list)

    def make(self, begin: int | None) -> None:
        self.position, self.consumer_seq = (begin or 1) - 1, 0
        self.wire.clear()

    def deliver(self) -> None:
        if self.position < self.stored:
            self.position += 1
            self.consumer_seq += 1
            self.wire.append(("message", self.position, self.consumer_seq))

    def beat(self) -> None:
        self.wire.append(("beat", self.position, self.consumer_seq))


class LossyWire(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server, self.order = Server(), Order()
        self.taken: list[int] = []
        self._renew()

    def _renew(self) -> None:
        self.server.make(self.order.begin)
        self.order.opened()

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        self.server.stored += count

    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        for _ in range(count):
            self.server.deliver()

    @rule()
    def beat(self) -> None:
        self.server.beat()

    @precondition(lambda self: self.server.wire)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        del self.server.wire[data.draw(st.integers(0, len(self.server.wire) - 1))]

    # each repetition can double what is on the wire: without a limit, thirty of them make a billion messages
    @precondition(lambda self: 0 < len(self.server.wire) <= MOST_ON_WIRE)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.server.wire) - 1))
        self.server.wire += self.server.wire[at:]

    @rule()
    def restart(self) -> None:
        """The service comes back without the consumer."""
        self.server.wire.clear()
        assert self.order.silent() is Verdict.RENEW
        assert self.order.came(self.server.stored + 1, self.order.state.consumer_seq + 1) is Verdict.DROP
        self._renew()

    @rule()
    def receive(self) -> None:
        while self.server.wire:
            kind, stream_seq, consumer_seq = self.server.wire.pop(0)
            told = self.order.came if kind == "message" else self.order.beat
            verdict = told(stream_seq, consumer_seq)
            if verdict is Verdict.TAKE:
                self.taken.append(stream_seq)
            if verdict is Verdict.RENEW:
                self._renew()

    @invariant()
    def every_message_once_and_in_order(self) -> None:
        assert self.taken == list(range(1, len(self.taken) + 1))

    def teardown(self) -> None:
        """A wire that has become sound brings all the rest."""
        self.receive()
        while self.server.position < self.server.stored:
            self.server.deliver()
        self.server.beat()
        self.receive()
        while self.server.position < self.server.stored:
            self.server.deliver()
        self.receive()
        assert self.taken == list(range(1, self.server.stored + 1))


TestLossyWire = LossyWire.TestCase


def test_nothing_is_taken_before_there_is_a_consumer() -> None:
    order = Order()
    assert (order.is_open, order.begin) == (False, None)
    assert order.came(1, 1) is order.beat(1, 1) is order.silent() is Verdict.DROP
    order.opened()
    assert order.came(7, 1) is Verdict.TAKE
    assert order.came(7, 1) is Verdict.DROP  # once more
    assert order.begin == 8


def test_what_was_lost_is_told_by_a_heartbeat() -> None:
    order = Order()
    order.opened()
    assert order.came(4, 1) is Verdict.TAKE
    assert order.beat(4, 1) is Verdict.DROP
    assert order.beat(9, 2) is Verdict.RENEW
    assert (order.state.reason, order.state.renewals, order.begin) == (Reason.GAP, 1, 5)


def test_a_heartbeat_without_messages_is_where_the_next_one_begins() -> None:
    order = Order()
    order.opened()
    assert order.beat(0, 0) is Verdict.DROP
    assert order.begin is None
    assert order.beat(120, 0) is Verdict.DROP
    assert order.gone() is Verdict.RENEW
    assert order.begin == 121


def test_a_stream_that_goes_back_is_a_gap() -> None:
    order = Order()
    order.opened()
    order.came(9, 1)
    assert order.came(9, 2) is Verdict.RENEW


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0.1, 1e3))
def test_two_missed_heartbeats(heard: float, now: float, heartbeat: float) -> None:
    assert is_silent(heard, now, heartbeat, 0.0) == (now - heard > 2 * heartbeat)
    assert not is_silent(heard, now, 0.0, 0.0)


def test_what_is_set() -> None:
    config = complete({"filter_subject": "t.>", "deliver_policy": "new"})
    found = ConsumerConfig.model_validate({**config, "stream": "S", "name": "o"})
    assert (found.ack_policy, found.max_deliver, found.flow_control) == ("none", 1, True)
    assert (found.mem_storage, found.num_replicas) == (True, 1)
    assert (found.idle_heartbeat, found.ack_wait) == (5_000_000_000, 79_200_000_000_000)
    assert (found.filter_subject, found.deliver_policy) == ("t.>", "new")
    assert complete({"idle_heartbeat": "1s"})["idle_heartbeat"] == "1s"


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("durable_name", "d"),
        ("deliver_subject", "t"),
        ("deliver_group", "g"),
        ("num_replicas", 1),
        ("name", "n"),
        ("bind", True),
        ("ack_policy", "explicit"),
        ("ack_policy", "all"),
        ("max_deliver", 2),
        ("max_deliver", -1),
        ("flow_control", False),
        ("mem_storage", False),
        ("output", {}),
        ("delivery", "at_least_once"),
        ("interest", "always"),
    ],
)
def test_what_is_refused(field_name: str, value: object) -> None:
    with pytest.raises(BadOrder, match=field_name):
        complete({field_name: value})


@pytest.mark.parametrize(
    ("field_name", "value"), [("ack_policy", "none"), ("max_deliver", 1), ("flow_control", True), ("mem_storage", True)]
)
def test_what_may_be_said_since_it_is_so(field_name: str, value: object) -> None:
    assert complete({field_name: value}) == complete({})


def test_where_the_next_one_begins() -> None:
    config: dict[str, Any] = complete({"deliver_policy": "by_start_time", "opt_start_time": "2026-01-01T00:00:00Z"})
    assert begin_behind(config, None) == config
    next_one = begin_behind(config, 42)
    assert (next_one["deliver_policy"], next_one["opt_start_seq"]) == ("by_start_sequence", 42)
    assert "opt_start_time" not in next_one
