"""promtool, which tests rules and settings of Prometheus: Debian's package `prometheus` has it. It is taken from PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROMTOOL = shutil.which("promtool") or ""


def run_promtool(folder: Path, *words: str) -> None:
    """Run promtool in a folder. Fails with what it says if it is not content."""
    done = subprocess.run([PROMTOOL, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
