"""Spark's part of the demo, in a process of its own: `python -m spark.demo` reads one output topic."""

from __future__ import annotations

import subprocess
import sys

from overlay.local.launch import read_tail

from .home import DemoError, DemoHome
from .screen import Screen

CONSUMER = "late-long-haul"
"""The consumer that is read: one with flights of several carriers, and few enough for a Java that has just started."""
DEADLINE_S = 180.0
_LOG_LINES = 12


def show_spark(screen: Screen, home: DemoHome) -> None:
    """Have Spark read an output topic, and print what it says. Raises DemoError with the end of Spark's log."""
    screen.say()
    screen.say(f"starting Spark, which reads the output topic of {CONSUMER} ... (left out with --no-spark)")
    command = [sys.executable, "-m", "spark.demo", "--config", str(home.config), "--consumer", CONSUMER]
    try:
        with home.spark_log.open("wb") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, timeout=DEADLINE_S, check=False
            )
    except subprocess.TimeoutExpired:
        raise DemoError(f"Spark did not end within {DEADLINE_S:.0f} s and was killed. {_quote_log(home)}") from None
    if done.returncode:
        raise DemoError(
            f"Spark ended with exit code {done.returncode}. `overlay demo --no-spark` goes without it. {_quote_log(home)}"
        )
    for line in done.stdout.decode().splitlines():
        screen.say(f"  {line}")


def _quote_log(home: DemoHome) -> str:
    return "\n  ".join([f"The end of {home.spark_log}:", *read_tail(home.spark_log, _LOG_LINES).splitlines()])
