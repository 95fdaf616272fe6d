"""A Spark cluster of processes on loopback, a standalone master with workers, and drivers of jobs that run on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from overlay.local.guard import Guard
from spark.java import find_java_home
from tests.support.service import RunningProcess, find_free_port
from tests.support.waiting import wait_until

START_S = 90.0
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.python.daemon.module": "spark.daemon",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # executors are killed by the test, which has nothing to do with the job
    "spark.task.maxFailures": "40",
    "spark.deploy.maxExecutorRetries": "-1",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A row of `ps`."""

    pid: int
    parent: int
    command: str


def list_below(pid: int, what: str = "") -> list[Process]:
    """The processes that a process has started, directly or not, whose command line contains `what`."""
    found = subprocess.run(["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [Process(int(a), int(b), c) for a, b, c in (row.split(None, 2) for row in found.splitlines()[1:])]
    inside = {pid}
    while more := {row.pid for row in rows if row.parent in inside} - inside:
        inside |= more
    return [row for row in rows if row.pid in inside - {pid} and what in row.command]


def list_python_workers(pid: int) -> list[int]:
    """The Python workers below a process: what the daemons there have forked."""
    daemons = {row.pid for row in list_below(pid, "daemon")}
    return [row.pid for row in list_below(pid) if row.parent in daemons]


@dataclass(frozen=True, slots=True)
class Standalone:
    """`url`: of the master. `workers`: one for each host, 127.0.0.1 and on."""

    url: str
    workers: Sequence[RunningProcess]

    def list_executors(self) -> list[int]:
        return [row.pid for worker in self.workers for row in list_below(worker.process.pid, EXECUTOR)]

    def list_python_workers(self, worker: int | None = None) -> list[int]:
        """The Python workers on one worker's host, or on all, of executors that run."""
        chosen = self.workers if worker is None else [self.workers[worker]]
        return [pid for each in chosen for pid in list_python_workers(each.process.pid)]

    @contextmanager
    def run_job(self, config: Path, checkpoint: Path, log: Path, conf: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a job of this cluster over stream S of a config folder until the end of the block, which kills its driver.

        `conf`: a folder that `write_settings` has made.
        """
        command = [
            *(sys.executable, "-m", "spark.pipeline", "--continuous", "--config", str(config), "--stream", "S"),
            *("--checkpoint", str(checkpoint), "--master", self.url, "--option", "maxRecordsPerTrigger=150"),
        ]
        environment = {**os.environ, "SPARK_CONF_DIR": str(conf)}
        with log.open("ab") as out:
            # a process group of its own: the driver's Java ends with it
            driver = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=environment)
        guard = Guard(["kill", "-9", "--", f"-{driver.pid}"])
        try:
            yield driver
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(30)
            guard.release()


def write_settings(folder: Path, settings: Mapping[str, str]) -> Path:
    """Write the settings of a driver, those in SETTINGS and others, and return the folder."""
    folder.mkdir(parents=True)
    lines = [f"{name} {value}\n" for name, value in {**SETTINGS, **settings}.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return folder


@contextmanager
def run_standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    """Start a master and workers of two cores each, every worker on a loopback address of its own."""
    folder.mkdir(parents=True)
    port = find_free_port()
    with ExitStack() as stack:
        url = f"spark://127.0.0.1:{port}"
        place = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        master = stack.enter_context(_run(folder / "master.log", "127.0.0.1", MASTER, *place))
        _await_line(master, "I have been elected leader")
        started = []
        for number in range(1, workers + 1):
            host = f"127.0.0.{number}"
            size = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            log = folder / f"worker-{number}.log"
            words = ("--host", host, "--webui-port", "0", *size, url)
            started.append(stack.enter_context(_run(log, host, WORKER, *words)))
        for worker in started:
            _await_line(worker, "Successfully registered with master")
        yield Standalone(url, started)


@contextmanager
def _run(log: Path, host: str, *command: str) -> Iterator[RunningProcess]:
    """Run one of Spark's own programs, which is killed at the end of the block with all that it has started."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java_home()),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    program = str(Path(pyspark.__path__[0], "bin", "spark-class"))
    with log.open("ab") as out:
        process = subprocess.Popen([program, *command], stdout=out, stderr=out, env=environment)
    running = RunningProcess(log, process, Guard(["kill", "-9", str(process.pid)]))
    try:
        yield running
    finally:
        started = list_below(process.pid)
        running.kill()
        for each in started:
            with suppress(ProcessLookupError):  # an executor ends by itself when its worker is gone
                os.kill(each.pid, signal.SIGKILL)


def _await_line(running: RunningProcess, line: str) -> None:
    """Wait until a program has logged a line."""

    def is_there() -> bool:
        assert running.process.poll() is None, running.read_log()
        return line in running.read_log()

    wait_until(is_there, START_S, f"{line!r} in {running.log}")
