"""The most important alerts under a real Prometheus that scrapes a real service: each has its fault made, fires, and ends.

Minutes of the rules are seconds here, and ages of records likewise. All other alerts are held against series of values
(test_alert_rules.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.config import load_service
from overlay.local import Broker
from overlay.local.guard import Guard
from tests.support.kafka import NewTopicFixture, remove_records
from tests.support.service import RunningProcess, find_free_port
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene, produce, serve
from tests.worker.scenes import scene as scene

from .tree import ROOT

PROMETHEUS = shutil.which("prometheus") or ""
pytestmark = pytest.mark.skipif(not PROMETHEUS, reason="no prometheus on PATH: install it to test the alerts")
RULES = (ROOT / "grafana" / "alerts.yml").read_text(encoding="utf-8")
DEADLINE_S = 60.0
DAMAGED = {"CorruptBatches", "StreamStopped", "ConsumerFallsBehind"}
"""What a batch that cannot be read comes to."""


@dataclass(slots=True)
class Watching:
    """A Prometheus that runs. `process`: it."""

    process: RunningProcess
    url: str

    def is_up(self) -> bool:
        assert self.process.process.poll() is None, self.process.read_log()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def list_firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=10) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def await_firing(self, *names: str) -> None:
        """Wait until each of these alerts was seen firing, at the same time or not."""
        seen = set[str]()

        def look() -> bool:
            seen.update(self.list_firing())
            return seen >= {*names}

        wait_until(look, DEADLINE_S, f"{names} fire")

    def await_end(self, *names: str) -> None:
        wait_until(lambda: not self.list_firing() & {*names}, DEADLINE_S, f"{names} end")


def hasten(rules: str) -> str:
    """Return rules with seconds for minutes, and an age of 3 s in place of one of 5 minutes."""
    return re.sub(
        r"\b(\d+)m\b", r"\1s", rules.replace("overlay_consumer_lag_seconds > 300", "overlay_consumer_lag_seconds > 3")
    )


@pytest.fixture
def watching(scene: Scene, tmp_path: Path) -> Iterator[Watching]:
    """A Prometheus that scrapes the service of the scene each second."""
    host, port = load_service(scene.folder / "overlay.yaml", {}).http.address
    folder = tmp_path / "prometheus"
    folder.mkdir()
    (folder / "alerts.yml").write_text(hasten(RULES), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "overlay", "static_configs": [{"targets": [f"{host}:{port}"]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    address = f"127.0.0.1:{find_free_port()}"
    log = folder / "log"
    with log.open("wb") as file:
        command = [
            PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    running = RunningProcess(log, process, Guard(["kill", "-9", str(process.pid)]))
    try:
        found = Watching(running, f"http://{address}")
        wait_until(found.is_up, DEADLINE_S, "Prometheus is ready")
        yield found
    finally:
        running.kill()


def damage(home: Path, topic: str, batch: int) -> None:
    """Flip a byte in one batch of partition 0, in the data folder of a broker that runs. Nothing may have read it yet."""
    (segment,) = home.rglob(f"{topic}-0/*.log")
    data, at = segment.read_bytes(), 0
    for _ in range(batch):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    with segment.open("r+b") as file:
        file.seek(at + 70)
        file.write(bytes([data[at + 70] ^ 0xFF]))


def test_alerts_fire_while_their_faults_last(
    scene: Scene, broker: Broker, new_topic: NewTopicFixture, watching: Watching
) -> None:
    topic = new_topic()
    scene.add_stream("S", topic, on_corrupt="stop")
    scene.add_consumer("S", "c")
    produce(scene.bootstrap, topic, ["a"] * 5)
    with serve(scene) as served:
        wait_until(lambda: served.consumer("c")["delivered"] == 5, DEADLINE_S, "all is delivered")
        watching.await_end("OverlayDown")
        assert not watching.list_firing() & {*DAMAGED, "RecordsLost"}
    watching.await_firing("OverlayDown")
    for _ in range(2):
        produce(scene.bootstrap, topic, ["a"] * 5)
    damage(broker.home, topic, batch=1)
    with serve(scene) as served:
        watching.await_firing(*DAMAGED)
        watching.await_end("OverlayDown")
        # retention takes the batch away, and records behind it
        remove_records(scene.bootstrap, topic, 0, 12)
        scene.add_stream("S", topic, on_corrupt="skip")
        served.reload(scene)
        watching.await_firing("RecordsLost")
        produce(scene.bootstrap, topic, ["a"])
        watching.await_end(*DAMAGED)
        watching.await_end("RecordsLost")


def test_hastened_rules_have_other_times() -> None:
    hastened = hasten(RULES)
    assert hastened.count("for: 1s") == RULES.count("for: 1m") > 0
    assert hastened.count("[10s]") == RULES.count("[10m]") > 0
    assert "overlay_consumer_lag_seconds > 3 " in hastened
