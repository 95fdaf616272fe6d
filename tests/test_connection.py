"""Waiting for a Kafka that is away, and what its certificate has to be like."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from overlay.admin import Admin
from overlay.confluent import check_reachable
from overlay.connection import Properties, make_ssl_context, open_client, reach
from overlay.control.journal import Journal
from overlay.errors import CredentialsRefused, SourceUnavailable

AWAY_S = 3.0
NOTICED_S = 1.5


def reach_it(kafka: Properties, deadline_s: float) -> None:
    asyncio.run(reach(kafka, deadline_s))


@pytest.mark.parametrize("check_once", [check_reachable, reach_it])
def test_a_broker_that_comes_back_is_tried_soon(check_once: Callable[[Properties, float], None]) -> None:
    """The client's own pauses between two tries double up to ten seconds; by now they would be above three."""
    tried: list[float] = []
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        kafka = {"bootstrap.servers": f"127.0.0.1:{door.getsockname()[1]}"}

        def check() -> None:
            with pytest.raises(SourceUnavailable, match="cannot be reached"):
                check_once(kafka, AWAY_S + 2 * NOTICED_S)

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


@pytest.mark.parametrize("setting", ["ssl.ca.location", "ssl.certificate.location"])
async def test_certificates_that_cannot_be_read(tmp_path: Path, setting: str) -> None:
    """At the start that is the settings' fault. Later it passes: files are being replaced."""
    missing, torn = tmp_path / "missing.pem", tmp_path / "torn.pem"
    torn.write_text("-----BEGIN")
    for file in (missing, torn):
        kafka = {"bootstrap.servers": "localhost:1", "security.protocol": "SSL", setting: str(file)}
        with pytest.raises(CredentialsRefused, match=f"{setting} {file}: "):
            await asyncio.to_thread(check_reachable, kafka)
        with pytest.raises(CredentialsRefused, match=f"{setting} {file}: "):
            await reach(kafka)
        with pytest.raises(SourceUnavailable, match=f"{setting} {file}: "):
            await Admin(kafka).find_cluster()
        with pytest.raises(SourceUnavailable, match=f"{setting} {file}: "):
            await open_client(kafka)
        with pytest.raises(SourceUnavailable, match=f"{setting} {file}: "):
            Journal(kafka, "overlay", 0)
