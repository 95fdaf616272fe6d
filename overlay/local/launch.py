"""Bring a broker's process up: format its storage, spawn it, wait until Kafka answers."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from pathlib import Path

from overlay.errors import BrokerError
from overlay.waits import comes_true

from .java import Java
from .locks import is_locked
from .ports import is_answering
from .state import Home

START_S = 90.0
_FORMAT_S = 60.0
_TAIL_LINES = 15

# Kafka's own start script uses the same collector.
_JVM = ("-server", "-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError")
# Formatting is over before the second compiler would pay; the broker needs it for its throughput.
_SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# From this release on Java would warn in the log of the native code that Kafka's compression and mapped files use.
_WARNING_RELEASE = 24
_UNWARNED = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")


def format_storage(home: Home, java: Java, jars: list[Path], cluster_id: str) -> None:
    """Format the data folder as a node's of a new cluster. Raises BrokerError with Kafka's own words."""
    command = [*_build_java(java, home, _SHORT), "kafka.tools.StorageTool", "format"]
    command += ["-t", cluster_id, "-c", str(home.server_properties), "--ignore-formatted"]
    try:
        done = subprocess.run(
            command, env=_build_environment(jars), capture_output=True, text=True, timeout=_FORMAT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(f"{home.data}: formatting took over {_FORMAT_S:.0f} s and was ended. Try again") from error
    if done.returncode != 0:
        words = _drop_frames((done.stdout + done.stderr).splitlines())
        raise BrokerError(f"{home.data}: Kafka could not format its storage. It said:\n{words}")


def spawn_broker(home: Home, java: Java, jars: list[Path], heap_mib: int, life_lock: int) -> subprocess.Popen[bytes]:
    """Start the process, detached from this one, its output in the log. It inherits the lock's descriptor."""
    home.log.parent.mkdir(parents=True, exist_ok=True)
    if home.log.exists():
        home.log.replace(home.log.with_suffix(".log.1"))
    command = [*_build_java(java, home, (*_JVM, f"-Xmx{heap_mib}m")), "kafka.Kafka", str(home.server_properties)]
    with home.log.open("wb") as log:
        return subprocess.Popen(
            command,
            env=_build_environment(jars),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(life_lock,),
            start_new_session=True,
        )


def wait_ready(home: Home, host: str, port: int) -> None:
    """Return once Kafka answers a metadata request. Raises BrokerError with the log's end if it dies or is silent."""

    def is_ready() -> bool:
        if not is_locked(home.life_lock):
            raise BrokerError(f"the broker ended while it started. The end of {home.log}:\n{_read_words(home.log)}")
        return is_answering(host, port) and _is_serving(f"{host}:{port}")

    if not comes_true(is_ready, START_S):
        raise BrokerError(
            f"the broker at {host}:{port} gave no answer within {START_S:.0f} s and was ended."
            f" The end of {home.log}:\n{_read_words(home.log)}"
        )


def read_tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log; empty when there is no log."""
    try:
        with log.open(errors="replace") as file:
            return "".join(deque(file, lines)).rstrip("\n")
    except FileNotFoundError:
        return ""


def _read_words(log: Path) -> str:
    return _drop_frames(read_tail(log, 200).splitlines())


def _drop_frames(lines: list[str]) -> str:
    """The last lines without Java's stack frames, which would push the reason out of sight."""
    return "\n".join([line for line in lines if not line.startswith(("\tat ", "\t... "))][-_TAIL_LINES:])


def _is_serving(bootstrap: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # the port opens a little before the node is registered; librdkafka would log that as a failure
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000})
    try:
        return bool(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _build_java(java: Java, home: Home, flags: tuple[str, ...]) -> list[str]:
    quiet = _UNWARNED if java.release >= _WARNING_RELEASE else ()
    logging = (f"-Dlog4j2.configurationFile={home.logging}", "-Dlog4j2.disableJmx=true")
    return [str(java.program), *flags, *quiet, *logging, "-Djava.awt.headless=true"]


def _build_environment(jars: list[Path]) -> dict[str, str]:
    # by variable, so that the process list stays readable; a stranger's JAVA_TOOL_OPTIONS would change our broker
    environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")}
    return environment | {"CLASSPATH": os.pathsep.join(map(str, jars))}
