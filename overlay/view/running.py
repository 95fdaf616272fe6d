"""Facts from a running service, asked over HTTP at the address in overlay.yaml."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from typing import Any

import aiohttp

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
        wire = await _fetch(url)
        service = ServiceFacts(**_known(ServiceFacts, wire.service) | {"url": url})
        streams = [_read_stream(found) for found in wire.streams]
        consumers = [_read_consumer(found) for found in wire.consumers]
    except (aiohttp.ClientConnectionError, TimeoutError) as error:
        raise NoService(f"the service is not running: nothing answers at {url}") from error
    except (aiohttp.ClientError, ValueError, TypeError, KeyError, AttributeError) as error:
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


async def _fetch(url: str) -> _Wire:
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
        parts = []
        for part in ("service", "streams", "consumers"):
            async with session.get(f"{url}/{part}") as answer:
                parts.append(await answer.json())
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
    A newer service may send more.
    """
    names = {field.name for field in fields(kind)}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in found.items() if name in names}
