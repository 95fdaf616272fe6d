"""A topic of a job is deleted and created again: no record of the new one is delivered for one of the old one, or left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark.errors import explain
from spark.job import job
from spark.job.job import Job
from spark.job.journal import Journal
from spark.job.numbering import Count
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_folder import write_consumer
from tests.spark.job.test_job import STREAM, break_once, produce, read, run
from tests.spark.job.test_pace import LOW_RATE, RECORDS, produce_values
from tests.support.kafka import NewTopicFixture, create_again

ALLOWED = {"failOnDataLoss": "false"}


@pytest.mark.parametrize("place", ["before the plan", "before the deliveries", "behind the deliveries"])
def test_a_batch_that_was_begun_before(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """It ends with what is left of its other topic, if the loss is allowed, and is refused otherwise."""
    again, left = new_topic(retention_ms=-1), new_topic(retention_ms=-1)
    produce(bootstrap, again, range(10))
    produce(bootstrap, left, range(100, 110))
    sources = f"{again}, {left}"
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{again}-out", source=sources, stream=STREAM)
    {
        "before the plan": lambda: break_once(monkeypatch, Journal, "write", lambda plan: not plan.is_complete),
        "before the deliveries": lambda: break_once(monkeypatch, Job, "_write", lambda *_: True),
        "behind the deliveries": lambda: break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete),
    }[place]()
    with pytest.raises(StreamingQueryException, match="the driver ends here"):
        run(spark, folder, tmp_path / "checkpoint")
    create_again(bootstrap, again, 1)
    produce(bootstrap, again, range(1000, 1030))
    with pytest.raises(StreamingQueryException) as caught:
        run(spark, folder, tmp_path / "checkpoint")
    message = f"topic {again} was deleted and created again since batch 0 of job 'S' was begun"
    assert explain(caught.value).startswith(message)
    run(spark, folder, tmp_path / "checkpoint", options=ALLOWED)
    found = read(bootstrap, f"{again}-out")
    old = range(10) if place == "behind the deliveries" else ()
    assert sorted(n for n, _ in found) == [*old, *range(100, 110), *range(1000, 1030)]
    sequences = sorted(sequence for _, sequence in found)
    assert len(set(sequences)) == len(sequences)
    # the loss is behind it
    produce(bootstrap, again, range(1030, 1040))
    run(spark, folder, tmp_path / "checkpoint")
    assert [n for n, _ in read(bootstrap, f"{again}-out")][-10:] == [*range(1030, 1040)]


def test_a_topic_that_is_created_again_while_a_batch_is_read(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the batch is planned or delivered: its tasks may have read the new topic."""
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(10))
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    whole = job.count

    def count_late(found: DataFrame) -> list[Count]:
        counts = whole(found)
        create_again(bootstrap, source, 1)
        produce(bootstrap, source, range(100, 130))
        return counts

    with monkeypatch.context() as patch:
        patch.setattr(job, "count", count_late)
        with pytest.raises(StreamingQueryException) as caught:
            run(spark, folder, tmp_path / "checkpoint", options=ALLOWED)
    assert explain(caught.value).startswith(
        f"topics {source} were deleted and created again while batch 0 of job 'S' was"
    )
    run(spark, folder, tmp_path / "checkpoint", options=ALLOWED)
    assert read(bootstrap, f"{source}-out") == [(n, n - 99) for n in range(100, 130)]


def test_every_consumer_reads_the_new_topic_from_its_start(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """One that has begun in the midst of the old log, one that reads for itself, and one that comes back."""
    source = new_topic(2, retention_ms=-1)
    outputs = {name: new_topic() for name in ("all", "late", "slow", "back")}
    produce_values(bootstrap, source, range(RECORDS))
    folder = write_job_folder(tmp_path / "config", bootstrap, outputs["all"], source=source, stream=STREAM)
    (folder / "consumers/c.yaml").unlink()
    write_consumer(folder, "all", outputs["all"])
    write_consumer(folder, "back", outputs["back"])
    write_consumer(folder, "late", outputs["late"], "deliver_policy: new\n")
    write_consumer(folder, "slow", outputs["slow"], f"rate_limit_bps: {LOW_RATE}\n")
    run(spark, folder, tmp_path / "checkpoint", *outputs)
    # "back" leaves in a batch of its own, which may have some more records for "slow"
    run(spark, folder, tmp_path / "checkpoint", "all", "late", "slow")
    before = {name: len(read(bootstrap, output)) for name, output in outputs.items()}
    assert (before["all"], before["late"], before["back"]) == (RECORDS, 0, RECORDS)
    assert 0 < before["slow"] < RECORDS // 2
    # fewer records than any of them had come to
    create_again(bootstrap, source, 2)
    new = max(1, before["slow"] // 4)
    produce(bootstrap, source, range(2000, 2000 + new), 2)
    write_consumer(folder, "slow", outputs["slow"])
    for count in (new, new + 10):
        produce(bootstrap, source, range(2000 + new, 2000 + count), 2)
        run(spark, folder, tmp_path / "checkpoint", *outputs, options=ALLOWED)
        for name, output in outputs.items():
            found = read(bootstrap, output)
            assert sorted(n for n, _ in found[before[name] :]) == [*range(2000, 2000 + count)], name
            assert [sequence for _, sequence in found] == [*range(1, before[name] + count + 1)], name
