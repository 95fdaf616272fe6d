"""`readStream.format("overlay_ranges")`: which offsets a batch has, one row a batch.

Spark asks a Python data source in a process that it starts for each query. To load the package there
takes two seconds of a core, before the first batch of every query. So this module imports nothing of
the overlay: it passes Spark's questions to the driver's process (ranges_server.py), which has
everything loaded and is connected to Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Client
from typing import Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

NAME = "overlay_ranges"
SERVER = "server"
"""The option with the address of the driver's RangesServer, the path of a socket."""
_SCHEMA = StructType([StructField("ends", StringType())])

Position = dict[str, dict[str, Any]]


class RangesSource(DataSource):
    """Spark's data source `overlay_ranges`, which has one row for each batch of a job. Its one option
    is SERVER, the path of the socket of the driver's RangesServer.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return _SCHEMA

    def streamReader(self, schema: StructType) -> RemoteRanges:
        return RemoteRanges(self.options[SERVER])


class BatchRange(InputPartition):
    """The one task of a batch. `text`: the batch's one row, a JSON object with its offsets and the topics' ids, which
    `ranges.parse_range` reads.
    """

    def __init__(self, text: str) -> None:
        super().__init__(None)
        self.text = text


class RemoteRanges(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream reader whose methods are run by the driver's RangesServer. They raise what it raises, as an error of the
    same name and text.

    `server`: the path of its socket.
    """

    def __init__(self, server: str) -> None:
        self._server = server

    def initialOffset(self) -> Position:
        found: Position = self._ask("initialOffset")
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        found: ReadLimit = self._ask("getDefaultReadLimit")
        return found

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        found: Position = self._ask("latestOffset", start, limit)
        return found

    def reportLatestOffset(self) -> Position:
        found: Position = self._ask("reportLatestOffset")
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        self._ask("prepareForTriggerAvailableNow")

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Return the one task of a batch."""
        return [BatchRange(self._ask("find_text", start, end))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Yield the row of a batch. Runs in an executor."""
        if isinstance(partition, BatchRange):
            yield (partition.text,)

    def _ask(self, question: str, *arguments: object) -> Any:
        """Return what the driver's reader answers."""
        # a connection for each question, since Spark sends copies of this object to executors
        with Client(self._server, "AF_UNIX") as line:
            line.send((question, arguments))
            answer, error = line.recv()
        if error is not None:
            _raise(*error)
        return answer


def _raise(module: str, name: str, text: str) -> NoReturn:
    # not the class itself: its module is not loaded here, and Spark passes on nothing but name and text
    kind = type(name, (Exception,), {"__module__": module})
    raise kind(text)
