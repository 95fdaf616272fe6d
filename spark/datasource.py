"""`spark.read.format("overlay")`: streams and topics scanned by the overlay inside Spark's executors.

The driver plans. It reads the options, gets bounds from Kafka, skips what the chunk index allows,
and cuts the rest into tasks of equal weight (plan.py, partitions.py). Each task fetches, decodes
and tests its part of the log, and passes Arrow batches of what passed to Spark (scan.py).
`readStream` is in stream.py.

With the option `pushdown`, predicates that Spark's optimiser pushes down are used as if the user
had given them (pushdown.py). It is off by default. Spark 4.2 keeps the tasks of a Python data
source with the frame that was loaded, not with the query. If a frame is queried again without a
predicate, or twice in one query, Spark uses the tasks of another predicate. Then rows are missing
(tests/spark/test_pushdown.py shows it). A program that loads a frame for each query may switch it
on. `subjects` and `sql` do the same, and are valid for every query of the frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from overlay.errors import OverlayError
from overlay.inspect.outside import explain_outside
from overlay.logs import get_logger

from .form import check_schema, make_schema
from .options import Ask, read_options
from .partitions import TaskPartition
from .plan import EVERYTHING, Planner, PositionWindow
from .pushdown import push
from .scan import read
from .stream import OverlayStreamReader

NAME = "overlay"
log = get_logger(__name__)


class OverlaySource(DataSource):
    """Spark's data source `overlay`. Errors in the options or in a schema are raised when Spark asks for
    the columns or a reader, with the overlay's message.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the columns that the options ask for. Raises as `read_options` does."""
        ask = self._ask()
        return make_schema(ask.request.stream, ask.columns)

    def reader(self, schema: StructType) -> OverlayReader:
        """Return the reader of a batch query.

        Raises BadQuestion for a schema that the stream does not have.
        """
        ask = self._ask()
        check_schema(ask.request.stream, schema)
        return (PushingReader if ask.pushdown else OverlayReader)(ask, schema)

    def streamReader(self, schema: StructType) -> OverlayStreamReader:
        """Return the reader of a streaming query.

        Raises BadQuestion for a schema that the stream does not have, and for options with an end other than a time.
        """
        ask = self._ask()
        check_schema(ask.request.stream, schema)
        warn_of_outside(ask)
        return OverlayStreamReader(ask, schema)

    def _ask(self) -> Ask:
        try:
            return read_options(dict(self.options))
        except OverlayError as error:
            # Spark shows the traceback above the message, which says everything
            raise error.with_traceback(None) from None


class OverlayReader(DataSourceReader):
    """A reader of what is committed at the time of planning."""

    def __init__(self, ask: Ask, schema: StructType) -> None:
        self._ask, self._schema = ask, schema
        self._window: PositionWindow | None = EVERYTHING
        """None if nothing can pass."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the reading; none if no record can pass. Logs a warning for subjects outside of the stream's."""
        warn_of_outside(self._ask)
        if self._window is None:
            return []
        return list[InputPartition](Planner(self._ask).plan(self._window))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # if there is nothing to read, Spark passes a partition of its own
        """Yield the batches of a task. Runs in an executor."""
        if isinstance(partition, TaskPartition):
            yield from read(self._ask, self._schema, partition)


class PushingReader(OverlayReader):
    """A reader that evaluates the predicates which Spark pushes down.

    Spark refuses such a source while spark.sql.python.filterPushdown.enabled is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the predicates that the overlay can evaluate, and return those that Spark has to test."""
        pushed = push(filters, self._ask.request)
        self._ask = replace(self._ask, request=pushed.request)
        self._window = None if pushed.is_empty else pushed.window
        return pushed.left


def warn_of_outside(ask: Ask) -> None:
    """Log a warning for each subject that is asked for and that no record of the stream can have."""
    for pattern in ask.request.patterns:
        if reason := explain_outside(ask.request.stream, pattern, is_named=ask.request.is_named):
            log.warning("a reading finds nothing for one of its subjects", reason=reason)
