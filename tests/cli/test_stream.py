"""`overlay stream` against a real broker, with a service that runs and without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from overlay.kafka.own_topics import shard_of
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import RunningService, StartService, write_service_file
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

from .trips import DEADLINE_S, Trips, await_delivered, get_stream


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    trips = Trips(tmp_path / "config", bootstrap, new_topic())
    trips.add_consumer("rome")
    return trips


def test_a_stream_with_and_without_its_service(trips: Trips, running_service: StartService) -> None:
    trips.produce(40)
    new = trips.run_json("stream", "info", "TRIPS")["stream"]
    partition = f"{trips.topic}-0"
    assert (new["state"], new["behind"], new["partitions"]) == ("new", None, {partition: {"position": None, "end": 40}})

    service = running_service(trips.folder)
    await_delivered(service, "rome", 20)
    found = trips.run_json("stream", "ls")
    assert (found["service"]["running"], found["service"]["url"], found["notes"]) == (True, service.url, [])
    (shown,) = found["streams"]
    assert (shown["name"], shown["state"], shown["behind"], shown["decoded"]) == ("TRIPS", "running", 0, 40)
    assert shown["partitions"] == {partition: {"position": 40, "end": 40}}
    assert shown["consumers"] == ["rome"]
    check_counts(trips, service)
    more = trips.produce_until(
        lambda: trips.run_json("stream", "info", "TRIPS")["stream"]["rate"] > 0, "its rate is told"
    )
    await_delivered(service, "rome", 20 + more // 2)

    assert service.stop() == 0
    trips.produce(2_000)
    stored = trips.run_json("stream", "info", "TRIPS")["stream"]
    assert (stored["state"], stored["behind"], stored["rate"]) == ("waiting", 2_000, None)
    listed = trips.run("stream", "ls").splitlines()
    assert listed[0].split() == ["stream", "state", "topics", "consumers", "partitions", "records/s", "behind"]
    assert listed[1].split() == ["TRIPS", "waiting", trips.topic, "1", "1", "-", "2,000"]
    assert "the service is not running" in listed[2]


def check_counts(trips: Trips, service: RunningService) -> None:
    """Records without a subject are told of, with the place of one, and a reader that comes later counts no record again."""
    producer = SureProducer(trips.bootstrap)
    for number in range(3):
        producer.produce(trips.topic, b"x", headers=[("to", b"")] if number else [])
    assert producer.flush(30) == 0
    wait_until(lambda: get_stream(service)["decoded"] == 43, DEADLINE_S, "the records are read")
    trips.add_consumer("oslo")
    wait_until(lambda: "oslo" in [c["name"] for c in service.get_json("/consumers")], DEADLINE_S, "oslo is taken up")
    await_delivered(service, "oslo", 20)
    found = trips.run_json("stream", "info", "TRIPS")["stream"]
    assert (found["decoded"], found["unaddressed"], found["unaddressed_at"]) == (
        43,
        {"missing": 3},
        f"{trips.topic}-0@40: missing",
    )
    assert found["read_again"] >= 20
    told = f"3 records left out since the service started (missing 3), such as {trips.topic}-0@40: missing"
    assert told in trips.run("stream", "info", "TRIPS")
    trips.consumer_file("oslo").unlink()


def test_neither_kafka_nor_a_service_answers(trips: Trips) -> None:
    write_service_file(trips.folder, "127.0.0.1:1")
    done = trips.run_process("stream", "ls")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: 127.0.0.1:1: Kafka cannot be reached") and done.stderr.count("\n") == 1


def await_stop(service: RunningService, reason: str) -> None:
    def has_stopped() -> bool:
        found = get_stream(service)
        return found["state"] == "stopped" and reason in found["reason"]

    wait_until(has_stopped, DEADLINE_S, f"the stream has stopped: {reason}")


def test_a_topic_that_was_created_again(trips: Trips, running_service: StartService) -> None:
    trips.produce(40)
    service = running_service(trips.folder)
    await_delivered(service, "rome", 20)
    trips.delete_topic()
    await_stop(service, "does not exist")
    assert "Create it, then reset" in trips.run("stream", "reset", "TRIPS", "--yes", code=1)
    trips.create_topic()
    trips.produce(10)
    await_stop(service, "overlay stream reset TRIPS")
    shown = trips.run_json("stream", "info", "TRIPS")["stream"]
    assert "overlay stream reset TRIPS" in shown["reason"]
    assert shown["partitions"] == {f"{trips.topic}-0": {"position": None, "end": 10}}

    asked = trips.run("stream", "reset", "TRIPS", code=1)
    assert "nothing was changed" in asked and "was deleted and created again" in asked
    assert get_stream(service)["state"] == "stopped"
    assert "begins anew" in trips.run("stream", "reset", "TRIPS", "--yes")

    # without a restart; sequences go on without a hole, and nothing comes twice
    await_delivered(service, "rome", 25)
    seen = read_committed(trips.bootstrap, trips.output("rome"))
    assert [record.value for record in seen] == [str(n).encode() for n in (*range(0, 40, 2), *range(0, 10, 2))]
    assert [record.token.consumer_sequence for record in seen] == list(range(1, 26))
    assert [record.token.sequence for record in seen][-5:] == [1, 3, 5, 7, 9]
    assert get_stream(service)["state"] == "running"


def test_to_the_end_without_a_service_and_to_the_start_with_one(trips: Trips, running_service: StartService) -> None:
    with (trips.folder / "overlay.yaml").open("a") as file:
        file.write("shards: 3\n")
    names = ["rome", *(f"rome{number}" for number in range(5))]
    assert {shard_of(("TRIPS", name), 3) for name in names} == {0, 1, 2}
    for name in names:
        trips.add_consumer(name, to="rome")
    trips.add_consumer("lasts", to=">", deliver_policy="last_per_subject")
    assert "nothing to reset" in trips.run("stream", "reset", "TRIPS")
    trips.produce(10)
    service = running_service(trips.folder)
    await_all(service, dict.fromkeys(names, 5) | {"lasts": 2})
    assert service.stop() == 0

    trips.produce(6)
    shown = trips.run("stream", "reset", "TRIPS", "--to", "end", "--yes")
    assert ["rome3", f"{trips.topic}-0", "10", "16"] in [line.split() for line in shown.splitlines()]
    assert {c["lag_records"] for c in trips.run_json("consumer", "ls")["consumers"]} == {0}

    trips.produce(2)
    service = running_service(trips.folder)
    await_all(service, dict.fromkeys(names, 1) | {"lasts": 2})
    trips.run("stream", "reset", "TRIPS", "--yes")
    await_all(service, dict.fromkeys(names, 1 + 9) | {"lasts": 2 + 2})
    everything = [0, 2, 4, 6, 8, 0, 2, 4, 0]
    for name in names:
        seen = read_committed(trips.bootstrap, trips.output(name))
        assert [int(record.value or b"") for record in seen] == [*everything[:5], *everything[8:], *everything], name
        assert [record.token.consumer_sequence for record in seen] == list(range(1, 16)), name
    lasts = read_committed(trips.bootstrap, trips.output("lasts"))
    assert [record.value for record in lasts] == [b"8", b"9", b"0", b"1", b"0", b"1"]


def await_all(service: RunningService, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        await_delivered(service, name, count)
