"""A job whose driver and workers are killed again and again: each record is delivered or given up once, in order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_dead_letters import LIMIT, bury, number_of, produce_sizes
from tests.spark.job.test_job import STREAM, find_token
from tests.support.kafka import NewTopicFixture, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

KILLS = int(os.environ.get("OVERLAY_KILLS", "4"))
RECORDS = 300
"""Records that are written before each kill."""
PARTITIONS = 2
START_S = 180.0


@contextmanager
def started(folder: Path, checkpoint: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process group of its own, which is killed at the end."""
    command = [
        *(sys.executable, "-m", "spark.pipeline", "--continuous", "--config", str(folder), "--consumer", "c"),
        # four tries for each task: a worker that is killed ends its task, not the job
        *("--checkpoint", str(checkpoint), "--master", "local[2,4]", "--option", "maxRecordsPerTrigger=150"),
    ]
    with log.open("ab") as out:
        driver = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        yield driver
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(30)


def list_workers(driver: int) -> list[int]:
    """The Python workers of a driver: what its daemons have forked. Daemons have process groups of their own."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [(int(pid), int(parent), args) for pid, parent, args in (r.split(None, 2) for r in found.splitlines()[1:])]
    ours = {driver}
    while more := {pid for pid, parent, _ in rows if parent in ours} - ours:
        ours |= more
    daemons = {pid for pid, _, args in rows if pid in ours and "daemon" in args}
    return [pid for pid, parent, _ in rows if parent in daemons]


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_kills(bootstrap: str, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    chance = random.Random(seed)
    print(f"chaos: OVERLAY_SEED={seed} OVERLAY_KILLS={KILLS}")  # noqa: T201 - a failure shows it
    source = new_topic(PARTITIONS, retention_ms=-1)
    output = make_topic(bootstrap, f"{source}-out", 2, {"max.message.bytes": str(LIMIT)})
    letters, log = make_topic(bootstrap, f"{source}-letters"), tmp_path / "log"
    more = "filter: {sql: 'n % 3 <> 0'}\noutput: {partitions: 2}\n" + bury(letters)
    folder = write_job_folder(tmp_path / "config", bootstrap, output, source=source, stream=STREAM, more=more)
    written = killed = 0

    def count() -> int:
        return len(read_committed(bootstrap, output)) + len(read_committed(bootstrap, letters)) if written else 0

    produce_sizes(bootstrap, source, range(RECORDS), PARTITIONS)
    written = RECORDS
    for kill in range(KILLS):
        with started(folder, tmp_path / "checkpoint", log) as driver:
            # kills fall on starts, on batches under way, and on calm
            if kill % 3:
                wanted = sum(n % 3 != 0 for n in range(written))
                wait_until(lambda wanted=wanted: count() >= wanted // 2, START_S, f"a half of {wanted} records")  # type: ignore[misc]
            produce_sizes(bootstrap, source, range(written, written + RECORDS), PARTITIONS)
            written += RECORDS
            for _ in range(2):
                time.sleep(chance.uniform(0, 4))  # the moment of the kill is random
                for worker in chance.sample(workers := list_workers(driver.pid), min(1, len(workers))):
                    with contextlib.suppress(ProcessLookupError):  # its task may have ended since
                        os.kill(worker, signal.SIGKILL)
                        killed += 1
            time.sleep(chance.uniform(0, 3))
    with started(folder, tmp_path / "checkpoint", log) as driver:
        wanted = sum(n % 3 != 0 for n in range(written))
        wait_until(lambda: count() >= wanted, START_S, f"{wanted} records; the driver says:\n{log.read_text()[-3000:]}")
        assert driver.poll() is None, log.read_text()[-3000:]
    check(bootstrap, output, letters, written)
    print(f"workers killed: {killed}")  # noqa: T201 - a failure shows it
    assert killed, "no worker was there to be killed"


def check(bootstrap: str, output: str, letters: str, written: int) -> None:
    """Each record that matches is there once, in the order of its source partition, with a sequence of its own; what the
    output cannot take is once in the dead letters."""
    dead = sorted(number_of(seen) for seen in read_committed(bootstrap, letters))
    assert dead == [n for n in range(written) if n % 3 and n % 7 == 3]
    found = read_committed(bootstrap, output)
    numbers = [number_of(seen) for seen in found]
    assert sorted(numbers) == [n for n in range(written) if n % 3 and n % 7 != 3]
    for partition in range(2):
        for source in range(PARTITIONS):
            mine = [
                n
                for n, seen in zip(numbers, found, strict=True)
                if seen.partition == partition and n % PARTITIONS == source
            ]
            assert mine == sorted(mine)
    sequences = [int(find_token(seen).split(b".")[-3]) for seen in found]
    assert sorted(sequences) == list(range(1, len(found) + 1))
