"""overlay/worker/session.py: rounds are fair, and a position that the log does not have is judged before anything moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from overlay.errors import SourceChanged
from overlay.index.start_positions import find_lasts
from overlay.kafka.fetcher import Fetcher
from tests.index.test_start_positions import delete_below
from tests.kafka.answers import refuse_fetches
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import (
    CommittedReader,
    Scene,
    Served,
    await_records,
    await_state,
    check_output,
    check_tokens,
    expect,
    produce,
    read_committed,
    serve,
)

OUT_OF_RANGE = 1


@pytest.fixture
def small_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of each partition at a time, and one partition's data a round."""
    defaults: dict[str, Any] | None = Fetcher.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "partition_bytes", 1_000)
    monkeypatch.setattr("overlay.worker.cursors.intake.ROUND_BYTES", 1)


def count_lost(served: Served) -> float:
    return served.service.metrics.registry.get_sample_value("overlay_records_lost_total", {"stream": "S"}) or 0.0


@pytest.mark.usefixtures("small_fetches")
def test_a_backlog_does_not_starve_others(scene: Scene, new_topic: NewTopicFixture) -> None:
    """Five partitions with a backlog and one of another stream with a little. Both consumers write to one output, whose
    order tells when whose turn came."""
    busy, quiet = new_topic(partitions=5), new_topic()
    noise = np.random.default_rng(1)
    producer = SureProducer(scene.bootstrap, {"batch.num.messages": 20})
    for number in range(5 * 600):
        producer.produce(busy, noise.bytes(400), partition=number % 5, headers=[("to", "a")])
    assert producer.flush(30) == 0
    produce(scene.bootstrap, quiet, ["b"] * 3)
    scene.add_stream("A", busy)
    scene.add_stream("Z", quiet)
    output = scene.add_consumer("A", "busy")
    scene.add_consumer("Z", "quiet", deliver_subject=output)
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        found = await_records(reader, 3_003)
    place = [i for i, record in enumerate(found) if record.token.consumer == "quiet"]
    assert len(place) == 3
    # a round of each partition, and what had been taken before the quiet one's first fetch had come
    assert place[0] < 600, f"{place[0]} records of the backlog came first"


@pytest.mark.usefixtures("small_fetches")
def test_an_offset_out_of_range_that_passes(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka says so for a moment of positions that are in the log: nothing is lost, passed over or delivered twice, and no
    stream stops."""
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    answers = 0

    def refuse(name: str, _: int) -> int:
        nonlocal answers
        answers += name == topic
        return OUT_OF_RANGE if name == topic and answers % 3 else 0

    refuse_fetches(monkeypatch, refuse)
    produce(scene.bootstrap, topic, ["a", "b", None] * 400, **{"batch.num.messages": 25})
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 800)
        produce(scene.bootstrap, topic, ["a"] * 50)
        await_records(reader, 850)
        check_output(reader.seen, expect(read_committed(scene.bootstrap, topic)))
        assert served.report()["reasons"] == []
        assert count_lost(served) == 0
    assert answers > 20


FIRST = 9


@dataclass(slots=True)
class Trimming:
    """Has retention take what lies below an offset, once, before or after a consumer's last messages are looked for."""

    bootstrap: str
    topic: str
    below: int
    early: bool
    is_done: bool = False
    failed: int = 0

    async def find_lasts(self, *args: Any) -> Any:
        if self.early:
            await self._trim()
        try:
            found = await find_lasts(*args)
        except SourceChanged:
            self.failed += 1
            raise
        await self._trim()
        return found

    async def _trim(self) -> None:
        if not self.is_done:
            self.is_done = True
            await asyncio.to_thread(produce, self.bootstrap, self.topic, ["d"] * 5)
            await asyncio.to_thread(delete_below, self.bootstrap, self.topic, self.below)


@pytest.fixture
def snapshot(scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trimming]:
    """A consumer of last messages, at offsets FIRST, 19 and 29 of a log of 30 records, and retention to come."""

    def prepare(below: int, *, early: bool = False) -> Trimming:
        topic = new_topic()
        produce(scene.bootstrap, topic, ["a"] * 10 + ["b"] * 10 + ["c"] * 10, **{"batch.num.messages": 4})
        scene.add_stream("S", topic)
        scene.add_consumer("S", "c", "t.*", deliver_policy="last_per_subject")
        trimming = Trimming(scene.bootstrap, topic, below, early)
        monkeypatch.setattr("overlay.worker.last_messages.find_lasts", trimming.find_lasts)
        return trimming

    return prepare


def await_end(served: Served, end: int, consumer: str = "c") -> None:
    def is_there(found: dict[str, Any]) -> bool:
        return list(found.get("positions", {}).values()) == [end]

    await_state(served, consumer, is_there, f"has passed {end - 1}")


@pytest.mark.parametrize(
    ("below", "early", "wanted"),
    [
        (5, False, [9, 19, 29, 30, 31, 32, 33, 34]),
        (15, False, [19, 29, 30, 31, 32, 33, 34]),
        (30, False, [30, 31, 32, 33, 34]),
        (33, False, [33, 34]),
        (35, False, []),
        # the snapshot is of the consumer's creation, although nothing was committed when the scan failed
        (15, True, [19, 29, 30, 31, 32, 33, 34]),
        (35, True, []),
    ],
)
def test_retention_passes_the_position_during_a_snapshot(
    scene: Scene, snapshot: Callable[..., Trimming], below: int, early: bool, wanted: list[int]
) -> None:
    """Of the last messages those that are still there, then everything after them, each once; also over a restart."""
    trimming = snapshot(below, early=early)
    with serve(scene) as served:
        await_end(served, 35)
        # what lies below the first of the last messages is not missed
        assert count_lost(served) == (0 if early else max(0, below - FIRST))
        assert (trimming.is_done, trimming.failed) == (True, int(early))
    with serve(scene) as served, CommittedReader(scene.bootstrap, f"{scene.prefix}-c") as reader:
        produce(scene.bootstrap, trimming.topic, ["e"])
        found = await_records(reader, len(wanted) + 1)
        assert served.report()["reasons"] == []
    check_tokens(found, "S", "c")
    assert [record.token.sequence - 1 for record in found] == [*wanted, 35]


def test_a_log_that_retention_has_emptied(scene: Scene, snapshot: Callable[..., Trimming]) -> None:
    """There is no record to come by that would settle anything: the snapshot is over all the same, and a restart finds the
    new position."""
    snapshot(35)
    scene.add_consumer("S", "all")
    for lost in (35 - FIRST + 35, 0):
        with serve(scene) as served:
            for consumer in ("c", "all"):
                await_end(served, 35, consumer)
                await_state(served, consumer, lambda found: found["state"] == "running", "has caught up")
            assert count_lost(served) == lost
