"""Tokens of SASL OAUTHBEARER for aiokafka, asked for at a token endpoint with OAuth's client credentials (RFC 6749,
section 4.4). librdkafka asks for its tokens itself, by the same settings.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import ssl
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from typing import Any

from aiokafka import conn as aiokafka_conn
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import OAuthAuthenticator
from aiokafka.errors import AuthenticationFailedError, KafkaConnectionError

from overlay.clock import monotonic, now_ns
from overlay.credentials import resolve
from overlay.errors import SourceUnavailable
from overlay.jobs import open_thread

from .properties import Properties

ANSWER_S = 10.0
"""Seconds to wait for the token endpoint."""
LIFETIME_S = 300.0
"""Seconds for which a token is used if neither the endpoint nor the token says."""
SHARE = 0.8
"""The part of its lifetime after which a token is replaced, as librdkafka has it."""
REFUSED_S = 1.0
"""Seconds after which a token that a broker refused is replaced; a refusal costs at most one token a second."""
MAX_BYTES = 1 << 20
"""Most bytes of an answer of the token endpoint."""
DAY_S = 86_400.0
"""Most seconds for which a token is used, whatever the endpoint says."""
_REFUSED = (400, 401, 403)
_MALFORMED = (
    *(OSError, HTTPException),  # of connections
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError),  # of what was answered
)


class Tokens(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """The tokens of one client. A token is kept until SHARE of its lifetime has passed, or until a broker refuses it."""

    def __init__(self, kafka: Properties) -> None:
        self._kafka = kafka
        self._asking = asyncio.Lock()
        # an endpoint that does not answer would hold up what else the event loop's own threads do
        self._thread = open_thread("tokens")
        self._token = ""
        self._asked_at = 0.0
        """When the token was asked for, monotonic seconds."""
        self._until = 0.0
        # see _Authenticator
        aiokafka_conn.OAuthAuthenticator = _Authenticator

    async def token(self) -> str:
        """Return a token that is valid now, the kept one if possible. Raises AuthenticationFailedError if the endpoint
        refuses the client, KafkaConnectionError if no token was got for another reason, which may pass."""
        async with self._asking:
            if not self._token or monotonic() >= self._until:
                began = monotonic()
                self._token, lifetime_s = await asyncio.wrap_future(
                    self._thread.submit(ask_endpoint, self._kafka, now_ns() / 1e9)
                )
                self._asked_at = began
                self._until = began + SHARE * lifetime_s
            return self._token

    def forget(self) -> None:
        """Have `token` ask for a new token before the kept one expires, since a broker has refused that: the key that
        signed it may have been withdrawn. That happens REFUSED_S after the kept one was asked for at the earliest,
        unless it expires before, so that brokers which refuse every token do not flood the endpoint.
        """
        self._until = min(self._until, self._asked_at + REFUSED_S)

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions that the brokers get with the token, by name, as `sasl.oauthbearer.extensions`
        lists them (name=value, with commas between); empty without this setting.
        """
        pairs = (pair.partition("=") for pair in self._kafka.get("sasl.oauthbearer.extensions", "").split(",") if pair)
        return {name.strip(): value.strip() for name, _, value in pairs}


class _Authenticator(OAuthAuthenticator):  # type: ignore[misc] # aiokafka has no types
    """aiokafka's side of OAUTHBEARER, with the answer to a refusal.

    A broker that refuses a token says so in a challenge, and gives the reason as an error after the client has sent a
    byte of 1 (RFC 7628, section 3.2.3). aiokafka takes the challenge for a success. Its next request then ends the
    connection without a reason, and it would try again for ever.
    """

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        if payload:
            # otherwise the refused token would be presented again for most of its lifetime
            if isinstance(tokens := self._sasl_oauth_token_provider, Tokens):
                tokens.forget()
            return b"\x01", True
        answer: tuple[bytes, bool] | None = await super().step(payload)
        return answer


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The refusal of redirects: they would take the secret to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def ask_endpoint(kafka: Properties, now: float) -> tuple[str, float]:
    """Ask the token endpoint for a token. Return it, and its lifetime in seconds, from 0 to DAY_S; blocks. `now`:
    seconds since 1970.

    Raises AuthenticationFailedError if the endpoint refuses the client, KafkaConnectionError if no token was got for
    another reason, which may pass.
    """
    endpoint = kafka["sasl.oauthbearer.token.endpoint.url"]
    try:
        with _open(resolve(kafka)) as answer:
            body = json.loads(answer.read(MAX_BYTES))
        token = body["access_token"]
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise ValueError("access_token is no text of printable ASCII characters")
        lifetime_s = float(body.get("expires_in") or _read_expiry(token, now))
        if math.isnan(lifetime_s):
            raise ValueError("expires_in is no number")
    except urllib.error.HTTPError as error:
        with error:
            text = f"{endpoint}: the token endpoint answers {error.code}{_explain(error)}"
        kind = AuthenticationFailedError if error.code in _REFUSED else KafkaConnectionError
        raise kind(text) from None
    except (SourceUnavailable, *_MALFORMED) as error:
        raise KafkaConnectionError(f"{endpoint}: no token was got: {str(error) or type(error).__name__}") from error
    return token, min(max(lifetime_s, 0.0), DAY_S)


def _open(kafka: Properties) -> Any:
    """Send the request for a token, and return the response, which the caller has to close. `kafka`: settings in
    which references to secrets are resolved. Raises HTTPError, an OSError, for an answer that is no success, another
    OSError or an HTTPException if there is no answer, and ValueError for an endpoint that is no URL.
    """
    client, secret = (kafka[f"sasl.oauthbearer.client.{name}"] for name in ("id", "secret"))
    form = {"grant_type": "client_credentials"}
    if scope := kafka.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    headers = {
        "Accept": "application/json",
        "Authorization": "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
    }
    endpoint = kafka["sasl.oauthbearer.token.endpoint.url"]
    request = urllib.request.Request(endpoint, urllib.parse.urlencode(form).encode(), headers)
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if endpoint.startswith("https"):
        context = ssl.create_default_context(cafile=kafka.get("https.ca.location"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers).open(request, timeout=ANSWER_S)


def _explain(error: urllib.error.HTTPError) -> str:
    """Return the error that the body of a refusal names, as the end of a sentence; empty if there is none."""
    try:
        body = json.loads(error.read(MAX_BYTES))
        words = [str(body[name])[:200] for name in ("error", "error_description") if body.get(name)]
    except _MALFORMED:
        return ""
    return f": {': '.join(words)}" if words else ""


def _read_expiry(token: str, now: float) -> float:
    """Return in how many seconds after `now` (seconds since 1970) a token expires, negative if it has expired;
    LIFETIME_S if the token is no JSON Web Token or does not say.
    """
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"]) - now
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return LIFETIME_S
