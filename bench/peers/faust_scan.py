"""A Faust agent that counts matching events, in a worker of its own.

Faust is slow enough that the whole topic would take minutes, so it reads the first `RECORDS` records only and its
rate is the rate over those. The clock runs from its first event to its last: the start of the worker, its rebalance
and the making of its internal topics are not counted.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.errors import PeerUnavailable
from bench.sides import Tally, Work
from overlay.waits import comes_true

RECORDS = 60_000
DEADLINE_S = 120.0


class FaustScan:
    name = "faust"
    warm = False

    def __init__(self, records: int = RECORDS) -> None:
        self._records = records

    def run(self, work: Work) -> Tally:
        # a module that is loaded already has no spec: faust puts another object in its place
        if "faust" not in sys.modules and importlib.util.find_spec("faust") is None:
            raise PeerUnavailable("faust is not installed: run `pip install 'kafka-overlay[bench]'`")
        part = replace(work, records=min(self._records, work.records))
        with tempfile.TemporaryDirectory(prefix="bench-faust-") as folder:
            return _run_worker(part, Path(folder))

    def close(self) -> None:
        """Each run is a process that has ended."""


def _run_worker(work: Work, folder: Path) -> Tally:
    report = folder / "report.json"
    order = {
        "bootstrap": work.bootstrap,
        "topic": work.topic,
        "records": work.records,
        "wanted": work.list_wanted(),
        "folder": str(folder),
        "report": str(report),
    }
    command = [sys.executable, "-W", "ignore", "-m", "bench.peers.faust_worker", json.dumps(order)]
    log = folder / "faust.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        comes_true(lambda: report.exists() or process.poll() is not None, DEADLINE_S)
        # it has reported, and a Faust worker takes seconds to leave, with the machine's time
        process.kill()
    if not report.exists():
        said = log.read_text(errors="replace").strip()[-500:]
        raise PeerUnavailable(f"the Faust worker ended or was ended without a result. It said: {said}")
    return Tally(**json.loads(report.read_text()))
