"""What of a demo still runs, and how it is stopped."""

from __future__ import annotations

import os
from pathlib import Path

from overlay.demo.home import DemoHome, describe_stop
from overlay.local.locks import take_lock


def test_only_what_runs_is_to_be_stopped(tmp_path: Path) -> None:
    """The broker's folder is there, but no broker was started in it."""
    home = DemoHome(tmp_path)
    home.kafka.mkdir()
    home.pid.write_text("123\n")
    assert describe_stop(home) == []
    lock = take_lock(home.life_lock)
    assert lock is not None
    try:
        assert describe_stop(home) == ["kill 123"]
    finally:
        os.close(lock)
