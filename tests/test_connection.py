"""Waiting for a Kafka that is away."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from overlay.connection import check_reachable
from overlay.errors import SourceUnavailable

AWAY_S = 3.0
NOTICED_S = 1.5


def test_a_broker_that_comes_back_is_tried_soon() -> None:
    """The client's own pauses between two tries double up to ten seconds; by now they would be above three."""
    tried: list[float] = []
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        kafka = {"bootstrap.servers": f"127.0.0.1:{door.getsockname()[1]}"}

        def check() -> None:
            with pytest.raises(SourceUnavailable, match="cannot be reached"):
                check_reachable(kafka, AWAY_S + 2 * NOTICED_S)

        checking = threading.Thread(target=check)
        checking.start()
        time.sleep(AWAY_S)
        door.listen()
        began = time.monotonic()
        door.settimeout(2 * NOTICED_S)
        visitor, _ = door.accept()
        tried.append(time.monotonic() - began)
        visitor.close()
    checking.join()
    assert tried[0] < NOTICED_S
