"""Fixtures of the tests of requests."""

from __future__ import annotations

import pytest

from tests.worker.scenes import DEADLINE_S


@pytest.fixture(autouse=True)
def patient_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a create waits longer for its consumer to be served: these tests have clients that wait DEADLINE_S."""
    monkeypatch.setattr("overlay.control.answering.SERVED_S", DEADLINE_S / 2)
