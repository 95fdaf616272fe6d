"""The consumer sequences of a pipeline: 1, 2, 3 ... over all its batches, the same ones when a
batch is written again.

A batch numbers its rows from the end of the batch before it, and stores its own end beside the
checkpoint before it writes anything. There are two folders, for even and for odd batches, so that a
batch never overwrites the end that it begins at. If Spark runs a batch again, it uses the same
offsets, so the rows get the same numbers, unless compaction has removed some in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from overlay.errors import OverlayError

_ROW_BITS = 33
"""Bits of monotonically_increasing_id for the row within its task; the bits above are the task."""


@dataclass(slots=True)
class BatchEnds:
    """The end of each batch. `folder`: in any file system that Spark can use."""

    spark: SparkSession
    folder: str
    _batch: int = -1
    _last: int = 0

    def find_base(self, batch: int) -> int:
        """Return the last sequence before a batch. Raises OverlayError if it is not stored."""
        if batch == 0:
            return 0
        if self._batch != batch - 1:
            self._read(batch - 1)
        return self._last

    def keep(self, batch: int, last: int) -> None:
        """Store the last sequence of a batch."""
        row = self.spark.range(1).select(F.lit(batch).alias("batch"), F.lit(last).cast("long").alias("last"))
        row.coalesce(1).write.mode("overwrite").json(self._place(batch))
        self._batch, self._last = batch, last

    def _place(self, batch: int) -> str:
        return f"{self.folder}/{'odd' if batch % 2 else 'even'}"

    def _read(self, batch: int) -> None:
        rows = self.spark.read.schema("batch long, last long").json(self._place(batch)).collect()
        if [row.batch for row in rows] != [batch]:
            raise OverlayError(
                f"{self._place(batch)}: the consumer sequences of batch {batch} are not there, though the checkpoint has"
                " come further. Was the folder changed? Begin with a new checkpoint; the consumer then begins anew"
            )
        self._batch, self._last = batch, int(rows[0].last)


def add_marks(rows: DataFrame) -> DataFrame:
    """Return the rows with `mark`: their task and their place in it.

    They have to be persisted before they are numbered.
    """
    return rows.select("*", F.monotonically_increasing_id().alias("mark"))


def number_rows(marked: DataFrame, base: int) -> tuple[DataFrame, int]:
    """Return the rows of `add_marks` with `consumer_sequence`, from base + 1 in the order
    of tasks, and the last one.
    """
    task = F.shiftright("mark", _ROW_BITS)
    counts = {row.task: row["count"] for row in marked.groupBy(task.alias("task")).count().collect()}
    bases, last = dict[int, int](), base
    for number in sorted(counts):
        bases[number] = last
        last += counts[number]
    if not bases:
        return marked.withColumn("consumer_sequence", F.lit(0).cast("long")).drop("mark"), base
    entries = F.create_map(*(F.lit(part).cast("long") for item in bases.items() for part in item))
    place = F.col("mark").bitwiseAND(F.lit((1 << _ROW_BITS) - 1)) + 1
    return marked.withColumn("consumer_sequence", entries[task.cast("long")] + place).drop("mark"), last
