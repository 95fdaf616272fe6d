"""Many histories at once, one process for each processor: 60 in `make test`, 20,000 in `make test-long`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEEDS = int(os.environ.get("OVERLAY_SIM_SEEDS", "60"))
PROCESSES = os.cpu_count() or 1


@pytest.mark.timeout(max(600, 3 * SEEDS))
def test_promises_are_kept_in_every_history() -> None:
    """A seed that fails is printed; `python -m tests.sim SEED` tells its story."""
    firsts = range(0, SEEDS, -(-SEEDS // PROCESSES))
    shares = [(first, min(SEEDS, first + firsts.step) - first) for first in firsts]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sim", "--first", str(first), "--seeds", str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for first, count in shares
    ]
    outputs = [process.communicate()[0] for process in running]
    ends = [f"{count} histories, 0 failed\n" for _, count in shares]
    assert all(output.endswith(end) for output, end in zip(outputs, ends, strict=True)), "\n".join(outputs)
