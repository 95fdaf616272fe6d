"""Loopback ports: checks and choice.

Linux gives the ports from 32,768 up to connections (net.ipv4.ip_local_port_range). A server's port from
that range can be taken by any connection while the server is away. Worse, a client that waits for the server
may be given just that port for its own end: then it is connected to itself, and the server cannot listen. So
ports are chosen below that range.
"""

from __future__ import annotations

import socket
from itertools import islice

from overlay.chance import shuffle
from overlay.errors import BrokerError

_CANDIDATES = range(20_000, 32_768)


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
    """Return `count` different free ports, which the system gives to no connection (see above).

    Another program may take one before it is used. Raises BrokerError if there are fewer.
    """
    found = list(islice((port for port in shuffle(_CANDIDATES) if is_free(host, port)), count))
    if len(found) == count:
        return found
    raise BrokerError(
        f"of the ports {_CANDIDATES.start} to {_CANDIDATES.stop - 1} of {host}, {len(found)} are free, and {count} are needed: "
        "end programs that listen there"
    )


def is_answering(host: str, port: int) -> bool:
    """Return whether a server accepts a connection there within a second."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
