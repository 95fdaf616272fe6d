"""Records per subject, from the chunk index where it knows them.

    counts = overlay_counts(spark, {"config": "examples/flights", "stream": "FLIGHTS"}, tokens=2)
    print(explain_counts({"config": "examples/flights", "stream": "FLIGHTS"}))

Spark hands no aggregates to Python data sources. So a count over `format("overlay")` reads every
record, and this function is how to ask the index instead. The driver asks the chunk headers, and
what they answer becomes rows of the frame: Spark's `explain` shows a LocalTableScan for them. What
they cannot answer is read by tasks, as any other reading: `explain` then shows a BatchScan of
`overlay` beside it. overlay/index/pending/by_subject.py says which chunks answer.

The frame has exactly the records that `format("overlay")` with the same options has when it is
planned. It is planned at once, not when the frame is used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from overlay.client import BadQuestion
from overlay.index.pending.by_subject import SubjectTally
from overlay.kafka.log_position import TopicPartition

from .datasource import NAME
from .options import BOUNDS, IDS, Ask, read_options
from .plan import Planner

_NOT_FOR_COUNTS = ("columns", "pushdown", "offsetRanges")
_OF_BATCHES = pa.schema([("subject", pa.string()), ("records", pa.int64())])


@dataclass(frozen=True, slots=True)
class CountPlan:
    """How a count by subject is answered. `str` says it in a sentence."""

    records: int
    """Records that chunk headers count."""
    subjects: int
    """Subjects of these records."""
    chunks_answered: int
    """Chunks that are not read."""
    chunks_read: int
    """Chunks that have to be read."""
    offsets_uncovered: int
    """Offsets that no chunk covers, which have to be read."""
    offsets_read: int
    """Offsets that have to be read, in chunks and outside."""

    def __str__(self) -> str:
        answered = (
            f"{self.chunks_answered:,} chunks are answered by their headers: {self.records:,} records of"
            f" {self.subjects:,} subjects."
        )
        if not self.offsets_read:
            return f"{answered} No record is read"
        return (
            f"{answered} To be read: {self.offsets_read:,} offsets, of {self.chunks_read:,} chunks that cannot say, and"
            f" {self.offsets_uncovered:,} offsets that have no header"
        )


def overlay_counts(spark: SparkSession, options: Mapping[str, str], *, tokens: int | None = None) -> DataFrame:
    """Return the number of records per subject, as columns `subject` and `records`, in no order.
    What the chunk index tells is counted at once; the offsets that are left are chosen now, and read
    when the frame is used.

    `options`: those of `format("overlay")` for batches, without `columns`, `pushdown` and
    `offsetRanges`. `tokens`: group by so many first tokens of the subject, at least one; the
    columns are then `prefix` and `records`. Subjects without a record have no row.

    Raises BadQuestion, and what the planning of a reading raises.
    """
    if tokens is not None and tokens < 1:
        raise BadQuestion(f"tokens is {tokens}, and has to be 1 or more. Leave it out for whole subjects")
    planner = _make_planner(options)
    tallies = planner.count()
    name = "subject" if tokens is None else "prefix"
    known = Counter[str]()
    for tally in tallies.values():
        for subject, records in tally.counts.items():
            known[subject if tokens is None else shorten(subject, tokens)] += records
    rows = pa.table(
        {name: list(known), "records": list(known.values())}, _OF_BATCHES.set(0, pa.field(name, pa.string()))
    )
    counted = spark.createDataFrame(rows)
    ranges = _write_ranges(tallies)
    if not ranges:
        return counted
    given = {key: value for key, value in options.items() if key.lower() not in _REPLACED} | _write_times(planner.ask)
    rest = {"columns": "subject", "offsetRanges": json.dumps(ranges | {IDS: planner.find_ids()})}
    key = F.col("subject") if tokens is None else F.substring_index("subject", ".", tokens)
    read = (
        spark.read.format(NAME)
        .options(**given, **rest)
        .load()
        .groupBy(key.alias(name))
        .agg(F.count("*").alias("records"))
    )
    return counted.unionByName(read).groupBy(name).agg(F.sum("records").alias("records"))


def explain_counts(options: Mapping[str, str]) -> CountPlan:
    """Return how `overlay_counts` would answer with these options now: how many chunks need not be
    read, and how much has to be. Raises as that does.
    """
    return sum_up(_make_planner(options).count().values())


def sum_up(tallies: Iterable[SubjectTally]) -> CountPlan:
    """Return the plan of a count, summed over the partitions. `tallies`: what the chunk index tells of
    each partition.
    """
    tallies = list(tallies)
    return CountPlan(
        sum(sum(tally.counts.values()) for tally in tallies),
        len({subject for tally in tallies for subject in tally.counts}),
        sum(tally.answered for tally in tallies),
        sum(tally.unanswered for tally in tallies),
        sum(tally.uncovered for tally in tallies),
        sum(tally.offsets_to_read for tally in tallies),
    )


def shorten(subject: str, tokens: int) -> str:
    """Return the first tokens of a subject; all of it if it has no more."""
    return ".".join(subject.split(".")[:tokens])


_REPLACED = frozenset(name.lower() for name in (*BOUNDS, "startingTime", "endingTime"))
"""Options that a reading of the rest gets in another form: ranges of offsets, and times that are not
relative to now, because it is another now.
"""


def _make_planner(options: Mapping[str, str]) -> Planner:
    given = {name.lower() for name in options}
    if wrong := [name for name in _NOT_FOR_COUNTS if name.lower() in given]:
        raise BadQuestion(f"{wrong[0]} has no meaning for counts. Leave it out")
    return Planner(read_options(options))


def _write_times(ask: Ask) -> dict[str, str]:
    times = {"startingTime": ask.request.since, "endingTime": ask.request.until}
    return {name: f"{np.datetime64(ms, 'ms')}Z" for name, ms in times.items() if ms is not None}


def _write_ranges(tallies: Mapping[TopicPartition, SubjectTally]) -> dict[str, dict[str, list[list[int]]]]:
    """Return what has to be read as the option `offsetRanges` has it, empty if that is nothing."""
    ranges: dict[str, dict[str, list[list[int]]]] = {}
    for (topic, partition), tally in sorted(tallies.items()):
        if tally.to_read:
            ranges.setdefault(topic, {})[str(partition)] = [[first, after] for first, after in tally.to_read]
    return ranges
