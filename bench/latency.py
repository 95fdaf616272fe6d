"""`latency/...`: from produce to readable at the tail, at 1,000 records per second.

A producer writes one record each millisecond to a topic that a filter follows; each record carries the time it was
handed to the producer. A read-committed confluent-kafka consumer reads the filter's output in this process and looks
at the same clock. So a figure holds the producer's way to Kafka, the filter, its transaction, and the consumer's
fetch. Everything matches: each record is a sample. Both sides handle 1,000 records before the first round, and the
first two seconds of each round are left out for both: connections, compiled kernels, first transactions.

The figure of a case is the 99th percentile, the median of the rounds; `p50` and `p99` stand beside it.

`latency/several` is exactly_once over a topic of eight partitions, where each record gets its sequence from the stream's
ledger first. Its peer `one` is the same service over a topic of one partition, and `added` is what the ledger adds to
the 99th percentile.

- overlay: `overlay run` in a process of its own.
- confluent: the loop of peers/confluent_push.py in a process of its own: with a transaction per batch for
  exactly_once, plain produce for at_least_once.
"""

from __future__ import annotations

import statistics
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.dataset import Dataset
from bench.figures import OVERLAY, Case, Unit, find_percentile, summarise
from bench.outputs import delete_topic, make_topic
from bench.pacing import RATE, Pacer
from bench.peers.confluent_push import run_follower
from bench.peers.confluent_scan import open_consumer
from bench.progress import Progress
from bench.rounds import take_turns
from bench.service import run_service, write_config
from bench.settings import Settings
from bench.sides import Work
from overlay.local import flights

SETTLE_S = 2.0
WARM_UP_RECORDS = 1_000
LIMITS = {
    "exactly_once": {"p50": 40.0, "p99": 80.0},
    "at_least_once": {"p99": 20.0},
    "several": {"added": 30.0},
}
PARTITIONS = 8

Follow = Callable[[Work, str, str], AbstractContextManager[None]]
"""(work, output topic, delivery): follows the topic within the block."""


@dataclass(frozen=True, slots=True)
class Follower:
    name: str
    follow: Follow
    delivery: str
    partitions: int = 1
    """Of the source topic."""


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """All cases. Raises WrongAnswer when records are missing at the end."""
    for name, limit in LIMITS.items():
        followers = [follower for follower in list_followers(name) if settings.wants_side(follower.name)]
        middles: list[float] = []

        def measure_one(follower: Follower, name: str = name, middles: list[float] = middles) -> float:
            progress.say(f"push latency/{name}: {follower.name}")
            count = round((settings.latency_s + SETTLE_S) * RATE)
            delays = measure_delays(follower, dataset, count)[round(SETTLE_S * RATE) :]
            if follower.name == OVERLAY:
                middles.append(find_percentile(delays, 50))
            return find_percentile(delays, 99)

        for follower in followers:
            progress.say(f"warming up {follower.name}")
            measure_delays(follower, dataset, WARM_UP_RECORDS)
        runs = take_turns(followers, settings.rounds, measure_one)
        case = summarise(f"latency/{name}", Unit.MILLISECONDS, runs.figures, goal={}, skipped=runs.skipped)
        extra = {"p50": statistics.median(middles), "p99": case.overlay}
        if "one" in case.peers:
            extra["added"] = case.overlay - case.peers["one"]
        yield replace(case, limit=limit, extra=extra)


def list_followers(name: str) -> list[Follower]:
    """The sides of a case."""
    if name == "several":
        ours = Follower(OVERLAY, _run_overlay, "exactly_once", PARTITIONS)
        return [ours, replace(ours, name="one", partitions=1)]
    return [Follower(OVERLAY, _run_overlay, name), Follower("confluent", run_follower, name)]


def measure_delays(follower: Follower, dataset: Dataset, count: int) -> list[float]:
    """Milliseconds of each of `count` records. Raises PeerUnavailable when some never come out."""
    bootstrap = dataset.bootstrap
    topic = make_topic(bootstrap, "tail", follower.partitions)
    out_topic = make_topic(bootstrap, f"tail-out-{uuid.uuid4().hex[:8]}")
    work = Work(bootstrap, topic, count, "flights.>")
    with (
        open_consumer(bootstrap, out_topic, **{"fetch.wait.max.ms": 100}) as reader,
        follower.follow(work, out_topic, follower.delivery),
    ):
        rows = flights.records(dataset.table, count / dataset.table.num_rows)
        delays = Pacer(bootstrap, topic).measure([(value, headers) for _, value, headers in rows], reader)
    for name in (topic, out_topic):
        delete_topic(bootstrap, name)
    return delays


@contextmanager
def _run_overlay(work: Work, out_topic: str, delivery: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="bench-overlay-") as name:
        folder = Path(name)
        with run_service(folder, write_config(folder, work, out_topic, delivery)):
            yield
