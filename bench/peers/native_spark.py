"""Spark's Kafka source with includeHeaders, read committed: what a user of Spark does without the overlay.

Headers come as a list, so a predicate on one looks for the last of its name, as Kafka's `lastHeader` and the overlay do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.errors import PeerUnavailable
from bench.sides import Tally

DEADLINE_S = 300


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to one topic. `wanted`: the headers that decide. `options`: what format("overlay") is told of the stream."""

    bootstrap: str
    topic: str
    records: int
    matches: int
    wanted: Mapping[str, str]
    options: Mapping[str, str]
    whole: bool = False
    """Whether every column is summed up."""


class NativeQuery:
    """The question as predicates over `headers`."""

    name = "native"
    warm = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, asked: Asked) -> Tally:
        began = time.perf_counter()
        options = {"kafka.bootstrap.servers": asked.bootstrap, "kafka.isolation.level": "read_committed"}
        more = {"subscribe": asked.topic, "startingOffsets": "earliest", "includeHeaders": "true", "minPartitions": "8"}
        frame = self._spark.read.format("kafka").options(**options, **more).load()
        for name, value in asked.wanted.items():
            frame = frame.where(_last_header(name) == value)
        matched = add_up(frame, asked.whole)
        return Tally(asked.records, matched, time.perf_counter() - began)

    def close(self) -> None:
        """The session is the bench's."""


def _last_header(name: str) -> Column:
    named = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.get(named, F.size(named) - 1)["value"].cast("string")


def add_up(frame: DataFrame, whole: bool) -> int:
    """How many rows there are; every column is looked at if `whole`, else the lengths of values alone."""
    looks = [F.sum(F.length("value"))]
    if whole:
        looks += [F.max(F.hash(name)) for name in frame.columns]
    with limit(frame.sparkSession):
        return int(frame.agg(F.count(F.lit(1)), *looks).collect()[0][0])


@contextmanager
def limit(spark: SparkSession) -> Iterator[None]:
    """End Spark's jobs when the block takes too long. Raises PeerUnavailable."""
    over = threading.Event()

    def cancel() -> None:
        over.set()
        spark.sparkContext.cancelAllJobs()

    timer = threading.Timer(DEADLINE_S, cancel)
    timer.start()
    try:
        yield
    except Exception as error:
        if over.is_set():
            raise PeerUnavailable(f"no answer within {DEADLINE_S} s") from error
        raise
    finally:
        timer.cancel()
