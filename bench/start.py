"""`start`: how long a command takes that a person waits for, in ms, from its start to its end.

Each side is a program of its own, started anew for each figure, as a shell would. What it says is checked. A figure is the
median of a few starts (REPEATS), and that of a case the median of the rounds. All sides ask about 2,000 flights in one
topic, or one stream of NATS with the same messages, and about one pull consumer of it; service and brokers run already.
Programs in Python find the byte code of their modules, as pip leaves it when it installs them.

| case | overlay | kcat | nats | confluent |
|---|---|---|---|---|
| `import` | a program that opens a client | | | one that makes a consumer |
| `ls` | `overlay consumer ls` | `kcat -L`, the topic's metadata | `nats consumer ls` | |
| `info` | `overlay consumer info` | | `nats consumer info` | |
| `next` | `overlay consumer next`, one message | | `nats consumer next`, one message | |
| `read` | `overlay read`, to its first line | `kcat -C`, to its first line | `nats stream get`, the first message | |

`kcat` and `nats` are taken from PATH; where they are not, the case says so.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig

from bench.dataset import Dataset
from bench.errors import PeerUnavailable, WrongAnswer
from bench.figures import OVERLAY, Case, Unit, summarise
from bench.outputs import delete_topic, make_topic
from bench.peers.nats import Server, copy, list_messages
from bench.progress import Progress
from bench.rounds import take_turns
from bench.service import run_service, write_files
from bench.settings import Settings
from bench.sides import STREAM_SUBJECTS, TEMPLATE
from overlay.local import flights

RECORDS = 2_000
REPEATS = 5
STREAM, CONSUMER = "FLIGHTS", "work"
LIMITS = {"ls": 400.0, "info": 400.0, "next": 400.0, "read": 700.0}
"""Ms below which each command is to be."""
DEADLINE_S = 60.0
OVERLAY_COMMAND = (sys.executable, "-m", "overlay")
WHERE = {
    "kcat": "kcat is not on PATH: install your system's package kcat",
    "nats": "nats is not on PATH: go install github.com/nats-io/natscli/nats@v0.2.4",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start. `expected`: a text that it prints. `to_first_line`: whether its time ends
    with the first line that it prints; it is ended then.
    """

    name: str
    words: tuple[str, ...]
    expected: str
    to_first_line: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything runs that commands ask. `nats`: the URL of a nats-server, "" if there is none."""

    bootstrap: str
    topic: str
    folder: Path
    nats: str


def measure(dataset: Dataset, settings: Settings, progress: Progress) -> Iterator[Case]:
    """All cases that are asked for. Raises WrongAnswer if a command says something else than it must."""
    repeats = 1 if settings.passes == 0 else REPEATS
    with ExitStack() as stack:
        places = stack.enter_context(open_places(dataset, progress))
        for case, commands in list_cases(places).items():
            if not settings.wants(case):
                continue
            wanted = [command for command in commands if settings.wants_side(command.name)]

            def run(command: Command, case: str = case) -> float:
                progress.say(f"start {case}: {command.name}")
                return statistics.median(time_command(command) for _ in range(repeats))

            runs = take_turns(wanted, settings.rounds, run)
            found = summarise(case, Unit.MILLISECONDS, runs.figures, goal={}, skipped=runs.skipped)
            yield replace(found, limit={OVERLAY: LIMITS[case]} if case in LIMITS else {})


@contextmanager
def open_places(dataset: Dataset, progress: Progress) -> Iterator[Places]:
    """Fill a topic and a stream of NATS, and run a service, within the block."""
    progress.say("publishing the flights, starting the service")
    topic = make_topic(dataset.bootstrap, "start")
    flights.publish(dataset.bootstrap, topic, RECORDS / dataset.table.num_rows, "lz4", table=dataset.table)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-start-")))
        url = write_files(folder, dataset.bootstrap, list_files(topic))
        stack.enter_context(run_service(folder, url))
        server = ""
        if shutil.which("nats") is not None:
            running = Server()
            stack.callback(running.stop)
            server = running.url
            asyncio.run(copy(server, STREAM, list_messages(dataset, RECORDS), RECORDS))
            asyncio.run(add_consumer(server))
        yield Places(dataset.bootstrap, topic, folder, server)
    delete_topic(dataset.bootstrap, topic)


def list_files(topic: str) -> Mapping[str, object]:
    """The stream and the pull consumer that commands ask about."""
    subjects = [pattern.text for pattern in STREAM_SUBJECTS]
    stream = {"name": STREAM, "topics": [topic], "subject": {"template": TEMPLATE}, "subjects": subjects}
    consumer = {"stream": STREAM, "durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": RECORDS}
    return {"streams/flights.yaml": stream, f"consumers/{CONSUMER}.yaml": consumer}


async def add_consumer(url: str) -> None:
    """Make the same pull consumer in NATS."""
    client = await nats.connect(url)
    try:
        config = ConsumerConfig(durable_name=CONSUMER, max_ack_pending=RECORDS)
        await client.jetstream().add_consumer(STREAM, config)
    finally:
        await client.close()


def list_cases(places: Places) -> dict[str, list[Command]]:
    """The commands of each case, ours first."""
    config = ("--config", str(places.folder))
    kcat = ("kcat", "-b", places.bootstrap, "-t", places.topic)
    nats_cli = ("nats", "-s", places.nats)
    opening = f"import overlay; print(overlay.open(bootstrap={places.bootstrap!r}).prefix)"
    making = (
        "import confluent_kafka as c; c.Consumer({'bootstrap.servers': "
        f"{places.bootstrap!r}, 'group.id': 'x'}}).close(); print('made')"
    )
    both = (STREAM, CONSUMER)
    return {
        "import": [
            Command(OVERLAY, (sys.executable, "-c", opening), "overlay"),
            Command("confluent", (sys.executable, "-c", making), "made"),
        ],
        "ls": [
            Command(OVERLAY, (*OVERLAY_COMMAND, "consumer", "ls", *config), CONSUMER),
            Command("kcat", (*kcat, "-L"), places.topic),
            Command("nats", (*nats_cli, "consumer", "ls", STREAM), CONSUMER),
        ],
        "info": [
            Command(OVERLAY, (*OVERLAY_COMMAND, "consumer", "info", *both, *config), CONSUMER),
            Command("nats", (*nats_cli, "consumer", "info", *both), CONSUMER),
        ],
        "next": [
            Command(OVERLAY, (*OVERLAY_COMMAND, "consumer", "next", *both, *config), "$JS.ACK."),
            Command("nats", (*nats_cli, "consumer", "next", *both, "--count", "1", "--no-ack"), "carrier"),
        ],
        "read": [
            Command(OVERLAY, (*OVERLAY_COMMAND, "read", STREAM, "--format", "raw", *config), "carrier", True),
            Command("kcat", (*kcat, "-C", "-o", "beginning"), "carrier", True),
            Command("nats", (*nats_cli, "stream", "get", STREAM, "1"), "carrier"),
        ],
    }


def time_command(command: Command) -> float:
    """Start a program and return how many ms it took. Raises PeerUnavailable if it is not there,
    WrongAnswer if it fails or does not print what is expected.
    """
    program = command.words[0]
    if program in WHERE and shutil.which(program) is None:
        raise PeerUnavailable(WHERE[program])
    began = time.perf_counter()
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    # under this variable a checkout never gets byte code, and each command compiles a hundred modules
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(command.words, text=True, env=kept, stdin=nothing, stdout=pipe, stderr=pipe) as process:
        took, said, fault = _WAITS[command.to_first_line](process, began)
    if fault or command.expected not in said:
        raise WrongAnswer(f"{' '.join(command.words)} did not say {command.expected!r}: {(fault or said)[-500:]}")
    return took


def _wait_for_end(process: subprocess.Popen[str], began: float) -> tuple[float, str, str]:
    """Return ms until the program has ended, what it has printed, and why it failed."""
    out, errors = process.communicate(timeout=DEADLINE_S)
    took = (time.perf_counter() - began) * 1_000
    return took, out, f"exit code {process.returncode}: {errors}" if process.returncode else ""


def _wait_for_line(process: subprocess.Popen[str], began: float) -> tuple[float, str, str]:
    """Return ms until the program's first line, this line, and why there is none; end the program
    then.
    """
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    took = (time.perf_counter() - began) * 1_000
    fault = "" if line else process.stderr.read()
    process.terminate()
    return took, line, fault


_WAITS: Mapping[bool, Callable[[subprocess.Popen[str], float], tuple[float, str, str]]] = {
    False: _wait_for_end,
    True: _wait_for_line,
}
