"""Two workers and a fleet process on a real broker: one picture of them all, also after a kill."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from overlay.config import load_service
from overlay.fleet.actions import HEADER
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import events_topic, fleet_app, fleet_topic
from overlay.local.guard import Guard
from tests.cli.trips import Trips
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import RunningService, StartService, find_free_port
from tests.support.waiting import wait_until

ADMIN_TOKEN = "an-administrators-secret"
START_S = 90
FOUND_S = 60
"""A worker is silent after three statuses; then the group gives its shards to the other one."""


def start_fleet(folder: Path, stack: ExitStack) -> RunningService:
    """Start `overlay fleet run`; it is killed with the test at the latest."""
    host, port = load_service(folder / "overlay.yaml", {}).fleet.address
    log = folder.parent / f"{folder.name}-fleet-{port}.log"
    with log.open("ab") as file:
        command = [sys.executable, "-m", "overlay", "fleet", "run", "--config", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    fleet = RunningService(log, process, Guard(["kill", "-9", str(process.pid)]), f"http://{host}:{port}")
    stack.callback(kill, fleet)
    return fleet


def kill(fleet: RunningService) -> None:
    if fleet.process.returncode is None:
        fleet.kill()


def ask(fleet: RunningService) -> dict[str, Any]:
    """What /fleet answers; {} if it has no picture, or is not there yet."""
    assert fleet.process.poll() is None, fleet.read_log()
    try:
        found: dict[str, Any] = fleet.get_json("/fleet")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}
    return found


def act(fleet: RunningService, **action: Any) -> dict[str, Any]:
    """What /actions answers to an administrator."""
    headers = {HEADER: ADMIN_TOKEN}
    request = urllib.request.Request(fleet.url + "/actions", json.dumps(action).encode(), headers)
    with urllib.request.urlopen(request, timeout=FOUND_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def list_findings(found: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["kind"], each["about"]) for each in found.get("findings", ())}


def check_commands(trips: Trips, fleet: RunningService, names: list[str]) -> None:
    """Wait until all that tells of a fleet has the silent second worker, and the first with both shards."""
    metric = 'overlay_fleet_findings{kind="worker_silent"} 1.0'
    wait_until(lambda: metric in fleet.get("/metrics"), FOUND_S, "the finding is counted")
    wait_until(
        lambda: [row["state"] for row in trips.run_json("workers")["workers"]][1:] == ["silent"],
        FOUND_S,
        "it is silent",
    )
    assert "worker silent second: no status" in trips.run("workers")
    wait_until(
        lambda: [row["workers"] for row in trips.run_json("shards")["shards"]] == [["first"], ["first"]],
        FOUND_S,
        "the first has both shards",
    )
    assert "first" in trips.run("shards")
    rows = [[f"TRIPS/{name}", "running", "first"] for name in names]

    def draw_once() -> list[str]:
        once = trips.run("top", "--once").splitlines()
        return once if [line.split()[:3] for line in once[-len(names) :]] == rows else []

    once = wait_until(draw_once, FOUND_S, "the first runs all consumers")
    assert once[0].startswith(" overlay top  ") and "! worker silent second: " in once[1]


def list_streams(found: dict[str, Any]) -> list[tuple[object, ...]]:
    keys = ("name", "topic", "partitions", "lag", "state", "owners")
    return [tuple(row[key] for key in keys) for row in found.get("streams", ())]


def watch_top(trips: Trips) -> None:
    """`overlay top` draws on a terminal until q is pressed, and leaves the terminal as it was."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "overlay", "top", "--config", str(trips.folder)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    guard, said = Guard(["kill", "-9", str(process.pid)]), b""
    os.close(theirs)

    def has_said(words: bytes) -> bool:
        nonlocal said
        # a terminal whose last program has ended has no more to read
        with contextlib.suppress(OSError):
            if select.select([ours], [], [], 0.1)[0]:
                said += os.read(ours, 65536)
        return words in said

    try:
        wait_until(lambda: has_said(b"TRIPS/"), FOUND_S, "the screen is drawn")
        os.write(ours, b"l")
        wait_until(lambda: has_said(b"by lag "), FOUND_S, "another order is drawn")
        os.write(ours, b"q")
        wait_until(lambda: has_said(b"\x1b[?1049l"), FOUND_S, "the terminal is given back")
        assert process.wait(FOUND_S) == 0
    finally:
        process.kill()
        guard.release()
        os.close(ours)


def is_well(found: dict[str, Any], consumers: int) -> bool:
    """Whether two workers have a shard each, and all consumers have read everything."""
    return (
        [(row["worker"], row["state"], len(row["shards"])) for row in found.get("workers", ())]
        == [("first", "running", 1), ("second", "running", 1)]
        and [row["state"] for row in found["shards"]] == ["running"] * 2
        and [row["state"] for row in found["consumers"]] == ["running"] * consumers
        and {row["lag"] for row in found["consumers"]} == {0}
        and not found["findings"]
    )


def read_events(bootstrap: str, topic: str) -> list[tuple[str, str, str]]:
    """Action, kind and worker or shard of each finding in the events topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest",
                         "enable.partition.eof": True})  # fmt: skip
    found, is_over = [], False
    try:
        consumer.subscribe([topic])
        while not is_over:
            record = consumer.poll(30)
            assert record is not None, "the events topic does not answer"
            if record.error():
                is_over = True
            elif record.key().startswith(b"$OVERLAY.EVENT.FLEET."):
                body = json.loads(record.value())
                found.append((body["action"], body["kind"], body["about"]))
    finally:
        consumer.close()
    return found


def count_members(bootstrap: str, group: str) -> int:
    async def ask_kafka() -> int:
        async with Admin({"bootstrap.servers": bootstrap}) as admin:
            return await admin.count_members(group)

    return asyncio.run(ask_kafka())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def list_shards(fleet: RunningService) -> list[list[str]]:
    """The workers of each shard, as the picture has them now; empty if there is none."""
    return [row["workers"] for row in ask(fleet).get("shards", ())]


@pytest.mark.timeout(900)
def test_a_killed_worker_is_found_and_forgiven(
    bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, running_service: StartService, stack: ExitStack
) -> None:
    trips = Trips(tmp_path / "first", bootstrap, new_topic())
    names = [f"rome{number}" for number in range(6)]
    for name in names:
        trips.add_consumer(name, to="rome")
    file = trips.folder / "overlay.yaml"
    common = file.read_text().replace("http: {", f"http: {{admin_token: {ADMIN_TOKEN}, ") + "shards: 2\n"
    file.write_text(f"{common}fleet: {{worker: first, listen: '127.0.0.1:{find_free_port()}'}}\n")
    second_folder = tmp_path / "second"
    shutil.copytree(trips.folder, second_folder)
    port = load_service(file, {}).http.address[1]
    changed = common.replace(str(port), str(find_free_port()))
    (second_folder / "overlay.yaml").write_text(
        changed + f"fleet: {{worker: second, listen: '127.0.0.1:{find_free_port()}'}}\n"
    )
    prefix = load_service(file, {}).topics.prefix

    first = running_service(trips.folder)
    second = running_service(second_folder)
    fleet = start_fleet(trips.folder, stack)
    trips.produce(40)

    def has_delivered() -> dict[str, Any]:
        found = ask(fleet)
        done = {row["sequence"] for row in found.get("consumers", ())} == {20}
        return found if done and is_well(found, len(names)) else {}

    found = wait_until(has_delivered, START_S, f"the picture is whole ({fleet.log})")
    assert [row["shard"] for row in found["shards"]] == [0, 1]
    assert {tuple(row["positions"].items()) for row in found["consumers"]} == {((f"{trips.topic}-0", 40),)}
    (digest,) = {row["digest"] for row in found["workers"]}
    assert digest
    (settings,) = {row["settings"] for row in found["workers"]}
    assert settings
    stream = (trips.topic, 1, 0, "running", ["first", "second"])
    wait_until(lambda: list_streams(ask(fleet)) == [("TRIPS", *stream)], FOUND_S, "both tell of the stream")

    def shows_its_own() -> bool:
        """Whether the page of the first worker has what that worker knows: its shard, and the consumers of that."""
        own = first.get_json("/fleet")
        (shard,) = own["shards"]
        mine = {row["name"] for row in found["consumers"] if row["shard"] == shard["shard"]}
        return (
            [(row["worker"], row["state"]) for row in own["workers"]] == [("first", "running")]
            and {row["name"]: (row["sequence"], row["lag"]) for row in own["consumers"]} == dict.fromkeys(mine, (20, 0))
            and [(row["name"], row["topic"], row["lag"]) for row in own["streams"]] == [("TRIPS", trips.topic, 0)]
            and own["findings"] == []
        )

    wait_until(shows_its_own, FOUND_S, "the worker shows the same of itself")
    assert 'data-scope="worker"' in first.get("/")

    # what strangers write changes nothing and is counted
    producer = SureProducer(bootstrap)
    for key, value in (
        (b"x", b"zork"),
        (b"x", b"[" * 10_000),
        (b"x", b'{"v":99}'),
        (b"x", b'{"v":1,"prefix":"other"}'),
        (b"", None),
    ):
        producer.produce(fleet_topic(prefix), value, key)
    producer.flush()
    counted = {"malformed": 2, "version": 1, "stranger": 1, "size": 1}
    wait_until(lambda: counted.items() <= ask(fleet).get("ignored", {}).items(), FOUND_S, "strange records are counted")
    wait_until(lambda: is_well(ask(fleet), len(names)), FOUND_S, "they change nothing")

    second.kill()
    states = set[str]()

    def has_taken_over() -> bool:
        shards = ask(fleet).get("shards", ())
        states.update(row["state"] for row in shards)
        return [row["workers"] for row in shards] == [["first"], ["first"]]

    # the first has both shards, and says so before anything is heard of the second's end
    wait_until(has_taken_over, FOUND_S, "the first takes over")
    assert "two owners" not in states
    wait_until(lambda: ("worker_silent", "second") in list_findings(ask(fleet)), FOUND_S, "the kill is found")
    check_commands(trips, fleet, names)
    watch_top(trips)

    third = running_service(second_folder)
    wait_until(
        lambda: is_well(ask(fleet), len(names)), START_S, "the finding is gone, and the second has a shard again"
    )
    wait_until(lambda: trips.run_json("workers")["findings"] == [], FOUND_S, "commands find nothing either")
    closed = "closed", "worker_silent", "second"
    wait_until(lambda: closed in read_events(bootstrap, events_topic(prefix)), FOUND_S, "the end of it is told")
    told = read_events(bootstrap, events_topic(prefix))
    assert told.count(("opened", "worker_silent", "second")) == told.count(("closed", "worker_silent", "second")) == 1
    # of two fleet processes one stands by; it takes over when the other is killed, and tells nothing anew
    pair = [fleet, start_fleet(second_folder, stack)]
    wait_until(lambda: count_members(bootstrap, fleet_app(prefix)) == 2, START_S, f"both are there ({pair[1].log})")
    wait_until(
        lambda: [is_well(ask(each), len(names)) for each in pair].count(True) == 1, START_S, "one of them judges"
    )
    assert [bool(ask(each)) for each in pair].count(True) == 1
    active, other = sorted(pair, key=lambda each: not ask(each))
    active.kill()
    wait_until(lambda: is_well(ask(other), len(names)), START_S, f"the other takes over ({other.log})")
    # on a machine that stalls there may be new findings, but none of the old ones
    since = read_events(bootstrap, events_topic(prefix))
    assert since[: len(told)] == told and not {*since[len(told) :]} & {*told}
    with urllib.request.urlopen(other.url + "/", timeout=FOUND_S) as answer:
        assert "Overlay fleet" in answer.read().decode()
    # what an administrator does on the page is done, and seen there
    name = names[0]

    def find_state() -> str:
        states = [str(row["state"]) for row in ask(other).get("consumers", ()) if row["name"] == name]
        return states[0] if states else ""

    assert "is paused" in act(other, action="pause", stream="TRIPS", consumer=name, seconds=3600)["done"]
    wait_until(lambda: find_state() == "paused", FOUND_S, "the pause is seen")
    assert "is resumed" in act(other, action="resume", stream="TRIPS", consumer=name)["done"]
    wait_until(lambda: find_state() == "running", FOUND_S, "its end is seen")
    assert "gives its shards away" in act(other, action="drain", worker="second")["done"]
    wait_until(lambda: list_shards(other) == [["first"], ["first"]], FOUND_S, "it is drained")
    # a worker that is told to stop says so, and is no finding
    assert third.stop() == 0, third.read_log()
    wait_until(
        lambda: [row["worker"] for row in ask(other).get("workers", ())] == ["first"], FOUND_S, "the second has left"
    )
    assert ("worker_silent", "second") not in list_findings(ask(other))
    assert other.stop() == 0, other.read_log()
