"""Kafka's own ConsumerPerformance tool: the Java client reading as fast as it can, with no filter at all.

A Java client that filters can only be slower. The time is the tool's own `fetch.time.ms`, which leaves out the start
of the JVM and the join of the group. Fetch sizes as for the others; the JVM's flags are those of Kafka's start
script.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import uuid

from bench.errors import PeerUnavailable
from bench.sides import Tally, Work
from overlay.errors import BrokerError
from overlay.local.jars import fetch_jars
from overlay.local.java import find_java

DEADLINE_S = 300
_FLAGS = ("-server", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


class JavaScan:
    name = "java"
    warm = False

    def run(self, work: Work) -> Tally:
        try:
            program, jars = find_java().program, fetch_jars("tools")
        except BrokerError as error:
            raise PeerUnavailable(f"ConsumerPerformance cannot be had: {error}") from error
        command = [str(program), *_FLAGS, "org.apache.kafka.tools.ConsumerPerformance"]
        command += ["--bootstrap-server", work.bootstrap, "--topic", work.topic, "--num-records", str(work.records)]
        command += ["--group", f"bench-{uuid.uuid4().hex}", "--fetch-size", str(8 << 20)]
        environment = os.environ | {"CLASSPATH": os.pathsep.join(map(str, jars))}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerUnavailable(f"ConsumerPerformance did not end within {DEADLINE_S} s") from error
        return read_report(done.stdout, done.stderr)

    def close(self) -> None:
        """Each run is a process that has ended."""


def read_report(output: str, complaints: str = "") -> Tally:
    """The tool's report: a line of column names and a line of figures. Raises PeerUnavailable for anything else."""
    lines = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    for names, cells in itertools.pairwise(lines):
        if "fetch.time.ms" in names and len(names) == len(cells):
            row = dict(zip(names, cells, strict=True))
            return Tally(int(row["data.consumed.in.nMsg"]), None, int(row["fetch.time.ms"]) / 1000)
    raise PeerUnavailable(f"ConsumerPerformance gave no report. It said: {(output + complaints).strip()[-500:]}")
