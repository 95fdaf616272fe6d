"""Rates over the last ten seconds, however many rounds there were."""

from __future__ import annotations

from collections import Counter

from overlay.worker.report import SLOT_MS, WINDOW_MS, Rates
from overlay.worker.round.task import Counts

CONSUMER = ("S", "c")


def test_rates_of_many_rounds() -> None:
    """A thousand rounds a second for half a minute: what is kept is bounded, and the rate that of the last ten seconds."""
    rates = Rates(began=0)
    for now in range(30_000):
        records = 1 if now < 20_000 else 3
        rates.note(Counts(delivered={CONSUMER: records}, decoded={"S": 2}, newest={CONSUMER: now}), now)
    assert rates.delivered[CONSUMER] == 20_000 + 3 * 10_000
    assert rates.newest[CONSUMER] == 29_999
    assert abs(rates.of_consumer(CONSUMER, 30_000) - 3_000) <= 3_000 * SLOT_MS / WINDOW_MS
    assert abs(rates.of_stream("S", 30_000) - 2_000) <= 2_000 * SLOT_MS / WINDOW_MS
    assert len(rates._recent) <= WINDOW_MS // SLOT_MS + 1
    assert rates.of_consumer(CONSUMER, 30_000 + 2 * WINDOW_MS) == 0


def test_what_is_noted_belongs_to_its_source() -> None:
    rates, counts = Rates(began=0), Counts(delivered=Counter({CONSUMER: 1}))
    rates.note(counts, 10)
    rates.note(counts, 20)
    assert counts.delivered[CONSUMER] == 1
    assert rates.of_consumer(CONSUMER, 1_000) == 2


def test_counts_of_a_deleted_consumer_are_dropped() -> None:
    rates, other = Rates(began=0), ("S", "d")
    rates.note(Counts(delivered=Counter({CONSUMER: 5, other: 1}), newest={CONSUMER: 7}), 10)
    rates.forget([CONSUMER])
    assert (rates.delivered[CONSUMER], rates.newest, rates.of_consumer(CONSUMER, 20)) == (0, {}, 0)
    assert rates.list_active(20) == {other} == {*rates.delivered}
