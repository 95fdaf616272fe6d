"""Which ports servers are given."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from overlay.errors import BrokerError
from overlay.local import ports
from tests.support.service import find_free_port

HOST = "127.0.0.1"


def list_given_to_connections() -> range:
    """The ports that this system gives to connections."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(first), int(last) + 1)


def test_a_client_that_is_given_the_port_of_its_server_keeps_the_server_out() -> None:
    """Why ports are chosen as they are."""
    with socket.socket() as client:
        client.bind((HOST, 0))
        port = client.getsockname()[1]
        client.connect((HOST, port))
        client.sendall(b"GET /readyz")
        assert client.recv(100) == b"GET /readyz"
        assert not ports.is_free(HOST, port)


def test_no_connection_is_given_the_port_of_a_server() -> None:
    found = [*ports.find_free(HOST, 200), *(find_free_port() for _ in range(200))]
    assert len(set(found)) == 400
    assert not set(found) & set(list_given_to_connections())
    assert all(ports.is_free(HOST, port) for port in found)


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda host, port: port < 20_002)
    with pytest.raises(BrokerError, match=r"of the ports 20000 to 32767 of 127\.0\.0\.1, 2 are free, and 3 are needed"):
        ports.find_free(HOST, 3)
