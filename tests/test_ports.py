"""Ports of this machine: the ones that are taken, and one near them."""

from __future__ import annotations

import socket

import pytest

from overlay import ports


def test_a_port_that_a_server_has_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert ports.is_taken("127.0.0.1", port) and ports.is_taken("", port)
        near = ports.find_near("127.0.0.1", port)
        assert near is None or near > port + 1
    assert not ports.is_taken("127.0.0.1", port)


def test_an_address_of_another_machine_is_not_called_taken() -> None:
    assert not ports.is_taken("192.0.2.1", 80)


def test_none_is_near_where_all_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is that of the fleet view."""
    asked: list[int] = []

    def is_taken(host: str, port: int) -> bool:
        asked.append(port)
        return True

    monkeypatch.setattr(ports, "is_taken", is_taken)
    assert ports.find_near("127.0.0.1", 8222) is None
    assert asked == [*range(8224, 8224 + ports.MOST)]
    assert ports.find_near("127.0.0.1", 65_535) is None


def test_how_addresses_are_written() -> None:
    assert (ports.write_address("127.0.0.1", 1), ports.write_address("::1", 1)) == ("127.0.0.1:1", "[::1]:1")
