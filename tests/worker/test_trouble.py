"""Errors that one shard cannot get past: the service says so and goes on."""

from __future__ import annotations

import pytest

from tests.support.kafka import NewTopicFixture, make_topic, produce_values
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, serve


@pytest.mark.parametrize("value", [b"[" * 100_000, b"\xff", b'{"v":99}'], ids=["deep", "bytes", "newer"])
def test_a_state_that_cannot_be_read_is_the_shards_trouble(
    scene: Scene, new_topic: NewTopicFixture, value: bytes
) -> None:
    scene.add_stream("S", new_topic())
    scene.add_consumer("S", "c")
    make_topic(scene.bootstrap, scene.state_topic)
    produce_values(scene.bootstrap, scene.state_topic, [value])
    with serve(scene, wait=False) as served:

        def count() -> float:
            labels = {"cause": "StateUnreadable"}
            found = served.service.metrics.registry.get_sample_value("overlay_shard_restarts_total", labels)
            return found or 0.0

        wait_until(
            lambda: served.service.shard_manager is not None and count() >= 2, 3 * DEADLINE_S, "the shard tries again"
        )
        assert not served.report()["ready"]
        assert served.consumer("c")["state"] != "running"
