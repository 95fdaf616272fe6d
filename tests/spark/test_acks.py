"""Acks: what lies on the ack topic, and a driver that is killed between sink and ack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.consumer.acks import Ack, Verb, parse_ack
from spark.acks import ack, nak, term
from spark.source import read_consumer
from tests.spark.deliveries import Delivery, deliver, write_folder
from tests.spark.interrupted import BATCH, run
from tests.support.kafka import NewTopicFixture, make_topic

DEADLINE_S = 200


@pytest.fixture
def folder(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Path:
    """A config folder whose consumer c has an output topic and an ack topic of two partitions."""
    folder = write_folder(tmp_path / "config", bootstrap, new_topic())
    make_topic(bootstrap, name_acks(folder), 2)
    return folder


def name_acks(folder: Path) -> str:
    return f"{load(folder).service.topics.prefix}.S.acks"


def name_output(folder: Path) -> str:
    return load(folder).consumers["S", "c"].deliver_subject


def read_acks(bootstrap: str, topic: str) -> list[Ack]:
    """The ack topic as the service would read it; anything that is no ack fails."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    found = []
    try:
        for partition in range(2):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(20)) is not None and message.error() is None:
                headers = dict(message.headers() or [])
                parsed = parse_ack(headers.get("Nats-Reply-To", message.key()) or b"", message.value() or b"")
                assert isinstance(parsed, Ack), message.value()
                found.append(parsed)
    finally:
        consumer.close()
    return sorted(found, key=lambda each: each.token.stream_seq)


def test_every_kind(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    deliver(bootstrap, name_output(folder), [Delivery(n, deliveries=n) for n in range(1, 7)])
    frame = read_consumer(spark, folder, "c")
    ack(frame.where("sequence = 1"), folder)
    nak(frame.where("sequence = 2"), folder)
    nak(frame.where("sequence = 3"), load(folder), timedelta(seconds=1.5))
    term(frame.where("sequence = 4"), folder)
    term(frame.where("sequence = 5"), folder, "has no tail number: Ä")
    ack(frame.where("sequence > 10"), folder)
    # a row without a token has nothing to ack
    ack(spark.createDataFrame([("S", None)], "stream string, ack_token string"), folder)
    found = read_acks(bootstrap, name_acks(folder))
    assert [(each.token.stream_seq, each.token.deliveries, each.token.consumer) for each in found] == [
        (n, n, "c") for n in range(1, 6)
    ]
    assert [(each.verb, each.delay, each.text) for each in found] == [
        (Verb.ACK, None, ""),
        (Verb.NAK, None, ""),
        (Verb.NAK, 1_500_000_000, ""),
        (Verb.TERM, None, ""),
        (Verb.TERM, None, "has no tail number: Ä"),
    ]
    assert not any(each.is_flawed for each in found)


@pytest.mark.parametrize("delay", [timedelta(microseconds=-1), timedelta(days=366 * 300)])
def test_a_delay_that_is_none(spark: SparkSession, folder: Path, delay: timedelta) -> None:
    with pytest.raises(ValueError, match="has to be 0 or more and at most 292 years"):
        nak(spark.createDataFrame([], "stream string, ack_token string"), folder, delay)


def read_written(spark: SparkSession, folder: Path) -> list[tuple[int, bytes]]:
    rows = spark.read.parquet(str(folder / "sink")).collect()
    return sorted((row.sequence, bytes(row.value)) for row in rows)


def check_interrupted(spark: SparkSession, bootstrap: str, folder: Path, place: Path) -> None:
    """After the death: what was written is not all acked; who takes over writes the rest, everything once, and acks it."""
    total = 3 * BATCH
    acked = [each.token.stream_seq for each in read_acks(bootstrap, name_acks(folder))]
    assert len(read_written(spark, place)) > len(acked) > 0, "it did not die between the two"
    run(spark, folder, place)
    assert read_written(spark, place) == [(n, str(n).encode()) for n in range(1, total)]
    counts = Counter(each.token.stream_seq for each in read_acks(bootstrap, name_acks(folder)))
    assert set(counts) == set(range(1, total))


@pytest.fixture
def filled(bootstrap: str, folder: Path) -> Path:
    """The folder, with deliveries for three batches."""
    deliver(bootstrap, name_output(folder), [Delivery(n, str(n).encode()) for n in range(1, 3 * BATCH)])
    return folder


def test_a_query_that_ends_between_sink_and_ack(
    spark: SparkSession, bootstrap: str, filled: Path, tmp_path: Path
) -> None:
    def die() -> None:
        raise RuntimeError("the driver is out of memory")

    with pytest.raises(StreamingQueryException, match="the driver is out of memory"):
        run(spark, filled, tmp_path, die)
    check_interrupted(spark, bootstrap, filled, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_driver_killed_between_sink_and_ack(
    spark: SparkSession, bootstrap: str, filled: Path, tmp_path: Path
) -> None:
    """The same by SIGKILL, in a process of its own."""
    command = [sys.executable, "-m", "tests.spark.interrupted", str(filled), str(tmp_path)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = driver.wait(DEADLINE_S)
        finally:
            # its Java
            os.killpg(driver.pid, signal.SIGKILL)
    assert code == -signal.SIGKILL, (tmp_path / "driver.log").read_text()
    check_interrupted(spark, bootstrap, filled, tmp_path)
