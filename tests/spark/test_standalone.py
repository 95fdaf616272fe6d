"""A job on a cluster whose parts are lost: each record is delivered or given up once, in order.

A standalone master and two workers, each on a loopback address of its own, so that Spark takes them for two machines.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.local import Broker, start
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_dead_letters import LIMIT, bury, produce_sizes
from tests.spark.job.test_job import STREAM
from tests.spark.job.test_kills import KILLS, PARTITIONS, RECORDS, check
from tests.spark.standalone import Standalone, run_standalone
from tests.support.kafka import make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3_000)]

PROGRESS_S = 240.0
FROZEN_S = 5.0
"""How long a frozen Python worker stands still: long enough for Spark to give its task to another one."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "500ms",
}
EXCLUSION = {
    "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "1",
    "spark.excludeOnFailure.application.maxFailedTasksPerExecutor": "1",
    "spark.excludeOnFailure.application.maxFailedExecutorsPerNode": "1",
}
LOG_OF_EXCLUSION = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
logger.health.name = org.apache.spark.scheduler.HealthTracker
logger.health.level = info
"""


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may restart."""
    with start(tmp_path / "broker") as broker:
        yield broker


@dataclass
class Traffic:
    """What a job has to deliver: records of a source, those with a number that 3 divides left out, those that the
    output cannot take as dead letters."""

    bootstrap: str
    source: str
    output: str
    letters: str
    written: int = 0

    def produce(self) -> None:
        produce_sizes(self.bootstrap, self.source, range(self.written, self.written + RECORDS), PARTITIONS)
        self.written += RECORDS

    def count(self) -> int:
        """Committed deliveries and dead letters."""
        return len(read_committed(self.bootstrap, self.output)) + len(read_committed(self.bootstrap, self.letters))

    def count_wanted(self) -> int:
        return sum(n % 3 != 0 for n in range(self.written))

    def await_count(self, wanted: int, log: Path, is_well: Callable[[], bool] = lambda: True) -> None:
        """Wait for so many deliveries. Fails with the drivers' log."""
        try:
            wait_until(lambda: not is_well() or self.count() >= wanted, PROGRESS_S, f"{wanted} records")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from None
        assert is_well(), log.read_text()[-4000:]


def prepare(bootstrap: str, folder: Path) -> tuple[Traffic, Path]:
    """Topics, and the config folder of a job."""
    source = make_topic(bootstrap, f"source-{folder.name}", PARTITIONS, {"retention.ms": "-1"})
    output = make_topic(bootstrap, f"{source}-out", 2, {"max.message.bytes": str(LIMIT)})
    letters = make_topic(bootstrap, f"{source}-letters")
    more = "filter: {sql: 'n % 3 <> 0'}\noutput: {partitions: 2}\n" + bury(letters)
    config = write_job_folder(folder / "config", bootstrap, output, source=source, stream=STREAM, more=more)
    return Traffic(bootstrap, source, output, letters), config


def send(pids: list[int], number: signal.Signals, chance: random.Random) -> int | None:
    """Send a signal to one of some processes, and return which."""
    if not pids:
        return None
    chosen = chance.choice(pids)
    with contextlib.suppress(ProcessLookupError):  # it may have ended since
        os.kill(chosen, number)
        return chosen
    return None


@contextmanager
def one_frozen(cluster: Standalone, chance: random.Random) -> Iterator[int | None]:
    """Freeze a Python worker for the block; afterwards it goes on in the middle of its task, if it has not been ended."""
    frozen = send(cluster.list_python_workers(), signal.SIGSTOP, chance)
    try:
        yield frozen
    finally:
        if frozen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(frozen, signal.SIGCONT)


def test_executors_and_drivers_are_killed(own_broker: Broker, tmp_path: Path) -> None:
    """Also frozen Python workers, whose tasks Spark runs a second time beside them, and a restart of the broker."""
    chance = random.Random(17)
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "driver.log"
    killed = frozen = 0
    traffic.produce()
    with run_standalone(tmp_path / "cluster", settings=SPECULATION) as cluster:
        for kill in range(KILLS):
            with cluster.run_job(config, checkpoint, log) as driver:
                traffic.produce()
                if kill % 3:
                    # otherwise the driver is killed while it starts
                    wait_until(cluster.list_python_workers, PROGRESS_S, "a task runs")
                if kill == KILLS // 2:
                    own_broker.restart()
                time.sleep(chance.uniform(0, 3))  # the moment of the kill is random
                killed += send(cluster.list_executors(), signal.SIGKILL, chance) is not None
                with one_frozen(cluster, chance) as stopped:
                    frozen += stopped is not None
                    time.sleep(chance.uniform(0, FROZEN_S))
        with cluster.run_job(config, checkpoint, log) as driver:
            traffic.await_count(traffic.count_wanted(), log, lambda: driver.poll() is None)
    check(traffic.bootstrap, traffic.output, traffic.letters, traffic.written)
    print(f"executors killed: {killed}, workers frozen: {frozen}")  # noqa: T201 - a failure shows it
    assert killed and frozen, f"executors killed: {killed}, workers frozen: {frozen}"


def test_a_task_that_stands_still_is_run_by_another_worker(own_broker: Broker, tmp_path: Path) -> None:
    """A frozen worker's task is run beside it. When it goes on, it finds its batch committed, or is fenced."""
    chance = random.Random(3)
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    log = tmp_path / "driver.log"
    traffic.produce()
    with (
        run_standalone(tmp_path / "cluster", settings=SPECULATION) as cluster,
        cluster.run_job(config, tmp_path / "checkpoint", log) as driver,
    ):
        traffic.await_count(1, log)
        for _ in range(3):
            traffic.produce()
            with one_frozen(cluster, chance):
                traffic.await_count(traffic.count_wanted(), log, lambda: driver.poll() is None)
    check(traffic.bootstrap, traffic.output, traffic.letters, traffic.written)


def test_a_host_that_fails_is_excluded(own_broker: Broker, tmp_path: Path) -> None:
    """All Python workers of one host are killed until Spark gives it no more tasks; the other host does the work."""
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    log = tmp_path / "driver.log"
    traffic.produce()
    with run_standalone(tmp_path / "cluster", settings=EXCLUSION) as cluster:
        (cluster.conf / "log4j2.properties").write_text(LOG_OF_EXCLUSION, encoding="utf-8")

        def is_excluded() -> bool:
            for pid in cluster.list_python_workers(1):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if traffic.count() >= traffic.count_wanted():
                traffic.produce()
            return "Excluding node 127.0.0.2" in log.read_text()

        with cluster.run_job(config, tmp_path / "checkpoint", log) as driver:
            try:
                wait_until(is_excluded, PROGRESS_S, "Spark excludes the host")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from None
            traffic.produce()
            traffic.await_count(traffic.count_wanted(), log, lambda: driver.poll() is None)
    check(traffic.bootstrap, traffic.output, traffic.letters, traffic.written)


def test_of_two_drivers_one_ends(own_broker: Broker, tmp_path: Path) -> None:
    """A second driver of a job is refused. One that takes over from a frozen driver goes on, and the frozen one ends when it
    wakes."""
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    logs = [tmp_path / f"driver-{number}.log" for number in range(3)]
    place = tmp_path / "checkpoint"
    traffic.produce()
    shared = {"spark.executor.cores": "1", "spark.cores.max": "1"}
    with (
        run_standalone(tmp_path / "cluster", settings=shared) as cluster,
        cluster.run_job(config, place, logs[0]) as first,
    ):
        traffic.await_count(traffic.count_wanted(), logs[0], lambda: first.poll() is None)
        with cluster.run_job(config, place, logs[1]) as refused:
            assert refused.wait(PROGRESS_S) == 1
            assert "error: " in logs[1].read_text() and "another pipeline" in logs[1].read_text()
        traffic.produce()
        os.killpg(first.pid, signal.SIGSTOP)
        with cluster.run_job(config, place, logs[2]) as second:
            traffic.await_count(traffic.count_wanted(), logs[2], lambda: second.poll() is None)
            os.killpg(first.pid, signal.SIGCONT)
            traffic.produce()
            assert first.wait(PROGRESS_S) == 1
            assert "error: " in logs[0].read_text()
            traffic.await_count(traffic.count_wanted(), logs[2], lambda: second.poll() is None)
    check(traffic.bootstrap, traffic.output, traffic.letters, traffic.written)
