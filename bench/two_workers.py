"""`two-workers`: what a second worker is worth, of a stream with eight partitions.

Sixteen consumers with filters of their own, over sixteen output topics and eight shards, deliver all orders of a topic with
eight partitions, exactly once. The figure is orders a second, from the first delivery that a read-committed consumer of this
process gets to the last one; the peer `one` is one worker with all shards. A worker is `overlay run` in a process of its own.

Workers and broker share the machine's cores. A broker of its own would not take theirs, so its processor time, spread over all
cores, is subtracted from the time; `wall` is the figure without that. A machine with fewer than three cores cannot show all
that two workers are worth.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from bench.errors import WrongAnswer
from bench.figures import OVERLAY, Case, Unit, summarise
from bench.orders import CENTS, STREAM, Orders
from bench.outputs import delete_topic, fill_topic, make_topic
from bench.peers.confluent_scan import open_consumer
from bench.progress import Progress
from bench.rounds import take_turns
from bench.service import HOST, draw_prefix, run_service
from bench.settings import Settings
from overlay.local.ports import find_free

CASE = "two-workers"
GOAL = {"one": 1.6}
PARTITIONS = 8
SHARDS = 8
CONSUMERS = 16
CUSTOMERS = 100
READY_S = 120.0
DEADLINE_S = 300.0
SILENCE_S = 0.5
"""How long nothing more may come after the last delivery."""


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    workers: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Orders a second by the clock, and without the broker's processor time."""

    wall: float
    rate: float


def measure(bootstrap: str, records: int, settings: Settings, progress: Progress) -> Case:
    """The case, over so many orders. Raises PeerUnavailable if a worker does not start, WrongAnswer if one is at fault."""
    orders = Orders(bootstrap, max(records // PARTITIONS, 1) * PARTITIONS, CUSTOMERS)
    orders = replace(orders, topic=make_topic(bootstrap, "orders", PARTITIONS))
    topic = orders.topic
    share, rows = orders.records // PARTITIONS, orders.list_rows()
    for partition in range(PARTITIONS):
        fill_topic(bootstrap, topic, islice(rows, share), progress.count("publishing"), partition=partition)
    found: dict[str, list[_Run]] = {OVERLAY: [], "one": []}

    def run(side: _Side) -> float:
        progress.say(f"consumers {CASE}: {side.name}")
        found[side.name].append(_run(orders, side))
        return found[side.name][-1].rate

    sides = [side for side in (_Side(OVERLAY, 2), _Side("one", 1)) if settings.wants_side(side.name)]
    runs = take_turns(sides, settings.rounds, run)
    delete_topic(bootstrap, topic)
    case = summarise(CASE, Unit.RATE, runs.figures, goal=GOAL, skipped=runs.skipped)
    ours = found[OVERLAY]
    return replace(case, extra={"wall": statistics.median(one.wall for one in ours)})


def _run(orders: Orders, side: _Side) -> _Run:
    """Have so many workers deliver all orders: they are ready before there are consumers."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-overlay-")))
        outputs = [make_topic(orders.bootstrap, "out") for _ in range(CONSUMERS)]
        folders = write_folders(root, orders, side.workers)
        for folder, url in folders:
            stack.enter_context(run_service(folder, url, READY_S))
        reader = stack.enter_context(open_consumer(orders.bootstrap, outputs[0]))
        for folder, _ in folders:
            for number, output in enumerate(outputs):
                content = json.dumps(describe_consumer(number, output))
                (folder / "consumers" / f"part-{number}.yaml").write_text(content)
        seconds, spent = _read_all(reader, outputs, orders.records)
    for output in outputs:
        delete_topic(orders.bootstrap, output)
    shared = spent / (os.cpu_count() or 1)
    return _Run(orders.records / seconds, orders.records / max(seconds - shared, seconds / 10))


def describe_consumer(number: int, output: str) -> dict[str, object]:
    """Return the file of a consumer of one in CONSUMERS of the orders, by their cents."""
    width = -(-CENTS // CONSUMERS)
    return {
        "stream": STREAM,
        "durable_name": f"part-{number}",
        "deliver_subject": output,
        "ack_policy": "none",
        "filter": {"sql": f"cents >= {number * width} AND cents < {(number + 1) * width}"},
    }


def write_folders(root: Path, orders: Orders, count: int) -> list[tuple[Path, str]]:
    """Write a config folder without consumers for each worker; each with the URL that it answers at."""
    prefix, found = draw_prefix(), []
    for number, port in enumerate(find_free(HOST, count)):
        folder = root / f"worker-{number}"
        for name in ("streams", "consumers"):
            (folder / name).mkdir(parents=True)
        service = {
            "kafka": {"bootstrap.servers": orders.bootstrap},
            "topics": {"prefix": prefix},
            "shards": SHARDS,
            "http": {"listen": f"{HOST}:{port}"},
        }
        (folder / "overlay.yaml").write_text(json.dumps(service))
        (folder / "streams" / "orders.yaml").write_text(json.dumps(orders.describe_stream()))
        found.append((folder, f"http://{HOST}:{port}"))
    return found


def _read_all(reader: Consumer, outputs: Sequence[str], records: int) -> tuple[float, float]:
    """Return the seconds from the first delivery to the last one, and of the broker's processor time meanwhile. Raises
    WrongAnswer if there are more or less.
    """
    reader.assign([TopicPartition(output, 0, 0) for output in outputs])
    found, began, spent = 0, 0.0, 0.0
    deadline = time.perf_counter() + DEADLINE_S
    while found < records and time.perf_counter() < deadline:
        found += sum(1 for message in reader.consume(10_000, 0.1) if not message.error())
        if found and not began:
            began, spent = time.perf_counter(), _find_broker_time()
    seconds, spent = time.perf_counter() - began, _find_broker_time() - spent
    found += sum(1 for message in reader.consume(10_000, SILENCE_S) if not message.error())
    if found != records:
        raise WrongAnswer(f"{found} deliveries of {records} orders. See the workers' logs")
    return seconds, spent


def _find_broker_time() -> float:
    """Return the processor time of the Java processes that this one has started, in seconds."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "java" in process.name():
                times = process.cpu_times()
                spent += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return spent
