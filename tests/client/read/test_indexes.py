"""Readings through a chunk index against readings without one, on real logs: the same records, fewer of them looked at."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import overlay
from overlay.client import Client, Reading
from tests.client.indexing import index_stream
from tests.client.logs import BASE, CODECS, KEPT, by_partition, read_offsets
from tests.index.test_start_positions import delete_below
from tests.support.kafka import SureProducer, await_markers, make_topic
from tests.support.service import write_service_file

PLACES = ("rome", "oslo", "bonn", "kiel", "graz")
RUN = 60
WHERE = ["partition", "offset"]
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"index": {"chunk_records": 40}},
    {"index": {"chunk_records": 100, "bloom_bytes": 16, "terms": ["to", "n"], "zones": ["delay"]}},
    {"index": {"chunk_records": 25, "bloom_bytes": 1024, "terms": ["delay", "n"], "zones": ["n", "raw"]}},
    {"index": {"chunk_records": 60, "terms": ["to", "raw"]}, "subject": {"header": "to"}},
)
PROPERTIES = {
    "to": "string",
    "delay": "double",
    "raw": {"type": "string", "from": "{header:odd}"},
    "n": {"type": "long", "from": "{value:n}"},
}


@pytest.fixture(autouse=True)
def gaps_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """These logs are so small that reading them whole costs less than one fetch more."""
    monkeypatch.setattr("overlay.index.skip.plan.BRIDGE", 0)
    monkeypatch.setattr("overlay.index.skip.plan.FETCH_S", 0.0)


@dataclass(frozen=True)
class Logs:
    client: Client
    bootstrap: str
    topic: str
    partitions: int

    @property
    def streams(self) -> list[str]:
        return [f"S{number}" for number in range(len(CONFIGS))]


def fill(bootstrap: str, topic: str, partitions: int, rng: random.Random, bursts: int) -> None:
    """Runs of records that are alike, in transactions of which every fourth is aborted."""
    producers = []
    for codec in CODECS:
        settings = {"compression.type": codec, "transactional.id": f"{topic}-{codec}", "batch.num.messages": 15}
        producers.append(Producer({"bootstrap.servers": bootstrap, **settings}))
        producers[-1].init_transactions(30)
    for burst in range(bursts):
        producer = producers[burst % len(producers)]
        producer.begin_transaction()
        for number in range(RUN):
            produce(producer, topic, rng, partitions, burst, number)
        producer.flush(30)
        if burst % 4 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    await_markers(bootstrap, topic)


def produce(producer: Producer, topic: str, rng: random.Random, partitions: int, burst: int, number: int) -> None:
    place = PLACES[burst % len(PLACES)] if rng.random() < 0.95 else None
    headers: list[tuple[str, str | bytes | None]] = [("to", place)] if place else []
    if rng.random() < 0.8:
        headers.append(("delay", rng.choice([f"{burst}.5", str(burst), "x"]) if burst % 3 else str(number)))
    if burst % 2:
        headers.append(("odd", rng.choice([b"abc", b"\xff\x00", b"", f"a long text of burst {burst}".encode()])))
    value = rng.choice([b'{"n": %d}' % (burst * 10 + number % 3), b'{"n": "no"}', b"", b"x" * rng.randrange(200)])
    time = BASE + 1_000 * burst + rng.randrange(1_500)
    producer.produce(topic, value, None, rng.randrange(partitions), timestamp=time, headers=headers)


def open_streams(bootstrap: str, folder: Path, topic: str, configs: tuple[Mapping[str, Any], ...] = CONFIGS) -> Client:
    write_service_file(folder, bootstrap)
    (folder / "streams").mkdir()
    for number, config in enumerate(configs):
        whole: dict[str, Any] = {"name": f"S{number}", "topics": [topic], "subject": {"template": "t.{header:to}"}}
        (folder / "streams" / f"s{number}.yaml").write_text(json.dumps({**whole, "properties": PROPERTIES, **config}))
    return overlay.open(folder)


@pytest.fixture(scope="module", params=[1, 3], ids=["one partition", "three partitions"])
def logs(request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logs]:
    """A log whose beginning was deleted after a part of it was indexed, and which goes on behind its index."""
    partitions, rng = request.param, random.Random(request.param)
    topic = make_topic(bootstrap, f"indexed-{partitions}-{tmp_path_factory.getbasetemp().name}", partitions, KEPT)
    fill(bootstrap, topic, partitions, rng, 24 * partitions)
    client = open_streams(bootstrap, tmp_path_factory.mktemp("indexed") / "config", topic)
    found = Logs(client, bootstrap, topic, partitions)
    for number, stream in enumerate(found.streams):
        index_stream(client, bootstrap, stream, partitions, left=40 * number)
    delete_below(bootstrap, topic, 170)
    fill(bootstrap, topic, partitions, rng, 2)
    yield found
    client.close()


def as_time(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=BASE + milliseconds)


SUBJECTS = (["t.rome"], ["t.oslo", "t.graz"], ["*.bonn"], ["t.>"], [">"], ["rome"], ["*"], ["t.nowhere"])
FILTERS = (
    "[to] = 'kiel'",
    "n = 100 OR n = 131",
    "n IN (50, 51, 220) AND [to] <> 'rome'",
    "delay > 20",
    "delay >= 3 AND delay <= 5.5 AND raw IS NOT NULL",
    "raw LIKE 'a long text of burst 1%'",
    "delay IS NULL",
    "raw = 'abc' OR n > 200",
    "NOT (delay < 15)",
    "n + 1 = 101",
    "1 = 1",
)


def draw_question(rng: random.Random, partitions: int) -> dict[str, Any]:
    question: dict[str, Any] = {}
    if rng.random() < 0.6:
        question["subjects"] = rng.choice(SUBJECTS)
    if rng.random() < 0.5:
        question["sql"] = rng.choice(FILTERS)
    begin = rng.randrange(-1_000, 27_000 * partitions)
    if rng.random() < 0.4:
        question["since"] = as_time(begin)
    if rng.random() < 0.4:
        question["until"] = as_time(begin + rng.choice([1, 900, 4_000, 20_000]))
    if partitions == 1 and "since" not in question and rng.random() < 0.3:
        question["from_seq"] = rng.randrange(1, 2_000)
    if rng.random() < 0.3:
        question["last"] = rng.choice([1, 7, 80, 5_000])
    return question


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_the_same_records(logs: Logs, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.client.read.reader.WINDOW", 100)
    rng, unread, tried = random.Random(number), 0, 0
    for _ in range(25):
        question = draw_question(rng, logs.partitions)
        through = logs.client.read(f"S{number}", columns=WHERE, **question)
        found = read_offsets(through)
        straight = logs.client.read(f"S{number}", columns=WHERE, index=False, **question)
        wanted = read_offsets(straight)
        if "last" not in question:
            assert by_partition(found) == by_partition(wanted), question
        else:
            assert found == wanted, question
        assert straight.progress.unread == 0 and through.progress.done == through.progress.total
        tried += 1
        unread += through.progress.unread > 0
    assert unread > tried / 3


def read(client: Client, stream: str = "S0", **question: Any) -> tuple[dict[int, list[int]], Reading]:
    reading = client.read(stream, **{"columns": WHERE, **question})
    return by_partition(read_offsets(reading)), reading


def test_it_skips_what_it_can(logs: Logs) -> None:
    """Not only is nothing wrong: much of the log is not even read."""
    found, reading = read(logs.client, subjects=["t.rome"])
    total = reading.progress.total or 0
    assert reading.progress.unread > total / 3
    assert found == read(logs.client, subjects=["t.rome"], index=False)[0]
    _, narrow = read(logs.client, since=as_time(5_000), until=as_time(7_000))
    assert narrow.progress.unread > total / 2


@pytest.mark.parametrize("subjects", [["t.rome"], ["t.*"], [], ["t.nowhere"]])
def test_counting_reads_nothing_that_is_counted(logs: Logs, subjects: list[str]) -> None:
    wanted = sum(batch.num_rows for batch in logs.client.read("S0", subjects=subjects, columns=[], index=False))
    reading = logs.client.read("S0", subjects=subjects, columns=[])
    assert sum(batch.num_rows for batch in reading) == wanted == reading.progress.matched
    limited = logs.client.read("S0", subjects=subjects, columns=[], limit=3)
    assert sum(batch.num_rows for batch in limited) == min(3, wanted)
    assert reading.progress.done == reading.progress.total


LASTS: tuple[dict[str, Any], ...] = (
    {},
    {"subjects": ["t.rome"]},
    {"subjects": ["t.rome", "t.graz", "t.nowhere"]},
    {"subjects": ["t.*"], "sql": "n > 100"},
    {"subjects": ["*.bonn"], "until": as_time(9_000)},
    {"sql": "delay IS NULL", "since": as_time(2_000)},
    {"values": ["t.oslo", "t.kiel"]},
)
PLACED = ["subject", "partition", "offset", "timestamp"]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("question", LASTS, ids=str)
def test_the_last_of_each_subject(logs: Logs, question: dict[str, Any], index: bool) -> None:
    last: dict[tuple[str, int], tuple[Any, int]] = {}
    for batch in logs.client.read("S0", columns=PLACED, index=False, **question):
        for row in batch.to_pylist():
            last[row["subject"], row["partition"]] = row["timestamp"], row["offset"]
    newest: dict[str, Any] = {}
    for (subject, _), (time, _) in last.items():
        newest[subject] = max(newest.get(subject, time), time)
    reading = logs.client.read("S0", columns=PLACED, index=index, last_per_subject=True, **question)
    rows = [row for batch in reading for row in batch.to_pylist()]
    assert {row["subject"]: row["timestamp"] for row in rows} == newest and len(rows) == len(newest)
    assert all(last[row["subject"], row["partition"]] == (row["timestamp"], row["offset"]) for row in rows)
    order = [row["timestamp"] if logs.partitions > 1 else row["offset"] for row in rows]
    assert order == sorted(order)
    assert reading.progress.done == reading.progress.total
    counted = logs.client.read("S0", columns=[], index=index, last_per_subject=True, **question)
    assert sum(batch.num_rows for batch in counted) == len(newest)


def test_the_last_of_each_subject_is_found_near_the_end(logs: Logs) -> None:
    """Behind its index the log has records of two places; the others are found by their chunks."""
    reading = logs.client.read("S0", subjects="t.*", columns=WHERE, last_per_subject=True)
    assert sum(batch.num_rows for batch in reading) == len(PLACES)
    total = reading.progress.total or 0
    assert reading.progress.unread > total / 2 and reading.progress.scanned < total / 2


def test_the_last_records_are_found_by_counts(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of reading, where headers count what they hold: no window is guessed."""
    monkeypatch.setattr("overlay.client.read.offset_ranges.OffsetRange.keep_last", None)
    wanted = read_offsets(logs.client.read("S0", subjects="t.rome", columns=WHERE, index=False))
    found = read_offsets(logs.client.read("S0", subjects="t.rome", columns=WHERE, last=70))
    if logs.partitions == 1:
        assert found == wanted[-70:]
    assert len(found) == 70 and set(found) < set(wanted)


def test_following_catches_up_through_the_index(logs: Logs) -> None:
    wanted, _ = read(logs.client, subjects=["t.kiel"], index=False)
    count = sum(map(len, wanted.values()))
    found: list[tuple[int, int]] = []
    with logs.client.read("S0", subjects=["t.kiel"], columns=WHERE, follow=True, limit=count + 1) as reading:
        while len(found) < count:
            found += read_offsets([next(reading)])
        unread = reading.progress.unread
        producer = SureProducer(logs.bootstrap)
        producer.produce(logs.topic, b"new", partition=0, headers=[("to", "kiel")], timestamp=BASE)
        assert producer.flush(30) == 0
        assert len(read_offsets(reading)) == 1
    assert by_partition(found) == wanted and unread > 0


async def test_async_readings_use_it_too(logs: Logs) -> None:
    reading = logs.client.read_async("S0", subjects=["t.rome"], columns=WHERE)
    found = [pair async for batch in reading for pair in read_offsets([batch])]
    assert by_partition(found) == read(logs.client, subjects=["t.rome"], index=False)[0]
    assert reading.progress.unread > 0
