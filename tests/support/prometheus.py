"""A real Prometheus, and promtool: Debian's package `prometheus` has both. They are taken from PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.local.guard import Guard

from .service import find_free_port
from .waiting import wait_until

PROMETHEUS = shutil.which("prometheus") or ""
PROMTOOL = shutil.which("promtool") or ""
START_S = 60
ASK_S = 10
SCRAPE = "500ms"
"""Between two scrapes of a target, and between two looks at the rules."""


def run_promtool(folder: Path, *words: str) -> None:
    """Run promtool in a folder. Fails with what it says if it is not content."""
    done = subprocess.run([PROMTOOL, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A Prometheus that runs. `targets`: the file that says what it scrapes, as the job `overlay`."""

    url: str
    targets: Path
    log: Path

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an answer of its API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:
            return json.loads(answer.read())["data"]

    def scrape(self, addresses: Iterable[str]) -> None:
        """Have it scrape exactly these, each as HOST:PORT, from now on."""
        # Prometheus may read the file at any moment
        fresh = self.targets.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": list(addresses)}]))
        os.replace(fresh, self.targets)

    def list_up(self) -> set[str]:
        """Return the addresses whose last scrape went well."""
        found = self.ask("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"] for target in found if target["health"] == "up"}

    def list_alerts(self, state: str = "firing") -> list[dict[str, str]]:
        """Return the labels of the alerts that are `firing` or `pending`."""
        return [alert["labels"] for alert in self.ask("alerts")["alerts"] if alert["state"] == state]

    def find_series(self, query: str, start: float, end: float, step: str = "1") -> Sequence[Any]:
        """Return the series that a query has had between two times (s since 1970), at steps of so many seconds."""
        found = self.ask("query_range", query=query, start=str(start), end=str(end), step=step)["result"]
        return list(found)


@contextmanager
def run_prometheus(folder: Path, rules: str) -> Iterator[Prometheus]:
    """Run a Prometheus with these rules and an empty store, which scrapes nothing at first."""
    address = f"127.0.0.1:{find_free_port()}"
    (folder / "rules.yml").write_text(rules, encoding="utf-8")
    config = {
        "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": "overlay", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    found = Prometheus(f"http://{address}", folder / "targets.json", folder / "prometheus.log")
    found.scrape([])
    command = [
        PROMETHEUS,
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    ]
    with found.log.open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    guard = Guard(["kill", "-9", str(process.pid)])

    def is_ready() -> bool:
        assert process.poll() is None, found.log.read_text()
        try:
            with urllib.request.urlopen(f"{found.url}/-/ready", timeout=ASK_S) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    try:
        wait_until(is_ready, START_S, f"Prometheus is ready ({found.log})")
        yield found
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard.release()
