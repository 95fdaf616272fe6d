"""The start of a broker's process: format its storage, spawn it, wait until Kafka answers."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from pathlib import Path

from overlay.errors import BrokerError
from overlay.waits import comes_true

from . import class_data
from .java import Java
from .locks import is_locked
from .ports import is_answering
from .state import Home

START_S = 90.0
_FORMAT_S = 60.0
_TAIL_LINES = 15

# Kafka's own start script uses the same collector.
_JVM = ("-server", "-Xms256m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError")
COMPILER: tuple[str, ...] = ()
"""Flags of a broker for Java's compilers. Tests leave the second one out: their brokers do not live long enough for it."""
# Formatting ends before Java's second compiler would pay; the broker needs it for throughput.
_SHORT = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# From this release on, Java warns about the native code of Kafka's compression and mapped files.
_WARNING_RELEASE = 24
_UNWARNED = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")


def format_storage(home: Home, java: Java, jars: list[Path], cluster_id: str) -> None:
    """Format the data folder of a new cluster's node; a folder that is formatted already is left as it is. `jars`:
    Kafka's. Raises BrokerError with Kafka's output if it fails, or if it takes more than _FORMAT_S seconds.
    """
    shared = class_data.build_flags(_find_archive(java, jars))
    command = [*_build_java(java, home, (*_SHORT, *shared)), "kafka.tools.StorageTool", "format"]
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
    """Start the broker's process, detached from this one, and return it. Its output goes to the log in `home`; the
    log of the start before is kept as broker.log.1. `heap_mib`: most MiB of its heap.

    The process inherits the descriptor `life_lock`.
    """
    home.log.parent.mkdir(parents=True, exist_ok=True)
    if home.log.exists():
        home.log.replace(home.log.with_suffix(".log.1"))
    archive = _find_archive(java, jars)
    shared = class_data.build_flags(archive) or class_data.build_list_flags(archive, home.class_list)
    flags = (*_JVM, *COMPILER, f"-Xmx{heap_mib}m", *shared)
    command = [*_build_java(java, home, flags), "kafka.Kafka", str(home.server_properties)]
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


def keep_class_data(home: Home, java: Java, jars: list[Path]) -> None:
    """Make the archive of Kafka's classes if the broker has listed them at its start: once for an installation."""
    command = _name_java(java, _JVM)
    class_data.make_archive(command, _build_environment(jars), home.class_list, _find_archive(java, jars))


def wait_ready(home: Home, host: str, port: int) -> None:
    """Wait until Kafka answers a metadata request.

    Raises BrokerError with the end of the log if the process ends or does not answer in time. In
    the latter case it still runs: the caller has to end it.
    """

    def is_ready() -> bool:
        if not is_locked(home.life_lock):
            raise BrokerError(f"the broker ended while it started. The end of {home.log}:\n{_read_words(home.log)}")
        return is_answering(host, port) and _is_serving(f"{host}:{port}")

    if not comes_true(is_ready, START_S):
        raise BrokerError(
            f"the broker at {host}:{port} gave no answer within {START_S:.0f} s."
            f" The end of {home.log}:\n{_read_words(home.log)}"
        )


def read_tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log; "" if there is no log."""
    try:
        with log.open(errors="replace") as file:
            return "".join(deque(file, lines)).rstrip("\n")
    except FileNotFoundError:
        return ""


def _read_words(log: Path) -> str:
    return _drop_frames(read_tail(log, 200).splitlines())


def _drop_frames(lines: list[str]) -> str:
    """Return the last _TAIL_LINES of these lines as one text, without the lines of Java's stack frames, which would
    hide the reason.
    """
    return "\n".join([line for line in lines if not line.startswith(("\tat ", "\t... "))][-_TAIL_LINES:])


def _is_serving(bootstrap: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    # the port opens shortly before the node is registered, which librdkafka would log as a failure
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 2000})
    try:
        return bool(client.list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def _find_archive(java: Java, jars: list[Path]) -> Path:
    return class_data.find_archive(java, jars, _name_java(java, _JVM))


def _name_java(java: Java, flags: tuple[str, ...]) -> list[str]:
    quiet = _UNWARNED if java.release >= _WARNING_RELEASE else ()
    return [str(java.program), *flags, *quiet]


def _build_java(java: Java, home: Home, flags: tuple[str, ...]) -> list[str]:
    logging = (f"-Dlog4j2.configurationFile={home.logging}", "-Dlog4j2.disableJmx=true")
    return [*_name_java(java, flags), *logging, "-Djava.awt.headless=true"]


def _build_environment(jars: list[Path]) -> dict[str, str]:
    # CLASSPATH is too long for the process list, and a user's Java options could alter the broker
    environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")}
    return environment | {"CLASSPATH": os.pathsep.join(map(str, jars))}
