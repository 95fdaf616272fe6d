"""`far-behind`: what consumers at the tail notice of one that has ten million records to catch up with.

99 consumers with a literal subject each share an output topic, and begin at the end of the log. A thousand orders a second
are written, each with the time at which it was sent. The figure is the 99th percentile of their latency while another consumer
of the same topic, with an output topic of its own, reads everything from the start. The peer `without` is the same without that
consumer. The service is `overlay run` in a process of its own.

Only orders that come while the consumer is behind count; at least those of the first second after SETTLE_S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, TopicPartition

from bench.crowd import ALL, Wants, list_each, make_crowd
from bench.figures import OVERLAY, Case, Unit, find_percentile, summarise
from bench.orders import Orders
from bench.outputs import delete_topic, make_topic
from bench.pacing import RATE, Pacer
from bench.peers.confluent_scan import open_consumer
from bench.progress import Progress
from bench.rounds import take_turns
from bench.settings import Settings

CASE = "far-behind"
GOAL = {"without": 0.67}
"""The latency may be 1.5 times as long."""
CUSTOMERS = 99
SETTLE_S = 2
"""Seconds after the start that do not count."""
TAIL = {"fetch.wait.max.ms": 100}
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    has_other: bool
    """Whether there is a consumer far behind."""


SIDES = (_Side(OVERLAY, True), _Side("without", False))


def measure(bootstrap: str, records: int, settings: Settings, progress: Progress) -> Case:
    """The case, over so many records. Raises PeerUnavailable when orders do not come out at the tail."""
    orders = Orders(bootstrap, records, CUSTOMERS)
    orders.publish(progress.count("publishing"))

    def run(side: _Side) -> float:
        progress.say(f"consumers {CASE}: {side.name}")
        delays = _measure_delays(side, orders, round(settings.latency_s))
        progress.say(f"consumers {CASE}: {side.name}: {len(delays)} orders count")
        return find_percentile(delays, 99)

    sides = [side for side in SIDES if settings.wants_side(side.name)]
    runs = take_turns(sides, settings.rounds, run)
    delete_topic(bootstrap, orders.topic)
    return summarise(CASE, Unit.MILLISECONDS, runs.figures, goal=GOAL, skipped=runs.skipped)


def _measure_delays(side: _Side, orders: Orders, seconds: int) -> list[float]:
    """Return the delays of the orders that count, ms. `seconds`: for how long orders are written at most."""
    tail: dict[str, Wants] = {name: {**wants, "deliver_policy": "new"} for name, wants in list_each(CUSTOMERS).items()}
    rows = list(replace(orders, records=RATE).list_rows())
    delays: list[float] = []
    with (
        _add_other(side, orders) as (other, is_behind),
        make_crowd(orders, {**other, **tail}, 1) as crowd,
        open_consumer(orders.bootstrap, crowd.outputs[0], **TAIL) as reader,
        crowd.run(),
    ):
        pacer = Pacer(orders.bootstrap, orders.topic)
        for _ in range(SETTLE_S):
            pacer.measure(rows, reader)
        while not delays or (len(delays) < seconds * RATE and is_behind()):
            delays += pacer.measure(rows, reader)
    return delays


@contextmanager
def _add_other(side: _Side, orders: Orders) -> Iterator[tuple[dict[str, Wants], Callable[[], bool]]]:
    """The consumer that is far behind, if the side has it, and whether it still is; True for a side without it."""
    if not side.has_other:
        yield {}, lambda: True
        return
    topic = make_topic(orders.bootstrap, "far-behind")
    with open_consumer(orders.bootstrap, topic) as looking:
        yield {"all": {**ALL["all"], "deliver_subject": topic}}, lambda: _find_end(looking, topic) < orders.records
    delete_topic(orders.bootstrap, topic)


def _find_end(consumer: Consumer, topic: str) -> int:
    """Return the high watermark of a topic's partition."""
    end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S, cached=False)[1]
    return end
