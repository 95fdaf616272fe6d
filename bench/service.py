"""The service for one measurement: a fresh config folder, a state topic of its own, a stream and a consumer."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.errors import PeerUnavailable, WrongAnswer
from bench.sides import STREAM_SUBJECTS, TEMPLATE, Work
from overlay.local.ports import find_free
from overlay.waits import comes_true
from overlay.worker.service import Service

HOST = "127.0.0.1"
STREAM = "FLIGHTS"
CONSUMER = "bench"
READY_S = 90.0
STOP_S = 30.0
DEADLINE_S = 300.0
LOOK_S = 0.002


def write_config(folder: Path, work: Work, out_topic: str, delivery: str) -> str:
    """Write a config folder of one consumer, CONSUMER; returns the URL that its service will answer at."""
    return write_consumers(folder, {CONSUMER: (work, out_topic)}, delivery)


def write_consumers(
    folder: Path, consumers: Mapping[str, tuple[Work, str]], delivery: str, engine: str = "service"
) -> str:
    """The same for several consumers: by name, the work of each, all of one topic, and its output topic.

    `engine`: who delivers them, `service` or `spark`.
    """
    some, _ = next(iter(consumers.values()))
    files: dict[str, object] = {
        "streams/flights.yaml": {
            "name": STREAM,
            "topics": [some.topic],
            "subject": {"template": TEMPLATE},
            "subjects": [pattern.text for pattern in STREAM_SUBJECTS],
        }
    }
    for name, (work, out_topic) in consumers.items():
        files[f"consumers/{name}.yaml"] = {
            "stream": STREAM,
            "durable_name": name,
            "deliver_subject": out_topic,
            "filter_subject": work.pattern,
            "ack_policy": "none",
            "delivery": delivery,
            "engine": engine,
        }
    return write_files(folder, some.bootstrap, files)


def draw_prefix() -> str:
    """Return how the names of one service's own topics begin."""
    return f"bench-{uuid.uuid4().hex[:8]}"


def write_files(folder: Path, bootstrap: str, files: Mapping[str, object], prefix: str = "", shards: int = 1) -> str:
    """Write these files and that of a service; returns the URL that it will answer at. YAML takes JSON as it is.
    `prefix`: of the service's own topics; drawn if empty. `shards`: of the service.
    """
    port = find_free(HOST, 1)[0]
    service = {
        "kafka": {"bootstrap.servers": bootstrap},
        "topics": {"prefix": prefix or draw_prefix()},
        "shards": shards,
        "http": {"listen": f"{HOST}:{port}"},
    }
    for name, content in {"overlay.yaml": service, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1))
    return f"http://{HOST}:{port}"


async def wait_for(
    holds: Callable[[], bool], service: Service, running: asyncio.Task[None], *, look_s: float = LOOK_S
) -> float:
    """Wait for a service in this process. Return when the condition came to hold, seconds by the clock of the figures.
    Raises WrongAnswer when it does not. `look_s`: seconds between two looks.
    """
    deadline = time.perf_counter() + DEADLINE_S
    while not holds():
        if running.done() or time.perf_counter() > deadline:
            raise WrongAnswer(f"the overlay's service ended or stood still: {service.report_readiness()['reasons']}")
        await asyncio.sleep(look_s)
    return time.perf_counter()


@contextmanager
def run_service(folder: Path, url: str, ready_s: float = READY_S) -> Iterator[int]:
    """`overlay run` in a process of its own, ready within the block and stopped after it; the id of the process. Raises
    PeerUnavailable when it is not ready within `ready_s` seconds.
    """
    log = folder / "service.log"
    command = [sys.executable, "-m", "overlay", "run", "--config", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        if not comes_true(lambda: process.poll() is not None or _is_ready(url), ready_s) or process.poll() is not None:
            said = log.read_text(errors="replace")[-500:]
            raise PeerUnavailable(f"the overlay's service did not become ready. It said: {said}")
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _show_trouble(log)


def _show_trouble(log: Path) -> None:
    """Pass on what the service complained of: a figure is read differently beside a warning."""
    for line in log.read_text(errors="replace").splitlines():
        if '"level": "info"' not in line:
            print(f"overlay: {line}", file=sys.stderr)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
