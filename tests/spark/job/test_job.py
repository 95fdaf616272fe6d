"""A job's deliveries are committed exactly once, whatever fails between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from overlay.client.read.bounds import ReadBounds
from overlay.config import load
from overlay.state.partitions import Sources
from spark.errors import explain
from spark.job.job import Job
from spark.job.journal import JobTaken, Journal
from spark.job.keeping import StreamKeeper
from spark.pipeline import start_pipeline
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_blocks import make_plan_of
from tests.support.kafka import NewTopicFixture, SureProducer, add_partitions
from tests.worker.scenes import Seen, read_committed

STREAM = "properties: {n: long}\nsubjects: ['a.>']\n"
DEADLINE_S = 150


def produce(bootstrap: str, topic: str, numbers: range, partitions: int = 1) -> None:
    producer = SureProducer(bootstrap)
    for n in numbers:
        headers: list[tuple[str, bytes | None]] = [("subject", f"a.{n % 5}".encode()), ("n", str(n).encode())]
        producer.produce(topic, str(n).encode(), f"k{n % 7}".encode(), headers=headers, partition=n % partitions)
    assert producer.flush(30) == 0


def run(spark: SparkSession, folder: Path, checkpoint: Path, *names: str, **more: Any) -> None:
    """Deliver what is there. Raises what ends the query."""
    with start_pipeline(spark, folder, names or "c", str(checkpoint), **more) as query:
        assert query.awaitTermination(DEADLINE_S), query.lastProgress


def read(bootstrap: str, topic: str) -> list[tuple[int, int]]:
    """Number and consumer sequence of each committed record."""
    return [
        (int(seen.value or b""), int(find_token(seen).split(b".")[-3])) for seen in read_committed(bootstrap, topic)
    ]


def find_token(seen: Seen) -> bytes:
    """The ack token of a delivery."""
    return dict(seen.headers)[b"Nats-Reply-To"] or b""


def break_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, when: Callable[..., bool]) -> list[int]:
    """Let a method fail the first time that `when` is true of its arguments; return a list that has an entry then."""
    whole, failed = getattr(owner, name), list[int]()

    def fail(self: Any, *args: Any, **more: Any) -> Any:
        if not failed and when(*args):
            failed.append(1)
            raise RuntimeError("the driver ends here")
        return whole(self, *args, **more)

    monkeypatch.setattr(owner, name, fail)
    return failed


@pytest.mark.parametrize("place", ["before the plan", "before the deliveries", "behind the deliveries"])
def test_a_batch_that_was_cut_off_is_delivered_once(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    source = new_topic(2, retention_ms=-1)
    produce(bootstrap, source, range(300), 2)
    more = "filter: {sql: 'n % 3 <> 0'}\noutput: {partitions: 3}\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM, more=more)
    failed = {
        "before the plan": lambda: break_once(monkeypatch, Journal, "write", lambda plan: not plan.is_complete),
        "before the deliveries": lambda: break_once(monkeypatch, Job, "_write", lambda *_: True),
        "behind the deliveries": lambda: break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete),
    }[place]()
    with pytest.raises(StreamingQueryException, match="the driver ends here"):
        run(spark, folder, tmp_path / "checkpoint", options={"minPartitions": "3", "partitionBytes": "2000"})
    assert failed
    produce(bootstrap, source, range(300, 400), 2)
    run(spark, folder, tmp_path / "checkpoint")
    found = read(bootstrap, f"{source}-out")
    assert sorted(n for n, _ in found) == [n for n in range(400) if n % 3]
    assert sorted(sequence for _, sequence in found) == list(range(1, len(found) + 1))


def test_an_output_gets_partitions_before_a_batch_is_run_again(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record of that batch goes where it went before, and later ones to the new partitions as well."""
    source, output = new_topic(retention_ms=-1), new_topic(2)
    produce(bootstrap, source, range(100))
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM)
    break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete)
    with pytest.raises(StreamingQueryException, match="the driver ends here"):
        run(spark, folder, tmp_path / "checkpoint")
    add_partitions(bootstrap, output, 5)
    produce(bootstrap, source, range(100, 200))
    run(spark, folder, tmp_path / "checkpoint")
    assert sorted(read(bootstrap, output)) == [(n, n + 1) for n in range(200)]
    assert {seen.partition for seen in read_committed(bootstrap, output)} > {0, 1}


@pytest.mark.parametrize("place", ["before the deliveries", "behind the deliveries"])
def test_last_messages_are_delivered_once(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """The last record of each subject at the start, of which the filter refuses one, and then all that come. The driver ends
    with the batch that has the last ones, when there are records already that would be later ones."""
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(300))
    more = "deliver_policy: last_per_subject\nfilter_subject: a.*\nfilter: {sql: 'n % 3 <> 0'}\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM, more=more)
    options = {"maxRecordsPerTrigger": "150"}
    if place == "before the deliveries":
        failed = break_once(monkeypatch, Job, "_write", lambda *_: True)
    else:
        failed = break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete and plan.consumers["c"].last)
    with pytest.raises(StreamingQueryException, match="the driver ends here"):
        run(spark, folder, tmp_path / "checkpoint", options=options)
    assert failed
    produce(bootstrap, source, range(300, 350))
    run(spark, folder, tmp_path / "checkpoint", options=options)
    wanted = [295, 296, 298, 299, *(n for n in range(300, 350) if n % 3)]
    assert read(bootstrap, f"{source}-out") == [(n, at) for at, n in enumerate(wanted, 1)]


def test_several_consumers_in_one_job(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Two share an output; each has sequences of its own. A third comes later and begins at the log's start."""
    source = new_topic(retention_ms=-1)
    shared, own = f"{source}-shared", f"{source}-own"
    folder = write_job_folder(
        tmp_path / "config", bootstrap, shared, source=source, stream=STREAM, more="filter_subject: a.1\n"
    )
    for name, output, more in (("d", shared, "filter: {sql: 'n < 100'}"), ("e", own, "filter_subject: a.2")):
        text = f"stream: S\ndurable_name: {name}\ndeliver_subject: {output}\nack_policy: none\nengine: spark\n{more}\n"
        (folder / "consumers" / f"{name}.yaml").write_text(text)
    produce(bootstrap, source, range(200))
    run(spark, folder, tmp_path / "checkpoint", "c", "d")
    produce(bootstrap, source, range(200, 300))
    run(spark, folder, tmp_path / "checkpoint", "c", "d", "e")
    records = read_committed(bootstrap, shared)
    for name, wanted in (("c", [n for n in range(300) if n % 5 == 1]), ("d", list(range(100)))):
        mine = [record for record in records if f".S.{name}.".encode() in find_token(record)]
        assert [int(record.value or b"") for record in mine] == wanted
    assert read(bootstrap, own) == [(n, at) for at, n in enumerate(range(2, 300, 5), 1)]


@pytest.mark.parametrize("partitions", [1, 3])
def test_records_of_several_partitions_come_in_the_order_of_their_sequences(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, partitions: int
) -> None:
    """The ledger has them in turns, as a service that was there before gave them out. num_pending counts down in that order,
    and nothing that was sent to the executors is left there."""
    source, output = new_topic(2, retention_ms=-1), new_topic(partitions)
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM)
    loaded = load(folder)
    ends = {(source, partition): 0 for partition in (0, 1)}
    with StreamKeeper(loaded.service, loaded.streams["S"], lambda: ReadBounds((), Sources((), {}))) as keeper:
        for first in range(0, 60, 6):
            produce(bootstrap, source, range(first, first + 6), 2)
            ends = {source: end + 3 for source, end in ends.items()}
            assert keeper.extend(ends)
    before = len(os.listdir(spark.sparkContext._temp_dir))
    run(spark, folder, tmp_path / "checkpoint", options={"minPartitions": "4"})
    assert len(os.listdir(spark.sparkContext._temp_dir)) == before
    seen = read_committed(bootstrap, output)
    for partition in range(partitions):
        tokens = [each.token for each in seen if each.partition == partition]
        assert [token.sequence for token in tokens] == sorted(token.sequence for token in tokens)
    found = sorted((each.token.sequence, each.token.consumer_sequence, each.token.pending) for each in seen)
    assert found == [(at, at, 60 - at) for at in range(1, 61)]


def test_a_checkpoint_of_another_job_is_refused(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source = new_topic(retention_ms=-1)
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    for end in (10, 20):
        produce(bootstrap, source, range(end - 10, end))
        run(spark, folder, tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, folder, tmp_path / "another")
    assert "has come to batch 1" in explain(caught.value)
    assert len(read(bootstrap, f"{source}-out")) == 20


def test_a_filter_that_changes_within_a_batch_is_refused(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(10))
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete)
    with pytest.raises(StreamingQueryException):
        run(spark, folder, tmp_path / "checkpoint")
    text = (folder / "consumers/c.yaml").read_text()
    (folder / "consumers/c.yaml").write_text(text + "filter_subject: a.1\n")
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, folder, tmp_path / "checkpoint")
    assert "since then consumer 'c' has changed" in explain(caught.value)
    # the batch ends as it was begun, and the change counts from the next one on
    (folder / "consumers/c.yaml").write_text(text)
    run(spark, folder, tmp_path / "checkpoint")
    (folder / "consumers/c.yaml").write_text(text + "filter_subject: a.1\n")
    produce(bootstrap, source, range(10, 20))
    run(spark, folder, tmp_path / "checkpoint")
    assert [n for n, _ in read(bootstrap, f"{source}-out")] == [*range(10), 11, 16]


def test_a_driver_that_was_replaced_writes_no_plan(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    folder = write_job_folder(tmp_path / "config", bootstrap, new_topic())
    service = load(folder).service
    with Journal(service.kafka, service.topics.prefix, "J", 1) as first:
        first.write(make_plan_of(0, 0, 5))
        with Journal(service.kafka, service.topics.prefix, "J", 1) as second:
            assert second.last == make_plan_of(0, 0, 5)
            second.write(make_plan_of(1, 5, 9))
            with pytest.raises(JobTaken, match="job 'J' is run by another driver now"):
                first.write(make_plan_of(1, 5, 8))
    with Journal(service.kafka, service.topics.prefix, "J", 1) as third:
        assert third.last == make_plan_of(1, 5, 9)
        assert third.assign_writers([("out", 2), ("out", 0)]) == {("out", 2): 1, ("out", 0): 2}
