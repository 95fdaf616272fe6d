"""The case `start` of `python -m bench spark`: from the start of a job to its first delivery, in ms.

The session runs already, and each side has run such a job in it once. The job is that of pipeline/33%, over a topic of
2,000 records. A client that reads committed records waits at the output topic. The clock runs from the call that starts
the job until this client has the first record.

- overlay: `spark.pipeline`, exactly once. The lease, the look at the service's state and the journal are part of the time,
  and so is the commit of the whole batch.
- native: Spark's Kafka source and sink, at least once (peers/native_pipeline.py). Its first record can be read as soon as it
  is written.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType

from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from bench.dataset import Dataset
from bench.errors import WrongAnswer
from bench.figures import Case, Unit, summarise
from bench.outputs import check_output, make_topic
from bench.peers.native_pipeline import NativeJobs
from bench.pipeline_spark import CODEC, OverlayJob, Side
from bench.progress import Progress
from bench.rounds import take_turns
from bench.settings import Settings

CASE = "start"
PATIENCE_S = 60.0
POLL_S = 0.2


class FirstRecord:
    """A client that waits within the block for the first committed record of a topic's partition 0."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        settings = {"group.id": f"first-{uuid.uuid4().hex}", "isolation.level": "read_committed"}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **settings, "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._over, self._came = threading.Event(), threading.Event()
        self._time = 0.0
        self._thread = threading.Thread(target=self._run, name="first record", daemon=True)

    def __enter__(self) -> FirstRecord:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def find_time(self) -> float:
        """Return when the record came, by time.perf_counter. Raises WrongAnswer if none comes."""
        if not self._came.wait(PATIENCE_S):
            raise WrongAnswer(f"{self._topic}: no record came within {PATIENCE_S:.0f} s. See the broker's log")
        return self._time

    def _run(self) -> None:
        while not self._over.is_set() and not self._came.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None and not message.error():
                self._time = time.perf_counter()
                self._came.set()


def measure_start(spark: SparkSession, dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The case, if the settings want it. Raises WrongAnswer."""
    if not settings.wants(CASE):
        return

    def measure_side(side: Side) -> float:
        progress.say(f"spark {CASE}: {side.name}")
        return 1_000 * await_first(side, dataset)

    every: Sequence[Side] = [OverlayJob(spark), NativeJobs(spark)]
    sides = [side for side in every if settings.wants_side(side.name)]
    take_turns(sides, 1, measure_side)
    runs = take_turns(sides, settings.rounds, measure_side)
    yield summarise(CASE, Unit.MILLISECONDS, runs.figures, goal={}, skipped=runs.skipped)


def await_first(side: Side, dataset: Dataset) -> float:
    """Run a job of one side. Return the seconds from its start to its first delivery. Raises WrongAnswer, PeerUnavailable."""
    work = dataset.plan_warm_up(CODEC)
    out_topic = make_topic(work.bootstrap, f"out-{side.name}")
    with FirstRecord(work.bootstrap, out_topic) as first:
        began = time.perf_counter()
        side.run([work], [out_topic])
        seconds = first.find_time() - began
    check_output(side.name, work.bootstrap, out_topic, dataset.count(work.pattern, work.records))
    return seconds
