"""Errors that no command expects: one sentence at the end, the traceback in the log, and an exit code of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.cli import UNFORESEEN
from tests.config.folders import write_folder

SERVE = """
import asyncio
from overlay.errors import OverlayError
from overlay.worker import service

async def fail(self, stop):
    async with asyncio.TaskGroup() as group:
        group.create_task(stop.wait(), name="shard-0")
        group.create_task(look(), name="control")

async def look():
    {fault}

service.Service.run = fail
from overlay.cli import main
main()
"""


def run(folder: Path, fault: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a service of which a task beside the shards raises."""
    command = [sys.executable, "-c", SERVE.format(fault=fault), "run", "--config", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_task_beside_the_shards_that_fails_is_told_in_a_sentence(tmp_path: Path) -> None:
    done = run(write_folder(tmp_path, {}), 'raise KeyError("zork")', "--log-format", "json")
    *logged, last = done.stderr.splitlines()
    assert done.returncode == UNFORESEEN
    assert last == (
        "error: not foreseen: KeyError: 'zork'. Report it with the traceback, which is logged above;"
        " docs/operations.md#unforeseen-errors says how"
    )
    entry = json.loads(logged[-1])
    assert (entry["event"], entry["level"]) == ("an error that was not foreseen", "error")
    assert "in look" in entry["exception"] and "KeyError: 'zork'" in entry["exception"]


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ('raise OverlayError("refused")', 1, "error: refused"),
        (
            'raise ExceptionGroup("g", [OverlayError("refused"), OSError(28, "full")])',
            UNFORESEEN,
            "OSError: [Errno 28] full. ",
        ),
    ],
)
def test_errors_of_the_overlay_stay_what_they_are(tmp_path: Path, fault: str, code: int, says: str) -> None:
    done = run(write_folder(tmp_path, {}), fault)
    assert done.returncode == code
    assert says in done.stderr.splitlines()[-1]


def test_a_command_that_only_looks_tells_it_too(tmp_path: Path) -> None:
    code = "import overlay.config as c; c.load = lambda *_, **__: 1 / 0; from overlay.cli import main; main()"
    command = [sys.executable, "-c", code, "validate", str(write_folder(tmp_path, {}))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == UNFORESEEN
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: not foreseen: ZeroDivisionError: division by zero. Report it"
    )
