"""What users are told while kernels are compiled."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overlay import kernel_progress
from overlay.kernel_progress import EVERY_S, FIRST_S, KernelProgress, progress
from overlay.kernels import count_ready
from overlay.worker.warmup import load_kernels


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_users_are_told_when_it_takes_a_while_and_then_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(), list[float]()
    monkeypatch.setattr(kernel_progress, "monotonic", clock.monotonic)
    watched = KernelProgress()
    watched.tell = lambda done, of: told.append(clock.now)
    for _ in range(250):  # a kernel in each tenth of a second
        watched.begin(lambda: (1, 2))
        clock.now = round(clock.now + 0.1, 3)
    assert told == [100 + FIRST_S, 100 + FIRST_S + EVERY_S, 100 + FIRST_S + 2 * EVERY_S]


def test_a_program_that_sets_nothing_is_told_nothing() -> None:
    def count() -> tuple[int, int]:
        raise AssertionError("counts in vain")

    for _ in range(3):
        KernelProgress().begin(count)


def load(path: Path) -> Any:
    """A module of a file, made anew at each call."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_that_are_compiled_are_told_of_and_cached_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernel_progress, "FIRST_S", 0.0)
    told = list[tuple[int, int]]()
    monkeypatch.setattr(progress, "tell", lambda *counts: told.append(counts))
    monkeypatch.setattr(progress, "_due", None)
    path = tmp_path / "stairs.py"
    path.write_text(
        "from overlay.kernels import kernel\n\n\n@kernel\ndef low(x):\n    return x + 1\n\n\n"
        "@kernel\ndef top(x):\n    return low(x) + 1\n"
    )
    assert load(path).top(1) == 3
    assert told == [count_ready()]
    assert load(path).top(1) == 3
    assert len(told) == 1


def test_kernels_that_can_be_called_are_counted() -> None:
    load_kernels()
    done, of = count_ready()
    assert 30 < done <= of


def test_commands_tell_on_stderr() -> None:
    code = """
import sys
from overlay.cli import main
from overlay.kernel_progress import progress
sys.argv = ["overlay", "--version"]
try:
    main()
finally:
    progress.tell(35, 210)
    assert "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stderr == "compiling kernels, once for this installation: 35 of up to 210 ...\n"
    assert "overlay" in done.stdout
