"""`overlay run --workers 2`: two processes share the shards; one that dies is started again; they end with their parent."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from overlay.cli import overlay
from overlay.config import load_service
from overlay.config.numbered import number_worker
from overlay.errors import OverlayError
from overlay.kafka.own_topics import shard_of
from overlay.local.guard import Guard
from tests.support.kafka import NewTopicFixture
from tests.support.service import READY_S, RunningProcess, RunningService, find_free_port
from tests.support.waiting import wait_until

from .trips import DEADLINE_S, Trips


def find_two_ports() -> int:
    """A free port whose next one is free as well."""
    while True:
        port = find_free_port()
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            probe.bind(("127.0.0.1", port + 1))
            return port


@pytest.fixture
def trips(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> Trips:
    trips = Trips(tmp_path / "config", bootstrap, new_topic())
    file = trips.folder / "overlay.yaml"
    text = re.sub(r"127.0.0.1:\d+'}\n$", f"127.0.0.1:{find_two_ports()}'}}\n", file.read_text())
    file.write_text(text + "shards: 2\n")
    for name in ("rome", "oslo"):
        trips.add_consumer(name)
    return trips


@pytest.fixture
def parent(trips: Trips) -> Iterator[RunningProcess]:
    """The command with two workers. It is killed after the test, and so are its workers."""
    log = trips.folder.parent / "parent.log"
    with log.open("ab") as file:
        command = [sys.executable, "-m", "overlay", "run", "--config", str(trips.folder), "--workers", "2"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    parent = RunningProcess(log, process, Guard(["kill", "-9", str(process.pid)]))
    yield parent
    if process.returncode is None:
        parent.kill()
    for pid in list_workers(parent):
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)


def list_workers(parent: RunningProcess) -> list[int]:
    """The process ids of all workers that were started."""
    lines = [json.loads(line) for line in parent.read_log().splitlines() if line.startswith("{")]
    return [line["pid"] for line in lines if line["event"] == "worker started"]


def is_gone(pid: int) -> bool:
    """Whether a worker has ended; one that its parent has not collected yet has no command line any more."""
    try:
        return b"--number" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def find_shards(trips: Trips, parent: RunningProcess) -> list[list[int]]:
    """The shards of each worker by what it says itself, as far as the workers are ready."""
    found: list[list[int]] = []
    for number in (0, 1):
        host, port = number_worker(load_service(trips.folder / "overlay.yaml", {}), number).http.address
        worker = RunningService(parent.log, parent.process, parent.guard, f"http://{host}:{port}")
        if worker.is_ready():
            found.append(worker.get_json("/service")["shards"])
    return found


def test_two_workers_of_one_command(trips: Trips, parent: RunningProcess) -> None:
    def share_shards() -> bool:
        return sorted(find_shards(trips, parent)) == [[0], [1]]

    wait_until(share_shards, READY_S, f"both workers have a shard ({parent.log})")
    first, second = list_workers(parent)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(list_workers(parent)) == 3, DEADLINE_S, "the first is started again")
    wait_until(share_shards, READY_S, f"both have a shard again ({parent.log})")
    assert not is_gone(second)
    assert parent.stop() == 0, parent.read_log()
    assert all(map(is_gone, list_workers(parent)))
    named = set(re.findall(r'"worker": "[^"]+:(\d+)"', parent.read_log()))
    assert len(named) == 2, "log lines name their worker by its port"


def test_every_worker_tells_of_its_consumers(trips: Trips, parent: RunningProcess) -> None:
    names = ["oslo", "rome", *(f"rome{number}" for number in range(3, 6))]
    assert {shard_of(("TRIPS", name), 2) for name in names} == {0, 1}
    for name in names[2:]:
        trips.add_consumer(name, to="rome")
    wait_until(lambda: sorted(find_shards(trips, parent)) == [[0], [1]], READY_S, f"both have a shard ({parent.log})")
    # what a worker has delivered is counted there; before they share the shards, one of them delivers all
    trips.produce(10)
    everywhere = [(name, "running", 5, 5, 0) for name in names]

    def list_all() -> bool:
        found = trips.run_json("consumer", "ls")
        told = [
            (c["name"], c["state"], c["delivered"], c["consumer_sequence"], c["lag_records"])
            for c in found["consumers"]
        ]
        return told == everywhere and found["notes"] == []

    wait_until(list_all, READY_S, f"both workers tell of their consumers ({parent.log})")
    for name in names:
        assert trips.run_json("consumer", "info", "TRIPS", name)["consumer"]["state"] == "running"
    reported = trips.run_json("consumer", "report")["consumers"]
    assert [(c["name"], c["overlay"]["state"], c["delivered"]["consumer_seq"]) for c in reported] == [
        (name, "running", 5) for name in names
    ]


def test_workers_end_when_their_parent_is_killed(trips: Trips, parent: RunningProcess) -> None:
    wait_until(lambda: len(find_shards(trips, parent)) == 2, READY_S, f"both workers are ready ({parent.log})")
    pids = list_workers(parent)
    parent.kill()
    wait_until(lambda: all(map(is_gone, pids)), DEADLINE_S, "no worker is left")


def test_more_workers_than_there_are_ports(trips: Trips) -> None:
    file = trips.folder / "overlay.yaml"
    file.write_text(re.sub(r"listen: '127.0.0.1:\d+'", "listen: '127.0.0.1:65530'", file.read_text()))
    done = CliRunner().invoke(overlay, ["run", "--config", str(trips.folder), "--workers", "8"])
    assert isinstance(done.exception, OverlayError)
    assert "8 workers need ports up to 65537" in str(done.exception)
