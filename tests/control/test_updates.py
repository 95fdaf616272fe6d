"""Consumers of several partitions that are updated while their acks are pending: nothing is lost, and nothing comes twice
unasked. The ledger tells which message is which."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from overlay.client.control.control import Control
from tests.control.test_serve import control as control
from tests.control.test_serve import served as served
from tests.support.kafka import NewTopicFixture
from tests.support.ledger import read_ledger
from tests.support.waiting import wait_until
from tests.worker.scenes import (
    DEADLINE_S,
    CommittedReader,
    Scene,
    Served,
    await_read,
    await_records,
    produce,
    read_committed,
)
from tests.worker.scenes import scene as scene

PARTITIONS = 3


@pytest.fixture
def stage(scene: Scene, new_topic: NewTopicFixture) -> tuple[Scene, str]:
    """A scene with stream S over three partitions."""
    topic = new_topic(PARTITIONS)
    scene.add_stream("S", topic)
    return scene, topic


def configure(scene: Scene, **more: Any) -> dict[str, Any]:
    given = {"durable_name": "c", "deliver_subject": f"{scene.prefix}-c", "interest": "always", "ack_wait": "60s"}
    return {**given, "filter_subjects": ["t.rome"], **more}


def list_sequences(scene: Scene, topic: str, *places: str) -> list[int]:
    """Stream sequences of all records to these places, rising."""
    ledger = read_ledger(scene)
    records = read_committed(scene.bootstrap, topic)
    wanted = [r for r in records if (r.header(b"to") or b"").decode() in places]
    return sorted(ledger.sequences[(topic, r.partition), r.offset] for r in wanted)


def check_counts(reader: CommittedReader) -> list[tuple[int, int]]:
    """Stream sequence and deliveries in order of the consumer sequence, which has no hole."""
    found = sorted((r.token for r in reader.read()), key=lambda token: token.consumer_sequence)
    assert [token.consumer_sequence for token in found] == list(range(1, len(found) + 1))
    return [(token.sequence, token.deliveries) for token in found]


def ack_all(control: Control, reader: CommittedReader, count: int) -> None:
    """Ack every delivery, until none is pending and there were so many."""
    done = 0

    def is_through() -> bool:
        nonlocal done
        for seen in reader.read()[done:]:
            control.ack(str(seen.token))
        done = len(reader.seen)
        return done >= count and control.info("S", "c").num_ack_pending == 0

    wait_until(is_through, DEADLINE_S, f"{count} deliveries are acked")


def test_a_filter_for_other_partitions(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    """What the new filter wants lies in a partition that the old one wanted nothing of, and that has been read to its end."""
    scene, topic = stage
    for partition, place in enumerate(("rome", "oslo", "bern")):
        produce(scene.bootstrap, topic, [place] * 30, partition=partition)
    control.add("S", configure(scene, max_ack_pending=5))
    with CommittedReader(scene.bootstrap, f"{scene.prefix}-c") as reader:
        await_records(reader, 5)
        produce(scene.bootstrap, topic, ["oslo", "rome"] * 10)
        await_read(served, "S")
        control.update("S", configure(scene, max_ack_pending=5, filter_subjects=["t.oslo"]))
        rome, oslo = list_sequences(scene, topic, "rome"), list_sequences(scene, topic, "oslo")
        wanted = rome[:5] + [sequence for sequence in oslo if sequence > rome[5]]
        assert len(wanted) > 5
        ack_all(control, reader, len(wanted))
        assert check_counts(reader) == [(sequence, 1) for sequence in wanted]


def test_numbers_change_under_pending_acks(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    """max_ack_pending lets more through at once; ack_wait holds for what is delivered from then on."""
    scene, topic = stage
    produce(scene.bootstrap, topic, ["rome", "oslo"] * 60)
    control.add("S", configure(scene, max_ack_pending=5))
    with CommittedReader(scene.bootstrap, f"{scene.prefix}-c") as reader:
        await_records(reader, 5)
        control.update("S", configure(scene, max_ack_pending=20))
        await_records(reader, 20)
        control.update("S", configure(scene, max_ack_pending=30, ack_wait="500ms"))
        await_records(reader, 35)
        again = {sequence for sequence, deliveries in check_counts(reader) if deliveries > 1}
        rome = list_sequences(scene, topic, "rome")
        assert again <= set(rome[20:30])
        control.update("S", configure(scene, max_ack_pending=30))
        ack_all(control, reader, 60)
        counts = check_counts(reader)
    assert sorted(sequence for sequence, deliveries in counts if deliveries == 1) == rome
    assert {sequence for sequence, deliveries in counts if deliveries > 1} <= set(rome[20:])


def test_what_both_filters_want_comes_once(stage: tuple[Scene, str], served: Served, control: Control) -> None:
    """Filters and numbers change to and fro while records come and some of the acks stay away."""
    scene, topic = stage
    filters = itertools.cycle((["t.rome", "t.bern"], ["t.oslo", "t.bern"], ["t.bern"]))
    held, done = list[str](), 0
    control.add("S", configure(scene, filter_subjects=next(filters), max_ack_pending=40))
    with CommittedReader(scene.bootstrap, f"{scene.prefix}-c") as reader:
        for turn in range(4):
            produce(scene.bootstrap, topic, ["bern", "rome", "oslo"] * 40)
            await_records(reader, done + 10)
            for number, seen in enumerate(reader.seen[done:]):
                if number % 4 == turn % 4 and len(held) < 20:
                    held.append(str(seen.token))
                else:
                    control.ack(str(seen.token))
            done = len(reader.seen)
            config = configure(
                scene, filter_subjects=next(filters), max_ack_pending=40 + turn, ack_wait=f"{60 + turn}s"
            )
            control.update("S", config)
        for token in held:
            control.ack(token)
        bern = list_sequences(scene, topic, "bern")

        def is_through() -> bool:
            nonlocal done
            for seen in reader.read()[done:]:
                control.ack(str(seen.token))
            done = len(reader.seen)
            has_all = {seen.token.sequence for seen in reader.seen} >= set(bern)
            return has_all and control.info("S", "c").num_ack_pending == 0

        wait_until(is_through, DEADLINE_S, "all that every filter wanted has come and is acked")
        counts = check_counts(reader)
    assert {deliveries for _, deliveries in counts} == {1}
    assert len({sequence for sequence, _ in counts}) == len(counts)
    assert [sequence for sequence, _ in counts] == sorted(sequence for sequence, _ in counts)
