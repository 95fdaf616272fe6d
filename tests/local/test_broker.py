"""The embedded broker through its accidents. `own` is a broker of this file: it is stopped and killed at will."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from overlay.cli import overlay
from overlay.errors import BrokerError
from overlay.local import Broker, BrokerNode, Condition, start, status, stop
from overlay.local.jars import fetch_jars
from overlay.local.locks import hold_lock
from overlay.local.state import BrokerState, Home, read_state, write_state
from tests.support.kafka import NewTopicFixture, make_topic, produce_values
from tests.support.waiting import wait_until

from .network import cut_network

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Every start here has a warm cache and a network that goes nowhere."""
    fetch_jars("broker")
    with pytest.MonkeyPatch.context() as patch:
        cut_network(patch)
        with start(tmp_path_factory.mktemp("own")) as running:
            yield running


@pytest.fixture
def running(own: Broker) -> Broker:
    return start(own.home)


def read_values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() or b"" for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def test_data_and_address_survive_a_kill(running: Broker) -> None:
    address = running.bootstrap
    produce_values(address, make_topic(address, "kept"), [b"a", b"b"])
    running.kill()
    told = CliRunner().invoke(overlay, ["local", "status", "--home", str(running.home)])
    assert (told.exit_code, told.stdout) == (3, f"stopped\nhome       {running.home}\n")
    running.restart()
    assert running.bootstrap == address
    assert running.moved_from == ""
    assert read_values(address, "kept", 2) == [b"a", b"b"]


def test_port_taken_meanwhile_means_a_new_address(running: Broker) -> None:
    before = running.bootstrap
    running.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(before.rpartition(":")[2])))
        other.listen()
        told = CliRunner().invoke(overlay, ["local", "up", "--home", str(running.home)])
    assert told.exit_code == 0
    assert f"{before} has been taken by another program, so the address has changed" in told.stderr
    now = status(running.home).bootstrap
    assert now != before
    assert f"Kafka is running at {now}\n" in told.stdout
    assert AdminClient({"bootstrap.servers": now}).list_topics(timeout=10).brokers


def test_port_lost_between_look_and_bind_is_tried_again(running: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = running.bootstrap
    running.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", int(before.rpartition(":")[2])))
        other.listen()
        monkeypatch.setattr("overlay.local.ports.is_free", lambda host, port: True)
        running.restart()
    assert running.moved_from == before


def test_starting_a_running_broker_finds_it(running: Broker) -> None:
    again = start(running.home)
    assert (again.pid, again.bootstrap) == (running.pid, running.bootstrap)


def test_running_broker_with_other_properties_is_not_passed_off(running: Broker) -> None:
    with pytest.raises(BrokerError, match="with other properties"):
        start(running.home, properties={"num.io.threads": "1"})
    with pytest.raises(BrokerError, match="as another node"):
        start(running.home, node=BrokerNode(2, (1, 2)))


def test_status_tells_all(running: Broker) -> None:
    found = status(running.home)
    assert found.condition is Condition.RUNNING
    assert (found.bootstrap, found.pid) == (running.bootstrap, running.pid)
    assert json.loads(json.dumps(found.to_json()))["condition"] == "running"


def test_start_that_was_cut_off_is_taken_over(running: Broker) -> None:
    home = Home(running.home)
    state = read_state(home)
    assert state is not None
    write_state(home, replace(state, ready=False))
    assert status(running.home).condition is Condition.STARTING
    assert start(running.home).pid == running.pid
    assert status(running.home).condition is Condition.RUNNING


def test_stranger_with_the_remembered_pid_is_left_alone(running: Broker) -> None:
    running.stop()
    home = Home(running.home)
    state = read_state(home)
    assert state is not None
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with stranger:
        write_state(home, replace(state, pid=stranger.pid))
        assert status(running.home).condition is Condition.STOPPED
        assert stop(running.home) is False
        running.restart()
        assert stranger.poll() is None
        assert running.pid != stranger.pid
        stranger.kill()


def test_lock_of_an_unknown_process_is_named(tmp_path: Path) -> None:
    """A start was cut off between the broker's first breath and the note of its pid: no signal is sent at a guess."""
    home = Home(tmp_path)
    write_state(home, BrokerState(1, 2))
    with hold_lock(home.life_lock, wait_s=0, what="living"):
        for act in (start, stop):
            with pytest.raises(BrokerError, match=rf"not known.*End the process that holds {home.life_lock}"):
                act(tmp_path)


def test_start_that_takes_for_ever_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.local.launch.START_S", 0.0)
    with (
        hold_lock(Home(tmp_path).change_lock, wait_s=0, what="starting"),
        pytest.raises(BrokerError, match=r"change\.lock: another process has been starting or stopping this broker"),
    ):
        start(tmp_path)


def test_two_starts_at_once_make_one_broker(running: Broker) -> None:
    running.stop()
    code = "import sys, pathlib; from overlay.local import start; print(start(pathlib.Path(sys.argv[1])).pid)"
    command = [sys.executable, "-c", code, str(running.home)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    pids = [racer.communicate(timeout=90)[0].strip() for racer in racers]
    assert pids[0] == pids[1] != ""
    assert status(running.home).pid == int(pids[0])
    # it outlives the process that started it, and any other may stop it
    assert stop(running.home) is True
    assert not _is_alive(int(pids[0]))


def test_broker_that_dies_while_starting_shows_why(tmp_path: Path) -> None:
    missing = {"ssl.keystore.location": str(tmp_path / "missing.p12"), "ssl.keystore.password": "secret"}
    properties = {"listeners": "SSL://127.0.0.1:0", **missing}
    with pytest.raises(BrokerError, match=r"(?s)ended while it started.*broker\.log.*missing\.p12") as raised:
        start(tmp_path, properties=properties)
    assert "\tat " not in str(raised.value)
    assert status(tmp_path).condition is Condition.STOPPED


def test_format_that_fails_shows_why(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=r"(?s)could not format.*Invalid value soon.*log\.retention\.hours"):
        start(tmp_path, properties={"log.retention.hours": "soon"})


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerError, match=r"file/home: .*cannot be written.*--home"):
        start(tmp_path / "file" / "home")


def test_ephemeral_broker_leaves_nothing_behind() -> None:
    with start(ephemeral=True) as broker:
        home = broker.home
        assert home.is_dir()
    assert not home.exists()


def test_ephemeral_broker_ends_with_a_process_that_is_killed() -> None:
    code = "from overlay.local import start; b = start(ephemeral=True); print(b.pid, b.home, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, home = process.stdout.readline().split()
        assert _is_alive(int(pid))
        process.kill()
    wait_until(lambda: not _is_alive(int(pid)) and not Path(home).exists(), 30, "the broker is gone, and its folder")


def test_shared_broker_gives_each_test_its_topic(new_topic: NewTopicFixture, bootstrap: str) -> None:
    first, second = new_topic(), new_topic(partitions=3, retention_ms=60000)
    assert first != second
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    assert len(topics[second].partitions) == 3


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # a child of a process that has ended may stay as a zombie that no parent collects
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
