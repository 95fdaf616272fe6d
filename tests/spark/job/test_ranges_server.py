"""The ranges source asks the driver's process, from a process without the overlay."""

from __future__ import annotations

import subprocess
import sys
import threading
from multiprocessing.connection import Client
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from spark.job.ranges import RangesReader
from spark.job.ranges_server import RangesServer
from spark.job.ranges_source import BatchRange, Position, RemoteRanges
from spark.plan import DataLoss

LIGHT = """
import sys
from spark.job import ranges_source
heavy = {name.partition(".")[0] for name in sys.modules} & {"overlay", "numba", "aiokafka", "pandas"}
sys.exit(f"loads {sorted(heavy)}" if heavy else 0)
"""


class Reader:
    """The questions of a RangesReader, with fixed answers."""

    def __init__(self) -> None:
        self.limits: list[ReadLimit] = []

    def initialOffset(self) -> Position:
        return {"flights": {"0": 7}}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def reportLatestOffset(self) -> Position:
        return {"flights": {"0": 9}}

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:
        self.limits.append(limit)
        return {**start, "more": {"0": 1}}

    def prepareForTriggerAvailableNow(self) -> None:
        raise DataLoss("flights-0: gone\nuntil 7")

    def find_text(self, start: Position, end: Position) -> str:
        return f"{start} to {end}"


def serve(reader: Reader) -> RangesServer:
    return RangesServer(cast(RangesReader, reader))


def test_questions_are_answered_by_the_driver() -> None:
    reader = Reader()
    with serve(reader) as server:
        remote = RemoteRanges(server.address)
        assert remote.initialOffset() == {"flights": {"0": 7}}
        assert remote.latestOffset({"a": {"0": 1}}, ReadAllAvailable()) == {"a": {"0": 1}, "more": {"0": 1}}
        assert [type(limit) for limit in reader.limits] == [ReadAllAvailable]
        assert remote.getDefaultReadLimit() == ReadAllAvailable()
        assert remote.reportLatestOffset() == {"flights": {"0": 9}}
        (part,) = remote.partitions({}, {"a": {"0": 1}})
        assert isinstance(part, BatchRange)
        assert list(remote.read(part)) == [("{} to {'a': {'0': 1}}",)]


def test_errors_keep_their_names_and_texts() -> None:
    with serve(Reader()) as server, pytest.raises(Exception, match="flights-0: gone\nuntil 7") as caught:
        RemoteRanges(server.address).prepareForTriggerAvailableNow()
    assert f"{caught.type.__module__}.{caught.type.__name__}" == "spark.plan.DataLoss"


def test_a_process_that_ends_before_it_asks_does_not_end_the_server() -> None:
    with serve(Reader()) as server:
        Client(server.address, "AF_UNIX").close()
        assert RemoteRanges(server.address).initialOffset() == {"flights": {"0": 7}}


def test_a_closed_server_leaves_no_thread_and_no_socket() -> None:
    with serve(Reader()) as server:
        pass
    assert not Path(server.address).parent.exists()
    assert "ranges" not in {thread.name for thread in threading.enumerate()}


def test_the_source_loads_nothing_of_the_overlay() -> None:
    """Spark starts a process for each query, which imports the source's module."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
