"""Facts from a running service, asked over HTTP at the address in overlay.yaml."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from contextlib import closing
from dataclasses import dataclass, fields
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

from overlay.config import HttpConfig
from overlay.errors import OverlayError

from .facts import (
    ConsumerFacts,
    IndexFacts,
    IndexPartFacts,
    LedgerFacts,
    OverlayFacts,
    PartitionFacts,
    ServiceFacts,
    StreamFacts,
)

DEADLINE_S = 3.0


class NoService(OverlayError):
    """No service of the overlay answers. The message says why, for a note to the user."""


@dataclass(frozen=True, slots=True)
class _Wire:
    service: dict[str, Any]
    streams: list[dict[str, Any]]
    consumers: list[dict[str, Any]]


async def ask_service(http: HttpConfig) -> OverlayFacts:
    """Ask the service that listens at this address over HTTP, and return what it says. Raises
    NoService if none answers within DEADLINE_S seconds, or if another program does.
    """
    host, port = http.address
    if port == 0:
        raise NoService("http.listen has port 0, so the address of a service is not known")
    url = f"http://{_reachable(host)}:{port}"
    try:
        async with asyncio.timeout(DEADLINE_S):
            wire = await asyncio.to_thread(_fetch, _reachable(host), port)
        service = ServiceFacts(**_known(ServiceFacts, wire.service) | {"url": url})
        streams = [_read_stream(found) for found in wire.streams]
        consumers = [_read_consumer(found) for found in wire.consumers]
    except OSError as error:
        raise NoService(f"the service is not running: nothing answers at {url}") from error
    except (HTTPException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoService(f"the service is not running: what answers at {url} is another program") from error
    return OverlayFacts({s.name: s for s in streams}, {c.id: c for c in consumers}, service)


def _reachable(host: str) -> str:
    """Return the host to connect to for a listen address.

    0.0.0.0 and :: become the loopback address.
    """
    if not host:
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "[::1]"
    return host if address.version == 4 else f"[{host}]"


def _fetch(host: str, port: int) -> _Wire:
    """Return the three pages of a service, read over one connection. Raises OSError if none answers,
    HTTPException or ValueError if the answer is not that of a service.

    The standard library's client: a command is done before another one is imported.
    """
    with closing(HTTPConnection(host.strip("[]"), port, timeout=DEADLINE_S)) as connection:
        parts = []
        for part in ("service", "streams", "consumers"):
            connection.request("GET", f"/{part}")
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise HTTPException(f"/{part}: {answer.status}")
            parts.append(json.loads(answer.read()))
    return _Wire(*parts)


def _read_stream(found: dict[str, Any]) -> StreamFacts:
    partitions = {
        name: PartitionFacts(entry["position"], entry["end"] if entry["end"] >= 0 else None)
        for name, entry in found["partitions"].items()
    }
    index = None if found.get("index") is None else _read_index(found["index"])
    return StreamFacts(**_known(StreamFacts, found) | {"partitions": partitions, "index": index})


def _read_index(found: dict[str, Any]) -> IndexFacts:
    partitions = {
        name: IndexPartFacts(entry["chunks"], entry["position"], entry["end"] if entry["end"] >= 0 else None)
        for name, entry in found["partitions"].items()
    }
    ledger = LedgerFacts(**_known(LedgerFacts, found["ledger"])) if found.get("ledger") else None
    return IndexFacts(**_known(IndexFacts, found) | {"partitions": partitions, "ledger": ledger})


def _read_consumer(found: dict[str, Any]) -> ConsumerFacts:
    return ConsumerFacts(**_known(ConsumerFacts, found))


def _known(kind: type, found: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of `found` that are fields of the dataclass `kind`, with lists as tuples.
    A newer service may send more. `config` is not taken from a service: it is a parsed object here.
    """
    names = {field.name for field in fields(kind)} - {"config"}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.items() if name in names}
