"""Kernels that histories need, and that the warm-up has to load. A compilation holds the GIL for seconds, and a worker that
sends no heartbeats meanwhile may lose its place in the group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_histories_find_all_kernels_loaded() -> None:
    command = [sys.executable, "-m", "tests.sim.warm_kernels", "700000", "12"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
