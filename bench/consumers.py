"""`python -m bench consumers`: what thousands of consumers cost, beside one with as many deliveries.

5000: 600,000 orders of 5,000 customers (for the full scale), in turns, so that each slice of the log holds records of
all. A consumer for each customer, with a literal subject, over 32 output topics that they share; exactly once. The peer
`one` is our own service with a single consumer that takes every order: as many deliveries, one output topic. The rate is
deliveries per second until the last is committed. All outputs are then counted by a read-committed consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from bench.cases import measure_case, warm_up
from bench.dataset import Dataset
from bench.errors import WrongAnswer
from bench.figures import Case
from bench.orders import Orders
from bench.ours_consumers import One, OneEach
from bench.outputs import count_committed, delete_topic, make_topic
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Contender, Tally

RECORDS = 200_000
"""For each point of the scale."""
CUSTOMERS = 5_000
OUTPUTS = 32
WARM_UP = 20_000
GOALS = {"5000": {"one": 0.5}}


class ConsumersSide(Contender, Protocol):
    """A way to deliver every order once. Raises PeerUnavailable."""

    def run(self, orders: Orders, outputs: list[str]) -> Tally: ...


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases of the bench, each as soon as it is measured. Raises WrongAnswer."""
    sides: list[ConsumersSide] = [side for side in (OneEach(), One()) if settings.wants_side(side.name)]
    if settings.wants("5000"):
        few = Orders(dataset.bootstrap, WARM_UP, 100)
        few.publish(progress.count("publishing"))
        warm_up(sides, run, few, progress)
        records = max(round(RECORDS * settings.scale) // CUSTOMERS, 1) * CUSTOMERS
        orders = Orders(dataset.bootstrap, records, CUSTOMERS)
        orders.publish(progress.count("publishing"))
        yield measure_case("consumers", "5000", sides, run, orders, GOALS["5000"], settings.rounds, progress)


def run(side: ConsumersSide, orders: Orders) -> Tally:
    """Run one side into topics of its own, and check what has come out. Raises WrongAnswer."""
    outputs = [make_topic(orders.bootstrap, f"out-{side.name}") for _ in range(OUTPUTS)]
    tally = side.run(orders, outputs)
    found = sum(count_committed(orders.bootstrap, topic) for topic in outputs)
    if found != orders.records or tally.matched != orders.records:
        raise WrongAnswer(
            f"{side.name} on {orders.topic}: {tally.matched} deliveries counted and {found} committed of {orders.records}."
            " Run this side alone (--only) to look into it"
        )
    for topic in outputs:
        delete_topic(orders.bootstrap, topic)
    return tally
