"""Fixtures for every test: one real Kafka broker per run, and topics of one's own on it."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from overlay.kafka.admin import Admin
from overlay.local import Broker, start
from tests.support.kafka import PATIENT, NewTopicFixture, name_topics

ONE_PROCESS = ("tests/spark/job/", "tests/spark/")
"""Tests that share what takes long to start, a session of Spark's, and stay together when several processes run tests. In two
parts: one process with all of them would still be at it when the others have nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the broker, so that `-m "not kafka"` leaves them out."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """--dist loadfile, but for ONE_PROCESS."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            together = (folder for folder in ONE_PROCESS if nodeid.startswith(folder))
            return next(together, str(super()._split_scope(nodeid)))

    return Scheduling(config, log)


# how long an example takes is the machine's matter: it may compile a kernel, or share its processor
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("new", deadline=None)
# a run tells of the code and not of its luck; `make test-long` looks for what these examples do not show
if os.environ.get("OVERLAY_EXAMPLES") == "new":
    settings.load_profile("new")
else:
    settings.load_profile("same")
    # Hypothesis also draws constants out of the source of our modules, as far as they are loaded. These depend on the
    # test files that the process ran before, and the examples of a test would as well
    providers._get_local_constants = Constants


DAY_MS = 86_400_000


@pytest.fixture(scope="session", autouse=True)
def unchanged_logs() -> Iterator[None]:
    """Commands that a test calls in its own process leave that process's logs alone: later tests would find their level, and
    streams that are closed. Where a test has configured structlog, its own way of writing tracebacks shows every local
    variable: ten seconds of a worker's event loop for one error."""
    renderer = structlog.get_config()["processors"][-1]
    assert isinstance(renderer, structlog.dev.ConsoleRenderer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.logs.set_up_logs", lambda **_: None)
        patch.setattr(renderer, "exception_formatter", structlog.dev.plain_traceback)
        yield


@pytest.fixture(scope="session", autouse=True)
def hasty_brokers() -> Iterator[None]:
    """Brokers that tests start have Java's first compiler alone: it takes half of the processor time until they answer, and the
    second one pays after minutes only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.local.launch.COMPILER", ("-XX:TieredStopAtLevel=1",))
        yield


@pytest.fixture(scope="session")
def broker(hasty_brokers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The run's broker. A test that stops or breaks a broker starts its own."""
    # many tests write records of years ago, which the first look for old records would delete
    keeping = {"log.initial.task.delay.ms": str(DAY_MS)}
    with start(tmp_path_factory.mktemp("broker"), ephemeral=True, properties=PATIENT | keeping) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(broker: Broker) -> str:
    """Address of the run's broker, `host:port`."""
    return broker.bootstrap


PATIENT_WORKER_MS = 60_000
"""How long a worker in the test's process may be silent before its group takes it for dead, which moves its shards."""


@pytest.fixture(scope="module", autouse=True)
def patient_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers in this process keep their shards if it gets no processor for some seconds. Histories have virtual time, and find
    the product's own limit."""
    if request.node.nodeid.startswith("tests/sim/"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.worker.membership.SESSION_MS", PATIENT_WORKER_MS)
        yield


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    """Asks the shared broker; closed after the test."""
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        yield admin


@pytest.fixture
def new_topic(bootstrap: str, request: pytest.FixtureRequest) -> NewTopicFixture:
    """`new_topic(partitions=1, retention_ms=1000, ...) -> str`: makes a topic that no other test has."""
    return name_topics(bootstrap, re.sub(r"[^a-z0-9-]+", "-", request.node.name.lower())[:80])
