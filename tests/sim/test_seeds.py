"""Many histories, as many at once as there are processors: 120 in `make test`, 20,000 in `make test-long`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .__main__ import HASH_SEED

SEEDS = int(os.environ.get("OVERLAY_SIM_SEEDS", "120"))
PROCESSES = os.cpu_count() or 1


@pytest.mark.timeout(max(600, 3 * SEEDS))
def test_promises_are_kept_in_every_history() -> None:
    """A seed that fails is printed; `python -m tests.sim SEED` tells its story."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(SEEDS), "--processes", str(PROCESSES)]
    environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.endswith(f"{SEEDS} histories, 0 failed\n"), run.stdout + run.stderr
