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

from overlay.config import Loaded, load
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


def test_a_mistake_in_overlay_yaml_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once. A stream that comes meanwhile gets its job when the file is mended, although no other file changes
    then."""
    folder = write_job_folder(tmp_path, "127.0.0.1:1", "out", source="t")
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    streams, service = StreamWatch(folder, {"S"}), folder / "overlay.yaml"
    settle(folder)
    assert streams.find_new() == []
    whole = service.read_text()
    service.write_text("kafka: [\n")
    assert streams.find_new() == []
    add(folder, "T")
    with capture_logs() as logged:
        for _ in range(3):
            assert streams.find_new() == []
            clock.now += module.RETRY_S
    assert [each["event"] for each in logged] == ["the folder cannot be read; the jobs go on, and none is started"]
    service.write_text(whole)
    assert [streams.find_new() for _ in range(2)] == [["T"], []]


def test_a_stream_that_was_put_off_and_has_no_consumer_any_more_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it gets one again. The folder is read only when it has changed."""
    folder = write_job_folder(tmp_path, "127.0.0.1:1", "out", source="t")
    clock, read = SimpleNamespace(now=100.0), list[Path]()

    def note(folder: Path) -> Loaded:
        read.append(folder)
        return load(folder)

    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    monkeypatch.setattr(module, "load", note)
    streams = StreamWatch(folder, {"S"})
    add(folder, "T")
    assert streams.find_new() == ["T"]
    streams.put_off("T")
    text = (folder / "consumers/other.yaml").read_text()
    (folder / "consumers/other.yaml").unlink()
    clock.now += module.RETRY_S
    assert [streams.find_new() for _ in range(3)] == [[], [], []] and len(read) == 2
    (folder / "consumers/other.yaml").write_text(text)
    settle(folder)
    assert [streams.find_new() for _ in range(2)] == [["T"], []]


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
