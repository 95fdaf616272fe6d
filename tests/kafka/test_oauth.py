"""Tokens of a token endpoint: when they are asked for, and what is told when there is none. With a broker: test_service.py."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import socket
import time
from typing import Any

import pytest
from aiokafka import conn
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError, KafkaConnectionError

from overlay.kafka.connection import find_refusal, for_aiokafka
from overlay.kafka.oauth import DAY_S, LIFETIME_S, SHARE, Tokens, ask_endpoint
from tests.support.tokens import CLIENT, SECRET, make_token, serve_tokens

NOW = time.time()
"""Before the tokens of this module were made."""
BASIC = "Basic " + base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()


async def test_a_token_is_kept_until_most_of_its_lifetime_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("overlay.kafka.oauth.monotonic", lambda: now)
    with serve_tokens() as endpoint:
        endpoint.lifetime_s = 100.0
        tokens = Tokens({**endpoint.kafka, "sasl.oauthbearer.scope": "a b"})
        first = {*await asyncio.gather(*(tokens.token() for _ in range(5)))}
        now += SHARE * 100.0 - 0.1
        assert {await tokens.token()} == first
        assert endpoint.asked == [{"grant_type": "client_credentials", "scope": "a b", "authorization": BASIC}]
        now += 0.2
        assert {await tokens.token()} != first
        assert len(endpoint.asked) == 2


async def test_a_token_that_a_broker_refuses_is_replaced_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("overlay.kafka.oauth.monotonic", lambda: now)
    with serve_tokens() as endpoint:
        endpoint.lifetime_s = 100.0
        tokens = Tokens(endpoint.kafka)

        async def be_refused() -> bytes:
            side = conn.OAuthAuthenticator(sasl_oauth_token_provider=tokens)
            payload, _ = await side.step(None)
            await side.step(b'{"status":"invalid_token"}')
            return bytes(payload)

        first = await be_refused()
        assert await be_refused() == first, "brokers that refuse every token do not flood the endpoint"
        now += 1.1
        second = await be_refused()
        assert second != first
        assert await be_refused() == second
        assert len(endpoint.asked) == 2
        now += 1.1
        third = await tokens.token()
        now += SHARE * 100.0 - 0.1
        assert await tokens.token() == third, "a token that was not refused is kept"


async def test_endpoints_that_do_not_answer_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client waits in a thread of its own, and the event loop's threads stay free."""
    monkeypatch.setattr("overlay.kafka.oauth.ANSWER_S", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kafka = {
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{silent.getsockname()[1]}/",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
        }
        clients = [Tokens(kafka) for _ in range(64)]
        asked = [asyncio.create_task(tokens.token()) for tokens in clients]
        await asyncio.sleep(0)
        assert all(tokens._asking.locked() for tokens in clients), "each has begun to ask"
        async with asyncio.timeout(60):
            await asyncio.to_thread(int)
    # closing it has ended its connections
    failures = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(failure) for failure in failures} == {KafkaConnectionError}


@pytest.mark.parametrize(
    ("answer", "lifetime"),
    [
        ({"access_token": "opaque"}, LIFETIME_S),
        ({"access_token": "opaque", "expires_in": "60"}, 60.0),
        ({"access_token": make_token(1, 500.0)}, 500.0),
        ({"access_token": "a.b.c"}, LIFETIME_S),
        ({"access_token": "opaque", "expires_in": -5}, 0.0),
        ({"access_token": "opaque", "expires_in": 1e300}, DAY_S),
        ({"access_token": "opaque", "expires_in": float("inf")}, DAY_S),
    ],
)
def test_how_long_a_token_is_used(answer: dict[str, Any], lifetime: float) -> None:
    with serve_tokens() as endpoint:
        endpoint.body = json.dumps(answer).encode()
        token, found = ask_endpoint(endpoint.kafka, NOW)
    assert token == answer["access_token"]
    assert found == pytest.approx(lifetime, abs=5.0)


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_a_client_that_the_endpoint_refuses(status: int) -> None:
    with serve_tokens() as endpoint:
        endpoint.status = status
        endpoint.body = b'{"error": "invalid_client", "error_description": "no such client"}'
        with pytest.raises(
            AuthenticationFailedError, match=f"answers {status}: invalid_client: no such client"
        ) as told:
            await Tokens(endpoint.kafka).token()
    assert find_refusal(told.value) is told.value
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(("body", "is_truncated"), [(b'{"error": "x"}', True), (b"[" * 100_000, False)])
def test_a_refusal_that_cannot_be_read_is_one_without_words(body: bytes, is_truncated: bool) -> None:
    with serve_tokens() as endpoint:
        endpoint.status, endpoint.body, endpoint.is_truncated = 401, body, is_truncated
        with pytest.raises(AuthenticationFailedError, match=r"the token endpoint answers 401$"):
            ask_endpoint(endpoint.kafka, 0.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"access_token": 5}',
        b'{"access_token": ""}',
        b'{"access_token": "a\\u0001"}',
        b'{"access_token": "a", "expires_in": NaN}',
        b'{"access_token": "a", "expires_in": 1%s}' % (b"0" * 400),
        b"[" * 100_000,
    ],
)
def test_answers_that_are_none(body: bytes) -> None:
    with serve_tokens() as endpoint:
        endpoint.body = body
        with pytest.raises(KafkaConnectionError, match=f"{endpoint.url}: no token was got") as told:
            ask_endpoint(endpoint.kafka, 0.0)
    assert find_refusal(told.value) is None


def test_an_endpoint_that_is_away_or_redirects() -> None:
    """The secret goes to no other address."""
    with serve_tokens() as endpoint, serve_tokens() as other:
        endpoint.status, endpoint.location = 302, other.url
        with pytest.raises(KafkaConnectionError, match="answers 302"):
            ask_endpoint(endpoint.kafka, 0.0)
        assert other.asked == []
    with pytest.raises(KafkaConnectionError, match=r"no token was got: .*refused"):
        ask_endpoint(endpoint.kafka, 0.0)


def test_extensions() -> None:
    assert Tokens({}).extensions() == {}
    assert Tokens({"sasl.oauthbearer.extensions": "a=1, b=x=y"}).extensions() == {"a": "1", "b": "x=y"}


async def test_a_refused_token_is_answered_as_the_protocol_wants() -> None:
    """RFC 7628: the reason comes after one more message of the client. And what aiokafka has to be like for this."""
    with serve_tokens() as endpoint:
        tokens = for_aiokafka({**endpoint.kafka, "bootstrap.servers": "h:1", "security.protocol": "SASL_PLAINTEXT"})[
            "sasl_oauth_token_provider"
        ]
        assert isinstance(tokens, AbstractTokenProvider)
        side = conn.OAuthAuthenticator(sasl_oauth_token_provider=tokens)
        payload, _ = await side.step(None)
        assert payload.startswith(b"n,,\x01auth=Bearer ")
        assert await side.step(b'{"status":"invalid_token"}') == (b"\x01", True)
        assert await side.step(b"") is None
    assert "OAuthAuthenticator(" in inspect.getsource(conn.AIOKafkaConnection.authenticator_oauth)
