"""The thin shell around Faust: credentials, and records as Faust hands them over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.auth import OAuthCredentials, SASLCredentials, SSLCredentials
from faust.types import EventT

from overlay.clock import now_ms
from overlay.config.service import ServiceConfig
from overlay.fleet import app as app_module
from overlay.fleet.app import find_followed, make_app, make_credentials, take_event
from overlay.fleet.findings import Expected
from overlay.fleet.live import LivePicture
from overlay.fleet.status import encode
from overlay.kafka.oauth import Tokens

from .statuses import make_consumer, make_status

SERVERS = {"bootstrap.servers": "h:1"}
SASL = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}


def test_without_credentials() -> None:
    assert make_credentials(SERVERS) == {}


def test_tls() -> None:
    found = make_credentials({**SERVERS, "security.protocol": "SSL"})["broker_credentials"]
    assert isinstance(found, SSLCredentials)
    assert found.context.check_hostname


def test_sasl_with_and_without_tls() -> None:
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        found = make_credentials({**SERVERS, **SASL, "security.protocol": protocol})["broker_credentials"]
        assert isinstance(found, SASLCredentials)
        assert found.protocol.value == protocol
        assert (found.mechanism.value, found.username, found.password) == ("SCRAM-SHA-512", "u", "p")
        assert (found.ssl_context is not None) == (protocol == "SASL_SSL")


def test_tokens_with_and_without_tls() -> None:
    kafka = {**SERVERS, "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.client.id": "c"}
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        found = make_credentials({**kafka, "security.protocol": protocol})["broker_credentials"]
        assert isinstance(found, OAuthCredentials)
        assert found.protocol.value == protocol
        assert isinstance(found.oauth_cb, Tokens)


def test_records_have_kafkas_time() -> None:
    live, appended = LivePicture(), now_ms()
    (value,) = encode(make_status(clock=appended + 5), [make_consumer()], [])
    message: Any = SimpleNamespace(key=b"a", value=value, timestamp=appended / 1000)
    take_event(live, cast("EventT[bytes]", SimpleNamespace(message=message)), "overlay")
    (row,) = live.memory.list_workers()
    assert (row.seen, row.ahead_ms) == (appended, 5)


async def test_a_row_needs_no_producer_that_knows_its_topic(tmp_path: Path) -> None:
    """On a busy broker the timer writes the first rows before that. The producer here is not even started."""
    app = make_app(ServiceConfig.model_validate({"kafka": SERVERS}), LivePicture(), str(tmp_path))
    for table in app.tables.values():
        table["a"] = {"b": 1}
        assert table["a"] == {"b": 1}
    assert len(app.tables) == 6


async def test_no_topic_of_the_overlays_own_is_taken_for_one_of_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a definition says; and not more than a process can follow."""
    live = LivePicture(expected=Expected(letter_topics=frozenset({"z-graves"})))
    named = {"overlay.fleet-workers-changelog", "overlay.state", *(f"graves-{n}" for n in range(9))}
    for number, name in enumerate(named):
        body = {"config": {"dead_letter": name}, "origin": "request"}
        live.definitions.rows[f"S/c{number}"] = {
            "stream": "S",
            "name": f"c{number}",
            "seen": 1,
            "letters": name,
            **body,
        }
    monkeypatch.setattr(app_module, "MOST_LETTER_TOPICS", 3)

    class AllThere:
        def __init__(self, kafka: object) -> None: ...

        async def __aenter__(self) -> AllThere:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def find_readable(self, names: set[str]) -> dict[str, int]:
            return dict.fromkeys(names, 1)

    monkeypatch.setattr(app_module, "Admin", AllThere)
    found = await find_followed(ServiceConfig.model_validate({"kafka": SERVERS}), live)
    assert found.letters == ("graves-0", "graves-1", "z-graves")
