"""The stress program for some seconds; OVERLAY_STRESS_S says how many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("OVERLAY_STRESS_S", "8"))
START_S = 240.0
"""At most: the program may have to compile kernels first."""


@pytest.mark.timeout(SECONDS + START_S + 30)
def test_threads_get_the_answers_of_a_single_thread() -> None:
    command = [sys.executable, "-m", "tests.stress", "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS + START_S, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr[-8000:]}"
    times = {name: int(count) for name, count in (line.rsplit(": ", 1) for line in done.stdout.splitlines())}
    assert {"extract deep", "pipeline", "dispatcher", "index large", "neighbour numba"} <= times.keys()
