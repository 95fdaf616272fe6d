"""The case `pipeline/33%` of `python -m bench spark`: a filter as a Spark job, beside the same job over Spark's Kafka source.

Both sides are a streaming query with Trigger.AvailableNow that takes the whole topic in one batch, numbers the matching
records, gives them the headers of a delivery, and writes them to an output topic, with a checkpoint. The clock runs from
the start of the query to its end. What has come out is counted off the clock.

- overlay: `spark.pipeline`, exactly once: scan tasks filter in the executors' Python, and a write task sends the
  deliveries in a transaction. The lease, the look at the service's state and the journal are part of its time.
- native: Spark's Kafka source with includeHeaders and its Kafka sink, at least once, with full LZ4 batches. There a
  user has to test headers himself; the predicate looks at the last header of each name, as the overlay does, and the
  subject is put together from them.

Both run once on 2,000 records first, in the session that is given.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.cases import measure_case, warm_up
from bench.dataset import SELECTIVITIES, Dataset
from bench.figures import Case
from bench.peers.native_delivery import NEEDED, make_records
from bench.peers.native_sequences import BatchEnds, add_marks, number_rows
from bench.peers.native_spark import await_end, choose, last_header, read_all
from bench.progress import Progress
from bench.push import push
from bench.service import CONSUMER, STREAM, write_config
from bench.settings import Settings
from bench.sides import Delivery, Tally, Work
from overlay.config import ConsumerConfig, load
from spark.connection import for_sink
from spark.envelope import name_headers
from spark.pipeline import start_pipeline

CASE, CODEC, GOAL = "pipeline/33%", "lz4", {"native": 6.0}
FIELDS = ("origin", "dest", "carrier")


def measure_pipeline(spark: SparkSession, dataset: Dataset, settings: Settings, progress: Progress) -> Case:
    """The case, over the topic that `dataset.publish("lz4")` has filled. Raises WrongAnswer."""
    sides: list[Delivery] = [side for side in (OverlayJob(spark), NativeJob(spark)) if settings.wants_side(side.name)]

    def run(side: Delivery, work: Work) -> Tally:
        return push(side, dataset, work)

    warm_up(sides, run, dataset.plan_warm_up(CODEC), progress)
    work = dataset.plan(CODEC, SELECTIVITIES["33%"])
    return measure_case("spark", CASE, sides, run, work, GOAL, settings.rounds, progress)


class OverlayJob:
    """`spark.pipeline` on a fresh config folder and checkpoint."""

    name = "overlay"
    warm = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, work: Work, out_topic: str, expected: int) -> Tally:
        folder = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
        try:
            write_config(folder, work, out_topic, "exactly_once")
            began = time.perf_counter()
            with start_pipeline(self._spark, load(folder), CONSUMER, str(folder / "checkpoint")) as query:
                await_end(query)
                ended = time.perf_counter()
            return Tally(work.records, expected, ended - began)
        finally:
            shutil.rmtree(folder)

    def close(self) -> None:
        """Nothing is kept between runs."""


class NativeJob:
    """The same over Spark's Kafka source."""

    name = "native"
    warm = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, work: Work, out_topic: str, expected: int) -> Tally:
        folder = Path(tempfile.mkdtemp(prefix="bench-pipeline-"))
        try:
            began = time.perf_counter()
            source = self._spark.readStream.format("kafka").options(**read_all(work.bootstrap, work.topic)).load()
            job = _Job(self._spark, work, out_topic, BatchEnds(self._spark, str(folder / "sequences")))
            writer = make_delivered(source, work).writeStream.foreachBatch(job.deliver)
            query = writer.option("checkpointLocation", str(folder / "query")).trigger(availableNow=True).start()
            try:
                await_end(query)
            finally:
                query.stop()
            return Tally(work.records, expected, time.perf_counter() - began)
        finally:
            shutil.rmtree(folder)

    def close(self) -> None:
        """Nothing is kept between runs."""


def make_delivered(source: DataFrame, work: Work) -> DataFrame:
    """The matching records with the columns that a delivery is made from."""
    subject = F.concat_ws(".", F.lit("flights"), *(last_header(name) for name in FIELDS))
    return choose(source, work.list_wanted()).select(
        subject.alias("subject"),
        (F.col("offset") + 1).alias("sequence"),
        *("timestamp", "key", "value"),
        name_headers(F.col("headers")).alias("headers"),
        "partition",
    )


class _Job:
    """What the pipeline does with a batch, without its owner's checks and figures."""

    def __init__(self, spark: SparkSession, work: Work, out_topic: str, sequences: BatchEnds) -> None:
        self._bootstrap, self._sequences = work.bootstrap, sequences
        text = {"stream": STREAM, "durable_name": CONSUMER, "deliver_subject": out_topic}
        self._consumer = ConsumerConfig.model_validate_json(json.dumps(text))

    def deliver(self, batch: DataFrame, number: int) -> None:
        marked = add_marks(batch.select(*NEEDED)).persist()
        try:
            numbered, last = number_rows(marked, self._sequences.find_base(number))
            self._sequences.keep(number, last)
            records = make_records(numbered.coalesce(1), self._consumer, 1)
            records.write.format("kafka").options(**for_sink({"bootstrap.servers": self._bootstrap})).save()
        finally:
            marked.unpersist()
