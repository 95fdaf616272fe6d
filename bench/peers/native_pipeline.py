"""The peer of the pipeline cases: a filter as a streaming query over Spark's Kafka source and its Kafka sink.

The source has includeHeaders. A user has to test headers himself; the predicate looks at the last header of each name, as
the overlay does, and the subject is put together from them. The sink writes at least once, with full LZ4 batches.

A query writes what one filter lets through, so several filters are as many queries. They run one after the other, and
the time is the sum of theirs: a user with two cores would have to run all of them, each of which reads the whole topic.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.peers.native_delivery import NEEDED, make_records
from bench.peers.native_sequences import BatchEnds, add_marks, number_rows
from bench.peers.native_spark import await_end, choose, last_header, read_all
from bench.service import CONSUMER, STREAM
from bench.sides import Tally, Work
from overlay.config import ConsumerConfig
from spark.connection import for_sink
from spark.envelope import name_headers

FIELDS = ("origin", "dest", "carrier")


class NativeJobs:
    """A query for each filter."""

    name = "native"
    warm = True
    most: int | None = None

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, works: Sequence[Work], out_topics: Sequence[str]) -> Tally:
        """Raises PeerUnavailable when a query takes too long."""
        seconds = sum(self._run_one(work, out_topic) for work, out_topic in zip(works, out_topics, strict=True))
        return Tally(works[0].records, None, seconds)

    def _run_one(self, work: Work, out_topic: str) -> float:
        """Return the seconds from the start of a query to its end."""
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
            return time.perf_counter() - began
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
