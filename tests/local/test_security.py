"""confluent-kafka over the TLS and SASL listeners of a broker of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from overlay.local import Broker, start
from tests.support.kafka import PATIENT
from tests.support.security import Security, add_scram_user, make_security
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


@dataclass(frozen=True, slots=True)
class Secured:
    broker: Broker
    security: Security


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    security = make_security(tmp_path_factory.mktemp("security"))
    with start(tmp_path_factory.mktemp("secured"), properties=security.properties | PATIENT) as broker:
        add_scram_user(broker.bootstrap)
        yield Secured(broker, security)


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
    ],
)
def test_every_listener_serves(secured: Secured, protocol: str, mechanism: str) -> None:
    client = AdminClient(secured.security.client(protocol, secured.broker, mechanism=mechanism))
    addresses = {str(node) for node in client.list_topics(timeout=20).brokers.values()}
    assert addresses == {f"{secured.broker.listeners[protocol]}/1"}


def test_wrong_password_is_refused(secured: Secured) -> None:
    errors: list[KafkaError] = []
    config = secured.security.client("SASL_SSL", secured.broker, password="wrong")
    callbacks: dict[str, Any] = {"error_cb": errors.append}
    client = AdminClient({**config, **callbacks, "log_level": 0})
    wait_until(lambda: client.poll(0.1) or errors, 20, "an error from the broker")
    assert errors[0].code() == KafkaError._AUTHENTICATION


def test_stranger_to_the_ca_is_refused(secured: Secured) -> None:
    config = secured.security.client("SSL", secured.broker)
    del config["ssl.ca.location"]
    client = AdminClient({**config, "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)


def test_added_listeners_keep_their_ports(secured: Secured) -> None:
    before = dict(secured.broker.listeners)
    secured.broker.restart()
    assert secured.broker.listeners == before
