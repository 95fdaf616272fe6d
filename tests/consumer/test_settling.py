"""What is said of deliveries where it goes too far: ranges, delays."""

from __future__ import annotations

import pytest

from overlay.consumer.acks import Flaw
from overlay.consumer.deadlines import NEVER
from overlay.consumer.effects import Answer, Refuse
from overlay.consumer.events import Nakked, RangeAcked
from tests.consumer.driver import SECOND, START, Driver, configure


@pytest.mark.parametrize(
    ("ranges", "left", "is_refused"),
    [
        (((1, 10),), 0, False),
        (((1, 11),), 0, True),
        (((2, 3), (9, 1 << 62), (20, 30)), 6, True),
        (((11, 12),), 10, True),
    ],
)
def test_what_is_known_of_a_range_counts(ranges: tuple[tuple[int, int], ...], left: int, is_refused: bool) -> None:
    driver = Driver(configure())
    driver.offer(10)
    driver.do(RangeAcked(ranges, "inbox"))
    assert driver.machine.state.window.pending.count == left
    assert driver.all(Refuse) == [Refuse(Flaw.FUTURE)] * is_refused
    assert driver.all(Answer) == [Answer("inbox")] * (not is_refused)


@pytest.mark.parametrize(("delay", "due"), [(NEVER, NEVER), (-NEVER, START), (3 * SECOND, START + 3 * SECOND)])
def test_delays_of_any_length(delay: int, due: int) -> None:
    driver = Driver(configure(ack_wait=SECOND))
    driver.offer(1)
    driver.do(Nakked(1, 1, 1, delay))
    [deadline] = driver.machine.state.window.pending.view("deadline").tolist()
    assert max(deadline, START) == due
