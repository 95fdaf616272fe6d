from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.client.deliveries import list_subscribing
from tests.worker.scenes import ack_clock as ack_clock
from tests.worker.scenes import scene as scene


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Readings end with their readers."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "overlay-read"] == []


@pytest.fixture
def no_thread_of_a_subscription_is_left() -> Iterator[None]:
    """Not that of a subscription that was never closed either."""
    yield
    assert list_subscribing() == []
