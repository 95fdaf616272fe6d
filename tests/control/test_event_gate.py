"""An events topic that refuses costs its own events, and is told of once."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from overlay.control.event_gate import REST_S, SMALL, EventGate
from overlay.errors import DeliveryFailed
from overlay.output.entry import Entry
from overlay.output.record import Record

EVENT, OTHER = Entry("events", Record(None, b"{}")), Entry("control", Record(None, b"{}"))
DENIED = DeliveryFailed("events", 0, "not authorized to write", final=True)
AWAY = DeliveryFailed("events", 0, "not taken within 15 s", final=False)
TOO_LARGE = DeliveryFailed("events", 0, "MessageSizeTooLargeError: too large", final=True)
BOTH = [EVENT, OTHER]


def test_events_are_left_out_for_a_while_and_tried_again() -> None:
    gate = EventGate("events")
    assert gate.pass_on(BOTH, 5.0) == BOTH
    assert gate.refuse(DENIED, BOTH, 5.0)
    assert gate.pass_on(BOTH, 5.0 + REST_S - 1) == [OTHER]
    assert gate.pass_on(BOTH, 5.0 + REST_S) == BOTH


def test_the_log_tells_of_it_once_and_of_how_many_there_were() -> None:
    gate = EventGate("events")
    with capture_logs() as logs:
        for turn in range(3):
            gate.refuse(DENIED, BOTH, turn * REST_S)
            assert gate.pass_on([EVENT, *BOTH], turn * REST_S) == [OTHER]
            gate.accept([OTHER])
        gate.accept(BOTH)
        gate.accept(BOTH)
    assert [(line["log_level"], line.get("left_out")) for line in logs] == [("error", None), ("warning", 6)]


def test_what_may_pass_is_waited_for_once() -> None:
    gate = EventGate("events")
    assert not gate.refuse(AWAY, BOTH, 1.0)
    assert gate.refuse(AWAY, BOTH, 2.0)
    gate.accept(BOTH)
    assert not gate.refuse(AWAY, BOTH, 3.0)


@pytest.mark.parametrize(("size", "closes"), [(100, True), (SMALL, False)])
def test_a_large_event_closes_nothing(size: int, closes: bool) -> None:
    """A client chooses how long its requests are, and with that how long their audits are."""
    gate, large = EventGate("events"), Entry("events", Record(None, bytes(size)))
    for _ in range(3):
        assert gate.refuse(TOO_LARGE, [large, OTHER], 1.0) is closes
    assert gate.leave_out_large([large, *BOTH]) == ([large, *BOTH] if closes else BOTH)
