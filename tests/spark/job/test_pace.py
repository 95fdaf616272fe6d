"""Rate limits and pauses of a job's consumers: they hold back their consumer, and no other."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.kafka.own_topics import job_topic
from overlay.state.job_plan import BatchPlan
from overlay.state.job_plan_codec import decode_plan
from spark.errors import explain
from spark.job.job import Job
from spark.job.journal import Journal
from spark.pipeline import start_pipeline
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_folder import list_plans, write_consumer
from tests.spark.job.test_job import STREAM, break_once, produce, read, run
from tests.support.kafka import NewTopicFixture, SureProducer, remove_records
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

DEADLINE_S = 150
RECORDS = 1_000
SIZE = 100
RATE = 80_000
"""Bits a second: 10 seconds for all values."""
LOW_RATE = RATE // 60
"""Ten minutes for all values, so that a run that is done with what it may send has not come to half of them."""


def produce_values(bootstrap: str, topic: str, numbers: range) -> None:
    """Records in two partitions, whose values have SIZE bytes."""
    producer = SureProducer(bootstrap)
    for n in numbers:
        headers: list[tuple[str, bytes | None]] = [("subject", b"a.1"), ("n", str(n).encode())]
        producer.produce(topic, f"{n:<{SIZE}}".encode(), None, headers=headers, partition=n % 2)
    assert producer.flush(30) == 0


def pause(seconds: float) -> str:
    """The line of a file that pauses a consumer for so long from now on."""
    return f"pause_until: {(datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}\n"


def test_a_paused_consumer_holds_no_other_back(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Neither while it is paused, nor when its pause ends by itself, which makes a batch without new records."""
    source = new_topic(2, retention_ms=-1)
    paused, other = new_topic(), new_topic()
    produce(bootstrap, source, range(200), 2)
    folder = write_job_folder(tmp_path / "config", bootstrap, other, source=source, stream=STREAM)
    write_consumer(folder, "p", paused, pause(3_600))
    for end in (200, 300):
        produce(bootstrap, source, range(end - 100, end) if end > 200 else range(0), 2)
        run(spark, folder, tmp_path / "checkpoint", "c", "p")
        assert [sequence for _, sequence in read(bootstrap, other)] == [*range(1, end + 1)]
    assert not read(bootstrap, paused)
    assert list_plans(folder, bootstrap, "S")[-1].count_behind() == {"p": 300}
    write_consumer(folder, "p", paused, pause(20))
    until = load(folder).consumers["S", "p"].pause_until or 0
    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint"), once=False):
        wait_until(lambda: len(read_committed(bootstrap, paused)) == 300, DEADLINE_S, "the pause is over")
    for parity in (0, 1):
        assert [n for n, _ in read(bootstrap, paused) if n % 2 == parity] == [*range(parity, 300, 2)]
    assert [sequence for _, sequence in read(bootstrap, paused)] == [*range(1, 301)]
    assert min(seen.timestamp for seen in read_committed(bootstrap, paused)) * 1_000_000 >= until


@pytest.mark.timeout(400)
def test_a_rate_limit_holds_no_other_back(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    source = new_topic(2, retention_ms=-1)
    slow, other = new_topic(), new_topic()
    produce_values(bootstrap, source, range(RECORDS))
    folder = write_job_folder(tmp_path / "config", bootstrap, other, source=source, stream=STREAM)
    write_consumer(folder, "slow", slow, f"rate_limit_bps: {LOW_RATE}\n")
    # once is what the limit allows now, and the rest goes on there
    run(spark, folder, tmp_path / "checkpoint", "c", "slow")
    assert len(read(bootstrap, other)) == RECORDS
    assert 0 < len(read(bootstrap, slow)) < RECORDS // 2
    write_consumer(folder, "slow", slow, f"rate_limit_bps: {RATE}\n")
    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint"), once=False):
        wait_until(lambda: len(read_committed(bootstrap, slow)) == RECORDS, DEADLINE_S, "the slow one has all")
    found = read(bootstrap, slow)
    assert [sequence for _, sequence in found] == [*range(1, RECORDS + 1)]
    for parity in (0, 1):
        assert [n for n, _ in found if n % 2 == parity] == [*range(parity, RECORDS, 2)]
    plans = [(plan.now, plan.consumers["slow"]) for plan in list_plans(folder, bootstrap, "S")]
    sent = [(now, count) for now, each in plans if (count := each.last - each.before)]
    assert len(sent) > 2
    for first, (begin, _) in enumerate(sent):
        for last in range(first, len(sent)):
            size = SIZE * sum(count for _, count in sent[first:last])
            assert size * 8_000 <= (sent[last][0] - begin) * RATE, "the rate is kept between any two batches"


def test_a_repeated_batch_reads_what_it_read_for_a_limited_consumer(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = new_topic(2, retention_ms=-1)
    produce_values(bootstrap, source, range(RECORDS))
    output = new_topic()
    more = f"rate_limit_bps: {RATE}\n"
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM, more=more)
    break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete)
    with pytest.raises(StreamingQueryException, match="the driver ends here"):
        run(spark, folder, tmp_path / "checkpoint")
    first = len(read(bootstrap, output))
    assert 0 < first < RECORDS
    run(spark, folder, tmp_path / "checkpoint")
    begun, again = list_all_plans(folder, bootstrap)[:2]
    assert (begun.batch, begun.consumers, begun.now) == (again.batch, again.consumers, again.now)
    found = read(bootstrap, output)
    assert [sequence for _, sequence in found] == [*range(1, len(found) + 1)]
    assert len({n for n, _ in found}) == len(found)
    assert begun.consumers["c"].pace.spent_until > begun.now


@pytest.mark.parametrize("with_loss", [True, False], ids=["fails on loss", "allows loss"])
def test_retention_that_passes_a_consumer_does_not_end_the_job(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_loss: bool,
) -> None:
    """Records that a consumer has missed are removed while it is paused, and again while its first batch is planned. It goes
    on at the log's start and its lost offsets are counted; the other one, which has read them, goes on as ever."""
    source = new_topic(2, retention_ms=-1)
    paused, other = new_topic(), new_topic()
    produce(bootstrap, source, range(200), 2)
    folder = write_job_folder(tmp_path / "config", bootstrap, other, source=source, stream=STREAM)
    write_consumer(folder, "p", paused, pause(3_600))
    options = {} if with_loss else {"failOnDataLoss": "false"}
    run(spark, folder, tmp_path / "checkpoint", "c", "p", options=options)
    remove_records(bootstrap, source, 0, 60)
    write_consumer(folder, "p", paused)
    produce(bootstrap, source, range(200, 300), 2)
    whole = Job._run

    def run_late(self: Job, *args: Any) -> None:
        remove_records(bootstrap, source, 0, 80)
        whole(self, *args)

    monkeypatch.setattr(Job, "_run", run_late)
    run(spark, folder, tmp_path / "checkpoint", "c", "p", options=options)
    assert [sequence for _, sequence in read(bootstrap, other)] == [*range(1, 301)]
    found = read(bootstrap, paused)
    assert [n for n, _ in found if n % 2 == 0] == [*range(160, 300, 2)]
    assert [n for n, _ in found if n % 2] == [*range(1, 300, 2)]
    assert [sequence for _, sequence in found] == [*range(1, len(found) + 1)]
    lost = [{name: each.lost for name, each in plan.consumers.items()} for plan in list_plans(folder, bootstrap, "S")]
    assert {name: sum(each[name] for each in lost) for name in ("c", "p")} == {"c": 0, "p": 80}


def test_retention_that_passes_the_job_is_data_loss(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """As in any query of Spark's: it ends, or with failOnDataLoss off it goes on and each consumer's loss is counted."""
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(100))
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    run(spark, folder, tmp_path / "checkpoint")
    produce(bootstrap, source, range(100, 200))
    remove_records(bootstrap, source, 0, 130)
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, folder, tmp_path / "checkpoint")
    assert "offset 100 is gone: the log begins at 130 now" in explain(caught.value)
    run(spark, folder, tmp_path / "checkpoint", options={"failOnDataLoss": "false"})
    assert [n for n, _ in read(bootstrap, f"{source}-out")] == [*range(100), *range(130, 200)]
    assert list_plans(folder, bootstrap, "S")[-1].consumers["c"].lost == 30


def list_all_plans(folder: Path, bootstrap: str) -> list[BatchPlan]:
    """Every plan of the job, begun or complete, in order."""
    topic = job_topic(load(folder).service.topics.prefix, "S")
    records = [seen.value or b"" for seen in read_committed(bootstrap, topic)]
    return [decode_plan(record) for record in records if json.loads(record)["kind"] == "plan"]
