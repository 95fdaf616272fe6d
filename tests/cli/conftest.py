from __future__ import annotations

import pytest

from tests.support.service import running_service as running_service


@pytest.fixture
def quiet_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands called within this process leave its logs alone: they would go on writing to a stream that is closed."""
    monkeypatch.setattr("overlay.logs.set_up_logs", lambda **_: None)
