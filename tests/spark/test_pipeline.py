"""A consumer as a Spark job: the records of the service, batch for batch, and no second job beside it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.config.consumer import Timestamps
from overlay.inspect.reading import TopicNotFound
from spark.errors import explain
from spark.figures import count_offsets
from spark.job.folder import NotForSpark, check_consumer
from spark.lease import Lease, NotOwner
from spark.output import Output, UnknownConsumer, find_output
from spark.pipeline import main, start_pipeline
from tests.oracle.push import place
from tests.spark.deliveries import write_folder, write_job_folder
from tests.support.kafka import NewTopicFixture, SureProducer, make_topic
from tests.support.service import StartService, find_free_port, running_service, write_service_file
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

__all__ = ["running_service"]

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]

RECORDS = 400
DEADLINE_S = 150
STREAM = "properties: {n: long}\nsubjects: ['a.>']\n"
FILTER = "filter_subject: a.*.x\nfilter: {sql: 'n % 3 <> 0'}\n"
ONCE_MORE = "delivery: at_least_once\n"


def produce_source(bootstrap: str, topic: str, numbers: range, partitions: int = 1) -> None:
    producer = SureProducer(bootstrap)
    for n in numbers:
        headers: list[tuple[str, bytes | None]] = [
            ("subject", f"a.{n % 5}.{'x' if n % 2 else 'y'}".encode()),
            ("n", str(n).encode()),
            ("none", None),
        ]
        if n % 5:
            headers[1:1] = [("Nats-Subject", b"theirs"), ("Nats-Sequence", b"theirs as well")]
        key = None if n % 4 else f"k{n % 7}".encode()
        value = None if n % 11 == 0 else f'{{"n": {n}}}'.encode()
        producer.produce(topic, value, key, headers=headers, partition=n % partitions, timestamp=1_600_000_000_000 + n)
    assert producer.flush(30) == 0


def read_all(bootstrap: str, topic: str, partition: int = 0) -> list[Record]:
    """Key, value and headers of every record."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Record] = []
    try:
        while (message := consumer.poll(20)) is not None and message.error() is None:
            found.append((message.key(), message.value(), list(message.headers() or [])))
    finally:
        consumer.close()
    return found


def with_less_ahead(record: Record, count: int) -> Record:
    """The record as it was delivered when so many of the records ahead of it were not in the log yet."""
    key, value, headers = record
    changed: list[tuple[str, bytes | None]] = []
    for name, text in headers:
        start, dot, pending = (text or b"").rpartition(b".")
        is_number = name in ("Nats-Reply-To", "Nats-Num-Pending")
        changed.append((name, start + dot + str(int(pending) - count).encode() if is_number else text))
    return key, value, changed


def run(spark: SparkSession, folder: Path, checkpoint: Path, **more: Any) -> list[dict[str, Any]]:
    """Deliver what is there; the progress of each batch."""
    with start_pipeline(spark, folder, "c", str(checkpoint), **more) as query:
        assert query.awaitTermination(DEADLINE_S), query.lastProgress
        return [dict(progress) for progress in query.recentProgress]


@pytest.mark.parametrize(
    "output",
    [
        "{headers: full}",
        pytest.param("{partitions: 3, headers: full}", marks=pytest.mark.slow),
        pytest.param("{partitions: 3, partition_by: subject}", marks=pytest.mark.slow),
        pytest.param("{timestamps: source, config: {retention.ms: -1}}\nheaders_only: true", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_the_records_are_those_of_the_service(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    running_service: StartService,
    output: str,
) -> None:
    # the records are of 2020
    source = new_topic(retention_ms=-1)
    theirs, ours = f"{source}-service", f"{source}-spark"
    more = FILTER + ONCE_MORE + f"output: {output}\n"
    served = write_folder(tmp_path / "served", bootstrap, theirs, source=source, stream=STREAM, more=more)
    write_service_file(served, bootstrap)
    folder = write_job_folder(tmp_path / "config", bootstrap, ours, source=source, stream=STREAM, more=more)
    partitions = load(folder).consumers["S", "c"].output.partitions
    half = RECORDS // 2
    produce_source(bootstrap, source, range(half))
    # several tasks in a batch
    run(spark, folder, tmp_path / "checkpoint", options={"minPartitions": "3", "partitionBytes": "1000"})
    produce_source(bootstrap, source, range(half, RECORDS))
    run(spark, folder, tmp_path / "checkpoint")
    wanted = sum(n % 2 == 1 and n % 3 != 0 for n in range(RECORDS))
    service = running_service(served)

    def count() -> int:
        return sum(len(read_all(bootstrap, theirs, p)) for p in range(partitions))

    wait_until(lambda: count() == wanted, 60, f"{wanted} records from the service")
    assert service.stop() == 0
    for partition in range(partitions):
        # the job's first batch ended where the second half began, of which every other record has a wanted subject
        wanted_records = [
            with_less_ahead(record, half // 2 if int(dict(record[2])["n"] or b"") < half else 0)
            for record in read_all(bootstrap, theirs, partition)
        ]
        assert read_all(bootstrap, ours, partition) == wanted_records
    if load(folder).consumers["S", "c"].output.timestamps is Timestamps.SOURCE:
        times = [[seen.timestamp for seen in read_committed(bootstrap, topic)] for topic in (theirs, ours)]
        assert times[0] == times[1] == [1_600_000_000_000 + n for n in range(RECORDS) if n % 2 == 1 and n % 3 != 0]


def test_by_start_time_is_no_filter(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """It begins at the first record at or after the time; older ones behind it are delivered, as the service does."""
    source = new_topic(retention_ms=-1)
    for _ in range(2):
        produce_source(bootstrap, source, range(30))
    start = "deliver_policy: by_start_time\nopt_start_time: 2020-09-13T12:26:40.020Z\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, more=start + ONCE_MORE)
    run(spark, folder, tmp_path / "checkpoint")
    found = [dict(headers)["n"] for _, _, headers in read_all(bootstrap, f"{source}-out")]
    assert found == [b"%d" % n for n in (*range(20, 30), *range(30))]


@contextlib.contextmanager
def hold(output: Output, patience_s: float = 12.0) -> Iterator[Lease]:
    lease = Lease(output)
    try:
        lease.take(patience_s)
        yield lease
    finally:
        lease.release()


def test_only_one_pipeline_runs_a_consumer(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source = new_topic()
    # with several partitions the second one is given some
    folder = write_job_folder(tmp_path / "config", bootstrap, new_topic(3), source=source, more=ONCE_MORE)
    output = find_output(folder, "c")
    with hold(output) as lease:
        with pytest.raises(NotOwner, match=r"is run by another pipeline: .* at .*Stop that one first"):
            run(spark, folder, tmp_path / "checkpoint", patience_s=3.0)
        lease.check()
    # what was left is free at once
    with hold(output, 5.0) as lease:
        lease.check()


def test_a_lease_that_is_lost(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    folder = write_job_folder(tmp_path / "config", bootstrap, new_topic(2), more=ONCE_MORE)
    lease = Lease(find_output(folder, "c"))
    lease.take(5)
    lease._lose(None, [TopicPartition("x", 1)])
    lease.check()
    lease._lose(None, [TopicPartition("x", 0)])
    with pytest.raises(NotOwner, match="was cut off from Kafka"):
        lease.check()
    lease.release()


@pytest.mark.parametrize("by", ["key", "subject", "source"])
def test_several_output_partitions(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, by: str
) -> None:
    """Where each record goes, and that each partition has its records in order, though many tasks scanned them."""
    source = new_topic(2, retention_ms=-1)
    produce_source(bootstrap, source, range(300), partitions=2)
    more = f"output: {{partitions: 3, partition_by: {by}}}\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, more=more)
    run(spark, folder, tmp_path / "checkpoint", options={"minPartitions": "4", "partitionBytes": "1000"})
    found = [list_numbers(bootstrap, f"{source}-out", partition) for partition in range(3)]
    in_order = [*range(0, 300, 2), *range(1, 300, 2)]
    keys = [None if n % 4 else f"k{n % 7}".encode() for n in range(300)]
    subjects = [f"a.{n % 5}.{'x' if n % 2 else 'y'}" for n in range(300)]
    assert found == [[n for n in in_order if place(by, 3, n % 2, keys[n], subjects[n]) == p] for p in range(3)]


def list_numbers(bootstrap: str, topic: str, partition: int = 0) -> list[int]:
    """The header n of each record."""
    return [int(dict(headers)["n"] or b"") for _, _, headers in read_all(bootstrap, topic, partition)]


def test_a_consumer_of_the_service_is_refused(bootstrap: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "served", bootstrap, "nowhere")
    with pytest.raises(
        NotForSpark, match=r"consumer 'c' of stream 'S' is delivered by the service.*write `engine: spark`"
    ):
        check_consumer(find_output(folder, "c").consumer)


def test_what_is_wrong_is_told_at_the_start(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    folder = write_job_folder(tmp_path / "config", bootstrap, "nowhere", more=ONCE_MORE)
    with (
        pytest.raises(TopicNotFound, match="topic 'nowhere-source': there is no such topic"),
        start_pipeline(spark, folder, "c", str(tmp_path / "checkpoint")),
    ):
        pass
    with (
        pytest.raises(UnknownConsumer, match="there is no consumer 'd'"),
        start_pipeline(spark, folder, "d", str(tmp_path / "checkpoint")),
    ):
        pass
    program = [sys.executable, "-m", "spark.pipeline", "--checkpoint", str(tmp_path), "--config", str(folder)]
    done = subprocess.run([*program, "--consumer", "d"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {folder}: there is no consumer 'd'")


def test_errors_that_come_through_java() -> None:
    text = "[PYTHON] went wrong\nTraceback (most recent call last):\n  File x\nspark.lease.NotOwner: consumer 'c' is\n\tat org"
    assert explain(Exception(text)) == "consumer 'c' is"
    assert explain(Exception("java.lang.X: y")) == "java.lang.X: y"


def test_offsets_are_summed() -> None:
    assert count_offsets('{"a": {"0": 3, "1": 4}, "b": {"0": 5}}') == 12
    for text in (None, "", "null", "[]", '{"a": 3}'):
        assert count_offsets(text) == 0


def test_metrics_have_the_service_s_names(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source = new_topic(retention_ms=-1)
    produce_source(bootstrap, source, range(30))
    folder = write_job_folder(
        tmp_path / "config", bootstrap, f"{source}-out", source=source, more=FILTER + ONCE_MORE, stream=STREAM
    )
    port = find_free_port()
    with start_pipeline(spark, folder, "c", str(tmp_path / "checkpoint"), once=False, metrics_port=port):

        def read() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                return str(page.read().decode())

        wanted = sum(n % 2 == 1 and n % 3 != 0 for n in range(30))
        line = f'overlay_records_delivered_total{{consumer="c",stream="S"}} {wanted}.0'
        wait_until(lambda: line in read(), 60, line)
        wait_until(lambda: 'overlay_consumer_lag_records{consumer="c",stream="S"} 0.0' in read(), 30, "no lag")
        wait_until(lambda: 'overlay_consumer_lag_seconds{consumer="c",stream="S"} 0.0' in read(), 60, "no age")
        owner = f'application="{spark.sparkContext.applicationId}",spark_job="S",stream="S"'
        page = read()
        assert f"overlay_spark_job_info{{{owner}}} 1.0" in page
        assert f'overlay_consumer_position{{consumer="c",partition="0",stream="S",topic="{source}"}} 30.0' in page
        assert "overlay_ready" not in page


def test_jobs_of_several_streams_share_their_metrics(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """The program takes an address of metrics for all streams."""
    source = new_topic(retention_ms=-1)
    produce_source(bootstrap, source, range(10))
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, more=ONCE_MORE)
    for kind in ("streams", "consumers"):
        (first,) = (folder / kind).iterdir()
        text = first.read_text().replace(f"{source}-out", f"{source}-out2")
        first.with_name("other.yaml").write_text(
            text.replace("name: S\n", "name: T\n").replace("stream: S\n", "stream: T\n")
        )
    words = ["--config", str(folder), "--checkpoint", str(tmp_path / "checkpoint"), "--metrics-port", "0"]
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(main, words)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.exit_code == 0, done.output
    for output in ("out", "out2"):
        assert len(read_all(bootstrap, f"{source}-{output}")) == 10


def test_times_of_the_source_and_no_values(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """`output.timestamps: source` and `headers_only`: what is written is what the settings say, as in the service."""
    source = new_topic(retention_ms=-1)
    produce_source(bootstrap, source, range(30))
    more = "headers_only: true\noutput: {timestamps: source, headers: full, config: {retention.ms: -1}}\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, more=more, stream=STREAM)
    run(spark, folder, tmp_path / "checkpoint")
    found = read_committed(bootstrap, f"{source}-out")
    assert [seen.timestamp for seen in found] == [1_600_000_000_000 + n for n in range(30)]
    sizes = [0 if n % 11 == 0 else len(f'{{"n": {n}}}') for n in range(30)]
    assert [seen.header(b"Nats-Msg-Size") for seen in found] == [b"%d" % size for size in sizes]
    assert {seen.value for seen in found} == {None}
    assert [seen.header(b"n") for seen in found] == [b"%d" % n for n in range(30)]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_program_goes_on_until_sigterm(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    source = new_topic(retention_ms=-1)
    produce_source(bootstrap, source, range(30))
    folder = write_job_folder(
        tmp_path / "config", bootstrap, f"{source}-out", source=source, more=FILTER + ONCE_MORE, stream=STREAM
    )
    make_topic(bootstrap, f"{source}-out")
    program = [sys.executable, "-m", "spark.pipeline", "--checkpoint", str(tmp_path / "checkpoint"), "--continuous"]
    command = [*program, "--config", str(folder), "--consumer", "c", "--master", "local[2]"]
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

        def has_written(count: int) -> bool:
            assert job.poll() is None, (tmp_path / "log").read_text()
            return len(read_all(bootstrap, f"{source}-out")) == count

        try:
            wait_until(lambda: has_written(10), 200, "the first records")
            produce_source(bootstrap, source, range(30, 60))
            wait_until(lambda: has_written(20), 100, "the others")
            job.send_signal(signal.SIGTERM)
            assert job.wait(60) == 0, (tmp_path / "log").read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
