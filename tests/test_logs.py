"""Where logs go in a program of one's own: its stdout is for its data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.kafka import NewTopicFixture, produce_values

ROOT = Path(__file__).parents[1]

PROGRAM = """
import sys
import pytest
import structlog
import overlay
from tests.kafka.answers import refuse_fetches

client = overlay.open(bootstrap=sys.argv[1])
for how in ("as it is", "set up"):
    if how == "set up":
        structlog.configure(processors=[structlog.processors.JSONRenderer()])
    codes = iter([-1])
    with pytest.MonkeyPatch.context() as patch:
        refuse_fetches(patch, lambda topic, partition: next(codes, 0))
        print(how, sum(batch.num_rows for batch in client.read(topic=sys.argv[2])))
"""
WARNING = "partition cannot be fetched"


def test_warnings_go_to_stderr_unless_the_program_says_otherwise(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a", b"b", b"c"])
    command = [sys.executable, "-c", PROGRAM, bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    before, log, after = done.stdout.splitlines()
    assert (before, after) == ("as it is 3", "set up 3")
    assert log.startswith("{") and WARNING in log
    (warning,) = done.stderr.splitlines()
    assert WARNING in warning and "\x1b" not in warning, "no colours where no terminal is"


def test_commands_work_without_stderr(bootstrap: str, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce_values(bootstrap, topic, [b"a", b"b", b"c"])
    command = f'exec "$0" -m overlay read --topic {topic} --bootstrap {bootstrap} --count 2>&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, timeout=60, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, b"3\n")
