"""A job follows its config folder: consumers come, change and leave while it runs."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from structlog.testing import capture_logs

from overlay.client.read.bounds import ReadBounds
from overlay.client.read.offset_ranges import OffsetRange
from overlay.config import load
from overlay.errors import SourceUnavailable
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.own_topics import job_topic
from overlay.state.handover import Claimed
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from overlay.state.job_plan_codec import decode_plan
from overlay.state.partitions import Sources
from spark.job.folder import RETRY_S, JobFolder, choose_consumers
from spark.job.journal import Journal
from spark.job.ranges import RangesReader
from spark.options import read_options
from spark.output import Output, UnknownConsumer
from spark.pipeline import find_checkpoints, start_pipeline
from spark.plan import DataLoss, Planner
from spark.stream import OverlayStreamReader
from tests.spark.deliveries import write_folder, write_job_folder
from tests.spark.job.test_job import STREAM, break_once, produce, read
from tests.spark.test_jobs import settle
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

DEADLINE_S = 150


def write_consumer(folder: Path, name: str, output: str, more: str = "") -> None:
    """Write a consumer's file as an editor that has finished some seconds ago."""
    text = f"stream: S\ndurable_name: {name}\ndeliver_subject: {output}\nack_policy: none\nengine: spark\n{more}"
    file = folder / "consumers" / f"{name}.yaml"
    file.write_text(text)
    before = time.time() - 5
    os.utime(file, (before, before))


def list_plans(folder: Path, bootstrap: str, job: str) -> list[BatchPlan]:
    """Every plan of a job that has ended, in order."""
    topic = job_topic(load(folder).service.topics.prefix, job)
    records = [seen.value or b"" for seen in read_committed(bootstrap, topic)]
    plans = [decode_plan(record) for record in records if json.loads(record)["kind"] == "plan"]
    return [plan for plan in plans if plan.is_complete]


def make_folder(place: Path, more: str = "", *, fails_on_loss: bool = True) -> JobFolder:
    """The folder of job J with consumer c, which asks nothing of Kafka until a test calls it."""
    folder = write_job_folder(place, "127.0.0.1:1", "out", source="t", more=more)
    ask = read_options({"bootstrap": "127.0.0.1:1", "topic": "t", "failOnDataLoss": str(fails_on_loss).lower()})
    return JobFolder(choose_consumers(load(folder)), "J", (), ask, 1.0, lambda: None)


class Line:
    """A connection to a Kafka whose leader has told that the log ends at 900, before it knew all of it. `end`, `watermark`: the
    last stable offset, and where the log ends with open transactions."""

    def __init__(self, end: int, watermark: int) -> None:
        self.admin, self.end, self.watermark = self, end, watermark

    async def find_bounds(
        self, sources: Collection[TopicPartition], *, committed: bool = True
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(sources, (0, self.end if committed else self.watermark))


@pytest.mark.parametrize(
    ("line", "more", "floor"),
    [
        pytest.param(Line(1_000, 1_000), "", 1_000, id="a leader that did not know all yet"),
        pytest.param(Line(900, 1_000), "deliver_policy: new\n", 1_000, id="a transaction was open"),
        pytest.param(Line(950, 999), "", 950, id="the log was cut"),
        pytest.param(
            Line(950, 999),
            "deliver_policy: by_start_sequence\nopt_start_seq: 1000\n",
            950,
            id="cut behind the first one",
        ),
        pytest.param(
            Line(950, 999),
            "deliver_policy: by_start_sequence\nopt_start_seq: 1001\n",
            1_000,
            id="waits for the first one",
        ),
    ],
)
def test_where_a_consumer_of_another_owner_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: Line, more: str, floor: int
) -> None:
    """Where that has come to, but for a log that has lost its end for sure: from there on it has other records."""

    def run(_: Planner, ask: Callable[[Any], Any]) -> object:
        return asyncio.run(ask(line))

    source = ("t", 0)
    monkeypatch.setattr(Planner, "_run", run)
    for fails_on_loss in (True, False):
        jobs = make_folder(tmp_path, more, fails_on_loss=fails_on_loss)
        jobs._watch.claims["c"] = "C"
        jobs._starts["c"] = JobPosition({source: 1_000}, 7, "C")
        if fails_on_loss and floor < 1_000:
            with pytest.raises(DataLoss, match=r"t-0: consumer 'c' was at offset 1000, .* end, 950: .*failOnDataLoss"):
                jobs._find_begins(jobs.chosen, None, {source: 900}, None)
        else:
            begins = jobs._find_begins(jobs.chosen, None, {source: 900}, None)
            assert begins == {"c": ConsumerPlan("", 7, 7, 0, {source: floor}, "C")}


class Owners:
    """Kafka as a folder asks it: a stream of two partitions without a ledger, whose service is at `at` with each consumer.
    `held`: the leases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.claims = 0, 0
        self.held = set[str]()
        ranges = tuple(OffsetRange(("t", number), 0, 100) for number in range(2))
        bounds = ReadBounds(
            ranges, Sources(tuple(each.source for each in ranges), {}), {each.source: 0 for each in ranges}
        )

        def make_lease(output: Output) -> object:
            take, release = (lambda _: self.held.add(output.name)), (lambda: self.held.discard(output.name))
            return SimpleNamespace(take=take, release=release, check=lambda: None)

        async def ensure_outputs(_: object) -> dict[str, object]:
            return {}

        @asynccontextmanager
        async def connect(_: object) -> AsyncIterator[tuple[None, None]]:
            yield None, None

        async def claim(_: object, __: object, ___: object, stream: str, names: list[str], *more: object) -> object:
            self.claims += 1
            position = JobPosition({each.source: self.at for each in ranges}, self.at, str(self.claims))
            # the job has had c before
            return {name: Claimed(str(self.claims), None if name in "cd" else position) for name in names}

        stubs = {"Lease": make_lease, "ensure_outputs": ensure_outputs, "connect": connect, "claim_consumers": claim}
        for name, stub in (stubs | {"_make_readers": lambda *_: ((), ())}).items():
            monkeypatch.setattr(f"spark.job.folder.{name}", stub)
        monkeypatch.setattr(Planner, "look", lambda *_, **__: bounds)


def test_a_change_that_is_refused_takes_no_consumer_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that it has claimed beside the one that is refused goes back to the service, and comes later, from where that has
    come to by then."""
    owners, jobs = Owners(monkeypatch), make_folder(tmp_path)
    last = BatchPlan(3, 1, "S", "", {}, {"c": ConsumerPlan("f", 0, 0, 0, claim="1")}, {}, is_complete=True)
    settle(tmp_path)
    jobs.own()
    jobs.prepare(last)
    owners.at = 10
    write_consumer(tmp_path, "b", "out-b")
    write_consumer(tmp_path, "d", "out-d", "deliver_policy: by_start_sequence\nopt_start_seq: 50\n")
    with capture_logs() as logged:
        assert jobs.renew(last) is None
    assert "begins at sequence 50" in logged[-1]["reason"] and owners.held == {"c"}
    for name in "bd":
        (tmp_path / f"consumers/{name}.yaml").unlink()
    assert jobs.renew(last) is None and owners.held == {"c"}
    owners.at = 40
    write_consumer(tmp_path, "b", "out-b")
    renewed = jobs.renew(last)
    assert renewed is not None and owners.held == {"b", "c"}
    assert (renewed.begins["b"].floors, renewed.begins["b"].before) == ({("t", 0): 40, ("t", 1): 40}, 40)
    jobs.close()
    assert not owners.held


def test_consumers_come_change_and_leave(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """No record is produced after the start: a change alone makes a batch."""
    source = new_topic(retention_ms=-1)
    outputs = {name: new_topic() for name in "cde"}
    produce(bootstrap, source, range(100))
    folder = write_job_folder(tmp_path / "config", bootstrap, outputs["c"], source=source, stream=STREAM)

    def await_numbers(name: str, numbers: list[int]) -> None:
        def check() -> bool:
            return read(bootstrap, outputs[name]) == [(n, i) for i, n in enumerate(numbers, 1)]

        wait_until(check, DEADLINE_S, f"{name} has its {len(numbers)} records")

    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint"), once=False):
        await_numbers("c", [*range(100)])
        write_consumer(folder, "d", outputs["d"], "filter_subject: a.1\n")
        await_numbers("d", [*range(1, 100, 5)])
        # a file with a mistake leaves its consumer as it was, and does not keep others from coming
        write_consumer(folder, "d", outputs["d"], "filter_subject: [\n")
        write_consumer(folder, "e", outputs["e"], "filter: {sql: 'n >= 90'}\n")
        await_numbers("e", [*range(90, 100)])
        produce(bootstrap, source, range(100, 110))
        await_numbers("d", [*range(1, 110, 5)])
        (folder / "consumers/c.yaml").unlink()
        write_consumer(folder, "d", outputs["d"], "filter_subject: a.2\n")
        wait_until(lambda: "c" in list_plans(folder, bootstrap, "S")[-1].left, DEADLINE_S, "c has left")
        produce(bootstrap, source, range(110, 120))
        await_numbers("d", [*range(1, 110, 5), 112, 117])
    assert read(bootstrap, outputs["c"])[-1] == (109, 110)
    # back in the folder, it goes on where it left
    write_consumer(folder, "c", outputs["c"])
    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint")) as query:
        assert query.awaitTermination(DEADLINE_S)
    await_numbers("c", [*range(120)])


def test_a_consumer_that_comes_later_holds_no_other_back(
    spark: SparkSession, bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path
) -> None:
    """Each batch has its own records, and a part of what the new consumer has missed."""
    source = new_topic(2, retention_ms=-1)
    old, new = new_topic(), new_topic()
    produce(bootstrap, source, range(1000), 2)
    folder = write_job_folder(tmp_path / "config", bootstrap, old, source=source, stream=STREAM)

    def run() -> None:
        limit = {"maxRecordsPerTrigger": "300"}
        with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint"), options=limit) as query:
            assert query.awaitTermination(DEADLINE_S)

    run()
    write_consumer(folder, "late", new)
    produce(bootstrap, source, range(1000, 1100), 2)
    run()
    assert [n for n, _ in read(bootstrap, new)][:150] == [*range(0, 300, 2)]
    for topic in (old, new):
        found = read(bootstrap, topic)
        assert [sequence for _, sequence in found] == [*range(1, 1101)]
        for parity in (0, 1):
            assert [n for n, _ in found if n % 2 == parity] == [*range(parity, 1100, 2)]
    behind = [plan.count_behind() for plan in list_plans(folder, bootstrap, "S")]
    assert behind[-4:] == [{"late": 800}, {"late": 500}, {"late": 200}, {}] and not any(behind[:-4])
    *_, first, _, _, _ = list_plans(folder, bootstrap, "S")
    assert first.consumers["c"].last == 1100, (
        "the other consumer has the new records in the batch in which this one begins"
    )


def test_a_consumer_that_was_added_within_a_batch_waits_for_its_end(
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopicFixture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = new_topic(retention_ms=-1)
    old, new = new_topic(), new_topic()
    produce(bootstrap, source, range(50))
    folder = write_job_folder(tmp_path / "config", bootstrap, old, source=source, stream=STREAM)
    break_once(monkeypatch, Journal, "write", lambda plan: plan.is_complete)
    with (
        pytest.raises(StreamingQueryException, match="the driver ends here"),
        start_pipeline(spark, folder, (), str(tmp_path / "checkpoint")) as query,
    ):
        query.awaitTermination(DEADLINE_S)
    write_consumer(folder, "late", new)
    with start_pipeline(spark, folder, (), str(tmp_path / "checkpoint")) as query:
        assert query.awaitTermination(DEADLINE_S)
    for topic in (old, new):
        assert read(bootstrap, topic) == [(n, n + 1) for n in range(50)]
    first, *_, last = list_plans(folder, bootstrap, "S")
    assert (list(first.consumers), list(last.consumers)) == (["c"], ["c", "late"])


def test_a_change_that_kafka_refuses_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job_folder(tmp_path, "127.0.0.1:1", "out-c", source="t")
    write_consumer(tmp_path, "c", "out-c")
    os.utime(tmp_path / "streams/s.yaml", (1, 1))
    ask = read_options({"config": str(tmp_path), "stream": "S"})
    folder = JobFolder(choose_consumers(load(tmp_path)), "S", (), ask, 1.0, lambda: None)
    tried: list[float] = []
    now = [1000.0]

    def refuse(work: object) -> None:
        tried.append(now[0])
        raise SourceUnavailable("Kafka does not answer")

    monkeypatch.setattr("spark.job.folder.run_apart", refuse)
    monkeypatch.setattr("spark.job.folder.ensure_outputs", lambda chosen: None)
    monkeypatch.setattr("spark.job.folder.monotonic", lambda: now[0])
    write_consumer(tmp_path, "d", "out-d")
    marks = []
    for now[0] in (1000.0, 1001.0, 1000.0 + RETRY_S):
        marks.append(folder.retry_mark)
        assert folder.renew(None) is None
    assert tried == [1000.0, 1000.0 + RETRY_S]
    # nothing has to be produced for that: the mark is part of a position, which makes a batch
    assert [bool(mark) for mark in marks] == [False, False, True] and not folder.retry_mark
    monkeypatch.setattr(OverlayStreamReader, "latestOffset", lambda self, start, limit: {})
    monkeypatch.setattr(RangesReader, "_read_plan", lambda self: None)
    reader = RangesReader(ask, "S", tmp_path, find_retry=lambda: folder.retry_mark)
    before = reader.latestOffset({}, ReadAllAvailable())
    assert reader.latestOffset(before, ReadAllAvailable()) == before
    now[0] += RETRY_S
    after = reader.latestOffset(before, ReadAllAvailable())
    assert after != before and reader.latestOffset(after, ReadAllAvailable()) == after


def test_the_consumers_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "127.0.0.1:1", "served", source="t")
    with pytest.raises(UnknownConsumer, match=r"no consumer has `engine: spark`[.] Write it into its file"):
        choose_consumers(load(folder))
    write_consumer(folder, "d", "out-d")
    write_consumer(folder, "e", "out-e")
    assert [output.name for output in choose_consumers(load(folder)).outputs] == ["d", "e"]
    (folder / "streams/r.yaml").write_text("name: R\ntopics: [r]\nsubject: {header: subject}\n")
    write_consumer(folder, "f", "out-f")
    file = folder / "consumers/f.yaml"
    file.write_text(file.read_text().replace("stream: S", "stream: R"))
    loaded = load(folder)
    with pytest.raises(UnknownConsumer, match=r"several streams have consumers with `engine: spark`: R, S\. Name one"):
        choose_consumers(loaded)
    assert find_checkpoints(loaded, (), "", "/checkpoint") == {"R": "/checkpoint/R", "S": "/checkpoint/S"}
    assert find_checkpoints(loaded, (), "R", "/checkpoint") == {"R": "/checkpoint"}
    assert find_checkpoints(loaded, ("d",), "", "/checkpoint") == {"S": "/checkpoint"}
