"""Records of the overlay's own topics that cannot be read: what the events topic, the metrics and the log tell of them."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from overlay.kafka.own_topics import acks_topic, control_topic, events_topic, index_topic
from overlay.kafka.passed_over import PassedOver, gather
from overlay.worker.unreadable import MOST_EVENTS, WINDOW_S, Unreadable, UnreadableTeller
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, CommittedReader, Scene, Served, produce, serve

ROOT = Path(__file__).parents[2]
FOUND = PassedOver("p.control", 0, 7, "json", "no JSON")
ACKED: dict[str, Any] = {"ack_policy": "explicit", "interest": "always"}


def test_what_a_fetch_has_is_told_by_reason_with_the_first_of_each() -> None:
    other = replace(FOUND, offset=8, reason="key")
    later = replace(FOUND, offset=9, text="no JSON either")
    assert gather([FOUND, other, later]) == [replace(FOUND, count=2), other]


def test_one_event_a_minute_tells_of_a_partition_and_a_reason() -> None:
    unreadable = Unreadable()
    unreadable.note(replace(FOUND, count=3))
    assert unreadable.take(100.0) == [replace(FOUND, count=3)]
    for offset in range(1_000):
        unreadable.note(replace(FOUND, offset=offset + 10))
    assert unreadable.take(100.0 + WINDOW_S - 1) == []
    # another reason, or another partition, does not wait for it
    others = [replace(FOUND, reason="key"), replace(FOUND, partition=1)]
    for other in others:
        unreadable.note(other)
    assert unreadable.take(100.0 + WINDOW_S - 1) == others
    assert unreadable.take(100.0 + WINDOW_S) == [replace(FOUND, offset=10, count=1_000)]
    assert unreadable.take(1e6) == []
    unreadable.note(FOUND)
    assert unreadable.take(1e6) == [FOUND]


def test_a_worker_sends_a_limited_number_of_events_a_minute() -> None:
    """What is left over comes later, and what was found first comes first."""
    unreadable, found = Unreadable(), [replace(FOUND, partition=number) for number in range(2 * MOST_EVENTS + 1)]
    for each in found:
        unreadable.note(each)
    assert unreadable.take(100.0) == found[:MOST_EVENTS]
    for each in found:
        unreadable.note(each)
    assert unreadable.take(100.0 + WINDOW_S - 1) == []
    taken = unreadable.take(100.0 + WINDOW_S)
    assert [each.partition for each in taken] == list(range(MOST_EVENTS, 2 * MOST_EVENTS))
    assert {each.count for each in taken} == {2}
    assert len(unreadable.take(100.0 + 2 * WINDOW_S)) == MOST_EVENTS
    assert len(unreadable.take(100.0 + 3 * WINDOW_S)) == 1


async def test_an_event_that_cannot_be_made_ends_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise OverflowError("too much")

    monkeypatch.setattr("overlay.worker.unreadable.encode_unreadable", fail)
    teller = UnreadableTeller(Unreadable(), {}, cast(Any, None), "p", "w")
    teller.unreadable.note(FOUND)
    stop = asyncio.Event()
    stop.set()
    with structlog.testing.capture_logs() as logs:
        await teller.run(stop)
    (told,) = logs
    assert told["log_level"] == "error"
    assert told["count"] == 1


def write(scene: Scene, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = SureProducer(scene.bootstrap)
    for key, value in records:
        producer.produce(topic, value, key)
    assert producer.flush(DEADLINE_S) == 0


def await_events(reader: CommittedReader, topic: str, count: int) -> list[dict[str, Any]]:
    """The events about a topic, once there are so many."""
    key = f"$OVERLAY.EVENT.UNREADABLE.{topic}".encode()

    def find() -> list[dict[str, Any]]:
        return [json.loads(seen.value or b"") for seen in reader.read() if seen.key == key]

    wait_until(lambda: len(find()) >= count, DEADLINE_S, f"{count} events tell of {topic}")
    return find()


def count_metric(served: Served, name: str, **labels: str) -> float:
    return served.service.metrics.registry.get_sample_value(name, labels) or 0.0


def run_page(scene: Scene) -> str:
    """What the command of the page prints that finds such events."""
    lines = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").splitlines()
    (line,) = (each for each in lines if each.startswith("overlay read --topic overlay.events"))
    _, *arguments = shlex.split(line.replace("overlay.events", events_topic(scene.prefix)))
    command = [sys.executable, "-m", "overlay", *arguments, "--bootstrap", scene.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def acked(scene: Scene, new_topic: NewTopicFixture) -> Scene:
    """A scene with a consumer S/c that waits for acks, and some records."""
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "c", **ACKED)
    produce(scene.bootstrap, topic, ["a", "b"])
    return scene


def test_acks_that_cannot_be_read_are_told_of_with_their_offset(acked: Scene) -> None:
    topic = acks_topic(acked.prefix, "S")
    with structlog.testing.capture_logs() as logs, serve(acked) as served:
        refused: list[tuple[bytes | None, bytes | None]] = [
            (b"no token", b"+ACK"),
            (b"$JS.ACK.S.gone.1.1.1.1700000000000000000.0", b"+ACK"),
            (b"no token either", b"+ACK"),
        ]
        write(acked, topic, *refused)
        with CommittedReader(acked.bootstrap, events_topic(acked.prefix)) as reader:
            found = await_events(reader, topic, 2)
        assert {(each["reason"], each["offset"], each["partition"]) for each in found[:2]} == {
            ("token", 0, 0),
            ("unknown", 1, 0),
        }
        assert all(each["text"] and each["server"] for each in found)
        wait_until(
            lambda: count_metric(served, "overlay_acks_refused_total", reason="token") == 2,
            DEADLINE_S,
            "both are counted",
        )
    told = {(each["first"], each["reason"]) for each in logs if each["event"] == "acks passed over"}
    assert {(f"{topic}-0@0", "token"), (f"{topic}-0@1", "unknown")} <= told


def test_control_records_that_cannot_be_read_are_told_of(acked: Scene) -> None:
    topic = control_topic(acked.prefix)
    with serve(acked) as served, CommittedReader(acked.bootstrap, events_topic(acked.prefix)) as reader:
        write(acked, topic, (b"zork", b"1"))
        (found,) = await_events(reader, topic, 1)
        assert (found["reason"], found["count"]) == ("key", 1)
        assert topic in run_page(acked)
        where = {"topic": "control", "reason": "key"}
        assert count_metric(served, "overlay_control_records_unreadable_total", **where) == 1


def test_index_records_that_cannot_be_read_are_counted_and_told_of(acked: Scene) -> None:
    """Each session that reads the index counts them."""
    topic = index_topic(acked.prefix, "S")
    with serve(acked):
        pass
    write(acked, topic, (b"who knows", b"\x09" * 200), (b"who knows", b"\x09" * 200))
    with serve(acked) as served, CommittedReader(acked.bootstrap, events_topic(acked.prefix)) as reader:
        (found,) = await_events(reader, topic, 1)
        assert found["reason"] == "version"
        assert found["count"] >= 2
        where = {"stream": "S", "reason": "version"}
        assert count_metric(served, "overlay_index_records_unreadable_total", **where) >= 2
