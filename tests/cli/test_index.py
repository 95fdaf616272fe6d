"""`overlay index` against a real broker: how far an index is, and making one without a service."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from overlay.config import load
from overlay.errors import OverlayError
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import index_topic
from overlay.worker.index_build import Build
from overlay.worker.session import Session
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.waiting import wait_until
from tests.worker.scenes import Served, read_committed

from .trips import DEADLINE_S, Trips


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    trips = Trips(tmp_path / "config", bootstrap, new_topic(partitions=2))
    with (trips.folder / "streams" / "trips.yaml").open("a") as file:
        file.write("index: {chunk_records: 50}\n")
    trips.add_consumer("rome")
    return trips


def produce(trips: Trips, bursts: int, size: int = 25, partition: int = 0, padding: int = 0) -> None:
    """Small batches, since chunks never divide one."""
    for _ in range(bursts):
        producer = SureProducer(trips.bootstrap)
        for number in range(size):
            to = b"rome" if number % 2 == 0 else b"oslo"
            producer.produce(trips.topic, os.urandom(padding), partition=partition, headers=[("to", to)])
        assert producer.flush(30) == 0


def produce_unaddressed(trips: Trips) -> None:
    """A record without the header that gives records their subject."""
    producer = SureProducer(trips.bootstrap)
    producer.produce(trips.topic, b"x", partition=0)
    assert producer.flush(30) == 0


def get_index(trips: Trips) -> dict[str, Any]:
    found: dict[str, Any]
    said = trips.run("index", "status", "TRIPS", "--json").splitlines()  # warnings come before
    (found,) = json.loads(said[-1])["indexes"]
    return found


def part(chunks: int, end: int, **more: object) -> dict[str, Any]:
    """A partition that is indexed from 0 to its end."""
    whole = {"start": 0, "position": end, "end": end, "unindexed": 0, "outdated": 0, "behind": 0}
    addresses = {"records": end, "unaddressed": 0, "unaddressed_in": None}
    return {"chunks": chunks, **whole, **addresses, **more}


def test_an_index_without_a_service(trips: Trips) -> None:
    produce(trips, 5)
    produce(trips, 3, partition=1)
    before = get_index(trips)
    assert (before["chunks"], before["behind"]) == (0, 200)
    assert "overlay index build TRIPS" in before["reason"]
    assert "no index topic yet" in trips.run("stream", "info", "TRIPS")

    shown = [line.split() for line in trips.run("index", "build", "TRIPS").splitlines()]
    assert ["stream", "TRIPS"] in shown and ["index", "5", "chunks"] in shown
    found = get_index(trips)
    assert found["partitions"] == {f"{trips.topic}-0": part(3, 125), f"{trips.topic}-1": part(2, 75)}
    assert (found["stream"], found["reason"], found["foreign"], found["rate"]) == ("TRIPS", "", 0, None)
    assert 0 < found["bytes"] < 10_000

    # what was done is not done again, but for the last chunk of each partition, which is not full
    topic = index_topic(load(trips.folder).service.topics.prefix, "TRIPS")
    written = len(read_committed(trips.bootstrap, topic))
    produce(trips, 2)
    produce_unaddressed(trips)
    trips.run("index", "build", "TRIPS")
    records = read_committed(trips.bootstrap, topic)[written:]
    keys = [key.split()[2:] for record in records if (key := record.key or b"").startswith(b"chunk ")]
    assert sorted(keys) == [[b"0", b"100"], [b"0", b"150"], [b"1", b"50"]]
    grown = part(4, 176, unaddressed=1, unaddressed_in=[150, 176])
    assert get_index(trips)["partitions"][f"{trips.topic}-0"] == grown

    # consumers that have not begun do not notice: they begin where they would have
    assert trips.run_json("consumer", "ls")["consumers"][0]["state"] == "new"
    info = trips.run("stream", "info", "TRIPS").splitlines()
    assert next(line.split() for line in info if line.startswith(f"{trips.topic}-0"))[-3:] == ["4", "176", "0"]
    told = f"1 of 251 indexed records, such as one in {trips.topic}-0 between offsets 150 and 175"
    assert ["no", "subject", *told.split()] in [line.split() for line in info]


def test_beside_a_service(trips: Trips) -> None:
    """It keeps the index itself, says how far it is, and so a build refuses. What stopping leaves is complete."""
    name = f"{trips.topic}-0"
    file = trips.folder / "streams" / "trips.yaml"
    file.write_text(file.read_text().replace("chunk_records", "chunk_age: 1h, chunk_records"))
    produce(trips, 4)
    served = Served(trips.folder)
    try:
        wait_until(lambda: is_at(served, name, 100, 100), DEADLINE_S, "two chunks are sealed")
        produce(trips, 1)
        wait_until(lambda: is_at(served, name, 100, 125), DEADLINE_S, "the rest is read")
        assert served.stream("TRIPS")["index"]["partitions"][name] == {
            "chunks": 2,
            "position": 100,
            "end": 125,
            "records": 100,
            "unaddressed": 0,
            "unaddressed_in": None,
        }
        assert "runs at" in trips.run("index", "build", "TRIPS", code=1)
        found = get_index(trips)
        assert found["rate"] is not None
        assert found["partitions"][name] == part(2, 125, position=100, unindexed=25, behind=25, records=100)
        shown = trips.run_json("stream", "info", "TRIPS")["stream"]["index"]
        assert (shown["chunks"], shown["behind"], shown["topic"]) == (2, 25, "")
        served.set_gauges()
        metrics = served.service.metrics
        assert metrics.index_lag_records.labels("TRIPS")._value.get() == 25
        assert metrics.chunks_sealed.labels("TRIPS")._value.get() == 2
    finally:
        served.stop()
    assert get_index(trips)["partitions"][name] == part(3, 125)


def is_at(served: Served, name: str, position: int, end: int) -> bool:
    """How far the service says that its index of a partition is."""
    index = served.stream("TRIPS")["index"]
    found = index["partitions"].get(name) if index else None
    return bool(found and (found["position"], found["end"]) == (position, end))


def test_stopped_on_the_way_and_begun_again(trips: Trips) -> None:
    """Whenever it is stopped, the chunks of both runs lie one behind the other up to the end, and none is made twice."""
    produce(trips, 150, size=150, padding=1_000)
    work = Build(load(trips.folder), "TRIPS")

    async def run_a_little() -> bool:
        stop = asyncio.Event()
        running = asyncio.create_task(work.run(stop))
        while not work.done and not running.done():  # noqa: ASYNC110 - nothing says that it has begun
            await asyncio.sleep(0)
        stop.set()
        return await running

    reached = asyncio.run(run_a_little())
    between = get_index(trips)["partitions"][f"{trips.topic}-0"]
    assert reached == (between["behind"] == 0)
    assert work.total == 22_500 and 0 < work.done <= between["position"]
    trips.run("index", "build", "TRIPS")
    topic = index_topic(load(trips.folder).service.topics.prefix, "TRIPS")
    records = read_committed(trips.bootstrap, topic)
    keys = [record.key for record in records if (record.key or b"").startswith(b"chunk ")]
    assert len(keys) - len(set(keys)) <= 1  # the chunk that was growing when it was stopped
    assert get_index(trips)["partitions"][f"{trips.topic}-0"] == part(len(set(keys)), 22_500)


def join(trips: Trips) -> Consumer:
    """Another member of the workers' group."""
    prefix = load(trips.folder).service.topics.prefix
    kafka = {"bootstrap.servers": trips.bootstrap, "group.id": f"{prefix}.workers", "enable.auto.commit": False}
    consumer = Consumer({**kafka, "partition.assignment.strategy": "roundrobin"})
    consumer.subscribe([f"{prefix}.state"])
    return consumer


def test_where_workers_are_it_does_not_begin(trips: Trips) -> None:
    trips.run("index", "build", "TRIPS")
    consumer = join(trips)
    try:
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), DEADLINE_S, "the group has a member")
        said = trips.run("index", "build", "TRIPS", code=1)
    finally:
        consumer.close()
    assert "is running (1 member in the group" in said


class Endless(Build):
    """Has the shard and does not come to an end."""

    has_begun = False

    async def _look(self, admin: Admin, session: Session) -> None:
        self.has_begun = True


def test_it_gives_way_to_a_worker_that_comes(trips: Trips) -> None:
    work = Endless(load(trips.folder), "TRIPS")

    async def run() -> None:
        running = asyncio.create_task(work.run(asyncio.Event()))
        while not work.has_begun:
            assert not running.done()
            await asyncio.sleep(0.01)
        consumer = join(trips)
        try:
            while not running.done():
                await asyncio.to_thread(consumer.poll, 0.05)
        finally:
            await asyncio.to_thread(consumer.close)
        await running

    with pytest.raises(OverlayError, match="another worker has joined the group"):
        asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_what_cannot_be_indexed(trips: Trips) -> None:
    assert "Did you mean TRIPS?" in trips.run("index", "build", "TRIPSS", code=1)
    assert "Did you mean TRIPS?" in trips.run("index", "status", "TRIPSS", code=1)
    trips.delete_topic()
    assert f"topic {trips.topic} does not exist" in trips.run("index", "build", "TRIPS", code=1)
    assert get_index(trips)["partitions"] == {}


def test_foreign_records_and_an_older_config(trips: Trips) -> None:
    produce(trips, 4)
    trips.run("index", "build", "TRIPS")
    producer = SureProducer(trips.bootstrap)
    producer.produce(index_topic(load(trips.folder).service.topics.prefix, "TRIPS"), b"who", b"knows")
    assert producer.flush(30) == 0
    file = trips.folder / "streams" / "trips.yaml"
    file.write_text(
        file.read_text().replace("chunk_records", "terms: [to], chunk_records") + "properties: {to: string}\n"
    )
    found = get_index(trips)
    assert found["foreign"] == 1
    assert found["partitions"][f"{trips.topic}-0"] == part(2, 100, outdated=2)
    text = trips.run("index", "status")
    assert "2 chunks, which are made anew" in text and "1 records of another kind" in text
    trips.run("index", "build", "TRIPS")
    assert get_index(trips)["partitions"][f"{trips.topic}-0"] == part(2, 100)
