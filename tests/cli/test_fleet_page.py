"""What the status page has done and looked up, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from overlay.cli import fleet_page
from overlay.cli.fleet_page import PageRequests, draw_chunks
from overlay.client.control.control import Control
from overlay.config import load
from overlay.errors import OverlayError
from tests.support.kafka import NewTopicFixture
from tests.support.service import StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

from .trips import Trips

DEADLINE_S = 60


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    return Trips(tmp_path / "config", bootstrap, new_topic())


def make_requests(trips: Trips) -> PageRequests:
    # a reset and a replay ask the service for nothing
    return PageRequests(cast("Control", None), lambda: load(trips.folder))


def test_a_stream_begins_anew(trips: Trips, running_service: StartService) -> None:
    trips.add_consumer("rome")
    trips.produce(10)
    requests = make_requests(trips)
    with pytest.raises(OverlayError, match="nothing is remembered of stream TRIPS"):
        requests.plan_reset("TRIPS", "start")
    running_service(trips.folder)

    def read_output() -> list[bytes | None]:
        return [each.value for each in read_committed(trips.bootstrap, trips.output("rome"))]

    once = [b"0", b"2", b"4", b"6", b"8"]
    wait_until(lambda: read_output() == once, DEADLINE_S, "all is delivered")
    plan = requests.plan_reset("TRIPS", "start").splitlines()
    assert plan[0] == "The consumers of stream TRIPS begin anew at the start of its topics:"
    assert plan[1] == f"rome, {trips.topic}-0: 10 -> 0"
    assert "is delivered again" in plan[2]
    assert "is passed over" in requests.plan_reset("TRIPS", "end")
    assert requests.reset("TRIPS", "start") == "stream TRIPS begins anew at the start of its topics"
    wait_until(lambda: read_output() == once * 2, DEADLINE_S, "all is delivered again")
    with pytest.raises(OverlayError, match="no stream SHIPS"):
        requests.plan_reset("SHIPS", "start")


def test_dead_letters_are_replayed(trips: Trips, running_service: StartService) -> None:
    trips.produce(10)
    running_service(trips.folder)
    letters = trips.output("dead")
    trips.run("consumer", "add", "TRIPS", "work", "--subject", "trips.rome", "--set", f"dead_letter={letters}")
    pulled = trips.run("consumer", "next", "TRIPS", "work", "--count", "2", "--wait", f"{DEADLINE_S}s", "--json")
    for message in pulled.splitlines():
        trips.run("consumer", "term", json.loads(message)["token"])
    requests = make_requests(trips)
    plan = requests.plan_replay("TRIPS", "work", None).splitlines()
    assert plan[0] == f"2 dead letters of TRIPS/work go to topic {trips.topic}:"
    assert len(plan) == 3 and f"{letters}-0@" in plan[1] and "trips.rome  term, 1 deliveries" in plan[1]
    with pytest.raises(OverlayError, match=f"control is no topic of stream TRIPS, which has {trips.topic}"):
        requests.replay("TRIPS", "work", f"{trips.prefix}.control")
    done = requests.replay("TRIPS", "work", None)
    assert done == f"2 of 2 dead letters of TRIPS/work are replayed to topic {trips.topic}"
    assert [each.value for each in read_committed(trips.bootstrap, trips.topic)][10:] == [b"0", b"2"]
    with pytest.raises(OverlayError, match="no dead letters of TRIPS/work since the last replay"):
        requests.replay("TRIPS", "work", None)
    with pytest.raises(OverlayError, match="there is no consumer TRIPS/oslo"):
        requests.plan_replay("TRIPS", "oslo", None)


def test_one_runs_at_a_time(trips: Trips) -> None:
    requests = make_requests(trips)
    with requests._take_turn(), pytest.raises(OverlayError, match="another reset or replay is under way"):
        requests.plan_reset("TRIPS", "start")
    with pytest.raises(OverlayError, match="nothing is remembered"):
        requests.plan_reset("TRIPS", "start")


def test_a_plan_names_some_and_counts_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_page, "MOST_LINES", 2)
    assert fleet_page._cut(["a", "b"]) == ["a", "b"]
    assert fleet_page._cut(["a", "b", "c", "d"]) == ["a", "b", "and 2 more"]


def test_chunks_are_drawn_by_the_index(trips: Trips) -> None:
    with (trips.folder / "streams" / "trips.yaml").open("a") as file:
        file.write("index: {chunk_records: 100}\n")
    trips.add_consumer("rome")
    trips.add_consumer("nowhere")
    # a chunk ends with a batch
    for _ in range(10):
        trips.produce(100)
    before = draw_chunks(load(trips.folder), "TRIPS", "rome")
    (part,) = before["partitions"]
    assert {*part["cells"]} == {"unindexed"}
    assert "overlay index build TRIPS" in before["text"]
    trips.run("index", "build", "TRIPS")
    found = draw_chunks(load(trips.folder), "TRIPS", "nowhere")
    (part,) = found["partitions"]
    assert (part["partition"], part["first"], part["end"]) == (f"{trips.topic}-0", 0, 1_000)
    assert len(part["cells"]) == fleet_page.STRIP_WIDTH and {*part["cells"]} == {"skipped"}
    assert part["text"].startswith("10 chunks: 10 have no match, 0 may have some, in 0 all match")
    assert {*found["kinds"]} == {"skipped", "read", "unindexed", "matched"}
    (part,) = draw_chunks(load(trips.folder), "TRIPS", "rome")["partitions"]
    assert {*part["cells"]} == {"read"}
    with pytest.raises(OverlayError, match="there is no consumer TRIPS/oslo"):
        draw_chunks(load(trips.folder), "TRIPS", "oslo")
