"""`overlay drain`: a worker of two gives its shards to the other one while records come in, and takes some again."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import StartService, find_free_port
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, await_records

from .trips import DEADLINE_S, Trips

NAMES = [f"rome{number}" for number in range(6)]


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    trips = Trips(tmp_path / "first", bootstrap, new_topic())
    for name in NAMES:
        trips.add_consumer(name, to="rome")
    return trips


def start_two(trips: Trips, running_service: StartService, tmp_path: Path) -> None:
    """Two workers, `first` and `second`, with a shard each."""
    file = trips.folder / "overlay.yaml"
    text = file.read_text() + "shards: 2\n"
    file.write_text(text + "fleet: {worker: first}\n")
    second = tmp_path / "second"
    shutil.copytree(trips.folder, second)
    (port,) = (line.rpartition(":")[2].rstrip("'}\n") for line in text.splitlines() if line.startswith("http"))
    (second / "overlay.yaml").write_text(text.replace(port, str(find_free_port())) + "fleet: {worker: second}\n")
    running_service(trips.folder)
    running_service(second)

    def have_one_each() -> bool:
        rows = trips.run_json("workers")["workers"]
        return [(row["worker"], len(row["shards"])) for row in rows] == [("first", 1), ("second", 1)]

    wait_until(have_one_each, DEADLINE_S, "each worker tells of its shard")


def read_states(trips: Trips) -> dict[str, tuple[str, int]]:
    return {row["worker"]: (row["state"], len(row["shards"])) for row in trips.run_json("workers")["workers"]}


def test_a_worker_gives_its_shards_away_and_takes_some_again(
    trips: Trips, running_service: StartService, tmp_path: Path
) -> None:
    start_two(trips, running_service, tmp_path)
    assert "there is no worker third. Workers that are heard: first, second" in trips.run("drain", "third", code=1)
    enough, produced = threading.Event(), 0

    def produce() -> None:
        nonlocal produced
        producer = SureProducer(trips.bootstrap)
        while not enough.wait(0.02):
            producer.produce(trips.topic, str(produced).encode(), headers=[("to", b"rome")])
            produced += 1
        producer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        found = trips.run_json("drain", "first")
        assert (found["worker"], found["drained"], found["shards"]) == ("first", True, [])
        assert [move["worker"] for move in found["moved"]] == ["second"]
        assert read_states(trips) == {"first": ("drained", 0), "second": ("running", 2)}
        assert trips.run("drain", "first").endswith("worker first is drained\n"), "once more changes nothing"
        # the last one that takes shards keeps them
        refused = trips.run("drain", "second", code=1)
        assert "worker second is the only one that takes shards" in refused and "Start another worker first" in refused
        assert "worker first takes shards again; it has now: " in trips.run("drain", "first", "--undo")
        assert read_states(trips) == {"first": ("running", 1), "second": ("running", 1)}
    finally:
        enough.set()
        thread.join()
    for name in NAMES:
        with CommittedReader(trips.bootstrap, trips.output(name)) as reader:
            await_records(reader, produced)
            assert [int(seen.value or b"") for seen in reader.seen] == list(range(produced)), name
