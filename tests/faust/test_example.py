"""examples/faust, run as its opening text says: late departures, counted by carrier."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import overlay
from overlay.examples import find_example
from overlay.local.guard import Guard
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import RunningProcess, write_service_file
from tests.support.waiting import wait_until
from tests.worker.scenes import Served

DEADLINE_S = 120.0
FLIGHTS = [
    ("JFK", "LAX", "AA", "75"),
    ("JFK", "SFO", "AA", "61.5"),
    ("JFK", "SFO", "UA", "60"),  # not late enough
    ("LGA", "ORD", "AA", "200"),  # not from Kennedy
    ("JFK", "BOS", "B6", "300"),
]
SHOWN = (
    "flights.JFK.LAX.AA: 75 minutes; AA now 1",
    "flights.JFK.SFO.AA: 62 minutes; AA now 2",
    "flights.JFK.BOS.B6: 300 minutes; B6 now 1",
)


def test_late_departures_are_counted(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic, folder = new_topic(), tmp_path / "faust"
    shutil.copytree(find_example("faust"), folder)
    write_service_file(folder, bootstrap)
    for file, old, new in (
        ("streams/flights.yaml", "topics: [flights]", f"topics: [{topic}]"),
        ("consumers/late-jfk.yaml", "deliver_subject: late-jfk", f"deliver_subject: {topic}-late"),
    ):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
    producer = SureProducer(bootstrap)
    for origin, dest, carrier, delay in FLIGHTS:
        fields = {"origin": origin, "dest": dest, "carrier": carrier, "dep_delay": delay}
        # one key, so that all go to one partition and the table counts them together
        producer.produce(topic, b"", b"key", headers=[(name, text.encode()) for name, text in fields.items()])
    producer.flush()
    with ExitStack() as stack, overlay.open(folder) as client:
        served = Served(folder)
        stack.callback(served.stop)
        served.await_ready()
        worker = start_example(folder, bootstrap, tmp_path, stack)
        wait_until(lambda: all(text in worker.read_log() for text in SHOWN), DEADLINE_S, f"all is shown ({worker.log})")
        wait_until(
            lambda: client.control.info("FLIGHTS", "late-jfk").ack_floor.consumer_seq == len(SHOWN),
            DEADLINE_S,
            "all is acked",
        )
        assert worker.stop() == 0, worker.read_log()


def start_example(folder: Path, bootstrap: str, tmp_path: Path, stack: ExitStack) -> RunningProcess:
    """Run `faust -A late worker` in the example's folder; it is killed in the end."""
    log = tmp_path / "example.log"
    environment = {
        **os.environ, "OVERLAY_BROKER": bootstrap, "OVERLAY_CONFIG": str(folder), "PYTHONUNBUFFERED": "1"
    }  # fmt: skip
    command = [sys.executable, "-m", "faust", "--datadir", str(tmp_path / "data"), "-A", "late", "worker"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--without-web"], stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
    worker = RunningProcess(log, process, Guard(["kill", "-9", str(process.pid)]))
    stack.callback(lambda: None if process.poll() is not None else worker.kill())
    return worker
