"""One embedded broker for the whole contract, which looks after its logs more often than by default."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import zip_longest

import pytest

from overlay.local import Broker, start
from tests.support.kafka import PATIENT

from .sides import Compare, Script, Side, SimulatedSide, SteadySide

ATTEMPTS = 4
PROPERTIES = PATIENT | {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "0",
    "log.cleaner.backoff.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Log position the tests that use the broker, as tests/conftest.py does for its own."""
    for item in items:
        if "contract_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def contract_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The embedded Kafka that the simulation is compared with."""
    with start(tmp_path_factory.mktemp("contract"), properties=PROPERTIES, ephemeral=True) as running:
        yield running


def compare_notes(simulated: Side, real: Side) -> None:
    """Raise AssertionError with every note that the two sides do not have alike."""
    pairs = zip_longest(simulated.notes, real.notes)
    differences = [f"{one}\n     real {other}" for one, other in pairs if one != other]
    assert not differences, "\nsimulated ".join(["", *differences])


@pytest.fixture
def compare(contract_broker: Broker) -> Compare:
    """Run a script on both sides. The notes have to be equal, but for an attempt in which the real side has stalled."""

    async def attempt(script: Script, *, is_last: bool) -> bool:
        prefix = f"c-{uuid.uuid4().hex[:8]}"
        simulated, real = SimulatedSide(prefix), SteadySide(prefix, contract_broker.bootstrap)
        await real.begin()
        has_stalled = False
        try:
            try:
                await script(real)
            finally:
                has_stalled = await real.has_stalled()
                await real.close()
            await script(simulated)
            compare_notes(simulated, real)
        except Exception:
            if is_last or not has_stalled:
                raise
            return False
        return True

    async def run(script: Script) -> None:
        for number in range(ATTEMPTS):
            if await attempt(script, is_last=number == ATTEMPTS - 1):
                return

    return run
