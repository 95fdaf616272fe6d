"""TCP ports of this machine at which a server could listen."""

from __future__ import annotations

import errno
import socket

MOST = 100
"""How many ports are tried."""
_LAST = 65_535


def is_taken(host: str, port: int) -> bool:
    """Return whether another server listens at an address. False if it cannot be found out: `host` is no address of this
    machine, or this user may not listen there. `host`: a name or an address without brackets, "" for all addresses.
    """
    try:
        kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        family, _, _, _, address = socket.getaddrinfo(host or None, port, type=kind, flags=flags)[0]
        with socket.socket(family, kind) as probe:
            # as servers do, so that connections that have just ended do not count
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError:  # no name of a host
        return False
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def find_near(host: str, port: int) -> int | None:
    """Return the first port above `port` that no server has; None if MOST of them are taken. The port right above is left
    out, since by default the fleet view has the one above the service's.
    """
    return next((near for near in range(port + 2, min(port + 2 + MOST, _LAST + 1)) if not is_taken(host, near)), None)


def write_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
