"""Who may ask the HTTP pages: the check of the Host header, the token, and TLS.

A page at a loopback address can be asked by a web site that the operator's browser shows. The site lets
its own name point to 127.0.0.1 (DNS rebinding). The browser then takes the page for a part of the site
and gives the site's script what it reads. It names the site in the Host header, so a name
that is not configured is refused.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from overlay.config import HttpConfig
from overlay.config.service import check_token
from overlay.credentials import KeptSecret
from overlay.errors import OverlayError
from overlay.logs import get_logger

log = get_logger(__name__)

LOOK_S = 30.0
"""Seconds between two looks at the files of the certificate."""
CHALLENGE = 'Basic realm="overlay", charset="UTF-8"'
"""What lets a browser ask for the token: it is the password, and any user name will do."""


def find_host_fault(http: HttpConfig, listens_at: str, header: str) -> str:
    """Return why a request with this Host header is refused, and what to do; empty if it is not.

    Accepted are IP addresses, `localhost` and names below it, the name of `listens_at`, those of
    `http.hosts`, and an empty header. If `listens_at`, the host to listen on, is no loopback address
    and there are no `http.hosts`, every name is accepted.
    """
    name = split_host(header)
    if not name or _is_address(name) or name == "localhost" or name.endswith(".localhost"):
        return ""
    if name in {listens_at.lower(), *(each.lower() for each in http.hosts)}:
        return ""
    if not http.hosts and not _is_loopback(listens_at):
        return ""
    return f"this server does not answer for the host name {name}. If it is the server's, add it to http.hosts"


def split_host(header: str) -> str:
    """Return the host of a Host header in lower case, without port, brackets and the dots at the end of a
    name: `::1` of `[::1]:8222`. Empty for an empty header."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def has_token(token: str, authorization: str) -> bool:
    """Return whether an Authorization header has the token, as `Bearer TOKEN`, or as the password of
    `Basic`."""
    scheme, _, rest = authorization.strip().partition(" ")
    given = rest.strip().encode("utf-8", "surrogateescape")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    # compare_digest takes as long for a wrong token as for the right one
    return hmac.compare_digest(given, token.encode())


def make_guard(http: HttpConfig, listens_at: str) -> Middleware:
    """Return a middleware that refuses requests under a foreign host name (403), and those without
    the token (401) if `http` has one. No path is exempt.

    `listens_at`: the host to listen on, without the port (`find_host_fault`). A token in a file that was replaced holds from
    the next request on. Raises SourceUnavailable if the file cannot be read now, or has no token.
    """
    kept = KeptSecret("http.token", http.token, check_token) if http.token else None

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if fault := find_host_fault(http, listens_at, request.headers.get("Host", "")):
            return web.json_response({"error": fault}, status=HTTPStatus.FORBIDDEN)
        if kept is not None and not has_token(kept.get(), request.headers.get("Authorization", "")):
            reason = "send the http.token of overlay.yaml as `Authorization: Bearer TOKEN`"
            headers = {"WWW-Authenticate": CHALLENGE}
            return web.json_response({"error": reason}, status=HTTPStatus.UNAUTHORIZED, headers=headers)
        return await handler(request)

    return guard


def load_tls(http: HttpConfig) -> ssl.SSLContext | None:
    """Return the server's side of TLS, None if no certificate is configured. Raises OverlayError if the files cannot
    be read or do not belong together, or if the key has a password.
    """
    if not http.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # the password of an encrypted key would be asked for at the terminal
        context.load_cert_chain(http.tls_certificate, http.tls_key, password=_refuse_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError too
        raise OverlayError(
            f"http.tls_certificate {http.tls_certificate}, http.tls_key {http.tls_key}: cannot be used: {error}. Both are PEM"
            " files; the key belongs to the certificate, and has no password"
        ) from error
    return context


def _refuse_password() -> str:
    raise ValueError("the key has a password")


def watch_certificate(http: HttpConfig, context: ssl.SSLContext) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return a cleanup context for an application. While the application runs, it loads the certificate and
    key of `http` into `context` again whenever their files have changed.

    New connections get the new certificate within LOOK_S. Files that do not belong together, as in the
    middle of a replacement, are left alone until they change again; that is logged.
    """

    async def look() -> None:
        seen = _stamp(http)
        while True:
            await asyncio.sleep(LOOK_S)
            if (found := _stamp(http)) == seen:
                continue
            seen = found
            try:
                load_tls(http)  # a failure in the context in use would leave it without a key
                context.load_cert_chain(http.tls_certificate, http.tls_key, password=_refuse_password)
                log.info("the certificate was replaced", file=http.tls_certificate)
            except (OSError, ValueError, OverlayError) as error:
                log.warning("the certificate stays the former one", reason=str(error))

    async def watch(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(look(), name="certificate")
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return watch


def _stamp(http: HttpConfig) -> tuple[tuple[int, int, int], ...]:
    """Return what changes when the certificate or key file is replaced: inode, size and time of each; a file
    that is missing is left out."""
    found = []
    for path in (http.tls_certificate, http.tls_key):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback if _is_address(host) else host.lower() == "localhost"
