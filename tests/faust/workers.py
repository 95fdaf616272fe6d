"""`faust worker` in a process of its own, and what its application has recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from overlay.local.guard import Guard
from tests.support.service import RunningProcess
from tests.support.source import REPOSITORY


@dataclass(slots=True)
class FaustApp:
    """An application of tests/faust/application.py, and its workers."""

    id: str
    bootstrap: str
    config: Path
    consumer: str
    manner: str
    folder: Path
    concurrency: int = 1
    more: dict[str, str] = field(default_factory=dict)
    workers: list[RunningProcess] = field(default_factory=list)

    @property
    def recorded(self) -> Path:
        return self.folder / f"{self.id}.recorded"

    def start(self) -> RunningProcess:
        """Start another worker, without waiting for it."""
        number = len(self.workers)
        datadir = self.folder / f"{self.id}-data-{number}"
        environment = {
            **os.environ,
            "FAUST_ID": self.id,
            "FAUST_BROKER": self.bootstrap,
            "FAUST_DATADIR": str(datadir),
            "OVERLAY_CONFIG": str(self.config),
            "CONSUMER": self.consumer,
            "RECORDED": str(self.recorded),
            "MANNER": self.manner,
            "CONCURRENCY": str(self.concurrency),
            "SESSION_S": "60",
            **self.more,
        }
        log = self.folder / f"{self.id}-{number}.log"
        command = [
            sys.executable,
            "-m",
            "faust",
            "-A",
            "tests.faust.application",
            "worker",
            "--without-web",
            "-l",
            "info",
        ]
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=REPOSITORY,
            )
        worker = RunningProcess(log, process, Guard(["kill", "-9", str(process.pid)]))
        self.workers.append(worker)
        return worker

    def read(self) -> list[dict[str, Any]]:
        """What all workers have recorded so far, in the order of the writes."""
        dead = [each for each in self.workers if each.process.poll() not in (None, 0, -9, -15)]
        assert not dead, dead[0].read_log()
        if not self.recorded.exists():
            return []
        return [json.loads(line) for line in self.recorded.read_bytes().splitlines()]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def end_all(app: FaustApp) -> None:
    for worker in app.workers:
        if worker.process.poll() is None:
            worker.kill()
