"""A short storm over the flights (tests/chaos/flights), in a process of its own: kills, freezes, arrivals, a broker restart."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = float(os.environ.get("OVERLAY_STORM_S", "25"))
PATIENCE_S = SECONDS + 500

pytestmark = pytest.mark.timeout(PATIENCE_S + 60)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_storm_breaks_no_promise(delivery: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    command = [sys.executable, "-m", "tests.chaos.flights", "--seed", str(seed), "--delivery", delivery]
    command += ["--seconds", str(SECONDS), "--rate", "600", "--busy", "1", "--arrivals", "2", "--no-clock"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "storm")], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"OVERLAY_SEED={seed}\n{done.stdout[-8_000:]}\n{done.stderr[-4_000:]}"
