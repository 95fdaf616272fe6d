"""Records that an output can never take: the job's dead letters are the service's, each exactly once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.kafka.own_topics import job_topic
from overlay.state.job_plan_codec import decode_plan
from spark.errors import explain
from spark.job.job import Job
from spark.job.journal import Journal
from tests.spark.deliveries import write_folder, write_job_folder
from tests.spark.job.test_job import STREAM, break_once, run
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.service import StartService, running_service, write_service_file
from tests.support.waiting import wait_until
from tests.worker.scenes import Seen, read_committed
from tests.worker.test_faults import alter_topic

__all__ = ["running_service"]

LIMIT = 10_000
LARGE = 40_000
RECORDS = 60


def make_value(n: int) -> bytes:
    """A value that an output takes, or for each seventh record one that is too large for it."""
    return str(n).encode() if n % 7 != 3 else f"{n} ".encode() + os.urandom(LARGE)


def produce_sizes(bootstrap: str, topic: str, numbers: range, partitions: int = 1) -> None:
    producer = SureProducer(bootstrap)
    for n in numbers:
        headers: list[tuple[str, bytes | None]] = [("subject", f"a.{n % 5}".encode()), ("n", str(n).encode())]
        key = None if n % 4 == 0 else f"k{n % 6}".encode()
        producer.produce(topic, make_value(n), key, headers=headers, partition=n % partitions)
    assert producer.flush(30) == 0


def bury(letters: str) -> str:
    """The lines of a consumer's file that send what its output can never take to a topic."""
    return f"on_undeliverable: dead_letter\ndead_letter: {letters}\n"


def number_of(seen: Seen) -> int:
    return int(seen.header(b"n") or b"")


def strip_pending(seen: Seen) -> Seen:
    """The record without its offset, its time and num_pending, which a job does not know."""
    headers = [
        (name, (value or b"").rpartition(b".")[0] if name == b"Nats-Reply-To" else value)
        for name, value in seen.headers
        if name != b"Nats-Num-Pending"
    ]
    return replace(seen, offset=0, timestamp=0, topic="", headers=headers)


@pytest.mark.timeout(400)
def test_dead_letters_are_those_of_the_service(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, running_service: StartService
) -> None:
    """Byte for byte, also one that goes without its value since it is too large for the dead-letter topic as well."""
    source = new_topic(retention_ms=-1)
    produce_sizes(bootstrap, source, range(RECORDS))
    producer = SureProducer(bootstrap, {"message.max.bytes": 1_000_000})
    producer.produce(source, os.urandom(90_000), b"k", headers=[("subject", b"a.1"), ("n", b"60")])
    assert producer.flush(30) == 0
    found: dict[str, tuple[list[Seen], list[Seen]]] = {}
    small, graves_config = {"max.message.bytes": str(LIMIT)}, {"max.message.bytes": "60000"}
    for engine in ("service", "spark"):
        output = make_topic(bootstrap, f"{source}-{engine}", 1, small)
        graves = make_topic(bootstrap, f"{source}-{engine}-graves", 1, graves_config)
        more = bury(graves) + "filter: {sql: 'n <> 5'}\noutput: {headers: full}\n"
        write = write_folder if engine == "service" else write_job_folder
        folder = write(tmp_path / engine, bootstrap, output, source=source, stream=STREAM, more=more)
        if engine == "spark":
            run(spark, folder, tmp_path / "checkpoint", options={"minPartitions": "3", "partitionBytes": "100000"})
        else:
            write_service_file(folder, bootstrap)
            service = running_service(folder)
            wait_until(
                lambda output=output, graves=graves: (  # type: ignore[misc]
                    len(read_committed(bootstrap, output)) + len(read_committed(bootstrap, graves)) == RECORDS
                ),
                90,
                "the service has delivered all",
            )
            assert service.stop() == 0
        found[engine] = read_committed(bootstrap, output), read_committed(bootstrap, graves)
    for theirs, ours in zip(found["service"], found["spark"], strict=True):
        assert [strip_pending(seen) for seen in ours] == [strip_pending(seen) for seen in theirs]
    letters = found["spark"][1]
    assert [number_of(seen) for seen in letters] == [*range(3, RECORDS, 7), 60]
    assert letters[-1].value is None and letters[-1].header(b"Nats-Msg-Size") == b"90000"


@pytest.mark.parametrize("place", ["before the deliveries", "behind the deliveries"])
def test_a_batch_that_is_repeated_writes_each_letter_once(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Even if the output's limit has changed in between, and letters and deliveries would be others now."""
    source = new_topic(2, retention_ms=-1)
    produce_sizes(bootstrap, source, range(RECORDS), 2)
    output = make_topic(bootstrap, f"{source}-out", 3, {"max.message.bytes": str(LIMIT)})
    graves = f"{source}-graves"
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM, more=bury(graves))
    failed = (
        break_once(monkeypatch, Job, "_write", lambda *_: True)
        if place == "before the deliveries"
        else break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete)
    )
    with pytest.raises(StreamingQueryException, match="the driver ends here"):
        run(spark, folder, tmp_path / "checkpoint")
    assert failed
    if place == "behind the deliveries":
        # what was given up stays given up: it is committed
        alter_topic(bootstrap, output, max_message_bytes="1000000")
    run(spark, folder, tmp_path / "checkpoint")
    alter_topic(bootstrap, output, max_message_bytes=str(LIMIT))
    produce_sizes(bootstrap, source, range(RECORDS, RECORDS + 20), 2)
    run(spark, folder, tmp_path / "checkpoint")
    numbers = range(RECORDS + 20)
    assert sorted(number_of(seen) for seen in read_committed(bootstrap, graves)) == [n for n in numbers if n % 7 == 3]
    delivered = read_committed(bootstrap, output)
    assert sorted(number_of(seen) for seen in delivered) == [n for n in numbers if n % 7 != 3]
    sequences = sorted(seen.token.consumer_sequence for seen in delivered)
    assert len(set(sequences)) == len(sequences)
    if place == "before the deliveries":
        assert sequences == [*range(1, len(sequences) + 1)], "dead letters leave no hole"
    prefix = load(folder).service.topics.prefix
    plans = [
        decode_plan(seen.value or b"")
        for seen in read_committed(bootstrap, job_topic(prefix, "S"))
        if b'"kind": "plan"' in (seen.value or b"")
    ]
    last = [plan for plan in plans if plan.is_complete][-1]
    assert last.consumers["c"].letters == sum(n % 7 == 3 for n in range(RECORDS, RECORDS + 20))


def test_with_stop_the_job_ends_before_the_batch_is_begun(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """So the file may be changed, and the same batch goes on with dead letters."""
    source = new_topic(2, retention_ms=-1)
    produce_sizes(bootstrap, source, range(10), 2)
    output = make_topic(bootstrap, f"{source}-out", 1, {"max.message.bytes": str(LIMIT)})
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, folder, tmp_path / "checkpoint")
    # record 3 is the second of partition 1
    message = explain(caught.value)
    assert message.startswith(f"{source}-1@1: output topic {output} of consumer 'c' of stream 'S' can never take this")
    assert "Change the topic's settings, or write `on_undeliverable: dead_letter`" in message
    file = folder / "consumers/c.yaml"
    file.write_text(file.read_text() + bury(f"{source}-graves"))
    run(spark, folder, tmp_path / "checkpoint")
    assert [number_of(seen) for seen in read_committed(bootstrap, f"{source}-graves")] == [3]
    assert sorted(number_of(seen) for seen in read_committed(bootstrap, output)) == [0, 1, 2, *range(4, 10)]
