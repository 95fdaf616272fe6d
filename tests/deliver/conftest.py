from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.service import running_service as running_service
from tests.worker.scenes import Scene


@pytest.fixture
def scene(bootstrap: str, tmp_path: Path) -> Scene:
    return Scene(tmp_path / "config", bootstrap)
