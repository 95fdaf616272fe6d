from __future__ import annotations

from dataclasses import replace

from overlay.consumer.info import ConsumerInfo, Gate
from overlay.consumer.table import Phase
from overlay.consumer.window import Pair
from overlay.control.responses import describe_acks
from overlay.view.acks import list_ack_rows, show_gate, show_pending
from overlay.view.facts import ConsumerFacts
from overlay.view.figures import UNKNOWN

INFO = ConsumerInfo(Phase.AWAKE, Gate.FULL, Pair(1_234, 7), 5, Pair(3, 2), 0, 4, 1, 0, 12, 2, True, False, 0)


def test_what_waits_for_acks() -> None:
    rows = {name: value for name, value in list_ack_rows(describe_acks(INFO)) if value}
    assert rows == {
        "unacked": "4",
        "delayed": "2",
        "redelivered": "1",
        "ack floor": "consumer sequence 3, stream sequence 2",
        "last": "consumer sequence 1,234, stream sequence 7",
        "held back": "max_ack_pending",
    }
    paused = replace(INFO, paused=True, num_delayed=0, num_waiting=3)
    rows = {name: value for name, value in list_ack_rows(describe_acks(paused)) if value}
    assert (rows["paused"], rows["pulls"], "delayed" in rows) == ("yes", "3", False)


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
