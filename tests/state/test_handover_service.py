"""A running service that loses consumers to Spark jobs, and gets them back."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from overlay.config import load
from overlay.kafka.admin import connect
from overlay.state.handover import Claimed, claim_consumers
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from spark.job.journal import Journal
from tests.state.test_leases import hold
from tests.support.kafka import NewTopicFixture
from tests.worker.scenes import (
    CommittedReader,
    Scene,
    Served,
    await_records,
    await_state,
    check_output,
    produce,
    read_committed,
    serve,
)


def claim(scene: Scene, topic: str, name: str, plan: BatchPlan | None = None) -> Claimed:
    """Make the job J the owner of a consumer, as its driver does."""
    service = load(scene.folder).service

    async def work() -> Claimed:
        async with connect(service.kafka) as (admin, client):
            starts = {(topic, 0): 0}
            return (await claim_consumers(service, admin, client, "S", [name], "J", plan, starts))[name]

    return asyncio.run(work())


def make_plan(topic: str, name: str, claim: str, first: int, stop: int) -> BatchPlan:
    """A batch that has delivered all from `first` to `stop`."""
    consumer = ConsumerPlan("f", first, stop, 0, {(topic, 0): first}, claim)
    return BatchPlan(0, 1, "S", "f", {(topic, 0): (first, stop)}, {name: consumer}, {}, is_complete=True)


def open_journal(scene: Scene) -> Journal:
    return Journal(load(scene.folder).service.kafka, scene.prefix, "J", 1)


def await_reason(served: Served, name: str, text: str) -> None:
    await_state(served, name, lambda found: text in found.get("reason", ""), f"is stalled: {text}")


def test_to_a_job_and_back(scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.worker.shard.STALL_S", 1.0)
    topic = new_topic()
    scene.add_stream("S", topic)
    moved, kept = scene.add_consumer("S", "moved"), scene.add_consumer("S", "kept")
    produce(scene.bootstrap, topic, ["a"] * 10)
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serve(scene))
        reader, other = (stack.enter_context(CommittedReader(scene.bootstrap, output)) for output in (moved, kept))
        await_records(reader, 10)
        with hold(scene, "moved", topic):
            found = claim(scene, topic, "moved")
            assert found.start == JobPosition({(topic, 0): 10}, 10, found.claim)
            produce(scene.bootstrap, topic, ["a"] * 5)
            await_reason(served, "moved", "has members. Stop the pipeline, or write `engine: spark`")
            await_records(other, 15)
            assert len(reader.read()) == 10
            # a batch of the job that has delivered three, which has not ended when its driver dies
            plan = make_plan(topic, "moved", found.claim, 10, 13)
            with open_journal(scene) as journal:
                journal.write(replace(plan, is_complete=False))
        await_reason(served, "moved", "batch 0 of the Spark job")
        with hold(scene, "moved", topic):
            await_reason(served, "moved", "has members")
            with open_journal(scene) as journal:
                assert claim(scene, topic, "moved", journal.last) == Claimed(found.claim, None)
                journal.write(plan)
        produce(scene.bootstrap, topic, ["a"] * 5)
        await_records(reader, 17)
        await_records(other, 20)
        source = read_committed(scene.bootstrap, topic)
        check_output(reader.seen[:10], source[:10], consumer="moved")
        check_output(reader.seen[10:], source[13:], consumer="moved", first=14)
        check_output(other.seen, source, consumer="kept")


def test_a_consumer_with_a_rate_limit_goes_to_a_job_and_back(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of its records. Each owner goes on behind the last one that was delivered."""
    monkeypatch.setattr("overlay.worker.shard.STALL_S", 1.0)
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "slow", rate_limit_bps=400_000)
    produce(scene.bootstrap, topic, ["a" * 200] * 5_000)
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        # more than the service sends at once
        await_records(reader, 2_000)
        with hold(scene, "slow", topic):
            found = claim(scene, topic, "slow")
            count = len(read_committed(scene.bootstrap, output))
            assert 2_000 <= count < 5_000 and found.start == JobPosition({(topic, 0): count}, count, found.claim)
            with open_journal(scene) as journal:
                journal.write(make_plan(topic, "slow", found.claim, count, count + 3))
        await_records(reader, count + 2)
        source = read_committed(scene.bootstrap, topic)
        check_output(reader.seen[:count], source[:count], consumer="slow")
        back = reader.seen[count:]
        check_output(back, source[count + 3 : count + 3 + len(back)], consumer="slow", first=count + 4)


def test_a_job_from_before_the_service(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output, fresh = scene.add_consumer("S", "early"), scene.add_consumer("S", "fresh")
    produce(scene.bootstrap, topic, ["a"] * 10)
    assert claim(scene, topic, "early") == Claimed("", None)
    with open_journal(scene) as journal:
        journal.write(make_plan(topic, "early", "", 0, 6))
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 4)
        with CommittedReader(scene.bootstrap, fresh) as other:
            await_records(other, 10)
        check_output(reader.seen, read_committed(scene.bootstrap, topic)[6:], consumer="early", first=7)
