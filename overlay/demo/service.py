"""The service's process as the demo sees it, and its answers over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.local.launch import read_tail
from overlay.local.locks import take_lock

from .home import DemoError, DemoHome

STOP_S = 30.0
_ANSWER_S = 10.0
_LOG_LINES = 12
# no proxy: the service is on this machine
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """A consumer's progress, as the service reports it.

    `topic`: its output topic. `count`: messages delivered. `lag`: records it is behind, None until
    it is served. `trouble`: why it cannot be served, "" if it can.
    """

    name: str
    topic: str
    filters: tuple[str, ...]
    count: int
    lag: int | None
    trouble: str
    sql: str = ""

    @property
    def selects(self) -> str:
        """The consumer's filters, one per line."""
        return "\n".join([*self.filters, *([self.sql] if self.sql else [])])


@dataclass(frozen=True, slots=True)
class Look:
    """The service's progress at `at` (monotonic seconds).

    `scanned`: records whose results are committed.
    """

    at: float
    scanned: int = 0
    read: int = 0
    """Records that have been processed, committed or not."""
    consumers: tuple[DeliveryProgress, ...] = ()

    @property
    def is_serving(self) -> bool:
        return bool(self.consumers) and all(consumer.lag is not None for consumer in self.consumers)

    def has_done(self, records: int) -> bool:
        """Return whether all `records` are committed and every consumer has caught up."""
        return self.is_serving and self.scanned >= records and not any(consumer.lag for consumer in self.consumers)


@dataclass(slots=True)
class ServiceProcess:
    """The process `python -m overlay run` with the demo's config."""

    home: DemoHome
    url: str
    process: subprocess.Popen[bytes]

    def look(self) -> Look:
        """Ask the service for its progress.

        Returns an empty Look if it does not answer, as while it starts. Raises DemoError if it has ended.
        """
        at = time.monotonic()
        try:
            streams, consumers = self._get("/streams"), self._get("/consumers")
        except OSError:
            self.check_alive()
            return Look(at)
        read = sum(place["position"] for stream in streams for place in stream["partitions"].values())
        return Look(at, sum(stream["decoded"] for stream in streams), read, tuple(map(_read_consumer, consumers)))

    def check_alive(self) -> None:
        """Raise DemoError with the end of the log if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise DemoError(f"the service has ended with exit code {code}. {self.quote_log()}")

    def quote_log(self) -> str:
        """Return the end of the log for an error message, one event per line."""
        return quote_log(self.home.log)

    def stop(self) -> int:
        """Stop the process by SIGTERM if it runs, wait for its end and return its exit code.

        Raises DemoError if the process had to be killed.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise DemoError(
                    f"the service did not end within {STOP_S:.0f} s of SIGTERM and was killed. {self.quote_log()}"
                ) from None
        return self.process.returncode

    def _get(self, path: str) -> Any:
        with _OPENER.open(self.url + path, timeout=_ANSWER_S) as answer:
            return json.load(answer)


def compile_kernels(home: DemoHome) -> None:
    """Compile the numeric code ahead of the service's start, or find it compiled. Raises DemoError.

    The first time this takes a minute or two, on a slow machine longer. It has no deadline: it ends
    by itself.
    """
    command = [sys.executable, "-m", "overlay.worker.warmup"]
    with home.log.open("wb") as log:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
    if code.returncode:
        raise DemoError(f"compiling the kernels ended with exit code {code.returncode}. {quote_log(home.log)}")


def start_service(home: DemoHome, url: str) -> ServiceProcess:
    """Start the service, detached from this terminal, with its output in the log. `url`: of its
    HTTP server.

    Does not wait for it. Raises DemoError if another process holds its lock.
    """
    lock = take_lock(home.life_lock)
    if lock is None:
        raise DemoError(f"{home.life_lock}: another process has locked this file. End it and try again")
    command = [sys.executable, "-m", "overlay", "run", "--config", str(home.config)]
    try:
        with home.log.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                # Ctrl-C is for the demo, which then stops the service
                start_new_session=True,
            )
    finally:
        # from now on only the service's own descriptor holds the lock
        os.close(lock)
    home.pid.write_text(f"{process.pid}\n")
    return ServiceProcess(home, url, process)


def quote_log(log: Path) -> str:
    """Return the end of a log for an error message, one event per line."""
    lines = read_tail(log, _LOG_LINES).splitlines()
    return "\n  ".join([f"The end of {log}:", *map(_spell_line, lines)] if lines else ["Its log is empty"])


def _read_consumer(found: dict[str, Any]) -> DeliveryProgress:
    trouble = f"{found['state']}: {found['reason']}" if found["state"] in ("stalled", "stopped") else ""
    return DeliveryProgress(
        name=found["name"],
        topic=found["deliver_subject"],
        filters=tuple(found["filters"]),
        count=found["delivered"],
        lag=found.get("lag_records"),
        trouble=trouble,
        sql=found["filter"].get("sql", ""),
    )


def _spell_line(line: str) -> str:
    """Return an event of the JSON log as plain text; other lines unchanged."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict):
        return line
    head = [str(entry.pop(name, "")) for name in ("timestamp", "level", "event")]
    return " ".join([*head, *(f"{name}={value}" for name, value in entry.items())])
