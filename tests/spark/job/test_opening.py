"""Before a job's journal is opened: the state of another stream is refused, and so is a job whose state topic is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from overlay.config import load
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import job_topic
from overlay.state.shard_state import ConsumerState
from overlay.state.takeover import ensure_state_topic
from spark.job.checkpoint import ForeignCheckpoint
from spark.job.opening import check_missing, check_state
from spark.lease import run_apart
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_job import STREAM, produce, read, run
from tests.state.test_handover import Place, bare, make_plan, place
from tests.support.kafka import NewTopicFixture, await_markers, delete_topic

__all__ = ["bare", "place"]

DEADLINE_S = 30


async def check(place: Place, job: str, stream: str = "S", *, has_batches: bool = False) -> None:
    await check_state(place.service.kafka, place.prefix, job, stream, has_batches=has_batches)


def is_there(bootstrap: str, topic: str) -> bool:
    return topic in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=DEADLINE_S).topics


def test_a_job_without_a_state_topic_has_delivered_nothing() -> None:
    check_missing("J", "o.spark.J", (), has_batches=False)
    with pytest.raises(ForeignCheckpoint, match=r"checkpoint has batches, and job 'J' has no state topic o\.spark\.J"):
        check_missing("J", "o.spark.J", (), has_batches=True)
    for has_batches in (False, True):
        with pytest.raises(
            ForeignCheckpoint,
            match=r"job 'J' delivers 'c' of stream 'S', 'd' of stream 'S', and topic o\.spark\.J, .* Restore the topic; or",
        ):
            check_missing("J", "o.spark.J", (("S", "c"), ("S", "d")), has_batches=has_batches)


async def test_the_state_of_another_stream_is_refused_and_its_driver_goes_on(bare: Place) -> None:
    with bare.journal("J") as journal:
        await check(bare, "J", "R")  # a driver that has no plan yet may be on any stream
        journal.write(make_plan(20, c=""))
        # a commit is answered before it can be read, and this looks without fencing
        await_markers(bare.service.kafka["bootstrap.servers"], journal.topic)
        await check(bare, "J", has_batches=True)
        with pytest.raises(ForeignCheckpoint, match="state of a job 'J' on stream 'S', and this job is on stream 'R'"):
            await check(bare, "J", "R")
        journal.write(make_plan(30, number=1, c=""))


async def test_a_state_topic_that_is_gone_is_not_made_anew(place: Place) -> None:
    await check(place, "J")
    await place.put(ConsumerState(job="J", claim="C"), "c")
    await place.put(ConsumerState(job="K", claim="C"), "d")
    await place.put(ConsumerState(), "e")
    with pytest.raises(
        ForeignCheckpoint, match="service's state says that job 'J' delivers 'c' of stream 'S', and topic"
    ):
        await check(place, "J")
    await place.put(ConsumerState(job="J", claim="D", recall="R"), "f")
    with pytest.raises(ForeignCheckpoint, match="job 'J' delivers 'c' of stream 'S', 'f' of stream 'S', and topic"):
        await check(place, "J", "R")
    assert job_topic(place.prefix, "J") not in await place.admin.find_topics([job_topic(place.prefix, "J")])
    with place.journal("J"):
        await check(place, "J", has_batches=True)


async def test_a_state_topic_that_goes_while_the_job_runs(bare: Place) -> None:
    with bare.journal("J") as journal:
        delete_topic(bare.service.kafka["bootstrap.servers"], journal.topic)
        with pytest.raises(
            OverlayError, match=r"the job's state topic is gone\. Restore it, or begin a job of another"
        ):
            journal.assign_writers([("out", 0)])


async def make_service_state(bootstrap: str, prefix: str) -> None:
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await ensure_state_topic(admin, prefix, 2, 1)


@pytest.mark.parametrize("with_service", [False, True])
def test_without_its_state_topic_a_job_delivers_nothing_twice(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, with_service: bool
) -> None:
    """Neither when its one batch is repeated, nor, if the service's state names the job, by a new checkpoint."""
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(10))
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{source}-out", source=source, stream=STREAM)
    prefix = load(folder).service.topics.prefix
    if with_service:
        run_apart(make_service_state(bootstrap, prefix))
    run(spark, folder, tmp_path / "checkpoint")
    # as if the driver had ended before Spark knew that the batch has ended
    (tmp_path / "checkpoint/query/commits/0").unlink()
    delete_topic(bootstrap, job_topic(prefix, "S"))
    told = "service's state says that job 'S' delivers 'c'" if with_service else "checkpoint has batches, and job 'S'"
    for checkpoint in ("checkpoint", "another") if with_service else ("checkpoint",):
        with pytest.raises(ForeignCheckpoint, match=told):
            run(spark, folder, tmp_path / checkpoint)
    assert not is_there(bootstrap, job_topic(prefix, "S"))
    assert read(bootstrap, f"{source}-out") == [(n, n + 1) for n in range(10)]


def test_the_name_of_another_stream_s_job_is_refused(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Also with a checkpoint that has come further, and consumers of one name."""
    sources = {stream: new_topic(retention_ms=-1) for stream in "SR"}
    folder = write_job_folder(tmp_path / "config", bootstrap, f"{sources['S']}-out", source=sources["S"], stream=STREAM)
    for kind, name in (("streams", "s"), ("consumers", "c")):
        text = (folder / kind / f"{name}.yaml").read_text().replace(sources["S"], sources["R"])
        (folder / kind / f"{name}-r.yaml").write_text(
            text.replace("name: S", "name: R").replace("stream: S", "stream: R")
        )
    produce(bootstrap, sources["S"], range(7))
    run(spark, folder, tmp_path / "checkpoint", stream="S")
    for end in (10, 20):
        produce(bootstrap, sources["R"], range(end - 10, end))
        run(spark, folder, tmp_path / "of-r", stream="R")
    produce(bootstrap, sources["R"], range(20, 30))
    with pytest.raises(ForeignCheckpoint, match="state of a job 'S' on stream 'S', and this job is on stream 'R'"):
        run(spark, folder, tmp_path / "of-r", stream="R", job="S")
    assert read(bootstrap, f"{sources['R']}-out") == [(n, n + 1) for n in range(20)]
