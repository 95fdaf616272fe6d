"""A write task that stands still while its twin writes the batch, and then goes on: nothing is doubled.

Two write tasks of one batch and partition run in this process, on a real Kafka. One is frozen right before or after one of
its requests, as by SIGSTOP: its event loop stands still, and what Kafka answers waits in its socket.
"""

from __future__ import annotations

import asyncio
import select
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.conn import AIOKafkaConnection

from overlay.config import load
from overlay.errors import Fenced
from overlay.kafka.admin import Admin
from overlay.kafka.own_topics import job_topic
from overlay.output.topics import make_output_topic
from overlay.state.job_log import ensure_state_log
from overlay.subject import Pattern
from spark.job import writing
from spark.job.ahead import UNKNOWN
from spark.job.blocks import TALLY
from spark.job.folder import choose_consumers, ensure_outputs
from spark.job.numbering import number
from spark.job.readers import JobReader, JobScan
from spark.job.scanning import ScanTask, scan
from spark.job.writing import THERE, JobWrite, write
from spark.lease import run_apart
from spark.options import read_options
from spark.plan import Planner
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_job import STREAM, produce, read
from tests.support.kafka import NewTopicFixture, await_markers, make_topic

RECORDS = 60
DEADLINE_S = 60.0
LATE_S = 700.0
"""Longer than any deadline of a write task, and than its transaction may take."""


@dataclass
class Freeze:
    """A thread that is frozen at one of its requests.

    `name`, `nth`: of the request's class, and the how many-th of this class it is, from 1. `is_answered`: freeze once Kafka
    has answered it, else before it is sent. `late_s`: by how much the thread's loop finds the time gone on.
    """

    name: str = ""
    nth: int = 0
    is_answered: bool = False
    late_s: float = 0.0
    thread: threading.Thread | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    thawed: threading.Event = field(default_factory=threading.Event)
    sent: list[str] = field(default_factory=list)

    def is_at(self, request: object) -> bool:
        """Note a request, and return whether this is the one."""
        kinds = (kind for kind in type(request).__mro__ if kind.__module__.startswith("aiokafka."))
        self.sent.append(next(kinds).__name__)
        return self.sent[-1] == self.name and self.sent.count(self.name) == self.nth

    def stand_still(self) -> None:
        self.reached.set()
        assert self.thawed.wait(DEADLINE_S)
        loop = asyncio.get_running_loop()
        time, late_s = loop.time, self.late_s
        setattr(loop, "time", lambda: time() + late_s)  # noqa: B010


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Freeze]:
    freeze, send = Freeze(), AIOKafkaConnection.send

    def send_or_freeze(self: Any, request: Any, expect_response: bool = True) -> Any:
        if threading.current_thread() is not freeze.thread:
            return send(self, request, expect_response)
        is_here = freeze.is_at(request)
        if is_here and not freeze.is_answered:
            freeze.stand_still()
        answer = send(self, request, expect_response)
        if is_here and freeze.is_answered:
            socket = self._writer.get_extra_info("socket")
            assert select.select([socket], [], [], DEADLINE_S)[0], "Kafka has answered"
            freeze.stand_still()
        return answer

    monkeypatch.setattr(AIOKafkaConnection, "send", send_or_freeze)
    yield freeze
    freeze.thawed.set()


@dataclass(frozen=True)
class Stage:
    """The write stage of a batch: one output partition, the blocks of several scan tasks."""

    bootstrap: str
    output: str
    job: JobWrite
    blocks: list[pa.RecordBatch]

    def write(self, batch: int = 1) -> int:
        """Run a write task of a batch. Each has the same records, with the sequences that follow. Return the records that
        it wrote, -1 if they were there already."""
        job = replace(self.job, batch=batch, before=self.job.before + batch * RECORDS)
        (outcome,) = write(job, iter(self.blocks))
        (records,) = outcome["records"].to_pylist()
        return int(records)

    @contextmanager
    def write_beside(self, freeze: Freeze) -> Iterator[Future[int]]:
        """Run a write task in a thread of its own, frozen for the block."""
        with ThreadPoolExecutor(1, initializer=lambda: setattr(freeze, "thread", threading.current_thread())) as pool:
            result = pool.submit(self.write)
            try:
                assert freeze.reached.wait(DEADLINE_S), freeze.sent
                yield result
            finally:
                freeze.thawed.set()

    def check(self) -> None:
        """Each record of both batches is committed once, in order, with a sequence of its own; no transaction is left open."""
        await_markers(self.bootstrap, self.output)
        assert read(self.bootstrap, self.output) == [(n % RECORDS, n + 1) for n in range(2 * RECORDS)]


@pytest.fixture
def stage(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A write stage with one batch committed, whose tasks send their records in several produce requests, one after the
    other."""
    monkeypatch.setattr(writing, "SEND_BYTES", 1)
    source = new_topic(retention_ms=-1)
    produce(bootstrap, source, range(RECORDS))
    output = make_topic(bootstrap, f"{source}-out", 1, {"max.message.bytes": "4000"})
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM)
    chosen = choose_consumers(load(folder))
    (config,) = chosen.configs
    topic = make_output_topic(run_apart(ensure_outputs(chosen))[output], config)
    reader = JobReader(config.id, (Pattern.parse(">"),), None, None, topic, 0)
    job_scan = JobScan(chosen.kafka, chosen.prefix, chosen.stream, (reader,), 1_700_000_000_000)
    options = {"config": str(folder), "stream": "S", "columns": "sequence,offset", "partitionBytes": "1000"}
    parts = Planner(read_options({**options, "minPartitions": "4"})).plan()
    found = [list(scan(job_scan, at, ScanTask(part, (0,)))) for at, part in enumerate(parts)]
    blocks = [
        each.filter(pa.array([w != TALLY for w in each["writer"].to_pylist()])) for task in found for each in task
    ]
    counts = np.zeros((len(parts), 1), np.int64)
    for each in blocks:
        np.add.at(counts, (each["task"].to_numpy(), 0), each["rows"].to_numpy())
    name = f"j-{uuid.uuid4().hex[:8]}"
    run_apart(_ensure_state(job_scan, name))
    unknown = np.full_like(counts, UNKNOWN)
    job = JobWrite(
        job_scan, name, 0, "plan", number(counts, [0]), unknown, counts, ((output, 0),), {(output, 0): 1}
    )  # fmt: skip
    made = Stage(bootstrap, output, job, blocks)
    assert made.write(0) == RECORDS
    return made


async def _ensure_state(job_scan: JobScan, name: str) -> None:
    async with Admin(job_scan.kafka) as admin:
        await ensure_state_log(admin, job_topic(job_scan.prefix, name), 1)


FENCED = "fenced"


@pytest.mark.parametrize("late_s", [0.0, LATE_S], ids=["soon", "late"])
@pytest.mark.parametrize(
    ("name", "nth", "is_answered", "end"),
    [
        pytest.param("FindCoordinatorRequest", 1, False, THERE, id="before it has a coordinator"),
        pytest.param("InitProducerIdRequest", 1, False, THERE, id="before InitProducerId"),
        pytest.param("InitProducerIdRequest", 1, True, THERE, id="behind InitProducerId"),
        pytest.param("FetchRequest", 1, True, FENCED, id="behind the read of the state"),
        pytest.param("AddPartitionsToTxnRequest", 1, True, FENCED, id="before the first batch"),
        pytest.param("ProduceRequest", 1, True, FENCED, id="behind the first batch"),
        pytest.param("ProduceRequest", 3, False, FENCED, id="before the third batch"),
        pytest.param("AddPartitionsToTxnRequest", 2, False, FENCED, id="behind the deliveries"),
        pytest.param("EndTxnRequest", 1, False, FENCED, id="before the commit"),
        pytest.param("EndTxnRequest", 1, True, RECORDS, id="behind the commit"),
    ],
)
def test_a_frozen_write_task_doubles_nothing(
    stage: Stage, frozen: Freeze, name: str, nth: int, is_answered: bool, end: int | str, late_s: float
) -> None:
    """Its twin has written the batch meanwhile, unless it had committed itself. If its deadlines have passed, it may find that
    the batch is there."""
    frozen.name, frozen.nth, frozen.is_answered, frozen.late_s = name, nth, is_answered, late_s
    with stage.write_beside(frozen) as result:
        assert stage.write() == (THERE if end == RECORDS else RECORDS)
    found: int | str
    try:
        found = result.result(DEADLINE_S)
    except Fenced as error:
        assert "another attempt of this task has taken over, and writes batch 1 " in str(error)
        found = FENCED
    assert found in ({end, THERE} if late_s else {end})
    stage.check()
