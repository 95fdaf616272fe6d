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
from pyspark.sql.streaming.query import StreamingQuery

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
        frame = (
            self._spark.read.format("kafka").options(**read_all(asked.bootstrap, asked.topic), minPartitions="8").load()
        )
        matched = add_up(choose(frame, asked.wanted), asked.whole)
        return Tally(asked.records, matched, time.perf_counter() - began)

    def close(self) -> None:
        """The session is the bench's."""


def read_all(bootstrap: str, topic: str) -> dict[str, str]:
    """The source's options for what is committed of a topic, from its start."""
    options = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}
    return options | {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}


def choose(frame: DataFrame, wanted: Mapping[str, str]) -> DataFrame:
    """The rows whose headers have these values."""
    for name, value in wanted.items():
        frame = frame.where(last_header(name) == value)
    return frame


def last_header(name: str) -> Column:
    """The value of the last header of this name, as text; null where there is none."""
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


def await_end(query: StreamingQuery) -> None:
    """Raises PeerUnavailable when it takes too long."""
    if not query.awaitTermination(DEADLINE_S):
        raise PeerUnavailable(f"the query has not ended within {DEADLINE_S} s: {query.status}")
