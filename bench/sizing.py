"""`python -m bench sizing`: what a service needs for each consumer, and for each message that waits for its ack.

There are no peers. Each figure but the last is the difference between two services, of which one has little of something and
the other much, so that what every service needs is not in it. Each service is a process of its own. Its /metrics tell its
memory (resident) and its processor time. All consumers have a literal subject each, share OUTPUTS output topics, and have been
given a record before anything is measured.

| case | figure |
|---|---|
| `consumers`, `acked` | MB for 1,000 consumers with `ack_policy: none`, and with `explicit`; `few`: MB of a service with FEW |
| `consumers-idle`, `acked-idle` | processor time for 1,000, and with `few`, while nothing comes: percent of a core |
| `pending` | MB for a million messages that wait for their ack, of one consumer |
| `metrics` | ms until /metrics of METERED consumers has come; `pause`: the longest that /healthz took meanwhile |
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.dataset import Dataset
from bench.errors import WrongAnswer
from bench.figures import OVERLAY, Case, Unit, summarise
from bench.orders import STREAM, Orders, name_customer
from bench.outputs import delete_topic, make_topic
from bench.progress import Progress
from bench.service import run_service, write_files
from bench.settings import Settings
from overlay.waits import comes_true

OUTPUTS = 8
FEW = 100
MORE = 1_000
"""Consumers that the second service has beside FEW, for each point of the scale."""
PENDING = 200_000
"""Messages of the first service for each point of the scale; the second has three times as many. Both are more than a shard
remembers the records of, at the usual scale."""
METERED = 5_000
ANSWER_MS = 300.0
DEADLINE_S = 300.0
PAUSE_S = 0.01
MEMORY, PROCESSOR = "process_resident_memory_bytes", "process_cpu_seconds_total"
DELIVERED = "overlay_records_delivered_total"
POLICIES: Mapping[str, Mapping[str, object]] = {
    "consumers": {"ack_policy": "none"},
    "acked": {"ack_policy": "explicit", "interest": "always", "ack_wait": "1h"},
}


@dataclass(frozen=True, slots=True)
class Need:
    """What a service needs: bytes of memory, and processor time in percent of a core."""

    memory: float
    processor: float


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases that are asked for, each as soon as it is measured. Raises WrongAnswer, PeerUnavailable."""
    sizing = Sizing(dataset.bootstrap, settings, progress)
    for name, fields in POLICIES.items():
        if settings.wants(name, f"{name}-idle"):
            found = [sizing.compare_consumers(name, fields) for _ in range(settings.rounds)]
            few, thousand = [each for each, _ in found], [each for _, each in found]
            yield _make_case(
                name, Unit.MEGABYTES, [each.memory / 1e6 for each in thousand], few=[each.memory / 1e6 for each in few]
            )
            yield _make_case(
                f"{name}-idle",
                Unit.PERCENT,
                [each.processor for each in thousand],
                few=[each.processor for each in few],
            )
    if settings.wants("pending"):
        yield _make_case("pending", Unit.MEGABYTES, [sizing.compare_pending() for _ in range(settings.rounds)])
    if settings.wants("metrics"):
        answers = sizing.time_metrics()
        took, pauses = [each for each, _ in answers], [each for _, each in answers]
        yield replace(_make_case("metrics", Unit.MILLISECONDS, took, pause=pauses), limit={OVERLAY: ANSWER_MS})


def _make_case(name: str, unit: Unit, figures: list[float], **extra: list[float]) -> Case:
    """A case of the medians of these rounds."""
    case = summarise(name, unit, {OVERLAY: figures}, goal={}, skipped={})
    return replace(case, extra={each: statistics.median(values) for each, values in extra.items()})


@dataclass(frozen=True, slots=True)
class Sizing:
    """Runs the services that are compared, on one broker."""

    bootstrap: str
    settings: Settings
    progress: Progress

    def compare_consumers(self, name: str, fields: Mapping[str, object]) -> tuple[Need, Need]:
        """Return what a service with FEW consumers with these fields needs, and what 1,000 more need."""
        more = max(1, round(MORE * self.settings.scale))
        needs = []
        for count in (FEW, FEW + more):
            self.progress.say(f"sizing {name}: {count} consumers")
            with self._serve(count, count, fields) as url:
                needs.append(self._look(url))
        few, many = needs
        thousands = more / 1_000
        return few, Need((many.memory - few.memory) / thousands, (many.processor - few.processor) / thousands)

    def compare_pending(self) -> float:
        """Return the MB that a million unacked messages of one consumer need."""
        fields = {**POLICIES["acked"], "max_ack_pending": -1}
        count = max(100, round(PENDING * self.settings.scale))
        memory = []
        for records in (count, 3 * count):
            self.progress.say(f"sizing pending: {records} messages")
            with self._serve(1, records, fields) as url:
                memory.append(read_metrics(url)[MEMORY])
        return (memory[1] - memory[0]) / (2 * count)

    def time_metrics(self) -> list[tuple[float, float]]:
        """Return of each round, in ms: how long /metrics took, and the longest that /healthz took meanwhile."""
        self.progress.say(f"sizing metrics: {METERED} consumers")
        with self._serve(METERED, METERED, POLICIES["consumers"]) as url:
            return [time_page(url) for _ in range(self.settings.rounds)]

    def _look(self, url: str) -> Need:
        """Return what a service needs that has nothing to do, by a look of `latency_s` seconds."""
        before, began = read_metrics(url), time.perf_counter()
        time.sleep(self.settings.latency_s)  # the span that is measured
        after, ended = read_metrics(url), time.perf_counter()
        return Need(after[MEMORY], 100 * (after[PROCESSOR] - before[PROCESSOR]) / (ended - began))

    @contextmanager
    def _serve(self, consumers: int, records: int, fields: Mapping[str, object]) -> Iterator[str]:
        """Run a service that has delivered so many orders to so many consumers; yields its URL."""
        orders = Orders(self.bootstrap, records, consumers)
        orders.publish(self.progress.count("publishing"))
        outputs = [make_topic(self.bootstrap, "sizing") for _ in range(min(consumers, OUTPUTS))]
        files: dict[str, object] = {"streams/orders.yaml": orders.describe_stream()}
        for number, name in enumerate(map(name_customer, range(consumers))):
            files[f"consumers/{name}.yaml"] = {
                "stream": STREAM,
                "durable_name": name,
                "deliver_subject": outputs[number % len(outputs)],
                "filter_subject": f"orders.{name}",
                **fields,
            }
        with tempfile.TemporaryDirectory(prefix="bench-sizing-") as name:
            folder = Path(name)
            url = write_files(folder, self.bootstrap, files)
            with run_service(folder, url):
                _await(lambda: read_metrics(url).get(DELIVERED, 0) >= records, f"{records} orders are delivered")
                yield url
        for topic in (*outputs, orders.topic):
            delete_topic(self.bootstrap, topic)


def _await(condition: Callable[[], bool], what: str) -> None:
    """Raises WrongAnswer when it does not come true."""
    if not comes_true(condition, DEADLINE_S, pause_s=1):
        raise WrongAnswer(f"overlay: after {DEADLINE_S:.0f} s still not: {what}")


def read_metrics(url: str) -> dict[str, float]:
    """Return the values of a service's metrics by name, summed over all labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(_get(f"{url}/metrics").decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def time_page(url: str) -> tuple[float, float]:
    """Return how many ms /metrics took, and the longest that one of the requests for /healthz took that were sent meanwhile."""
    is_over, longest = threading.Event(), 0.0

    def ask_again() -> None:
        nonlocal longest
        while not is_over.wait(PAUSE_S):
            longest = max(longest, _time(f"{url}/healthz")[0])

    asking = threading.Thread(target=ask_again)
    asking.start()
    try:
        _, former = _time(f"{url}/metrics")
        # a page that was written answers for a while; a new one has another processor time
        while (found := _time(f"{url}/metrics"))[1] == former:
            time.sleep(PAUSE_S)  # no event tells that the page will be written anew
    finally:
        is_over.set()
        asking.join()
    return found[0], longest


def _time(url: str) -> tuple[float, bytes]:
    """Return the ms until an answer has come, and the answer."""
    began = time.perf_counter()
    body = _get(url)
    return (time.perf_counter() - began) * 1_000, body


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        body: bytes = answer.read()
    return body
