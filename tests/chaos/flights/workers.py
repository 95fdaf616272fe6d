"""The processes of a storm: workers that can be killed and frozen, and loops that keep the cores busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from overlay.local.guard import Guard

PORT = "OVERLAY_STORM_PORT"
"""The environment variable that overlay.yaml takes the HTTP port from: all workers share one folder."""
STOP_S = 60.0
_TAIL = 4_000


@dataclass(slots=True)
class Worker:
    """`overlay run` in a process of its own."""

    number: int
    folder: Path
    port: int
    deaths: list[str] = field(default_factory=list)
    """How the process ended without a kill by the test."""
    frozen: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _guard: Guard | None = None

    @property
    def log(self) -> Path:
        return self.folder.parent / f"worker-{self.number}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        """Return whether /readyz answers 200."""
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def start(self) -> None:
        """Start the process, unless it runs already."""
        if self._process is not None:
            return
        environment = {**os.environ, PORT: str(self.port), "PYTHONFAULTHANDLER": "1"}
        command = [sys.executable, "-m", "overlay", "run", "--config", str(self.folder)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self._guard = Guard(["kill", "-9", str(self._process.pid)])

    def describe(self) -> str:
        """Return what the worker says of its readiness, and the end of its log."""
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=5) as answer:
                ready = answer.read().decode()
        except urllib.error.HTTPError as error:
            ready = error.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            ready = f"no answer: {error}"
        return f"worker {self.number}, /readyz: {ready[:_TAIL]}\nend of its log:\n{self._read_tail()}"

    def look(self) -> None:
        """Note an end that the test did not cause, and start the process again."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self.deaths.append(f"worker {self.number} ended with {code}:\n{self._read_tail()}")
            self._forget()
            self.start()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.look()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def freeze(self) -> None:
        """Send SIGSTOP."""
        self.look()
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.frozen = True

    def thaw(self) -> None:
        """Send SIGCONT. A process that runs is left as it is."""
        if self._process is not None and self.frozen:
            self._process.send_signal(signal.SIGCONT)
        self.frozen = False

    def stop(self) -> None:
        """Send SIGTERM and wait for the end, which has to be in time and with code 0."""
        self.look()
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_S)
            if code != 0:
                self.deaths.append(f"worker {self.number} ended with {code} after SIGTERM:\n{self._read_tail()}")
        except subprocess.TimeoutExpired:
            self.deaths.append(f"worker {self.number} runs {STOP_S:.0f} s after SIGTERM:\n{self._read_tail()}")
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        self._process, self.frozen = None, False
        if self._guard is not None:
            self._guard.release()
            self._guard = None

    def _read_tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]


class BusyLoops:
    """Processes that do nothing but keep cores taken, for `seconds` at most."""

    def __init__(self, count: int, seconds: float) -> None:
        loop = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
        self._processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
