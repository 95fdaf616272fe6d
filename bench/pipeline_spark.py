"""The cases `pipeline/...` of `python -m bench spark`: filters as a Spark job, beside the same over Spark's Kafka source.

- pipeline/33%, pipeline/0.1%: one consumer, with the filter of that selectivity.
- pipeline/10: ten consumers with an output topic each. Their filters are the ten subject patterns that match nearest to
  5 % of the flights; some records pass several of them.

Every query has Trigger.AvailableNow and takes the whole topic in one batch, numbers the matching records, gives them the
headers of a delivery, and writes them to their output topics, with a checkpoint. The clock runs from the start of a query
to its end. The rate is records of the source topic per second, however many consumers there are. What has come out of
each output topic is counted off the clock.

- overlay: `spark.pipeline`, exactly once: one job for all consumers. Scan tasks filter in the executors' Python, and a
  write task for each output sends the deliveries in a transaction. The leases, the look at the service's state and the
  journal are part of its time.
- native: a query for each filter, at least once (peers/native_pipeline.py). For ten consumers a user with two cores
  would have to run ten queries; they run one after the other, and the time is the sum of theirs.
- one-consumer (pipeline/10): the overlay's job with one of the ten consumers. The ratio says which part of its rate is
  left with ten times the consumers.

All sides of a case run once on 2,000 records first, in the session that is given.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from bench.cases import measure_case, warm_up
from bench.dataset import SELECTIVITIES, Dataset
from bench.figures import OVERLAY, Case
from bench.outputs import check_output, make_topic
from bench.patterns import choose_patterns
from bench.peers.native_pipeline import NativeJobs
from bench.peers.native_spark import await_end
from bench.progress import Progress
from bench.service import CONSUMER, write_consumers
from bench.settings import Settings
from bench.sides import Contender, Tally, Work
from overlay.config import load
from spark.pipeline import start_pipeline

CODEC = "lz4"
SINGLE = {"pipeline/33%": SELECTIVITIES["33%"], "pipeline/0.1%": SELECTIVITIES["0.1%"]}
"""The filter of each case with one consumer."""
SEVERAL, CONSUMERS, SHARE = "pipeline/10", 10, 0.05
CASES = (*SINGLE, SEVERAL)
ONE_CONSUMER = "one-consumer"
GOALS: Mapping[str, Mapping[str, float]] = {
    "pipeline/33%": {"native": 6.0},
    "pipeline/0.1%": {"native": 12.0},
    SEVERAL: {"native": 20.0, ONE_CONSUMER: 0.6},
}


class Side(Contender, Protocol):
    """A way to run filters of one topic. `most`: how many of them it runs, None for all."""

    most: int | None

    def run(self, works: Sequence[Work], out_topics: Sequence[str]) -> Tally:
        """Write what each filter lets through to its output topic. Raises PeerUnavailable."""
        ...


def measure_pipelines(spark: SparkSession, dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The cases, over the topics that `dataset.publish("lz4")` has filled. Raises WrongAnswer."""

    def run(side: Side, works: Sequence[Work]) -> Tally:
        return deliver(side, dataset, works)

    for case in CASES:
        if not settings.wants(case):
            continue
        several = case == SEVERAL
        patterns = choose_patterns(dataset.subjects, CONSUMERS, SHARE) if several else (SINGLE[case],)
        sides: list[Side] = [OverlayJob(spark), NativeJobs(spark)]
        if several:
            sides.append(OverlayJob(spark, ONE_CONSUMER, most=1))
        sides = [side for side in sides if settings.wants_side(side.name)]
        first = dataset.plan_warm_up(CODEC)
        warm_up(sides, run, [replace(first, pattern=pattern) for pattern in patterns], progress)
        works = [dataset.plan(CODEC, pattern) for pattern in patterns]
        yield measure_case("spark", case, sides, run, works, GOALS[case], settings.rounds, progress)


def deliver(side: Side, dataset: Dataset, works: Sequence[Work]) -> Tally:
    """Run one side into topics of its own and check what has come out of each. Raises WrongAnswer."""
    works = works[: side.most]
    out_topics = [make_topic(work.bootstrap, f"out-{side.name}") for work in works]
    tally = side.run(works, out_topics)
    for work, out_topic in zip(works, out_topics, strict=True):
        check_output(side.name, work.bootstrap, out_topic, dataset.count(work.pattern, work.records))
    return tally


class OverlayJob:
    """`spark.pipeline` on a fresh config folder and checkpoint: one job, whatever the number of consumers."""

    warm = True

    def __init__(self, spark: SparkSession, name: str = OVERLAY, most: int | None = None) -> None:
        self._spark, self.name, self.most = spark, name, most

    def run(self, works: Sequence[Work], out_topics: Sequence[str]) -> Tally:
        folder = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
        given = zip(works, out_topics, strict=True)
        consumers = {f"{CONSUMER}-{number}": each for number, each in enumerate(given)}
        try:
            write_consumers(folder, consumers, "exactly_once", "spark")
            began = time.perf_counter()
            with start_pipeline(self._spark, load(folder), list(consumers), str(folder / "checkpoint")) as query:
                await_end(query)
                ended = time.perf_counter()
            return Tally(works[0].records, None, ended - began)
        finally:
            shutil.rmtree(folder)

    def close(self) -> None:
        """Nothing is kept between runs."""
