"""A job on a cluster whose parts are lost: each record is delivered or given up once, in order.

A standalone master and two workers, each on a loopback address of its own, so that Spark takes them for two machines.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from overlay.local import Broker, start
from tests.spark.deliveries import write_job_folder
from tests.spark.job.test_dead_letters import LIMIT, bury, number_of, produce_sizes
from tests.spark.job.test_job import STREAM, find_token
from tests.spark.job.test_kills import KILLS, PARTITIONS, RECORDS, check
from tests.spark.standalone import Standalone, run_standalone, write_settings
from tests.support.kafka import PATIENT, make_topic
from tests.support.waiting import wait_until
from tests.worker.scenes import read_committed

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(3_000)]

SEED = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
PROGRESS_S = 240.0
LOOK_S = 0.5
CALM_S = 4.0
"""Longest time before a kill: a driver that has started has several batches in it."""
START_S = 20.0
"""The same for a driver that is to be killed while it starts, or soon after that."""
FROZEN_S = 3.0
"""How long a frozen Python worker stands still: long enough for Spark to give its task to another one."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.minTaskRuntime": "500ms",
    # else a stage of one task has no second attempt: there is none to compare it with
    "spark.speculation.task.duration.threshold": "2s",
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

Driver = subprocess.Popen[bytes]
TAKEN = "cut off from Kafka|is run by another driver now|Concurrent update to the log|has taken over|by another plan"
"""What a driver says that ends since another one has gone on in its place: which of these depends on where it was frozen."""


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that a test may restart."""
    with start(tmp_path_factory.mktemp("kafka") / "broker", properties=PATIENT) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and two workers. The settings of the tests are those of their drivers."""
    with run_standalone(tmp_path_factory.mktemp("standalone") / "cluster") as running:
        yield running


@dataclass
class Traffic:
    """What a job has to deliver from a source to two consumers.

    Consumer c wants the records with a number that 3 does not divide; those that its output cannot take become dead
    letters. Consumer d wants one subject of five.
    """

    bootstrap: str
    source: str
    output: str
    letters: str
    second: str
    written: int = 0

    def produce(self) -> None:
        produce_sizes(self.bootstrap, self.source, range(self.written, self.written + RECORDS), PARTITIONS)
        self.written += RECORDS

    def count(self) -> int:
        """Committed deliveries and dead letters."""
        return sum(len(read_committed(self.bootstrap, topic)) for topic in (self.output, self.letters, self.second))

    def count_wanted(self) -> int:
        return sum((n % 3 != 0) + (n % 5 == 1) for n in range(self.written))

    def await_all(self, driver: Driver, log: Path) -> None:
        """Wait until this driver has delivered all that was written. Fails with the drivers' log."""
        self.await_count(self.count_wanted(), driver, log)

    def await_count(self, wanted: int, driver: Driver, log: Path) -> None:
        """Wait for so many deliveries. Fails with the drivers' log."""
        await_driver(lambda: self.count() >= wanted, driver, log, f"{wanted} records")

    def check(self) -> None:
        """Each record is in each output that it belongs to once, in order."""
        check(self.bootstrap, self.output, self.letters, self.written)
        found = read_committed(self.bootstrap, self.second)
        numbers = [number_of(seen) for seen in found]
        assert sorted(numbers) == [n for n in range(self.written) if n % 5 == 1]
        for partition in range(PARTITIONS):
            mine = [n for n in numbers if n % PARTITIONS == partition]
            assert mine == sorted(mine)
        assert [int(find_token(seen).split(b".")[-3]) for seen in found] == list(range(1, len(found) + 1))


def await_driver(is_there: Callable[[], object], driver: Driver, log: Path, what: str) -> None:
    """Wait for a condition while a driver runs. Fails with its log."""

    def is_over() -> bool:
        # looks are dear: processes are listed, topics read
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(LOOK_S)
            return True
        return bool(is_there())

    try:
        wait_until(is_over, PROGRESS_S, what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from None
    assert driver.poll() is None, log.read_text()[-4000:]


def prepare(bootstrap: str, folder: Path) -> tuple[Traffic, Path]:
    """Topics, and the config folder of a job."""
    source = make_topic(bootstrap, f"source-{folder.name}", PARTITIONS, {"retention.ms": "-1"})
    output = make_topic(bootstrap, f"{source}-out", 2, {"max.message.bytes": str(LIMIT)})
    letters, second = make_topic(bootstrap, f"{source}-letters"), make_topic(bootstrap, f"{source}-second")
    more = "filter: {sql: 'n % 3 <> 0'}\noutput: {partitions: 2}\n" + bury(letters)
    config = write_job_folder(folder / "config", bootstrap, output, source=source, stream=STREAM, more=more)
    text = f"{{stream: S, durable_name: d, deliver_subject: {second}, ack_policy: none, filter_subject: a.1, engine: spark}}"
    (config / "consumers" / "d.yaml").write_text(text, encoding="utf-8")
    return Traffic(bootstrap, source, output, letters, second), config


def send(pids: list[int], number: signal.Signals, chance: random.Random) -> int | None:
    """Send a signal to one of some processes. Return its id, None if there is none."""
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


@dataclass
class Kills:
    """Kills of one run. The moments are random."""

    cluster: Standalone
    chance: random.Random
    executors: int = 0
    frozen: int = 0

    def hit_executors(self, driver: Driver, log: Path, times: int) -> None:
        """Kill an executor, and freeze a Python worker of those that are left, some times."""
        for _ in range(times):
            # one that was killed is replaced, and its tasks run again
            await_driver(self.cluster.list_python_workers, driver, log, "an executor runs a task")
            time.sleep(self.chance.uniform(0, CALM_S))
            self.executors += send(self.cluster.list_executors(), signal.SIGKILL, self.chance) is not None
            with one_frozen(self.cluster, self.chance) as stopped:
                self.frozen += stopped is not None
                time.sleep(self.chance.uniform(0, FROZEN_S))


def test_executors_and_drivers_are_killed(own_broker: Broker, cluster: Standalone, tmp_path: Path) -> None:
    """As many of the one as of the other, with speculation, frozen Python workers, and a restart of the broker."""
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    checkpoint, log = tmp_path / "checkpoint", tmp_path / "driver.log"
    conf = write_settings(tmp_path / "conf", SPECULATION)
    traffic.produce()
    kills = Kills(cluster, random.Random(SEED))
    print(f"chaos: OVERLAY_SEED={SEED} OVERLAY_KILLS={KILLS}")  # noqa: T201 - a failure shows it
    for number in range(KILLS):
        with cluster.run_job(config, checkpoint, log, conf) as driver:
            traffic.produce()
            # every other driver is killed while it starts
            if number % 2:
                kills.hit_executors(driver, log, 2)
            if number == KILLS // 2:
                own_broker.restart()
            time.sleep(kills.chance.uniform(0, CALM_S if number % 2 else START_S))
            assert driver.poll() is None, log.read_text()[-4000:]
    with cluster.run_job(config, checkpoint, log, conf) as driver:
        traffic.await_all(driver, log)
    traffic.check()
    assert kills.executors >= KILLS // 2 * 2 and kills.frozen, kills


def test_a_task_that_stands_still_is_run_by_another_worker(
    own_broker: Broker, cluster: Standalone, tmp_path: Path
) -> None:
    """A frozen worker's task is run beside it. When it goes on, it finds its batch committed, or is fenced."""
    chance = random.Random(SEED)
    print(f"chaos: OVERLAY_SEED={SEED}")  # noqa: T201 - a failure shows it
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    log, conf = tmp_path / "driver.log", write_settings(tmp_path / "conf", SPECULATION)
    traffic.produce()
    with cluster.run_job(config, tmp_path / "checkpoint", log, conf) as driver:
        traffic.await_count(1, driver, log)
        for _ in range(3):
            traffic.produce()
            with one_frozen(cluster, chance) as frozen:
                assert frozen is not None
                traffic.await_all(driver, log)
    traffic.check()


def test_a_host_that_fails_is_excluded(own_broker: Broker, cluster: Standalone, tmp_path: Path) -> None:
    """All Python workers of one host are killed until Spark gives it no more tasks; the other host does the work."""
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    log, conf = tmp_path / "driver.log", write_settings(tmp_path / "conf", EXCLUSION)
    (conf / "log4j2.properties").write_text(LOG_OF_EXCLUSION, encoding="utf-8")
    traffic.produce()

    def kill_workers() -> None:
        for pid in cluster.list_python_workers(1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def is_excluded() -> bool:
        kill_workers()
        if traffic.count() >= traffic.count_wanted():
            traffic.produce()
        return "Excluding node 127.0.0.2" in log.read_text()

    with cluster.run_job(config, tmp_path / "checkpoint", log, conf) as driver:
        await_driver(is_excluded, driver, log, "Spark excludes the host")
        kill_workers()
        traffic.produce()
        traffic.await_all(driver, log)
        assert cluster.list_python_workers(0) and not cluster.list_python_workers(1)
    traffic.check()


def test_of_two_drivers_one_ends(own_broker: Broker, cluster: Standalone, tmp_path: Path) -> None:
    """A second driver of a job is refused. One that takes over from a frozen driver goes on, and the frozen one ends when it
    wakes."""
    traffic, config = prepare(own_broker.bootstrap, tmp_path)
    logs = [tmp_path / f"driver-{number}.log" for number in range(3)]
    # so that each of two drivers gets an executor
    conf = write_settings(tmp_path / "conf", {"spark.executor.cores": "1", "spark.cores.max": "1"})
    place = tmp_path / "checkpoint"
    traffic.produce()
    with cluster.run_job(config, place, logs[0], conf) as first:
        traffic.await_all(first, logs[0])
        with cluster.run_job(config, place, logs[1], conf) as refused:
            assert refused.wait(PROGRESS_S) == 1
            assert "error: " in logs[1].read_text() and "another pipeline" in logs[1].read_text()
        traffic.produce()
        os.killpg(first.pid, signal.SIGSTOP)
        with cluster.run_job(config, place, logs[2], conf) as second:
            traffic.await_all(second, logs[2])
            os.killpg(first.pid, signal.SIGCONT)
            traffic.produce()
            assert first.wait(PROGRESS_S) == 1
            assert re.search(rf"(?s)error: .*({TAKEN})", logs[0].read_text())
            traffic.await_all(second, logs[2])
    traffic.check()
