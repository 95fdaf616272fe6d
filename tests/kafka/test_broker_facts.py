"""What a real broker says of itself."""

from __future__ import annotations

from overlay.inspect.health.brokers import METADATA, TESTED, name_release
from overlay.kafka.admin import Admin


async def test_a_broker_tells_its_release_requests_and_settings(admin: Admin, bootstrap: str) -> None:
    (broker,) = await admin.describe_brokers()
    assert (broker.address, broker.failure) == (bootstrap, "")
    assert name_release(broker.newest[METADATA]) == TESTED
    assert broker.levels[METADATA] == broker.newest[METADATA]
    assert {61, 65} <= broker.requests.keys() and broker.requests[2] >= 7
    assert broker.settings is not None and int(broker.settings["message.max.bytes"]) > 0
