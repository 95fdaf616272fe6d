"""Counts by subject: the same as a full read, whatever the index answers; and no record is read where it answers everything."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from overlay.client import BadQuestion, Client
from overlay.kafka.admin import Admin
from spark.counts import CountPlan, explain_counts, overlay_counts, shorten
from spark.options import read_options
from spark.plan import Planner
from tests.client.indexing import index_stream
from tests.client.logs import BASE, KEPT
from tests.client.read.test_indexes import as_time, fill, open_streams
from tests.index.test_start_positions import delete_below
from tests.spark.test_datasource import COMPACTED, fill_compacted
from tests.spark.test_tasks import read_tasks
from tests.support.kafka import SureProducer, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import produce, read_committed

# a planner that has just started loads the package anew
pytestmark = pytest.mark.timeout(300)

PARTITIONS = 2
INDEX = {"index": {"chunk_records": 40, "terms": ["to", "n"], "zones": ["n"]}}


@dataclass(frozen=True)
class Indexed:
    """A stream with an index, and what format("overlay") is told of it."""

    client: Client
    bootstrap: str
    topic: str

    @property
    def options(self) -> dict[str, str]:
        return {"config": self.client.origin, "stream": "S0"}

    def count(self, **question: Any) -> Counter[str]:
        """A full read."""
        found = Counter[str]()
        for batch in self.client.read("S0", columns=["subject"], index=False, **question):
            found.update(batch["subject"].to_pylist())
        return found


def open_indexed(bootstrap: str, folder: Path, topic: str) -> Indexed:
    return Indexed(open_streams(bootstrap, folder, topic, (INDEX,)), bootstrap, topic)


@pytest.fixture(scope="module")
def log(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexed]:
    """Transactions, of which some were aborted; a log whose beginning was deleted, and whose end has no header."""
    topic, rng = make_topic(bootstrap, f"counts-{uuid.uuid4().hex[:8]}", PARTITIONS, KEPT), random.Random(7)
    fill(bootstrap, topic, PARTITIONS, rng, 40)
    found = open_indexed(bootstrap, tmp_path_factory.mktemp("counts") / "config", topic)
    index_stream(found.client, bootstrap, "S0", PARTITIONS, left=40)
    delete_below(bootstrap, topic, 170)
    fill(bootstrap, topic, PARTITIONS, rng, 2)
    yield found
    found.client.close()


@pytest.fixture(scope="module")
def whole(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Indexed]:
    """A log that is indexed to its end."""
    topic = make_topic(bootstrap, f"counts-{uuid.uuid4().hex[:8]}", PARTITIONS, KEPT)
    fill(bootstrap, topic, PARTITIONS, random.Random(8), 20)
    found = open_indexed(bootstrap, tmp_path_factory.mktemp("counts") / "config", topic)
    index_stream(found.client, bootstrap, "S0", PARTITIONS)
    yield found
    found.client.close()


def list_counts(frame: DataFrame) -> dict[str, int]:
    rows = [tuple(row) for row in frame.collect()]
    assert len({key for key, _ in rows}) == len(rows), "a subject has two rows"
    return dict(rows)


def tell_plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_the_records_of_an_index_are_those_of_the_log(log: Indexed, bootstrap: str) -> None:
    """The full read that counts are compared with, held against another client."""
    seen = Counter(
        f"t.{(record.header(b'to') or b'').decode()}"
        for record in read_committed(bootstrap, log.topic)
        if record.header(b"to")
    )
    assert log.count() == seen and len(seen) == 5


QUESTIONS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {}),
    ({"subjects": "t.rome, *.oslo"}, {"subjects": ["t.rome", "*.oslo"]}),
    ({"subjects": "t.nowhere"}, {"subjects": ["t.nowhere"]}),
    ({"sql": "n > 150"}, {"sql": "n > 150"}),
    ({"values": "t.kiel,t.graz"}, {"values": ["t.kiel", "t.graz"]}),
    (
        {"startingTime": as_time(9_000).isoformat(), "endingTime": as_time(21_000).isoformat()},
        {"since": as_time(9_000), "until": as_time(21_000)},
    ),
    ({"index": "false"}, {}),
]


@pytest.mark.parametrize(("options", "question"), QUESTIONS, ids=[str(options) for options, _ in QUESTIONS])
def test_the_index_and_what_is_read_make_a_full_read(
    log: Indexed, options: dict[str, str], question: dict[str, Any]
) -> None:
    """Without Spark: the counts of headers, and what a full read finds in the ranges that they leave."""
    columns = ["partition", "offset", "subject"]
    batches = log.client.read("S0", columns=columns, index=False, **question)
    rows = {(row["partition"], row["offset"]): row["subject"] for batch in batches for row in batch.to_pylist()}
    tallies = Planner(read_options(log.options | options)).count()
    found = Counter[str]()
    for (_, partition), tally in tallies.items():
        found.update(tally.counts)
        left = [(partition, offset) for first, after in tally.to_read for offset in range(first, after)]
        found.update(rows[place] for place in left if place in rows)
    assert found == Counter(rows.values())
    plan = explain_counts(log.options | options)
    total = sum(tally.offsets_to_read for tally in tallies.values())
    assert plan.offsets_read == total
    if options.get("index") == "false":
        assert plan.chunks_answered == 0
    else:
        assert plan.chunks_answered > 3


@pytest.mark.parametrize("tokens", [None, 1])
@pytest.mark.parametrize(
    ("options", "question"), QUESTIONS[:2] + QUESTIONS[5:], ids=["all", "subjects", "times", "no index"]
)
def test_a_frame_has_what_a_full_read_counts(
    spark: SparkSession, log: Indexed, options: dict[str, str], question: dict[str, Any], tokens: int | None
) -> None:
    frame = overlay_counts(spark, log.options | options, tokens=tokens)
    wanted = Counter[str]()
    for subject, records in log.count(**question).items():
        wanted[subject if tokens is None else shorten(subject, tokens)] += records
    assert frame.columns == ["subject" if tokens is None else "prefix", "records"]
    assert list_counts(frame) == wanted and wanted
    assert "BatchScan overlay" in tell_plan(frame)


def test_no_record_is_read_where_the_index_answers(spark: SparkSession, whole: Indexed) -> None:
    frame = overlay_counts(spark, whole.options)
    assert list_counts(frame) == whole.count()
    assert "LocalTableScan" in tell_plan(frame) and "BatchScan" not in tell_plan(frame)
    plan = explain_counts(whole.options)
    assert (plan.chunks_read, plan.offsets_read, plan.offsets_uncovered) == (0, 0, 0)
    assert plan.records == sum(whole.count().values()) and plan.subjects == 5
    assert str(plan).endswith("No record is read")


def test_each_frame_counts_anew(spark: SparkSession, whole: Indexed) -> None:
    """The driver keeps the index, and asks for the log's end each time."""
    before = list_counts(overlay_counts(spark, whole.options, tokens=2))
    producer = SureProducer(whole.bootstrap)
    producer.produce(whole.topic, b"new", partition=0, headers=[("to", "rome")], timestamp=BASE)
    assert producer.flush(30) == 0
    after = list_counts(overlay_counts(spark, whole.options, tokens=2))
    assert after == before | {"t.rome": before["t.rome"] + 1}
    assert explain_counts(whole.options).offsets_uncovered == 1


def test_a_compacted_topic_is_read(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """Headers were sealed before the cleaner took records away that they count."""
    topic = make_topic(bootstrap, f"counts-{uuid.uuid4().hex[:8]}", 1, COMPACTED)
    fill_compacted(bootstrap, topic)
    found = open_indexed(bootstrap, tmp_path / "config", topic)
    index_stream(found.client, bootstrap, "S0", 1)
    before = sum(found.count().values())

    def is_compacted() -> bool:
        produce(bootstrap, topic, ["rome"])
        return sum(found.count().values()) < before // 2

    assert explain_counts(found.options).records == 0
    wait_until(is_compacted, 90, "keys that were written again are gone")
    assert list_counts(overlay_counts(spark, found.options)) == found.count()
    found.client.close()


def test_a_topic_that_may_be_compacted_is_read(whole: Indexed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without DescribeConfigs on the topic does not learn its cleanup policy."""

    async def deny(_: Admin, names: list[str]) -> dict[str, dict[str, str]]:
        return {name: {} for name in names}

    def read_count() -> tuple[int, int]:
        reading = whole.client.read("S0", subjects="t.*", columns=[])
        return sum(batch.num_rows for batch in reading), reading.progress.unread

    known, (records, unread) = explain_counts(whole.options), read_count()
    assert known.records > 0 and unread > 0
    monkeypatch.setattr(Admin, "_read_configs", deny)
    plan = explain_counts(whole.options)
    assert (plan.records, plan.chunks_read) == (0, known.chunks_answered + known.chunks_read)
    assert read_count() == (records, 0)


def test_ranges_of_offsets_are_all_that_is_read(log: Indexed) -> None:
    ranges = f'{{"{log.topic}": {{"0": [[180, 200], [300, 301]], "1": [[500, 600]]}}}}'
    options = log.options | {"columns": "value", "offsetRanges": ranges, "index": "false"}
    assert read_tasks(read_options(options | {"subjects": "t.nowhere"}))[1] == 121
    # also with a time, which is looked for in each of them
    assert read_tasks(read_options(options | {"subjects": "t.nowhere", "startingTime": "0"}))[1] == 121


def test_options_that_have_no_meaning_for_counts(log: Indexed, spark: SparkSession) -> None:
    with pytest.raises(BadQuestion, match="columns has no meaning for counts"):
        explain_counts(log.options | {"Columns": "value"})
    with pytest.raises(BadQuestion, match="tokens is 0"):
        overlay_counts(spark, log.options, tokens=0)


def test_a_plan_says_what_is_answered_and_what_is_read() -> None:
    assert str(CountPlan(12_000, 60, 2_930, 2, 10, 1_500)) == (
        "2,930 chunks are answered by their headers: 12,000 records of 60 subjects. To be read: 1,500 offsets, of 2 chunks"
        " that cannot say, and 10 offsets that have no header"
    )
