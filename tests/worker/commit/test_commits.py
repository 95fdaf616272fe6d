"""What becomes of rounds: those to more output partitions than one transaction bears, and those that need none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from overlay.errors import SourceUnavailable
from overlay.output.batch_builder import OutputBatch
from overlay.output.entry import Entry
from overlay.output.record import Record
from overlay.output.transaction import Transactions
from overlay.state.shard_state import Delta
from overlay.worker.commit.commits import QUEUE_ROUNDS, CommitUnit
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    await_records,
    await_state,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)

NAMES = [f"c{number}" for number in range(5)]


@pytest.mark.parametrize("failing", [0, 3], ids=["undisturbed", "torn in the middle of a round"])
def test_a_round_in_parts_is_delivered_once(
    failing: int, scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five outputs, two a transaction; the second part of the first round fails and the session begins again."""
    monkeypatch.setattr("overlay.worker.commit.commits.PARTITIONS", 2)
    finish, widths = Transactions.finish, list[int]()

    async def watch(
        self: Transactions, state: bytes, batches: Iterable[OutputBatch] = (), more: Any = (), **named: Any
    ) -> Any:
        sent = list(batches)
        widths.append(len({(outgoing.topic, outgoing.partition) for outgoing in sent}))
        if len(widths) == failing:
            async with self._guard():
                raise SourceUnavailable("on purpose")
        return await finish(self, state, sent, more, **named)

    monkeypatch.setattr(Transactions, "finish", watch)
    topic = new_topic()
    scene.add_stream("S", topic)
    outputs = {name: scene.add_consumer("S", name, *(["t.a"] if name == "c4" else [])) for name in NAMES}
    produce(scene.bootstrap, topic, ["a", "b"] * 500)
    wanted = expect(read_committed(scene.bootstrap, topic), ())
    with serve(scene):
        for name in NAMES:
            with CommittedReader(scene.bootstrap, outputs[name]) as reader:
                await_records(reader, 500 if name == "c4" else 1000)
    assert max(widths) == 2
    for name in NAMES:
        found = read_committed(scene.bootstrap, outputs[name])
        mine = expect(read_committed(scene.bootstrap, topic), ("t.a",)) if name == "c4" else wanted
        check_output(found, mine, stream="S", consumer=name)


def test_a_transaction_that_takes_its_time_does_not_hold_up_those_without_one(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only positions are in the transaction of an at-least-once consumer; its records come while that one is open."""
    finish, is_open, may_end = Transactions.finish, threading.Event(), threading.Event()

    async def hold(
        self: Transactions, state: bytes, batches: Sequence[OutputBatch] = (), more: Any = (), **named: Any
    ) -> Any:
        if b"cursors" in state and is_first_delivered.is_set():
            is_open.set()
            await asyncio.to_thread(may_end.wait, 600)
        return await finish(self, state, batches, more, **named)

    is_first_delivered = threading.Event()
    monkeypatch.setattr(Transactions, "finish", hold)
    topic = new_topic()
    scene.add_stream("S", topic, index={"chunk_age": "10m"})
    output = scene.add_consumer("S", "c", delivery="at_least_once")
    try:
        with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
            produce(scene.bootstrap, topic, ["a"])
            await_records(reader, 1)
            is_first_delivered.set()
            produce(scene.bootstrap, topic, ["a"])
            assert is_open.wait(30)
            for number in range(3 * QUEUE_ROUNDS):
                produce(scene.bootstrap, topic, ["a"])
                await_records(reader, number + 3)
            may_end.set()
    finally:
        may_end.set()


def test_what_can_be_read_is_counted_before_its_position_is_written(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the rounds of a second are written as one: where it was then is where it goes on."""
    monkeypatch.setattr("overlay.worker.commit.commits.LAZY_S", 3_600.0)
    topic = new_topic()
    scene.add_stream("S", topic, index={"chunk_age": "10m"})
    output = scene.add_consumer("S", "c", delivery="at_least_once")
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        for number in range(5):
            produce(scene.bootstrap, topic, ["a"] * 10)
            await_records(reader, 10 * (number + 1))
        rates = served.service.rates
        wait_until(lambda: rates.delivered["S", "c"] == 50, DEADLINE_S, "every record is counted, and once")
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        produce(scene.bootstrap, topic, ["a"])
        await_records(reader, 51)
    found = read_committed(scene.bootstrap, output)
    check_output(found, expect(read_committed(scene.bootstrap, topic), ()), stream="S", consumer="c")


def test_a_machine_that_has_nothing_to_say_does_not_keep_the_log_of_states(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its neighbour's positions leave behind is let go of, and the machine is there after a restart."""
    monkeypatch.setattr("overlay.worker.commit.commits.TELL_ALL_EVERY", 5)
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer("S", "quiet", deliver_subject="", ack_policy="explicit")
    scene.add_consumer("S", "busy")
    reader = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": "low"})
    state, lows = TopicPartition(scene.state_topic, 0), list[int]()

    def is_trimmed() -> bool:
        produce(scene.bootstrap, topic, ["a"])
        low, _ = reader.get_watermark_offsets(state, 10)
        lows.append(low)
        return len(set(lows)) > 2

    with serve(scene):
        wait_until(is_trimmed, 60, "the log of states begins later than before, twice")
    with serve(scene) as served:
        await_state(served, "quiet", lambda found: found.get("acks", {}).get("num_pending", 0) > 0, "has messages")
    reader.close()


def test_a_round_counts_its_answers() -> None:
    """Else the limit of what waits to be committed would not hold for what pull requests are given."""
    answers = [Entry("replies", Record(None, bytes(1_000))) for _ in range(3)]
    assert CommitUnit(Delta(), answers=answers).size >= 3_000
