"""A config folder, source records, a service to serve them, and an independent reader of what comes out.

The reader is confluent-kafka with read_committed; the expectation is worked out from what the same client reads from the
source topic, so producers need not remember what they wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, TopicPartition
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka.admin import AdminClient

from overlay.cli import overlay
from overlay.config import load
from overlay.consumer.deadlines import NEVER
from overlay.kafka.confluent import Contact
from overlay.waits import comes_true
from overlay.worker.service import Service
from tests.oracle.batches import Header, Record
from tests.oracle.push import Token, parse_token, wants
from tests.support.kafka import SureProducer, describe_statistics
from tests.support.partitions import find_ends
from tests.support.service import STOP_S, write_service_file
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
READ_S = 120.0
"""How long a reader may take to reach the end of a topic."""
MARKERS_S = 10.0
"""How long the marker of a transaction may come after the answer to its commit."""
STATISTICS_MS = 1_000

Value = str | bytes | None
Headers = list[tuple[str, Value]]


@dataclass(frozen=True, slots=True)
class Seen(Record):
    """A record as a client saw it, and where."""

    topic: str = ""
    partition: int = 0

    def header(self, name: bytes) -> bytes | None:
        """The last header of that name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def token(self) -> Token:
        return parse_token(self.header(b"Nats-Reply-To") or b"")

    @property
    def subject(self) -> str:
        return (self.header(b"Nats-Subject") or b"").decode()


class CommittedReader:
    """Reads a topic with read_committed, more at each call."""

    def __init__(self, bootstrap: str, topic: str, kafka: Mapping[str, Any] | None = None) -> None:
        self.topic, self.seen = topic, list[Seen]()
        self._settings = {
            "bootstrap.servers": bootstrap,
            **(kafka or {}),
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
        self._positions: dict[int, int] = {}
        self._statistics = "{}"
        self._open()

    def _open(self) -> None:
        self._contact = Contact()
        watched = {"statistics.interval.ms": STATISTICS_MS, "stats_cb": self._hear}
        self._consumer = Consumer({**self._settings, **watched})

    def _hear(self, statistics: str) -> None:
        self._statistics = statistics
        self._contact.hear(statistics)

    def __enter__(self) -> CommittedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self) -> list[Seen]:
        """Everything up to where the log's committed part ends now, with what was read before. A Kafka client that is lost
        (overlay/kafka/confluent.py, Contact) is replaced."""
        open_ends, until = self._assign(), time.monotonic() + READ_S
        while open_ends:
            if time.monotonic() > until:
                raise AssertionError(
                    f"{self.topic}: the ends of {open_ends} were not reached in {READ_S:g} s:"
                    f" {describe_statistics(self._statistics)}"
                )
            if self._contact.is_lost:
                self._consumer.close()
                self._open()
                open_ends = self._assign()
            for message in self._consumer.consume(1000, 0.05):
                error = message.error()
                if error is None:
                    self.seen.append(_see(message))
                    self._positions[message.partition()] = message.offset() + 1
                elif error.code() == RdKafkaError._PARTITION_EOF:
                    open_ends.discard(message.partition())
                else:
                    raise AssertionError(f"{self.topic}: {error}")
        return self.seen

    def _assign(self) -> set[int]:
        """Assign every partition from its position on; return the partitions."""
        partitions = self._consumer.list_topics(self.topic, 30).topics[self.topic].partitions
        self._consumer.assign(
            [TopicPartition(self.topic, p, self._positions.get(p, OFFSET_BEGINNING)) for p in partitions]
        )
        return set(partitions)


def _see(message: Any) -> Seen:
    headers: list[Header] = [(name.encode(), value) for name, value in message.headers() or ()]
    time = message.timestamp()[1]
    return Seen(message.offset(), time, message.key(), message.value(), headers, message.topic(), message.partition())


def read_committed(bootstrap: str, topic: str, kafka: Mapping[str, Any] | None = None) -> list[Seen]:
    """Everything in a topic, except what a transaction hides that stays open. Kafka answers a commit before its markers
    are in the log, so a transaction that is open now has MARKERS_S to end.
    """
    _await_markers({"bootstrap.servers": bootstrap, **(kafka or {})}, topic)
    with CommittedReader(bootstrap, topic, kafka) as reader:
        return reader.read()


def _await_markers(kafka: Mapping[str, Any], topic: str) -> None:
    """Wait until the committed part of each log reaches to where the log ends now, for MARKERS_S at most. A partition
    of which no broker tells where its log ends is not waited for."""
    client = AdminClient(dict(kafka))
    if not (partitions := client.list_topics(topic, 30).topics[topic].partitions):
        return
    ends = find_ends(client, topic, partitions, IsolationLevel.READ_UNCOMMITTED)

    def is_reached() -> bool:
        committed = find_ends(client, topic, partitions, IsolationLevel.READ_COMMITTED)
        return all((committed[partition] or 0) >= (end or 0) for partition, end in ends.items())

    comes_true(is_reached, MARKERS_S, pause_s=0.02)


@dataclass(slots=True)
class Scene:
    """A config folder in the making. Output topics are named after the consumer, with `prefix`."""

    folder: Path
    bootstrap: str
    prefix: str = field(default_factory=lambda: f"scene-{uuid.uuid4().hex[:8]}")
    replication: int = 1
    """Of the topics that the service makes."""

    def __post_init__(self) -> None:
        write_service_file(self.folder, self.bootstrap, prefix=self.prefix, replication=self.replication)
        (self.folder / "streams").mkdir()
        (self.folder / "consumers").mkdir()

    def add_stream(self, name: str, *topics: str, **more: object) -> None:
        """A stream whose subject is the header `to` under `t.`, unless `more` says otherwise."""
        subject = {"template": "t.{header:to}"}
        self._write("streams", name, {"name": name, "topics": list(topics), "subject": subject, **more})

    def add_consumer(self, stream: str, name: str, *filters: str, **more: object) -> str:
        """A push consumer; returns its output topic."""
        output = f"{self.prefix}-{name}"
        config = {"stream": stream, "durable_name": name, "deliver_subject": output, "ack_policy": "none"}
        self._write("consumers", name, {**config, "filter_subjects": list(filters), **more})
        return output

    def remove_consumer(self, name: str) -> None:
        (self.folder / "consumers" / f"{name}.yaml").unlink()

    def _write(self, kind: str, name: str, config: Mapping[str, object]) -> None:
        # JSON is YAML
        (self.folder / kind / f"{name}.yaml").write_text(json.dumps(config), encoding="utf-8")

    @property
    def state_topic(self) -> str:
        return f"{self.prefix}.state"


@pytest.fixture
def scene(bootstrap: str, tmp_path: Path) -> Scene:
    """A scene on the run's broker."""
    return Scene(tmp_path / "config", bootstrap)


class AckClock:
    """The time by which a service in this process ends ack_wait: it passes as everywhere, and at once when a test says so."""

    def __init__(self) -> None:
        self._ahead_ns = 0

    def now_ns(self) -> int:
        return time.time_ns() + self._ahead_ns

    def advance(self, seconds: float) -> None:
        self._ahead_ns += int(seconds * 1e9)

    def reach(self, at_ns: int) -> None:
        """Be at a moment at least, ns since 1970."""
        self._ahead_ns = max(self._ahead_ns, at_ns - time.time_ns())


@pytest.fixture
def ack_clock(monkeypatch: pytest.MonkeyPatch) -> AckClock:
    """For tests whose acks have to come in time: ack_wait is longer than any machine stalls, and over when they have come."""
    clock = AckClock()
    for module in (
        "overlay.worker.dispatch_loop",
        "overlay.worker.dispatch_setup",
        "overlay.worker.dispatch_io.ack_topics",
    ):
        monkeypatch.setattr(f"{module}.now_ns", clock.now_ns)
    return clock


class Served:
    """The service of a folder in a thread of this process: starts faster than a process, and its errors are ours."""

    def __init__(self, folder: Path) -> None:
        loaded = load(folder)
        assert not loaded.problems, [str(problem) for problem in loaded.problems]
        self.service = Service(loaded)
        self.error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="service")
        self._thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self.service.run(self._stop))
        except BaseException as error:  # noqa: BLE001 - raised again where the thread is awaited
            self.error = error

    def report(self) -> dict[str, Any]:
        """What /readyz, /streams and /consumers say."""
        if self.error is not None:
            raise AssertionError("the service has ended") from self.error

        async def ask() -> dict[str, Any]:
            return self.service.report() | self.service.report_readiness()

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(DEADLINE_S)

    def set_gauges(self) -> None:
        """Set what /metrics sets before it answers."""
        asyncio.run_coroutine_threadsafe(self.service.set_gauges(), self._loop).result(DEADLINE_S)

    def reload(self, scene: Scene, problems: int = 0) -> None:
        """Have it take up the folder as it is now, with so many problems in it."""
        loaded = load(scene.folder)
        assert len(loaded.problems) == problems, [str(problem) for problem in loaded.problems]
        self._loop.call_soon_threadsafe(self.service.reload, loaded)

    def consumer(self, name: str) -> dict[str, Any]:
        return next(found for found in self.report()["consumers"] if found["name"] == name)

    def stream(self, name: str) -> dict[str, Any]:
        return next(found for found in self.report()["streams"] if found["name"] == name)

    def await_ready(self, deadline_s: float = DEADLINE_S) -> None:
        wait_until(lambda: self.report()["ready"], deadline_s, "the service is ready")

    def stop(self) -> None:
        """End it as SIGTERM does, and raise what it raised."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S)
        assert not self._thread.is_alive(), f"the service has not ended {STOP_S} s after it was told to"
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def ending_ack_waits(served: Served, clock: AckClock, redeliveries: int) -> Iterator[None]:
    """For the block, end each ack_wait as soon as it has begun, until the service has redelivered so many messages.

    A reader that subscribes tells from time to time what it has read, and ack_wait begins when the service has heard that: no
    test can know when. The clock goes to the end of an ack_wait that was seen, so none that begins later ends with it.
    """
    left = threading.Event()

    def has_redelivered() -> bool:
        registry = served.service.metrics.registry
        found = [sample for metric in registry.collect() for sample in metric.samples]
        return sum(each.value for each in found if each.name == "overlay_redeliveries_total") >= redeliveries

    def follow() -> None:
        while not left.wait(0.05):
            loops = [session.dispatch_loop for session in served.service.sessions]
            ends = min((loop.dispatcher.next_at for loop in loops if loop is not None), default=NEVER)
            if has_redelivered():
                return
            if ends < NEVER:
                clock.reach(ends)

    with ThreadPoolExecutor(1) as executor:
        following = executor.submit(follow)
        try:
            yield
        finally:
            left.set()
        following.result(DEADLINE_S)


@contextlib.contextmanager
def serve(scene: Scene, *, wait: bool = True) -> Iterator[Served]:
    """Serve a scene for the block, and end it as SIGTERM does."""
    served = Served(scene.folder)
    try:
        if wait:
            served.await_ready()
        yield served
    finally:
        served.stop()


def produce(bootstrap: str, topic: str, to: Iterable[str | None], **settings: Any) -> None:
    """One record for each subject rest in `to` (None: no such header), value = running number, key = number % 7."""
    partition = settings.pop("partition", -1)
    kafka = settings.pop("kafka", {})
    producer = SureProducer(bootstrap, {"linger.ms": 2, **kafka, **settings})
    for number, place in enumerate(to):
        headers: Headers = [] if place is None else [("to", place)]
        producer.produce(topic, str(number), str(number % 7), partition, headers=headers)
        if number % 50_000 == 49_999:
            producer.flush(30)  # before the client's queue is full
    assert producer.flush(30) == 0


def expect(source: Sequence[Seen], filters: Sequence[str] = (), *, prefix: str = "t.") -> list[Seen]:
    """The records of a source topic that a consumer wants: those with a header `to` that fits."""
    return [record for record in source if (to := record.header(b"to")) and wants(filters, prefix + to.decode())]


def check_output(
    found: Sequence[Seen],
    wanted: Sequence[Seen],
    *,
    stream: str = "S",
    consumer: str = "c",
    first: int = 1,
    prefix: str = "t.",
) -> None:
    """Exactly the wanted records of a one-partition source, each once, in order, consumer sequences without a hole."""
    ordered = sorted(found, key=lambda record: record.token.consumer_sequence)
    check_tokens(ordered, stream, consumer, first)
    offsets = [record.token.sequence - 1 for record in ordered]
    assert offsets == [record.offset for record in wanted], describe_difference(offsets, wanted)
    for record, source in zip(ordered, wanted, strict=True):
        assert (record.key, record.value) == (source.key, source.value)
        assert record.token.time == source.timestamp * 1_000_000
        assert record.subject == prefix + (source.header(b"to") or b"").decode()


def check_tokens(ordered: Sequence[Seen], stream: str, consumer: str, first: int = 1) -> None:
    assert [r.token.consumer_sequence for r in ordered] == list(range(first, first + len(ordered)))
    assert {(r.token.stream, r.token.consumer, r.token.deliveries) for r in ordered} <= {(stream, consumer, 1)}
    for partition in {record.partition for record in ordered}:
        at = [record.offset for record in ordered if record.partition == partition]
        assert at == sorted(at), f"partition {partition}: not in the order of the consumer sequence"


def describe_difference(offsets: Sequence[int], wanted: Sequence[Seen]) -> str:
    have, want = set(offsets), {record.offset for record in wanted}
    twice = len(offsets) - len(have)
    lost, more = sorted(want - have), sorted(have - want)
    return f"lost {len(lost)}: {lost[:10]}, not wanted {len(more)}: {more[:10]}, repeated {twice}; else out of order"


def await_records(reader: CommittedReader, count: int, deadline_s: float = DEADLINE_S) -> list[Seen]:
    """Read until there are `count` records."""
    wait_until(lambda: len(reader.read()) >= count, deadline_s, f"{reader.topic} has {count} records")
    return reader.seen


def await_state(served: Served, consumer: str, is_so: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = served.consumer(consumer)
        return found if is_so(found) else None

    found = wait_until(look, DEADLINE_S, f"consumer {consumer} {what}")
    assert found is not None
    return found


def await_caught_up(served: Served, *consumers: str) -> None:
    """Wait until the consumers have passed what their topics hold now."""
    for consumer in consumers:
        ends = _find_ends(served, served.stream(served.consumer(consumer)["stream"])["topics"])

        def is_there(found: dict[str, Any], ends: dict[str, int] = ends) -> bool:
            reached = found.get("positions", {})
            return found["state"] == "running" and all(reached.get(place, -1) >= end for place, end in ends.items())

        await_state(served, consumer, is_there, f"has passed {ends}")


def await_read(served: Served, stream: str) -> None:
    """Wait until everything that the topics of a stream hold now has been read, whether or not it could be delivered."""
    ends = _find_ends(served, served.stream(stream)["topics"])

    def is_read() -> bool:
        reached = {
            f"{topic}-{partition}": min(cursor.position for cursor in cursors)
            for session in served.service.sessions
            for (name, (topic, partition)), cursors in session.cursors.partitions()
            if name == stream and cursors
        }
        return all(reached.get(place, -1) >= end for place, end in ends.items())

    wait_until(is_read, DEADLINE_S, f"stream {stream} has been read up to {ends}")


def _find_ends(served: Served, topics: Iterable[str]) -> dict[str, int]:
    """The high watermark of each partition."""
    settings = {**served.service.loaded.service.kafka, "group.id": "watermarks"}
    client, ends = Consumer(settings), dict[str, int]()
    for topic in topics:
        for partition in client.list_topics(topic, 30).topics[topic].partitions:
            ends[f"{topic}-{partition}"] = client.get_watermark_offsets(TopicPartition(topic, partition), 30)[1]
    client.close()
    return ends


def reset_stream(scene: Scene) -> None:
    """Begin the stream S anew, as an operator does."""
    done = CliRunner().invoke(overlay, ["stream", "reset", "S", "--config", str(scene.folder), "--yes"])
    assert done.exit_code == 0, done.output
