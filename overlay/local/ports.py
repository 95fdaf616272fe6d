"""Loopback ports: checks and choice."""

from __future__ import annotations

import socket


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now.

    Java sets SO_REUSEADDR as well, so lingering connections do not matter.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def find_free(host: str, count: int) -> list[int]:
    """Return `count` different free ports. Another program may take one before it is used."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((host, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def is_answering(host: str, port: int) -> bool:
    """Return whether a server accepts a connection there within a second."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
