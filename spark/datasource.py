"""`spark.read.format("overlay")`: streams and topics scanned by the overlay inside Spark's executors.

The driver plans: it reads the options, asks Kafka for bounds and the chunk index for what can be left out, and cuts the rest
into tasks of even weight (plan.py, partitions.py). Each task fetches, decodes and tests its part of the log and hands
Spark Arrow batches of what passed (scan.py). `readStream` is in stream.py.

Predicates that Spark's optimiser pushes down are taken in as if the user had given them (pushdown.py), with the option
`pushdown`. It is off where nothing is said, because Spark 4.2 keeps the tasks of a Python data source with the frame that was
loaded, not with the query: a frame that is asked again without a predicate, or twice in one query, is answered with the
tasks of another predicate, and rows are missing (tests/spark/test_pushdown.py shows it). Who loads a frame for each query may
switch it on. `subjects` and `sql` say the same and hold for every query of the frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from .form import check_schema, make_schema
from .options import Ask, read_options
from .partitions import Part
from .plan import EVERYTHING, Planner, Window
from .pushdown import push
from .scan import read
from .stream import OverlayStreamReader

NAME = "overlay"


class OverlaySource(DataSource):
    """The data source. Every error of the overlay's comes out of planning with its message."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        ask = self._ask()
        return make_schema(ask.request.stream, ask.columns)

    def reader(self, schema: StructType) -> OverlayReader:
        ask = self._ask()
        check_schema(ask.request.stream, schema)
        return (PushingReader if ask.pushdown else OverlayReader)(ask, schema)

    def streamReader(self, schema: StructType) -> OverlayStreamReader:
        ask = self._ask()
        check_schema(ask.request.stream, schema)
        return OverlayStreamReader(ask, schema)

    def _ask(self) -> Ask:
        return read_options(dict(self.options))


class OverlayReader(DataSourceReader):
    """Reads what is committed at the time of planning."""

    def __init__(self, ask: Ask, schema: StructType) -> None:
        self._ask, self._schema = ask, schema
        self._window: Window | None = EVERYTHING
        """None where nothing can pass."""

    def partitions(self) -> list[InputPartition]:
        if self._window is None:
            return []
        return list[InputPartition](Planner(self._ask).plan(self._window))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one of its own where there is nothing to read
        if isinstance(partition, Part):
            yield from read(self._ask, self._schema, partition)


class PushingReader(OverlayReader):
    """Takes predicates. Spark refuses a source that does while spark.sql.python.filterPushdown.enabled is false."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        pushed = push(filters, self._ask.request)
        self._ask = replace(self._ask, request=pushed.request)
        self._window = None if pushed.is_empty else pushed.window
        return pushed.left
