"""A running service for tests: `python -m overlay run` in a process of its own, as a user runs it."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from overlay.local.guard import Guard
from overlay.local.ports import is_free
from tests.support.waiting import wait_until

# the first start of a machine compiles the kernels
READY_S = 90
ANSWER_S = 60
STOP_S = 90


class StartService(Protocol):
    """The fixture `running_service`."""

    def __call__(self, folder: Path, *, wait: bool = True) -> RunningService: ...


@dataclass(slots=True)
class RunningProcess:
    """A program in a process of its own. `log` is what it wrote to stderr and stdout."""

    log: Path
    process: subprocess.Popen[bytes]
    guard: Guard
    """Ends it with a test process that crashes."""

    def read_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """End it by SIGTERM and return its exit code. Kills it and fails when it does not end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"still running {STOP_S} s after SIGTERM:\n{self.read_log()}") from None
        self.guard.release()
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.guard.release()


@dataclass(slots=True)
class RunningService(RunningProcess):
    """`url` without a slash at its end."""

    url: str

    def get(self, path: str) -> str:
        """The body of a page; an answer that is no success raises."""
        with urllib.request.urlopen(self.url + path, timeout=ANSWER_S) as answer:
            body: bytes = answer.read()
        return body.decode()

    def get_json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the service has ended with {self.process.returncode}:\n{self.read_log()}")
        try:
            self.get("/readyz")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True


def _list_ports() -> Iterator[int]:
    """Every eighth port of a range that the processes of a test run do not share, in random order, again and again."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    ports = range(10_000 + 2_500 * worker, 12_500 + 2_500 * worker, 8)
    return itertools.cycle(random.sample(ports, len(ports)))


_PORTS = _list_ports()


def find_free_port() -> int:
    """A port at which a server can listen, and which no connection is given by the system (overlay/local/ports.py)."""
    return next(port for port in _PORTS if is_free("127.0.0.1", port))


def write_service_file(folder: Path, bootstrap: str, *, prefix: str = "", replication: int = 1) -> None:
    """overlay.yaml for this broker, with a free port for HTTP and overlay topics that no other test has."""
    folder.mkdir(parents=True, exist_ok=True)
    text = (
        f"kafka: {{bootstrap.servers: '{bootstrap}'}}\n"
        f"topics: {{prefix: '{prefix or 'overlay-' + uuid.uuid4().hex[:8]}', replication: {replication}}}\n"
        f"http: {{listen: '127.0.0.1:{find_free_port()}'}}\n"
    )
    (folder / "overlay.yaml").write_text(text, encoding="utf-8")


def start_service(folder: Path) -> RunningService:
    """Start the service of a config folder that has a fixed port; does not wait for it to be ready."""
    from overlay.config import load_service

    host, port = load_service(folder / "overlay.yaml", {}).http.address
    log = folder.parent / f"{folder.name}.log"
    with log.open("ab") as file:
        command = [sys.executable, "-m", "overlay", "run", "--config", str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    return RunningService(log, process, Guard(["kill", "-9", str(process.pid)]), f"http://{host}:{port}")


@pytest.fixture
def running_service() -> Iterator[StartService]:
    """`running_service(folder)`: starts the service of a config folder, and waits for /readyz unless `wait=False`.

    Ends it by SIGTERM after the test, and fails when it then ends with another code than 0.
    """
    with ExitStack() as stack:

        def start(folder: Path, *, wait: bool = True) -> RunningService:
            service = start_service(folder)
            stack.callback(_end, service)
            if wait:
                wait_until(service.is_ready, READY_S, f"{service.url}/readyz answers 200 ({service.log})")
            return service

        yield start


def _end(service: RunningService) -> None:
    if service.process.returncode is None:
        assert service.stop() == 0, service.read_log()
