"""The case `count` of `python -m bench spark`: records by the first tokens of their subjects, in records of the topic a second.

The topic and its index are those of the case `skip`: 60 lines that take turns in runs of 5,000 records, with the subject
`plant.LINE.KIND`. The question is how many records each line has. The clock runs from the question to its 60 rows at the
driver, and the rows must be those that the data gives.

- overlay: `spark.counts.overlay_counts` with `tokens=2`. The service has indexed the topic to its end, so chunk headers answer
  and no record is read. That the log has not changed is looked up each time.
- native: Spark's Kafka source with includeHeaders, read committed, grouped by the last header `line` of each record.

Both answer once before the first round: ours reads the index topic then, and keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.cases import measure_case, warm_up
from bench.errors import WrongAnswer
from bench.figures import Case
from bench.meters import RUN, VALUES, Meters
from bench.peers.native_spark import last_header, limit, read_all
from bench.progress import Progress
from bench.settings import Settings
from bench.sides import Contender, Tally
from spark.counts import overlay_counts

CASE = "count"
GOALS: Mapping[str, float] = {"native": 200.0}
PREFIX = "plant."
"""The first token of all subjects; the second is the line."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The question for both sides. `folder`: a config folder with the indexed stream METERS."""

    meters: Meters
    folder: str

    @property
    def answer(self) -> dict[str, int]:
        """Return the records by prefix, from the data alone."""
        lines, records = np.unique(self.meters.numbers // RUN % VALUES, return_counts=True)
        return {f"{PREFIX}line{line:02d}": count for line, count in zip(lines.tolist(), records.tolist(), strict=True)}


class Side(Contender, Protocol):
    """A way to count. Raises PeerUnavailable."""

    def count(self, asked: Lines) -> dict[str, int]: ...


class IndexCount:
    """`overlay_counts`."""

    name = "overlay"
    warm = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def count(self, asked: Lines) -> dict[str, int]:
        options = {"config": asked.folder, "stream": "METERS"}
        rows = overlay_counts(self._spark, options, tokens=2).collect()
        return {row["prefix"]: row["records"] for row in rows}

    def close(self) -> None:
        """The session is the bench's."""


class NativeCount:
    """A `groupBy` over Spark's own source."""

    name = "native"
    warm = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def count(self, asked: Lines) -> dict[str, int]:
        options = read_all(asked.meters.bootstrap, asked.meters.topic)
        frame = self._spark.read.format("kafka").options(**options, minPartitions="8").load()
        prefix = F.concat(F.lit(PREFIX), last_header("line")).alias("prefix")
        with limit(self._spark):
            rows = frame.groupBy(prefix).agg(F.count("*").alias("records")).collect()
        return {row["prefix"]: row["records"] for row in rows}

    def close(self) -> None:
        """The session is the bench's."""


def measure_counts(spark: SparkSession, asked: Lines, settings: Settings, progress: Progress) -> Iterator[Case]:
    """The case, if the settings want it. Raises WrongAnswer."""
    if not settings.wants(CASE):
        return
    sides: list[Side] = [side for side in (IndexCount(spark), NativeCount(spark)) if settings.wants_side(side.name)]
    warm_up(sides, run_side, asked, progress)
    yield measure_case("spark", CASE, sides, run_side, asked, GOALS, settings.rounds, progress)


def run_side(side: Side, asked: Lines) -> Tally:
    """Have a side count, and check its answer. Raises WrongAnswer."""
    began = time.perf_counter()
    found = side.count(asked)
    seconds = time.perf_counter() - began
    if found != asked.answer:
        wrong = sorted(set(found.items()) ^ set(asked.answer.items()))[:3]
        raise WrongAnswer(
            f"{side.name} on {asked.meters.topic}: the counts are not those of the data, such as {wrong}."
            " Run this side alone (--only) to look into it"
        )
    return Tally(asked.meters.records, None, seconds)
