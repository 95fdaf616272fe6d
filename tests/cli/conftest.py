from __future__ import annotations

import pytest

from tests.support.service import running_service as running_service

from .trips import DEADLINE_S

PATIENT = (
    "overlay.client.control.control.GATHER_S",
    "overlay.client.control.control.TIMEOUT_S",
    "overlay.client.control.inbox.REACH_S",
    "overlay.client.read.bounds.DEADLINE_S",
    "overlay.client.subscribe.replay.REACH_S",
    "overlay.view.indexed.DEADLINE_S",
    "overlay.view.running.DEADLINE_S",
    "overlay.view.stored.DEADLINE_S",
)
"""How long commands wait for Kafka and for a service before they say that none answers."""


@pytest.fixture(autouse=True)
def patient_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands called within this process wait as long as the tests do. Those in processes of their own do not."""
    for limit in PATIENT:
        monkeypatch.setattr(limit, float(DEADLINE_S))
