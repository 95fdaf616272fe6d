"""`python -m bench workers`: how long consumers wait while workers are restarted one after the other, and when one is killed.

Three workers (`overlay run`, processes of their own) serve twelve consumers in twelve shards. Each consumer takes every
record of a topic to which 200 a second are written; exactly once, one output topic. A read-committed consumer in this
process reads what comes out, and looks at the clock that the producer looked at. The figure of a case is the longest time
from produce to readable, of any consumer:

- rolling-restart: each worker in turn gets SIGTERM, is waited for, and starts again.
- kill: one worker gets SIGKILL. Kafka misses it after the session timeout of six seconds.

At the end each consumer must have got each record once, in order.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import Producer

from bench.dataset import Dataset
from bench.errors import PeerUnavailable, WrongAnswer
from bench.figures import OVERLAY, Case, Unit, summarise
from bench.outputs import delete_topic, make_topic
from bench.peers.confluent_scan import open_consumer
from bench.progress import Progress
from bench.settings import Settings
from overlay.local.ports import find_free
from overlay.waits import comes_true

WORKERS = 3
CONSUMERS = 12
SHARDS = 12
RATE = 200
CALM_S = 3.0
"""How long records flow before something happens to a worker."""
LATE_S = 0.5
"""A consumer whose last delivery came that soon after its record was sent has caught up."""
DEADLINE_S = 60.0
START_S = 90.0
HOST = "127.0.0.1"
LIMITS = {"rolling-restart": 1_000.0, "kill": 7_000.0}
"""Milliseconds."""


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """Both cases, from the same runs. Raises PeerUnavailable, WrongAnswer."""
    figures: dict[str, list[float]] = defaultdict(list)
    for number in range(settings.rounds):
        progress.say(f"workers: round {number + 1}")
        for case, longest in run(dataset.bootstrap).items():
            figures[case].append(longest)
    for case, limit in LIMITS.items():
        if settings.wants(case):
            summary = summarise(case, Unit.MILLISECONDS, {OVERLAY: figures[case]}, goal={}, skipped={})
            yield replace(summary, limit={OVERLAY: limit})


def run(bootstrap: str) -> dict[str, float]:
    """Return the longest delay in each case, in milliseconds. Raises PeerUnavailable, WrongAnswer."""
    topic, output = make_topic(bootstrap, "moving"), make_topic(bootstrap, "moving-out")
    with tempfile.TemporaryDirectory(prefix="bench-overlay-") as name, ExitStack() as stack:
        workers = [Worker(folder) for folder in write_folders(Path(name), bootstrap, topic, output)]
        for worker in workers:
            stack.callback(worker.end)
            worker.start()
        for worker in workers:
            worker.await_ready()
        flow = stack.enter_context(run_flow(bootstrap, topic, output))
        flow.await_all(CALM_S)
        longest = {}
        began = time.perf_counter()
        for worker in workers:
            worker.stop()
            flow.await_all()
            worker.start()
            worker.await_ready()
            flow.await_all()
        longest["rolling-restart"] = flow.find_longest(began)
        began = time.perf_counter()
        workers[0].kill()
        flow.await_all(CALM_S)
        longest["kill"] = flow.find_longest(began)
        flow.check()
    for each in (topic, output):
        delete_topic(bootstrap, each)
    return longest


def write_folders(root: Path, bootstrap: str, topic: str, output: str) -> list[Path]:
    """Write a config folder for each worker: the same but for the address of its pages."""
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    folders = []
    for number, port in enumerate(find_free(HOST, WORKERS)):
        files: dict[str, object] = {
            "overlay.yaml": {
                "kafka": {"bootstrap.servers": bootstrap},
                "topics": {"prefix": prefix},
                "shards": SHARDS,
                "http": {"listen": f"{HOST}:{port}"},
            },
            "streams/s.yaml": {"name": "S", "topics": [topic], "subject": {"template": "s.{key}"}},
        }
        for consumer in map(name_consumer, range(CONSUMERS)):
            files[f"consumers/{consumer}.yaml"] = {
                "stream": "S",
                "durable_name": consumer,
                "deliver_subject": output,
                "ack_policy": "none",
            }
        folder = root / f"worker-{number}"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(json.dumps(content))
        folders.append(folder)
    return folders


def name_consumer(number: int) -> str:
    return f"c{number:02d}"


@dataclass(slots=True)
class Worker:
    """A worker on a config folder, which can be started again after its end."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "overlay", "run", "--config", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def await_ready(self) -> None:
        """Wait until it serves all of its shards. Raises PeerUnavailable."""
        if not comes_true(self._is_ready, START_S):
            said = (self.folder / "log").read_text(errors="replace")[-500:]
            raise PeerUnavailable(f"a worker of the overlay did not become ready. It said: {said}")

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def _is_ready(self) -> bool:
        listen = json.loads((self.folder / "overlay.yaml").read_text())["http"]["listen"]
        try:
            with urllib.request.urlopen(f"http://{listen}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@dataclass(slots=True)
class Flow:
    """Records that are written and read back. Times are those of time.perf_counter, in seconds."""

    bootstrap: str
    topic: str
    output: str
    sent: int = 0
    seen: dict[str, list[tuple[int, float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By consumer: number, time of sending and delay in seconds of each record, in the order of reading."""
    stop: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        """Write a record every 1/RATE s until `stop`; one that is late does not move those after it."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "enable.idempotence": True, "log_level": 3}
        )
        began = time.perf_counter()
        while not self.stop.wait(max(0.0, began + self.sent / RATE - time.perf_counter())):
            now = time.perf_counter()
            producer.produce(self.topic, f"{self.sent} {now}".encode(), key=b"k")
            producer.poll(0)
            self.sent += 1
        producer.flush(DEADLINE_S)

    def receive(self) -> None:
        """Note each record that comes out until `stop`."""
        with open_consumer(self.bootstrap, self.output, **{"fetch.wait.max.ms": 50}) as reader:
            while not self.stop.is_set():
                message = reader.poll(0.1)
                if message is None or message.error():
                    continue
                now = time.perf_counter()
                number, sent = message.value().split()
                token = next(value for name, value in message.headers() if name == "Nats-Reply-To").decode()
                self.seen[token.split(".")[3]].append((int(number), float(sent), now - float(sent)))

    def await_all(self, seconds: float = 0.0) -> None:
        """Wait until each consumer has caught up, at least so many seconds. Raises WrongAnswer after DEADLINE_S."""
        since = time.perf_counter() + seconds
        if not comes_true(lambda: self._have_caught_up(since), DEADLINE_S):
            behind = {name: records[-1] if records else None for name, records in self.seen.items()}
            raise WrongAnswer(f"consumers do not catch up within {DEADLINE_S:g} s; last records: {behind}")

    def _have_caught_up(self, since: float) -> bool:
        """Whether each consumer has got a record that was sent after `since`, without delay."""
        last = [records[-1] for records in list(self.seen.values())]
        return len(last) == CONSUMERS and all(sent > since and delay < LATE_S for _, sent, delay in last)

    def find_longest(self, since: float) -> float:
        """Return the longest delay of records that were sent after `since`, in milliseconds."""
        return 1000 * max(delay for records in self.seen.values() for _, sent, delay in records if sent > since)

    def check(self) -> None:
        """Raise WrongAnswer unless each consumer has got all records up to its last one, each once and in order."""
        for name, records in self.seen.items():
            numbers = [number for number, _, _ in records]
            if numbers != list(range(len(numbers))):
                raise WrongAnswer(f"consumer {name} has got {len(numbers)} records, not each once and in order")


@contextmanager
def run_flow(bootstrap: str, topic: str, output: str) -> Iterator[Flow]:
    """Write and read within the block."""
    flow = Flow(bootstrap, topic, output)
    threads = [threading.Thread(target=each, daemon=True) for each in (flow.receive, flow.send)]
    for thread in threads:
        thread.start()
    try:
        yield flow
    finally:
        flow.stop.set()
        for thread in threads:
            thread.join()
