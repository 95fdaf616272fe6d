"""Histories under faults. More of them: `python -m tests.sim --seeds 1000`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from .storm import Storm


@pytest.mark.parametrize("seed", range(10))
def test_every_promise_is_kept(seed: int) -> None:
    Storm(seed).run()


def test_a_seed_gives_one_history_in_every_process() -> None:
    def run() -> str:
        command = [sys.executable, "-m", "tests.sim", "5", "--story"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout

    first, again = run(), run()
    assert re.search(r"history 5 passed \(digest [0-9a-f]{8}\)", first)
    assert first == again
    assert "the storm is over" in first
