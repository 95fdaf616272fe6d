"""`overlay consumer` against a real broker, with a service that runs and without one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
from aiokafka.client import AIOKafkaClient

from overlay.cli.consumer import check_unused, describe_output, find_consumer, find_named
from overlay.cli.lookup import join_names
from overlay.config import ConsumerConfig, Loaded
from overlay.errors import OverlayError
from overlay.view.facts import ConsumerFacts, OverlayFacts, StreamFacts
from tests.support.kafka import NewTopicFixture, make_topic
from tests.support.service import RunningService, StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

from .trips import DEADLINE_S, Trips, await_delivered, get_consumer


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    return Trips(tmp_path / "config", bootstrap, new_topic())


def test_a_consumer_with_and_without_its_service(trips: Trips, running_service: StartService) -> None:
    trips.add_consumer("rome")
    trips.produce(40)

    new = trips.run_json("consumer", "ls")
    assert new["service"] == {"running": False, "url": ""}
    assert "nothing answers" in new["notes"][0]
    assert [(c["name"], c["state"], c["consumer_sequence"]) for c in new["consumers"]] == [("rome", "new", None)]

    service = running_service(trips.folder)
    await_delivered(service, "rome", 20)
    found = trips.run_json("consumer", "info", "TRIPS", "rome")
    worker = found["service"]
    assert (worker["running"], worker["url"], worker["folder"]) == (True, service.url, str(trips.folder.resolve()))
    assert (worker["shards"], worker["shard_count"], found["notes"]) == ([0], 1, [])
    rome = found["consumer"]
    assert (rome["state"], rome["consumer_sequence"], rome["lag_records"]) == ("running", 20, 0)
    assert rome["positions"] == {f"{trips.topic}-0": 40}
    assert rome["delivered"] == 20
    listed = trips.run("consumer", "ls", "TRIPS").splitlines()
    assert listed[0].split() == ["stream", "consumer", "state", "output", "sequence", "records/s", "lag", "lag", "time"]
    assert listed[1].split()[:5] == ["TRIPS", "rome", "running", trips.output("rome"), "20"]

    more = trips.produce_until(
        lambda: trips.run_json("consumer", "info", "TRIPS", "rome")["consumer"]["rate"] > 0, "its rate is told"
    )
    await_delivered(service, "rome", 20 + more // 2)
    assert service.stop() == 0
    trips.produce(10)
    stored = trips.run_json("consumer", "info", "TRIPS", "rome")["consumer"]
    assert (stored["state"], stored["consumer_sequence"], stored["lag_records"]) == ("waiting", 20 + more // 2, 10)
    assert stored["positions"] == {f"{trips.topic}-0": 40 + more}
    assert stored["rate"] is None and stored["lag_seconds"] is None
    sheet = trips.run("consumer", "info", "TRIPS", "rome")
    assert "10 offsets" in sheet and "the service is not running" in sheet


def tell(found: Any) -> tuple[int, int, dict[str, int]]:
    """What one place tells of a consumer: the lag, what is to come, and the positions that the lag counts from."""
    return found["lag_records"], found["num_pending"], found["positions"]


def test_an_idle_pull_consumer_is_told_of_alike_everywhere_after_a_restart(
    trips: Trips, running_service: StartService
) -> None:
    trips.consumer_file("work").write_text(
        "stream: TRIPS\ndurable_name: work\nfilter_subject: trips.rome\nack_policy: explicit\n"
    )
    trips.produce(10)
    service = running_service(trips.folder)
    pulled = trips.run("consumer", "next", "work", "--count", "2", "--wait", f"{DEADLINE_S}s", "--ack", "--json")
    assert len(pulled.splitlines()) == 2
    # the messages at 4, 6 and 8 wait to be pulled
    known = 6, 3, {f"{trips.topic}-0": 4}

    def is_known(service: RunningService) -> bool:
        found = get_consumer(service, "work")
        return found["state"] == "running" and found.get("num_pending") == known[1] and tell(found) == known

    wait_until(lambda: is_known(service), DEADLINE_S, "three messages wait")
    assert service.stop() == 0
    stored = trips.run_json("consumer", "info", "TRIPS", "work")["consumer"]
    assert (stored["lag_records"], stored["positions"]) == (known[0], known[2])

    service = running_service(trips.folder)
    wait_until(lambda: is_known(service), DEADLINE_S, "three messages wait after the restart")
    assert tell(trips.run_json("consumer", "info", "TRIPS", "work")["consumer"]) == known
    (listed,) = trips.run_json("consumer", "ls")["consumers"]
    assert tell(listed) == known
    (reported,) = trips.run_json("consumer", "report")["consumers"]
    assert tell(reported["overlay"] | {"num_pending": reported["num_pending"]}) == known
    told = f'overlay_consumer_lag_records{{consumer="work",stream="TRIPS"}} {float(known[0])}\n'
    # a page is kept for a moment
    wait_until(lambda: told in service.get("/metrics"), DEADLINE_S, "the metric agrees")


def test_a_look_at_kafka_reads_with_one_client(trips: Trips, monkeypatch: pytest.MonkeyPatch) -> None:
    for topic in ("control", "state"):
        make_topic(trips.bootstrap, f"{trips.prefix}.{topic}")
    trips.add_consumer("rome")
    opened = []

    def open_counted(**settings: Any) -> AIOKafkaClient:
        opened.append(AIOKafkaClient(**settings))
        return opened[-1]

    monkeypatch.setattr("overlay.kafka.connection.AIOKafkaClient", open_counted)
    assert [found["name"] for found in trips.run_json("consumer", "ls")["consumers"]] == ["rome"]
    assert [any(each.connected() for each in client._conns.values()) for client in opened] == [False]


def test_names_that_do_not_exist(trips: Trips) -> None:
    trips.add_consumer("rome")
    assert "no stream 'TRIP'. Did you mean TRIPS?" in trips.run("consumer", "rm", "TRIP", "rome", code=1)
    assert "no consumer 'rom'. Did you mean rome? There is TRIPS/rome" in trips.run("consumer", "rm", "rom", code=1)


def test_names_are_suggested() -> None:
    facts = OverlayFacts({"TRIPS": StreamFacts("TRIPS")}, {("OLD", "rome"): ConsumerFacts("OLD", "rome")})
    folder = Path("config")
    assert find_consumer(facts, "OLD", "rome", folder).id == ("OLD", "rome")
    for stream, name, message in (
        ("OLD", "romee", "config: there is no consumer of OLD 'romee'. Did you mean rome? There is rome"),
        ("TRIPS", "x", "config: there is no consumer of TRIPS 'x', nor any other. Is --config the right folder?"),
        ("trips", "rome", "config: there is no stream 'trips'. Did you mean TRIPS? There is OLD, TRIPS"),
    ):
        with pytest.raises(OverlayError, match=re.escape(message)):
            find_consumer(facts, stream, name, folder)


def test_the_stream_of_a_consumer_may_be_left_out_where_one_has_the_name() -> None:
    ids = [("A", "rome"), ("B", "rome"), ("B", "oslo")]
    streams = {name: StreamFacts(name) for name in "AB"}
    facts = OverlayFacts(streams, {id: ConsumerFacts(*id) for id in ids})
    folder = Path("config")
    assert find_named(facts, "oslo", folder).id == find_named(facts, "B/oslo", folder).id == ("B", "oslo")
    assert find_named(facts, "A/rome", folder).id == ("A", "rome")
    for name, message in (
        ("rome", "several streams have a consumer 'rome'. Name one of A/rome, B/rome"),
        ("olso", "config: there is no consumer 'olso'. Did you mean B/oslo? There is A/rome, B/oslo, B/rome"),
        ("A/oslo", "config: there is no consumer of A 'oslo'. There is rome"),
    ):
        with pytest.raises(OverlayError, match=re.escape(message)):
            find_named(facts, name, folder)
    with pytest.raises(click.UsageError, match="one consumer"):
        join_names(("A", "rome", "oslo"))


def test_removing_a_consumer(trips: Trips, running_service: StartService) -> None:
    for name in ("rome", "oslo"):
        trips.add_consumer(name)
    trips.produce(20)
    service = running_service(trips.folder)
    for name in ("rome", "oslo"):
        await_delivered(service, name, 10)
    assert "still has consumer rome" in trips.run("consumer", "rm", "rome", "--yes", code=1)
    trips.consumer_file("rome").unlink()

    def read_states() -> dict[str, str]:
        return {c["name"]: c["state"] for c in trips.run_json("consumer", "ls")["consumers"]}

    # the service notices that the file is gone; the others go on in a new session, and are starting for a moment
    gone = {"oslo": "running", "rome": "removed"}
    wait_until(lambda: read_states() == gone, DEADLINE_S, "rome is not served any more")
    assert "Say --yes" in trips.run("consumer", "rm", "rome", code=1)
    done = trips.run_process("consumer", "rm", "TRIPS", "rome", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "This state of TRIPS/rome is removed for good" in done.stdout

    # the service has been fenced by that, and goes on by itself
    trips.produce(20)
    await_delivered(service, "oslo", 20)
    assert [c["name"] for c in trips.run_json("consumer", "ls")["consumers"]] == ["oslo"]
    assert [seen.value for seen in read_committed(trips.bootstrap, trips.output("oslo"))] == [
        str(number).encode() for number in range(1, 20, 2)
    ] * 2


def test_what_is_served_is_not_removed() -> None:
    """Of a consumer without a file that the service still has: one who says that it is removed is wrong."""
    served = ConsumerFacts("TRIPS", "rome", state="running")
    loaded = cast(Loaded, SimpleNamespace(consumers={}))
    with pytest.raises(OverlayError, match="still serves consumer rome"):
        check_unused(loaded, OverlayFacts({}, {served.id: served}), served)


def test_what_stays_of_a_removed_consumer() -> None:
    """A pull consumer has no output topic. Of one that is removed already, neither its kind nor the topic is known."""
    pull = ConsumerConfig(stream="TRIPS", durable_name="rome")
    assert (
        describe_output(ConsumerFacts("TRIPS", "rome", "roman", config=pull))
        == " Its output topic roman stays as it is."
    )
    assert describe_output(ConsumerFacts("TRIPS", "rome", config=pull)) == ""
    removed = ConsumerFacts("TRIPS", "rome", state="removed")
    assert describe_output(removed) == " An output topic of it stays as it is."


def test_a_consumer_begins_anew_by_force(trips: Trips, running_service: StartService) -> None:
    trips.add_consumer("rome")
    trips.produce(6)
    service = running_service(trips.folder)
    await_delivered(service, "rome", 3)
    shown = trips.run("consumer", "rm", "TRIPS", "rome", "--yes", "--force")
    assert "it begins anew by its deliver_policy, with sequence 1" in shown

    def sequences() -> list[int]:
        return [seen.token.consumer_sequence for seen in read_committed(trips.bootstrap, trips.output("rome"))]

    wait_until(lambda: sequences() == [1, 2, 3, 1, 2, 3], DEADLINE_S, "rome begins with sequence 1 again")
    assert service.is_ready()
    assert trips.run_json("consumer", "info", "TRIPS", "rome")["consumer"]["consumer_sequence"] == 3
