from __future__ import annotations

from dataclasses import replace

from overlay.config import ConsumerConfig
from overlay.config.consumer import AckPolicy
from overlay.consumer.info import ConsumerInfo, Gate
from overlay.consumer.table import Phase
from overlay.consumer.window import Pair
from overlay.control.responses import describe_acks
from overlay.view.acks import list_ack_rows, show_dead_letters, show_gate, show_pending
from overlay.view.facts import ConsumerFacts
from overlay.view.figures import UNKNOWN

INFO = ConsumerInfo(Phase.AWAKE, Gate.FULL, Pair(1_234, 7), 5, Pair(3, 2), 0, 4, 1, 0, 12, 2, True, False, 0)


def test_what_waits_for_acks() -> None:
    rows = {name: value for name, value in list_ack_rows(describe_acks(INFO)) if value}
    assert rows == {
        "unacked": "4",
        "delayed": "2",
        "redelivered messages": "1 without an ack",
        "ack floor": "consumer sequence 3, stream sequence 2",
        "last": "consumer sequence 1,234, stream sequence 7",
        "held back": "max_ack_pending",
    }
    paused = replace(INFO, gate=Gate.STATE, paused=True, num_redelivered=0, num_delayed=0, num_waiting=3)
    rows = {name: value for name, value in list_ack_rows(describe_acks(paused)) if value}
    assert (rows["held back"], rows["pulls"], rows["redelivered messages"]) == ("paused", "3", "0")
    assert "delayed" not in rows
    asleep = replace(paused, paused=False)
    assert ("held back", "no reader") in list_ack_rows(describe_acks(asleep))


def test_dead_letters_are_told_by_cause() -> None:
    """A consumer without a topic for them has none, whatever it has given up."""
    plain = ConsumerFacts("S", "c", dead_letters={}, config=ConsumerConfig(stream="S", durable_name="c"))
    assert show_dead_letters(plain) == show_dead_letters(ConsumerFacts("S", "c")) == ""
    config = ConsumerConfig(stream="S", durable_name="c", ack_policy=AckPolicy.EXPLICIT, dead_letter="d")
    assert show_dead_letters(replace(plain, config=config)) == "0 since the service started"
    some = replace(plain, config=config, dead_letters={"term": 2_000, "max_deliver": 1})
    assert show_dead_letters(some) == "2,001 since the service started: max_deliver 1, term 2,000"
    assert show_dead_letters(replace(some, config=None)) == show_dead_letters(some)
    assert show_dead_letters(replace(some, dead_letters=None)) == ""


def test_consumers_without_acks_have_no_such_rows() -> None:
    assert list_ack_rows(None) == []


def test_what_is_to_come() -> None:
    plain = ConsumerFacts("S", "c", num_pending=1_234, num_pending_is="exact")
    assert show_pending(plain) == "1,234 exact"
    assert show_pending(replace(plain, num_pending_is="estimate")) == "1,234 estimate"
    assert show_pending(replace(plain, num_pending_is="at least")) == "1,234 at least"
    assert show_pending(ConsumerFacts("S", "c")) == UNKNOWN


def test_every_gate_has_words() -> None:
    assert {gate: show_gate(gate.value) for gate in Gate if show_gate(gate.value) == gate.value} == {
        Gate.FULL: "max_ack_pending"
    }
