"""Errors that a shard, or a task beside the shards, cannot get past: the service says so and goes on."""

from __future__ import annotations

import contextlib

import pytest

from overlay.client.control.control import Control
from overlay.worker.shard_manager import ShardManager
from tests.support.kafka import NewTopicFixture, make_topic, produce_values
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, CommittedReader, Scene, await_records, produce, serve


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


def test_an_unforeseen_error_beside_the_shards_ends_none_of_them(
    scene: Scene, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control topic is read again from its start, and requests are answered after that."""
    topic, tend = new_topic(), ShardManager.tend
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c")
    faults: list[Exception] = []

    def fail(self: ShardManager) -> list[tuple[str, str]]:
        if faults:
            raise faults.pop()
        return tend(self)

    monkeypatch.setattr(ShardManager, "tend", fail)
    monkeypatch.setattr("overlay.control.serve.LONG_REST_S", (0.01, 0.1))
    control = Control({"bootstrap.servers": scene.bootstrap}, scene.prefix, timeout=DEADLINE_S, name="test")
    with contextlib.closing(control), serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        manager, registry = served.service.shard_manager, served.service.metrics.registry
        assert manager is not None
        shards = dict(manager.shards)

        def count(task: str) -> float:
            return registry.get_sample_value("overlay_unforeseen_errors_total", {"task": task}) or 0.0

        faults += [KeyError("zork"), OSError(28, "No space left on device")]
        wait_until(lambda: count("control") == 2, DEADLINE_S, "both errors are counted")
        produce(scene.bootstrap, topic, ["a"])
        await_records(reader, 1)
        assert [stream["config"]["name"] for stream in control.streams()] == ["S"]
        assert shards and all(manager.shards.get(number) is shard for number, shard in shards.items())
        assert not count("shard")
