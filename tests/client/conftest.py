from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.worker.scenes import scene as scene


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Readings end with those who read."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "overlay-read"] == []
