"""How old a request is, whatever the worker's own clock says."""

from __future__ import annotations

import pytest

from overlay.control.brokertime import MEASURED_S, Age, BrokerTime

SENT_MS = 1_700_000_000_000
EXPIRES = (SENT_MS + 10_000) * 1_000_000


def wall(after_s: float) -> int:
    """Return what a clock shows that is right, so long after the request was sent."""
    return int((SENT_MS + 1_000 * after_s) * 1_000_000)


@pytest.mark.parametrize("ahead_s", [11.0, 3_600.0])
def test_a_clock_that_is_ahead_is_not_believed(ahead_s: float) -> None:
    time = BrokerTime()
    time.note(SENT_MS, 5.0)
    assert time.judge(EXPIRES, wall(0.1 + ahead_s), 5.1) is Age.UNKNOWN
    time.measure(5.2)
    assert time.judge(EXPIRES, wall(0.2 + ahead_s), 5.2) is Age.UNKNOWN, "nothing has been read since"
    time.note(SENT_MS + 300, 5.3)
    assert time.judge(EXPIRES, wall(0.4 + ahead_s), 5.4) is Age.FRESH
    assert time.tell_ahead(wall(0.4 + ahead_s), 5.4) == pytest.approx(ahead_s, abs=0.001)
    assert time.tell_ahead(wall(0.4 + ahead_s), 5.4) is None
    assert time.judge(EXPIRES, wall(10 + ahead_s), 15.0) is Age.PAST


def test_a_request_that_was_read_late_is_past() -> None:
    """It is the last record of the topic, so that only a record behind it tells how old it is."""
    time = BrokerTime()
    time.note(SENT_MS, 1_000.0)
    assert time.judge(EXPIRES, wall(3_600), 1_000.1) is Age.UNKNOWN
    time.measure(1_000.2)
    time.note(SENT_MS + 3_600_000, 1_000.3)
    assert time.judge(EXPIRES, wall(3_600), 1_000.3) is Age.PAST


def test_the_time_is_measured_again() -> None:
    time = BrokerTime()
    time.measure(0.0)
    time.note(SENT_MS, 0.0)
    later = EXPIRES + int(2 * MEASURED_S * 1e9)
    assert time.judge(later, wall(1_000), MEASURED_S - 1) is Age.FRESH
    assert time.judge(later, wall(1_000), MEASURED_S + 1) is Age.UNKNOWN


def test_what_the_own_clock_calls_young_is_fresh() -> None:
    assert BrokerTime().judge(EXPIRES, EXPIRES - 1, 0.0) is Age.FRESH
