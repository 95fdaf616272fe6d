"""The jobs of a program: one that fails ends no other before its time, and streams come while it runs. Without Spark."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from structlog.testing import capture_logs

from overlay.errors import OverlayError
from spark import jobs as module
from spark.jobs import Jobs, StreamWatch, run_on, run_once
from tests.spark.deliveries import write_job_folder


@dataclass
class Queries:
    """Queries that end after so many looks; one with a text fails with it then."""

    looks: dict[str, int]
    fails: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    @contextmanager
    def start(self, stream: str) -> Iterator[Any]:
        if stream in self.refused:
            raise OverlayError(self.refused[stream])

        def look(_: float) -> bool:
            self.looks[stream] -= 1
            if self.looks[stream] <= 0 and stream in self.fails:
                raise StreamingQueryException(self.fails[stream])
            return self.looks[stream] <= 0

        try:
            yield SimpleNamespace(awaitTermination=look)
        finally:
            self.stopped.append(stream)


def test_with_once_each_job_comes_to_its_own_end() -> None:
    queries = Queries({"A": 1, "B": 4, "C": 2}, {"A": "a is wrong"}, {"D": "d is not there"})
    with ExitStack() as stack:
        jobs = Jobs(queries.start, stack)
        for stream in "DABC":
            jobs.add(stream)
        run_once(jobs, threading.Event())
        assert queries.looks == {"A": 0, "B": 0, "C": 0} and not queries.stopped
    assert {stream: str(error) for stream, error in jobs.errors.items()} == {"A": "a is wrong", "D": "d is not there"}


def test_a_job_that_fails_ends_a_program_that_goes_on() -> None:
    """The others end their batches when the block does. A second one that fails in that moment is told as well."""
    queries = Queries({"A": 2, "B": 100, "C": 2}, {"A": "a is wrong", "C": "c too"})
    with ExitStack() as stack:
        jobs = Jobs(queries.start, stack)
        for stream in "ABC":
            jobs.add(stream)
        run_on(jobs, threading.Event(), None)
    assert {stream: str(error) for stream, error in jobs.errors.items()} == {"A": "a is wrong", "C": "c too"}
    assert sorted(queries.stopped) == ["A", "B", "C"]


def test_a_stream_gets_its_first_consumer_while_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that does not start is tried again, and ends no other."""
    folder = write_job_folder(tmp_path, "127.0.0.1:1", "out", source="t")
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    streams, enough = StreamWatch(folder, {"S"}), threading.Event()
    queries = Queries({"S": 100, "T": 100}, refused={"T": "not yet"})
    seen = list[list[str]]()
    find = StreamWatch.find_new

    def find_and_note(self: StreamWatch) -> list[str]:
        found = find(self)
        seen.append(found)
        if len(seen) == 2:
            add(folder, "T")
        if len(seen) == 5:
            queries.refused.clear()
            clock.now += module.RETRY_S
        if len(seen) == 8:
            enough.set()
        return found

    monkeypatch.setattr(StreamWatch, "find_new", find_and_note)
    settle(folder)
    with ExitStack() as stack, capture_logs() as logged:
        jobs = Jobs(queries.start, stack)
        jobs.add("S")
        run_on(jobs, enough, streams)
        assert queries.looks["T"] < 100 and not jobs.errors
    assert seen == [[], [], ["T"], [], [], ["T"], [], []]
    assert [each["reason"] for each in logged] == ["not yet"]


def add(folder: Path, stream: str) -> None:
    """Give another stream a consumer."""
    for kind in ("streams", "consumers"):
        (first,) = (folder / kind).iterdir()
        text = first.read_text().replace("name: S\n", f"name: {stream}\n").replace("stream: S\n", f"stream: {stream}\n")
        first.with_name("other.yaml").write_text(text.replace("durable_name: c", "durable_name: d"))
    settle(folder)


def settle(folder: Path) -> None:
    """Let the files be as an editor has left them some seconds ago."""
    before = time.time() - 5
    for file in (*(folder / "streams").iterdir(), *(folder / "consumers").iterdir()):
        os.utime(file, (before, before))
