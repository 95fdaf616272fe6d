"""A consumer changes between the service and a Spark job, both running, and no record is lost or delivered twice."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.pipeline import start_pipeline
from tests.spark.deliveries import write_folder
from tests.spark.job.test_folder import write_consumer
from tests.spark.job.test_job import STREAM, produce, read
from tests.support.kafka import NewTopicFixture
from tests.support.service import StartService, running_service, write_service_file
from tests.support.waiting import wait_until

__all__ = ["running_service"]

DEADLINE_S = 150


def change_engine(folder: Path, engine: str) -> None:
    """Let a file of consumer c name another engine, as an editor that has finished some seconds ago."""
    file = folder / "consumers/c.yaml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("engine:")]
    file.write_text("\n".join([*lines, f"engine: {engine}", ""]))
    before = time.time() - 5
    os.utime(file, (before, before))


@pytest.mark.timeout(600)
def test_a_consumer_goes_to_spark_and_back(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, running_service: StartService
) -> None:
    """The job has another consumer, and goes on with it; the service was stopped in between once, and once was not."""
    source = new_topic(2, retention_ms=-1)
    output, other = new_topic(), new_topic()
    folder = write_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM)
    write_service_file(folder, bootstrap)
    write_consumer(folder, "d", other)

    def await_all(topic: str, count: int) -> None:
        """Each record of the source is there once, in order by partition, and sequences have no hole."""

        def look() -> bool:
            found = read(bootstrap, topic)
            assert [sequence for _, sequence in found] == [*range(1, len(found) + 1)]
            for parity in (0, 1):
                mine = [n for n, _ in found if n % 2 == parity]
                assert mine == [*range(parity, 2 * len(mine), 2)]
            return len(found) == count

        wait_until(look, DEADLINE_S, f"{count} records in {topic}")

    service = running_service(folder)
    produce(bootstrap, source, range(100), 2)
    await_all(output, 100)
    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint"), once=False) as query:
        await_all(other, 100)
        change_engine(folder, "spark")
        produce(bootstrap, source, range(100, 200), 2)
        await_all(output, 200)
        assert service.stop() == 0
        change_engine(folder, "service")
        produce(bootstrap, source, range(200, 300), 2)
        await_all(other, 300)
        service = running_service(folder)
        await_all(output, 300)
        produce(bootstrap, source, range(300, 400), 2)
        for topic in (output, other):
            await_all(topic, 400)
        assert query.isActive, query.exception()
    change_engine(folder, "spark")
    produce(bootstrap, source, range(400, 500), 2)
    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint")) as query:
        assert query.awaitTermination(DEADLINE_S)
    for topic in (output, other):
        await_all(topic, 500)
    assert service.stop() == 0
