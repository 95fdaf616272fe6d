"""Fixtures for every test: one real Kafka broker per run, and topics of one's own on it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from overlay.local import Broker, start
from tests.support.kafka import NewTopicFixture, name_topics


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the broker, so that `-m "not kafka"` leaves them out."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The run's broker. A test that stops or breaks a broker starts its own."""
    with start(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(broker: Broker) -> str:
    """Address of the run's broker, `host:port`."""
    return broker.bootstrap


@pytest.fixture
def new_topic(bootstrap: str, request: pytest.FixtureRequest) -> NewTopicFixture:
    """`new_topic(partitions=1, retention_ms=1000, ...) -> str`: makes a topic that no other test has."""
    return name_topics(bootstrap, re.sub(r"[^a-z0-9-]+", "-", request.node.name.lower())[:80])
