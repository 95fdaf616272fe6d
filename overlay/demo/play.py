"""The demo in order: broker, flights, service, check, verdict, Spark. At the end everything is stopped,
unless it is to be kept.

The reported rate covers the time from the first look with processed records to the first look with
all of them committed. It leaves out the start of the process, the loading of its kernels, and the
records before the first look.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pyarrow as pa

from overlay.local import Broker, start
from overlay.local.flights import count_records, publish, read_flights, subjects

from .home import DemoError, open_home, write_config
from .outputs import read_output
from .report import Checked, Throughput, say_next, say_result
from .screen import Screen
from .selection import select
from .service import Look, ServiceProcess, compile_kernels, start_service
from .spark import show_spark
from .verdict import compare, expect

TOPIC = "flights"
_PAUSE_S = 0.04
_PATIENCE_S = 180.0
"""Seconds without progress before the demo gives up."""


def play(root: Path | None, scale: float, *, keep: bool, with_spark: bool, screen: Screen) -> bool:
    """Play the demo and return whether every output has the expected content.

    With `keep`, Kafka and the service go on running if the demo reaches its end. With `with_spark`, Spark reads one
    of the outputs. Raises OverlayError if the end is not reached, or if what is stopped then does not end as it
    should.
    """
    with open_home(root) as home, _ended_by_signals(), ExitStack() as stack:
        screen.say(f"starting Apache Kafka in {home.kafka} ...")
        broker = start(home.kafka)
        stack.callback(_stop_broker, broker, screen)
        screen.say(f"Kafka is running at {broker.bootstrap}")
        flights = read_flights()
        records = count_records(flights, scale)
        with screen.show_publishing(records) as progress:
            publish(broker.bootstrap, TOPIC, scale, progress=progress, table=flights)
        screen.say("compiling kernels: a minute or two the first time ...")
        compile_kernels(home)
        service = start_service(home, write_config(home, broker.bootstrap))
        stack.callback(_stop_service, service, screen)
        with screen.show_scan(records) as step:
            last, pace = watch(service, records, step)
        screen.say("checking the output topics against the data set ...")
        checked = check(broker.bootstrap, last, flights, records)
        say_result(screen, home, checked, pace)
        if with_spark:
            show_spark(screen, home)
        else:
            screen.say("Spark is left out: without --no-spark it reads one of the output topics")
        say_next(screen, home, broker, service, checked, keep=keep)
        if keep:
            stack.pop_all()
        return all(not one.faults for one in checked)


def watch(service: ServiceProcess, records: int, step: Callable[[Look], None]) -> tuple[Look, Throughput]:
    """Ask the service for its progress again and again until all `records` are committed and every consumer has
    caught up; each answer is passed to `step`. Return the last one, and the number of records and the time for the
    rate.

    Raises DemoError if the service ends, if it cannot serve a consumer, or if it makes no progress for too long.
    """
    first: Look | None = None
    moved = time.monotonic()
    before = Look(0)
    while True:
        look = service.look()
        step(look)
        if trouble := [f"{consumer.name}: {consumer.trouble}" for consumer in look.consumers if consumer.trouble]:
            raise DemoError(f"a consumer cannot be served: {'; '.join(trouble)}. {service.quote_log()}")
        if first is None and look.read:
            first = look
        if look.has_done(records):
            seconds = look.at - first.at if first else 0.0
            return look, Throughput(records - first.read if first else 0, seconds)
        if (look.read, look.scanned, look.is_serving) != (before.read, before.scanned, before.is_serving):
            before, moved = look, look.at
        if look.at - moved > _PATIENCE_S:
            raise DemoError(f"the service has made no progress for {_PATIENCE_S:.0f} s. {service.quote_log()}")
        time.sleep(_PAUSE_S)  # the pace of the display


def check(bootstrap: str, last: Look, flights: pa.Table, records: int) -> list[Checked]:
    """Read the output topic of every consumer and compare it with the data set. Return the result of each;
    differences are in its `faults`. Raises DemoError if a topic cannot be read, or for a filter that `select` does
    not know.
    """
    checked, rows = [], subjects(flights)
    for consumer in last.consumers:
        wanted = expect(rows, consumer.filters, records, select(flights, consumer.sql))
        found = read_output(bootstrap, consumer.topic)
        checked.append(Checked(consumer, wanted, found, compare(wanted, found)))
    return checked


def _stop_broker(broker: Broker, screen: Screen) -> None:
    broker.stop()
    screen.say("Kafka has stopped")


def _stop_service(service: ServiceProcess, screen: Screen) -> None:
    code = service.stop()
    if code:
        raise DemoError(f"the service ended with exit code {code} when told to stop. {service.quote_log()}")
    screen.say("the service has stopped")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into exceptions, so that the block stops what it started."""
    received: list[BaseException] = []

    def end(number: int, _: FrameType | None) -> None:
        received.append(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))
        raise received[0]

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except Exception as error:
        # if the handler runs within a librdkafka call, the binding raises its own error instead
        if received:
            raise received[0] from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
