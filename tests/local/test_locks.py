from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local.locks import hold_lock, is_locked, take_lock


def test_lock_lives_and_dies_with_the_child_that_inherits_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = take_lock(path)
    assert descriptor is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    os.close(descriptor)
    with child:
        assert is_locked(path)
        assert take_lock(path) is None
        child.kill()
        child.wait()
        assert not is_locked(path)


def test_looking_does_not_disturb(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    assert not is_locked(path)
    descriptor = take_lock(path)
    assert descriptor is not None
    os.close(descriptor)


def test_absent_file_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "none")


def test_waiting_ends_with_a_clear_answer(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        hold_lock(path, wait_s=1, what="counting"),
        pytest.raises(BrokerError, match="has been counting for over 0 s"),
        hold_lock(path, wait_s=0, what="counting"),
    ):
        pass
    assert not is_locked(path)
