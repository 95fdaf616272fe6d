"""Writing statuses: whatever fails, nothing is raised and nothing piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from overlay.errors import SourceUnavailable
from overlay.fleet import publisher
from overlay.fleet.publisher import AVOID_S, LOOK_S, Publisher, ensure_topic
from overlay.fleet.status import EVERY_MS, MOST_BYTES
from overlay.fleet.timetable import GATHER_S, Scope
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import FLEET_CONFIG
from overlay.metrics import Metrics
from overlay.waits import until


@dataclass
class FakeAdmin:
    """Has no topic, and creates or refuses it."""

    refused: dict[str, str] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    created: list[Any] = field(default_factory=list)

    async def find_topics(
        self, names: Sequence[str], *, with_config: bool, denied: dict[str, str]
    ) -> dict[str, object]:
        denied.update(self.denied)
        return {topic.name: topic for topic in self.created}

    async def create_topics(self, topics: Sequence[Any]) -> tuple[dict[str, object], dict[str, str]]:
        if self.refused:
            return {}, self.refused
        self.created += topics
        return {topic.name: topic for topic in topics}, {}


@dataclass
class FakeProducer:
    """Stands for AIOKafkaProducer. `failures`: raised one after the other by what is written, None for a success."""

    failures: list[BaseException | None] = field(default_factory=list)
    sent: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    started: int = 0
    stopped: int = 0
    client: Any = field(default_factory=lambda: type("Client", (), {"bootstrap": None, "_metadata_update": None})())

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1

    async def send_and_wait(self, topic: str, value: bytes, key: bytes, partition: int) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        assert partition == 0
        self.sent.append((topic, value, key))


@dataclass
class Stage:
    """A publisher with a clock of its own, whose pauses are not waited for. It stops after `rounds` statuses.

    `mark`: what the worker's shards are, by the clock.
    """

    admin: FakeAdmin
    producer: FakeProducer
    monkeypatch: pytest.MonkeyPatch
    rounds: int = 3
    values: Sequence[bytes] = (b"v",)
    mark: Callable[[float], object] = lambda _: None
    now: float = 0.0
    times: list[float] = field(default_factory=list)
    asked: list[Scope] = field(default_factory=list)
    told_lost: list[bool] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    async def run(self) -> None:
        async def pass_over(event: asyncio.Event, seconds: float) -> bool:
            await asyncio.sleep(0)
            self.now += seconds
            return len(self.asked) >= self.rounds

        async def collect(scope: Scope, was_lost: bool) -> Sequence[bytes]:
            self.asked.append(scope)
            self.times.append(round(self.now, 6))
            self.told_lost.append(was_lost)
            if isinstance(self.values, Exception):
                raise self.values
            return self.values

        self.monkeypatch.setattr(publisher, "is_set_within", pass_over)
        self.monkeypatch.setattr(publisher, "monotonic", lambda: self.now)
        self.monkeypatch.setattr(publisher, "AIOKafkaProducer", lambda **_: self.producer)
        await Publisher(
            {"bootstrap.servers": "h:1"},
            cast("Admin", self.admin),
            "p",
            1,
            "w",
            self.metrics,
            collect,
            lambda: self.mark(self.now),
        ).run(asyncio.Event())

    @property
    def pauses(self) -> list[float]:
        """Between the statuses, without that before the last one."""
        return [round(second - first, 6) for first, second in zip(self.times, self.times[1:-1], strict=False)]

    def count(self, result: str) -> float | None:
        return self.metrics.registry.get_sample_value("overlay_fleet_statuses_total", {"result": result})


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(FakeAdmin(), FakeProducer(), monkeypatch)


async def test_a_status_every_few_seconds_and_a_last_one(stage: Stage) -> None:
    await stage.run()
    assert stage.asked == [Scope.ALL, Scope.WORKER, Scope.ALL, Scope.LAST]
    assert (stage.times[0], stage.pauses) == (0.0, [EVERY_MS / 1000] * 2)
    assert stage.producer.sent == [("p.fleet", b"v", b"w")] * 4
    assert (stage.producer.started, stage.producer.stopped, stage.count("written")) == (1, 1, 4)
    (created,) = stage.admin.created
    assert (created.name, created.partitions, created.config) == ("p.fleet", 1, FLEET_CONFIG)


@pytest.mark.parametrize(
    ("failure", "pause"),
    [
        (KafkaConnectionError("gone"), EVERY_MS / 1000),
        (OSError("broken pipe"), EVERY_MS / 1000),
        (SourceUnavailable("no answer"), EVERY_MS / 1000),
        (TimeoutError(), EVERY_MS / 1000),
        (TopicAuthorizationFailedError("p.fleet"), AVOID_S),
        (ValueError("a bug"), AVOID_S),
    ],
    ids=lambda case: type(case).__name__,
)
async def test_a_failure_is_counted_and_tried_again(stage: Stage, failure: Exception, pause: float) -> None:
    stage.producer.failures = [failure]
    await stage.run()
    assert stage.pauses == [pause, EVERY_MS / 1000]
    assert stage.asked[:3] == [Scope.ALL, Scope.ALL, Scope.WORKER], "what was not written is told anew"
    # with a new producer, and without what could not be written
    assert (stage.producer.started, len(stage.producer.sent)) == (2, 3)
    assert (stage.count("failed"), stage.count("written")) == (1, 3)
    assert stage.told_lost == [False, True, False, False]


async def test_a_change_of_the_shards_is_told_at_once(stage: Stage) -> None:
    stage.mark, stage.rounds = (lambda now: now >= 3.4), 4
    await stage.run()
    told = stage.times[2]
    assert 3.4 + GATHER_S - 1e-6 <= told <= 3.4 + GATHER_S + 2 * LOOK_S
    assert stage.times[3] == told + EVERY_MS / 1000
    assert stage.asked[:4] == [Scope.ALL, Scope.WORKER, Scope.ALL, Scope.WORKER]


async def test_a_mark_that_fails_ends_no_statuses(stage: Stage) -> None:
    def fail(_: float) -> object:
        raise ValueError("a bug")

    stage.mark = fail
    await stage.run()
    assert (stage.pauses, stage.count("written")) == ([EVERY_MS / 1000] * 2, 4)


async def test_a_topic_that_may_not_be_created_is_asked_for_once_a_minute(stage: Stage) -> None:
    stage.admin.refused = {"p.fleet": "topic p.fleet cannot be created: not authorized"}
    await stage.run()
    assert stage.pauses == [AVOID_S] * 2
    assert (stage.producer.started, stage.count("failed")) == (0, 4)


async def test_a_topic_that_may_not_be_described(stage: Stage) -> None:
    stage.admin.denied = {"p.fleet": "not authorized"}
    await stage.run()
    assert (stage.admin.created, stage.count("failed")) == ([], 4)


async def test_a_bug_in_the_description_is_no_ones_harm(stage: Stage) -> None:
    stage.values = cast("Sequence[bytes]", ValueError("a bug"))
    await stage.run()
    assert stage.count("failed") == 4


async def test_what_readers_would_refuse_is_not_written(stage: Stage) -> None:
    stage.values = (b"x" * (MOST_BYTES + 1),)
    await stage.run()
    assert (stage.producer.sent, stage.count("failed")) == ([], 4)


async def test_cancelling_closes_the_producer(stage: Stage) -> None:
    stage.rounds = 10**9
    running = asyncio.create_task(stage.run())
    async with asyncio.timeout(60):
        await until(lambda: stage.producer.sent, pause_s=0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stage.producer.stopped == 1


async def test_the_topic_on_a_real_broker(admin: Admin, new_topic: Any) -> None:
    name = f"{new_topic()}.fleet"
    for _ in range(2):
        await ensure_topic(admin, name, FLEET_CONFIG, 1)
    found = (await admin.find_topics([name]))[name]
    assert found.partitions == 1
    assert FLEET_CONFIG.items() <= found.config.items()
