"""Spark's part of the demo, in a process of its own: `python -m spark.demo` reads one output topic."""

from __future__ import annotations

import subprocess
import sys

from .home import DemoError, DemoHome
from .screen import Screen
from .service import quote_log

CONSUMER = "late-long-haul"
"""The consumer that is read: one with flights of several carriers, and few enough for a Java that has just started."""
DEADLINE_S = 180.0


def show_spark(screen: Screen, home: DemoHome) -> None:
    """Have Spark read an output topic, and print what it says. Raises DemoError with the end of Spark's
    log if Spark fails or takes longer than DEADLINE_S.
    """
    screen.say()
    screen.say(f"starting Spark, which reads the output topic of {CONSUMER} ... (left out with --no-spark)")
    command = [sys.executable, "-m", "spark.demo", "--config", str(home.config), "--consumer", CONSUMER]
    try:
        with home.spark_log.open("wb") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, timeout=DEADLINE_S, check=False
            )
    except subprocess.TimeoutExpired:
        raise DemoError(
            f"Spark did not end within {DEADLINE_S:.0f} s and was killed. {quote_log(home.spark_log)}"
        ) from None
    if done.returncode:
        raise DemoError(
            f"Spark ended with exit code {done.returncode}. `overlay demo --no-spark` goes without it."
            f" {quote_log(home.spark_log)}"
        )
    for line in done.stdout.decode().splitlines():
        screen.say(f"  {line}")
