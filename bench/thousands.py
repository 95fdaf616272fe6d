"""The cases of `consumers` about steering thousands of them: create, change, restart. `overlay run` is a process of its own.

- create-5000: 5,000 requests to create a consumer, sent at once to a service that has one consumer; until every request is
  answered and every consumer is served.
- change-5000: one consumer beside 4,999 gets another subject by request, every CHANGE_S seconds. The figure is the 99th
  percentile of the others' latency meanwhile, of a thousand orders a second; `change` is the time of a change, until its
  answer. The peer `quiet` is the same latency without changes.
- restart-5000: the service stops, each customer orders something, and the service is started; until all of these orders are
  delivered. `ready` is the time until /readyz says so, `first` that of the first start, until each customer's first order is
  delivered.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from confluent_kafka import Consumer, TopicPartition

from bench.asking import ask_all
from bench.crowd import ALL, Crowd, describe, list_each, make_crowd
from bench.errors import PeerUnavailable, WrongAnswer
from bench.figures import OVERLAY, Case, Unit, find_percentile, summarise
from bench.orders import STREAM, Orders
from bench.outputs import fill_topic
from bench.pacing import RATE, Pacer
from bench.peers.confluent_scan import open_consumer
from bench.progress import Progress
from bench.rounds import take_turns
from bench.settings import Settings
from overlay.client.control.control import Control
from overlay.waits import comes_true

OUTPUTS = 32
LIMITS = {"create-5000": {OVERLAY: 20_000.0}, "change-5000": {"change": 500.0}, "restart-5000": {OVERLAY: 15_000.0}}
CALM = 0.5
"""How many times longer the latency may be without changes than with them."""
CHANGE_S = 2.0
SETTLE_S = 2.0
DEADLINE_S = 600.0
LOOK_S = 0.25
BATCH = 10_000
TAIL = {"fetch.wait.max.ms": 100}
CHANGED = "changed"


def measure_create(bootstrap: str, count: int, settings: Settings, progress: Progress) -> Case:
    """`create-5000`, with so many consumers. Raises WrongAnswer when one is refused or never served."""
    runs = []
    for number in range(settings.rounds):
        progress.say(f"consumers create-5000: round {number + 1}")
        orders = Orders(bootstrap, 0, count)
        orders.publish(progress.count("publishing"))
        with make_crowd(orders, ALL, OUTPUTS) as crowd, crowd.run():
            runs.append(_create(bootstrap, crowd, count) * 1_000)
    return _make_case("create-5000", runs)


def _create(bootstrap: str, crowd: Crowd, count: int) -> float:
    """Return how many seconds it takes to create so many consumers."""
    began = time.perf_counter()
    ask_all(
        bootstrap,
        crowd.prefix,
        (
            {"op": "consumer.create", "stream": STREAM, "config": describe(name, wants, crowd.outputs[at % OUTPUTS])}
            for at, (name, wants) in enumerate(list_each(count).items())
        ),
    )
    if not comes_true(lambda: crowd.count_served() == count + len(ALL), DEADLINE_S, pause_s=LOOK_S):
        raise WrongAnswer(f"{crowd.count_served()} of {count + len(ALL)} consumers are served after {DEADLINE_S:.0f} s")
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Side:
    name: str


def measure_change(bootstrap: str, count: int, settings: Settings, progress: Progress) -> Case:
    """`change-5000`, with so many consumers. Raises PeerUnavailable when orders are not delivered."""
    orders = Orders(bootstrap, round((settings.latency_s + SETTLE_S) * RATE), count - 1)
    replace(orders, records=0).publish(progress.count("publishing"))
    progress.say("consumers change-5000: starting the service")
    with (
        make_crowd(orders, list_each(orders.customers), 1) as crowd,
        open_consumer(bootstrap, crowd.outputs[0], **TAIL) as reader,
        crowd.run(),
        _open_changer(bootstrap, crowd) as changer,
    ):
        rows, pacer = list(orders.list_rows()), Pacer(bootstrap, orders.topic)
        pacer.measure(rows[: round(SETTLE_S * RATE)], reader)

        def measure(side: _Side) -> float:
            progress.say(f"consumers change-5000: {side.name}")
            with changer.run(is_on=side.name == OVERLAY):
                delays = pacer.measure(rows, reader)
            return find_percentile(delays[round(SETTLE_S * RATE) :], 99)

        sides = [_Side(OVERLAY), _Side("quiet")]
        runs = take_turns([side for side in sides if settings.wants_side(side.name)], settings.rounds, measure)
    case = summarise("change-5000", Unit.MILLISECONDS, runs.figures, goal={"quiet": CALM}, skipped=runs.skipped)
    return replace(case, limit=LIMITS[case.name], extra={"change": statistics.median(changer.took)})


class _Changer:
    """Gives one consumer another subject every CHANGE_S seconds. `took`: ms of each change."""

    def __init__(self, control: Control, output: str) -> None:
        self._control, self._output = control, output
        self.took: list[float] = []
        self._stop = threading.Event()
        self._failures: list[Exception] = []

    def change(self) -> None:
        """Create the consumer, or have it want something else. No order has a subject that it wants."""
        fields = describe(CHANGED, {"filter_subject": f"orders.none-{len(self.took)}"}, self._output)
        began = time.perf_counter()
        self._control.create(STREAM, fields)
        self.took.append((time.perf_counter() - began) * 1_000)

    @contextmanager
    def run(self, *, is_on: bool) -> Iterator[None]:
        """Change it within the block if it is on. Raises what a change has raised."""
        self._stop.clear()
        changing = threading.Thread(target=self._run, daemon=True)
        if is_on:
            changing.start()
        try:
            yield
        finally:
            self._stop.set()
            if is_on:
                changing.join()
        if self._failures:
            raise self._failures[0]

    def _run(self) -> None:
        try:
            while not self._stop.wait(CHANGE_S):
                self.change()
        except Exception as error:  # noqa: BLE001 - raised where the thread is waited for
            self._failures.append(error)


@contextmanager
def _open_changer(bootstrap: str, crowd: Crowd) -> Iterator[_Changer]:
    """A changer whose consumer has been created."""
    control = Control({"bootstrap.servers": bootstrap}, crowd.prefix, timeout=DEADLINE_S, name="bench")
    try:
        changer = _Changer(control, crowd.outputs[0])
        changer.change()
        changer.took.clear()
        yield changer
    finally:
        control.close()


def measure_restart(bootstrap: str, count: int, settings: Settings, progress: Progress) -> Case:
    """`restart-5000`, with so many consumers. Raises PeerUnavailable when orders are not delivered."""
    orders = Orders(bootstrap, count, count)
    replace(orders, records=0).publish(progress.count("publishing"))
    with make_crowd(orders, list_each(count), OUTPUTS) as crowd, open_consumer(bootstrap, crowd.outputs[0]) as reader:
        reader.assign([TopicPartition(topic, 0, 0) for topic in crowd.outputs])
        runs: list[tuple[float, float]] = []
        for number in range(settings.rounds + 1):
            progress.say(f"consumers restart-5000: start {number + 1}")
            fill_topic(bootstrap, orders.topic, orders.list_rows(), progress.count("publishing"))
            began = time.perf_counter()
            with crowd.run():
                ready = time.perf_counter()
                _await_messages(reader, count)
                runs.append(((time.perf_counter() - began) * 1_000, (ready - began) * 1_000))
    first, again = runs[0], runs[1:]
    case = _make_case("restart-5000", [whole for whole, _ in again])
    return replace(case, extra={"ready": statistics.median(ready for _, ready in again), "first": first[0]})


def _await_messages(reader: Consumer, count: int) -> None:
    """Wait for so many messages. Raises PeerUnavailable when they do not come."""
    deadline = time.monotonic() + DEADLINE_S
    while count > 0:
        messages = reader.consume(min(BATCH, count), 1.0)
        failed = next((error for message in messages if (error := message.error())), None)
        if failed or time.monotonic() > deadline:
            raise PeerUnavailable(f"{count} orders are not delivered: {failed.str() if failed else 'time is over'}")
        count -= len(messages)


def _make_case(name: str, runs: Sequence[float]) -> Case:
    return Case(name, Unit.MILLISECONDS, statistics.median(runs), limit=LIMITS[name], runs={OVERLAY: runs})
