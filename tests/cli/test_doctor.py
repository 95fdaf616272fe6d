"""`overlay doctor` on a real broker: before the first start, beside a service, and with topics that lose things."""

from __future__ import annotations

import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.cli.doctor import examine_listen
from overlay.config import load
from overlay.inspect.health.diagnosis import Severity
from overlay.kafka.own_topics import acks_topic, state_topic
from tests.support.kafka import NewTopicFixture, make_topic
from tests.support.service import StartService
from tests.support.waiting import wait_until

from .trips import DEADLINE_S, Trips


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    trips = Trips(tmp_path / "config", bootstrap, new_topic())
    trips.add_consumer("rome")
    file = trips.consumer_file("rome")
    file.write_text(file.read_text().replace("ack_policy: none", "ack_policy: explicit"))
    return trips


def examine(trips: Trips, code: int = 0) -> list[dict[str, Any]]:
    """What the command found, as it says in JSON. Its numbers and its exit code agree with that."""
    answer = json.loads(trips.run("doctor", "--json", code=code))
    found: list[dict[str, Any]] = answer.pop("found")
    assert answer == {name: sum(each["severity"] == name for each in found) for name in answer}
    assert bool(answer["error"]) == bool(code)
    return found


def pick(found: list[dict[str, Any]], check: str) -> list[tuple[str, str]]:
    return [(each["severity"], each["text"]) for each in found if each["check"] == check]


def test_before_the_first_start(trips: Trips) -> None:
    found = examine(trips)
    assert {each["check"] for each in found} == {
        *("config", "kafka", "rights", "retention", "sizes", "workers", "clock", "http", "kernels", "java")
    }
    assert ("ok", "1 broker of Kafka 4.3, as tested") in pick(found, "kafka")
    ((severity, text),) = pick(found, "workers")
    assert severity == "note" and "no worker with fleet.publish has run" in text
    assert pick(found, "config") == [("ok", "1 stream, 1 consumer, 0 problems")]
    assert pick(found, "http") == [("ok", "no other program listens there")]
    assert all(each["todo"] for each in found if each["severity"] in ("error", "warning"))


def test_beside_a_running_service(trips: Trips, running_service: StartService) -> None:
    running_service(trips.folder)
    command = ["doctor", "--json", "--config", str(trips.folder)]
    is_told = {
        "workers": [("ok", "1 worker, 1 shard, all served")],
        # a status that comes late looks like a clock that is off
        "clock": [("ok", "this machine's clock is within 2 s of Kafka's")],
    }

    def look() -> list[dict[str, Any]]:
        answer = json.loads(CliRunner().invoke(overlay, command).output)
        found: list[dict[str, Any]] = answer["found"]
        return found if all(pick(found, check) == told for check, told in is_told.items()) else []

    found = wait_until(look, DEADLINE_S, "its status names its shard, and its clock")
    assert [severity for severity, _ in pick(found, "retention")] == ["ok"], "topics as the service creates them"
    assert [severity for severity, _ in pick(found, "kernels")] == ["ok"]
    assert pick(found, "http") == [("ok", "the service of this folder listens there")]


def test_topics_that_lose_what_the_service_needs(trips: Trips) -> None:
    prefix = load(trips.folder).service.topics.prefix
    make_topic(trips.bootstrap, state_topic(prefix), config={"cleanup.policy": "compact"})
    make_topic(trips.bootstrap, acks_topic(prefix, "TRIPS"), config={"retention.ms": "60000"})
    trips.consumer_file("bad").write_text("stream: TRIPS\ndurable_name: bad\nack_wait: soon\n")
    found = examine(trips, code=1)
    lost = {
        (each["about"], each["severity"], each["text"].partition(",")[0])
        for each in found
        if each["check"] == "retention"
    }
    assert (f"state topic {state_topic(prefix)}", "error", "its cleanup.policy is compact") in lost
    assert (f"ack topic {acks_topic(prefix, 'TRIPS')}", "warning") in {row[:2] for row in lost}
    ((severity, text),) = pick(found, "config")
    assert severity == "error" and "soon" in text
    lines = trips.run("doctor", code=1).splitlines()
    assert lines[0].startswith("error    config: ") and lines[0].partition(": ")[2].startswith(str(trips.folder))
    told = next(number for number, line in enumerate(lines) if "its cleanup.policy is compact" in line)
    assert lines[told + 1].startswith("         do: kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic")
    errors = sum(each["severity"] == "error" for each in found)
    assert lines[-1].startswith(f"{errors} errors, ")


def test_kafka_that_cannot_be_reached(trips: Trips, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.inspect.cluster.REACH_S", 0.5)
    file = trips.folder / "overlay.yaml"
    file.write_text(file.read_text().replace(trips.bootstrap, "127.0.0.1:1"))
    found = examine(trips, code=1)
    ((severity, text),) = pick(found, "kafka")
    assert severity == "error" and "127.0.0.1:1: Kafka cannot be reached" in text
    assert {"config", "kernels", "java"} < {each["check"] for each in found}


def test_a_folder_without_overlay_yaml_is_an_error(tmp_path: Path) -> None:
    done = CliRunner().invoke(overlay, ["doctor", "--config", str(tmp_path)])
    assert done.exit_code == 1 and "no such file" in str(done.exception)


def test_an_address_of_another_program_is_an_error(trips: Trips) -> None:
    loaded = load(trips.folder)
    address = loaded.service.http.address
    with ThreadingHTTPServer(address, BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = examine_listen(loaded)
        server.shutdown()
    assert (found.severity, found.text) == (Severity.ERROR, "the service cannot listen there: another program does")
    other = re.fullmatch(r"change http.listen in overlay.yaml, such as to 127\.0\.0\.1:(\d+)", found.todo)
    assert other is not None and int(other[1]) > address[1]
    assert examine_listen(loaded).severity is Severity.OK


def test_what_listens_and_does_not_answer_may_be_the_service(trips: Trips, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.view.running.DEADLINE_S", 0.2)
    loaded = load(trips.folder)
    with socket.create_server(loaded.service.http.address):
        found = examine_listen(loaded)
    assert found.severity is Severity.WARNING and "cannot be asked who it is: the service is not running" in found.text
