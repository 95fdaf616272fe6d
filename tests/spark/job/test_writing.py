"""A batch of which the log has lost records between its counting and its writing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark.errors import explain
from spark.job import job
from spark.job.blocks import TALLY
from spark.job.numbering import Count
from spark.job.writing import BatchChanged, write
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_frozen import Stage, stage
from tests.spark.job.test_job import STREAM, produce, read, run
from tests.support.kafka import NewTopicFixture

__all__ = ["stage"]

ADVICE = "If the query ends with this error, start the job again with the same checkpoint: it counts the batch anew"


def test_a_write_task_that_finds_less_than_was_counted_commits_nothing(stage: Stage) -> None:
    """Its transaction is not left open, so the next attempt writes the batch."""
    counts = stage.job.counts.copy()
    counts[-1, 0] += 1
    last, found = counts.shape[0] - 1, int(counts[-1, 0])
    changed = replace(stage.job, batch=1, counts=counts)
    with pytest.raises(
        BatchChanged, match=f"scan task {last} has found {found - 1} records, and {found} when .*{ADVICE}"
    ):
        list(write(changed, iter(stage.blocks)))
    assert stage.write() > 0
    stage.check()


def test_a_batch_that_changed_is_delivered_by_the_next_start(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each record once. The sequences go on behind those that the batch had by the first count."""
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(20))
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    whole = job.count

    def count_more(found: DataFrame) -> list[Count]:
        return [each if each.writer == TALLY else each._replace(rows=each.rows + 1) for each in whole(found)]

    with monkeypatch.context() as patch:
        patch.setattr(job, "count", count_more)
        with pytest.raises(StreamingQueryException) as caught:
            run(spark, folder, tmp_path / "checkpoint")
    assert explain(caught.value).startswith("scan task 0 has found 20 records, and 21 when they were counted")
    assert explain(caught.value).endswith(ADVICE)
    run(spark, folder, tmp_path / "checkpoint")
    assert read(bootstrap, f"{source}-out") == [(n, n + 22) for n in range(20)]
