"""A session that ends while a job runs in its thread: the rest of the service does not notice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient

from overlay.worker.round.pipeline import Pipeline
from overlay.worker.round.task import RoundResult, Task
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, CommittedReader, Scene, Served, await_records, produce, serve

JOB_S = 2 * DEADLINE_S


class SlowJob:
    """Has the pipeline's next round last until `go_on` is set, and JOB_S at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_wanted = False
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.has_ended = False
        run = Pipeline.run

        def slow(pipeline: Pipeline, tasks: Sequence[Task], now: int) -> RoundResult:
            outcome = run(pipeline, tasks, now)
            if self.is_wanted and tasks:
                self.is_wanted = False
                self.begun.set()
                self.go_on.wait(JOB_S)
                self.has_ended = True
            return outcome

        monkeypatch.setattr(Pipeline, "run", slow)


def list_tasks(served: Served) -> set[str]:
    """The names of the tasks of the service's event loop, which has to turn for that."""

    async def find() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks()}

    return asyncio.run_coroutine_threadsafe(find(), served._loop).result(DEADLINE_S)


def test_a_session_fails_while_its_pipeline_works(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is deleted during a job. The loop keeps turning, the session tells nothing any more, and the
    next one begins when the job has returned."""
    job, topic = SlowJob(monkeypatch), new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", ack_policy="explicit")
    produce(scene.bootstrap, topic, ["a"])
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 1)
        job.is_wanted = True
        produce(scene.bootstrap, topic, ["a"])
        assert job.begun.wait(DEADLINE_S)
        admin = AdminClient({"bootstrap.servers": scene.bootstrap})
        try:
            admin.delete_topics([topic])[topic].result(30)
            wait_until(lambda: "watch" not in list_tasks(served), DEADLINE_S, "the session has found out")
            wait_until(lambda: not served.service.sessions, DEADLINE_S, "it only waits for its end")
            assert "reading" in list_tasks(served)
            assert not served.report()["ready"]
            assert not job.has_ended
        finally:
            job.go_on.set()
        wait_until(lambda: served.consumer("c")["state"] == "stopped", DEADLINE_S, "the next session has begun")
