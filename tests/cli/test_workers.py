"""`ls` and `info` where several services run: two workers of one config, and one of another at the same address."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from overlay.kafka.own_topics import shard_of
from tests.support.kafka import NewTopicFixture
from tests.support.service import RunningService, StartService, find_free_port
from tests.support.waiting import wait_until

from .trips import DEADLINE_S, Trips, get_consumer

NAMES = [f"rome{number}" for number in range(6)]


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    trips = Trips(tmp_path / "config", bootstrap, new_topic())
    for name in NAMES:
        trips.add_consumer(name, to="rome")
    return trips


def copy_folder(trips: Trips, to: Path, *changes: tuple[str, str]) -> Path:
    """The config in another folder, with changes to the text of its overlay.yaml."""
    shutil.copytree(trips.folder, to)
    file = to / "overlay.yaml"
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return to


def get_shards(service: RunningService) -> list[int]:
    shards: list[int] = service.get_json("/service")["shards"]
    return shards


def test_each_worker_of_two_speaks_for_its_shards(trips: Trips, running_service: StartService, tmp_path: Path) -> None:
    with (trips.folder / "overlay.yaml").open("a") as file:
        file.write("shards: 2\n")
    trips.produce(40)
    first = running_service(trips.folder)
    port = first.url.rpartition(":")[2]
    second = running_service(copy_folder(trips, tmp_path / "second", (port, str(find_free_port()))))
    wait_until(
        lambda: sorted(get_shards(first) + get_shards(second)) == [0, 1] and len(get_shards(first)) == 1,
        DEADLINE_S,
        "each worker has a shard",
    )
    (mine,) = get_shards(first)

    def has_read_all(name: str) -> bool:
        service = first if shard_of(("TRIPS", name), 2) == mine else second
        return bool(get_consumer(service, name).get("positions") == {f"{trips.topic}-0": 40})

    for name in NAMES:
        wait_until(lambda name=name: has_read_all(name), DEADLINE_S, f"{name} has read everything")  # type: ignore[misc]

    def read_states() -> dict[str, str]:
        return {c["name"]: c["state"] for c in trips.run_json("consumer", "ls")["consumers"]}

    assert {shard_of(("TRIPS", name), 2) for name in NAMES} == {0, 1}
    wait_until(lambda: read_states() == dict.fromkeys(NAMES, "running"), DEADLINE_S, "each state is known")
    shown = trips.run_json("consumer", "ls")
    assert (shown["service"]["shards"], shown["service"]["shard_count"]) == ([mine], 2)
    assert shown["notes"] == []
    assert {c["consumer_sequence"] for c in shown["consumers"]} == {20}
    assert None not in {c["rate"] for c in shown["consumers"]}
    assert first.is_ready() and second.is_ready()


def test_the_service_of_another_config_is_not_believed(
    trips: Trips, running_service: StartService, tmp_path: Path
) -> None:
    trips.produce(4)
    other = copy_folder(trips, tmp_path / "other", ("prefix: '", "prefix: 'other-"))
    service = running_service(other)
    shown = trips.run_json("consumer", "ls")
    assert shown["service"] == {"running": False, "url": ""}
    assert f"what answers at {service.url} is the service of another config, {other.resolve()}" in shown["notes"][0]
    assert {c["state"] for c in shown["consumers"]} == {"new"}


def test_a_service_that_follows_another_copy_of_the_folder(
    trips: Trips, running_service: StartService, tmp_path: Path
) -> None:
    running_service(trips.folder)
    followed, trips.folder = trips.folder, tmp_path / "copy"
    shutil.copytree(followed, trips.folder)
    trips.add_consumer("oslo")
    notes = trips.run_json("stream", "ls")["notes"]
    assert f"it follows {followed.resolve()}, and takes up what changes there" in notes[0]
    assert notes[1] == "the running service does not know consumer TRIPS/oslo"
