"""`readStream.format("overlay_ranges")`: which offsets a batch has, one row a batch.

Spark's engine decides when a batch begins and where it ends, and writes both down before it runs
(its offset log). A job reads the records itself, with tasks of its own, so its stream has no
records: one row says from where to where each partition goes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from spark.options import read_options
from spark.stream import OverlayStreamReader, Position

from .records import Ends

NAME = "overlay_ranges"
_SCHEMA = StructType([StructField("ends", StringType())])


class RangesSource(DataSource):
    """The data source. Its options are those of `format("overlay")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> RangesReader:
        return RangesReader(read_options(dict(self.options)), schema)


class _Range(InputPartition):
    """The text of one batch's row."""

    def __init__(self, text: str) -> None:
        super().__init__(None)
        self.text = text


class RangesReader(OverlayStreamReader):
    """A stream reader whose batches have one row."""

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Return the one task of a batch. Raises DataLoss if the log does not have all of its offsets any more."""
        ends = self.find_range(start, end)
        return [_Range(json.dumps([[*source, *span] for source, span in sorted(ends.items())]))] if ends else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the row of a batch."""
        if isinstance(partition, _Range):
            yield pa.RecordBatch.from_pydict({"ends": [partition.text]})


def parse_range(text: str) -> Ends:
    """Return first and next offset of each partition, from a row of the source."""
    return {(topic, partition): (start, stop) for topic, partition, start, stop in json.loads(text)}
