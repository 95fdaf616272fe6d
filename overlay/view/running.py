"""Facts from a running service, asked over HTTP at the address in overlay.yaml."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
from contextlib import closing
from dataclasses import dataclass, fields
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from overlay.config import HttpConfig
from overlay.credentials import resolve
from overlay.errors import ConfigError, CredentialsRefused, FilePosition, OverlayError

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
    """Ask the service that listens at this address over HTTP, and return what it says. Raises NoService if none
    answers within DEADLINE_S seconds, if it does not have the folder's certificate, if another program answers, or if
    the port is 0; CredentialsRefused if the answer is a refusal (401, 403), SourceUnavailable if the file of http.token
    cannot be read, and ConfigError if http.tls_certificate cannot be used.
    """
    host, port = http.address
    if port == 0:
        raise NoService("http.listen has port 0, so the address of a service is not known")
    url = f"{http.scheme}://{_reachable(host)}:{port}"
    try:
        async with asyncio.timeout(DEADLINE_S):
            wire = await asyncio.to_thread(_fetch, http, _reachable(host), port, url)
        service = ServiceFacts(**_known(ServiceFacts, wire.service) | {"url": url})
        streams = [_read_stream(found) for found in wire.streams]
        consumers = [_read_consumer(found) for found in wire.consumers]
    except ssl.SSLError as error:
        raise NoService(
            f"the service at {url} does not answer with the certificate of http.tls_certificate: {error}"
        ) from error
    except OSError as error:
        raise NoService(f"the service is not running: nothing answers at {url}") from error
    except (HTTPException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoService(f"the service is not running: what answers at {url} is another program") from error
    return OverlayFacts({s.name: s for s in streams}, {c.id: c for c in consumers}, service)


def _reachable(host: str) -> str:
    """Return the host to connect to for a listen address: 127.0.0.1 for "" and 0.0.0.0, and [::1] for
    ::. Other IPv6 addresses get brackets; names and IPv4 addresses are returned as they are.
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


def _fetch(http: HttpConfig, host: str, port: int, url: str) -> _Wire:
    """Return the three pages of a service, read over one connection.

    Raises CredentialsRefused for status 401 or 403, ssl.SSLError, OSError if none answers, HTTPException or
    ValueError if the answer is not that of a service, SourceUnavailable if the token cannot be read, and
    ConfigError. `url`: of the service, for messages.

    It uses the client of the standard library, since importing another one takes longer than the requests.
    """
    token = resolve({"http.token": http.token})["http.token"]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with closing(_connect(http, host.strip("[]"), port)) as connection:
        parts = []
        for part in ("service", "streams", "consumers"):
            connection.request("GET", f"/{part}", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise CredentialsRefused(f"the service at {url} refuses {_explain(answer.status, body)}")
            if answer.status != HTTPStatus.OK:
                raise HTTPException(f"/{part}: {answer.status}")
            parts.append(json.loads(body))
    return _Wire(*parts)


def _explain(status: int, body: bytes) -> str:
    """Return what an answer with status 401 or 403 refuses, and what to do: in the words of a service, or, if
    a proxy or another program has answered, what to check.
    """
    what = "the credentials" if status == HTTPStatus.UNAUTHORIZED else "the request"
    try:
        words = str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        words = (
            "check http.token and http.listen in overlay.yaml. The answer is not in a service's words, so a proxy or"
            " another program may listen there"
        )
    return f"{what} ({status}): {words}"


def _connect(http: HttpConfig, host: str, port: int) -> HTTPConnection:
    """Return a connection that is not open yet. With TLS it trusts the first certificate in the folder's file, or one
    that this has signed, whatever names are in it. Raises ConfigError if the file cannot be read, or has no
    certificate in it.
    """
    if not http.tls_certificate:
        return HTTPConnection(host, port, timeout=DEADLINE_S)
    try:
        first, end, _ = Path(http.tls_certificate).read_text().partition("-----END CERTIFICATE-----")
    except (OSError, ValueError) as error:
        raise _refuse_certificate(http, f"cannot be read: {error}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # trusts the certificate itself, without the one that has signed it
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=first + end)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError too; an empty file is a ValueError
        reason = f"has no certificate that can be used: {error}. It has to be the PEM file of the service"
        raise _refuse_certificate(http, reason) from error
    return HTTPSConnection(host, port, timeout=DEADLINE_S, context=context)


def _refuse_certificate(http: HttpConfig, reason: str) -> ConfigError:
    return ConfigError(FilePosition(http.tls_certificate), reason, field="http.tls_certificate")


def _read_stream(found: dict[str, Any]) -> StreamFacts:
    partitions = {
        name: PartitionFacts(entry["position"], entry["end"] if entry["end"] >= 0 else None)
        for name, entry in found["partitions"].items()
    }
    index = None if found.get("index") is None else _read_index(found["index"])
    return StreamFacts(**_known(StreamFacts, found) | {"partitions": partitions, "index": index})


def _read_index(found: dict[str, Any]) -> IndexFacts:
    partitions = {
        name: IndexPartFacts(**_known(IndexPartFacts, entry) | {"end": entry["end"] if entry["end"] >= 0 else None})
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
