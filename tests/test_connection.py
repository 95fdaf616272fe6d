"""Waiting for a Kafka that is away, and what its certificate has to be like."""

from __future__ import annotations

import socket
import ssl
import threading
import time

import pytest

from overlay.connection import check_reachable, make_ssl_context
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


def test_certificates_that_other_clients_take_are_taken() -> None:
    """Python 3.13 would refuse CAs without certain extensions."""
    context = make_ssl_context({"bootstrap.servers": "broker:9093", "security.protocol": "SSL"})
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
