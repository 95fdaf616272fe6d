"""An output topic with too few replicas in sync: its consumer stalls, the neighbours go on, and it comes back by itself.

Kafka can neither commit nor abort a transaction on such a partition. So this is true only because the topic is found before
anything is sent to it: at the start, or by the watch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from overlay.cli.kafka_check import check_kafka
from overlay.config import load
from overlay.inspect.verdict import NeedState
from tests.support.cluster import Cluster
from tests.support.kafka import make_topic
from tests.worker.scenes import (
    CommittedReader,
    Scene,
    Served,
    await_records,
    await_state,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LOST = 3
WHY = "1 of 2 replicas in sync, fewer than its min.insync.replicas of 2"


def await_stalled(served: Served) -> None:
    found = await_state(served, "narrow", lambda found: found["state"] == "stalled", "is stalled")
    assert WHY in found["reason"]


def test_too_few_replicas_in_sync(cluster: Cluster, tmp_path: Path) -> None:
    scene = Scene(tmp_path / "config", cluster.bootstrap, replication=3)
    source = make_topic(cluster.bootstrap, f"{scene.prefix}-source", nodes=(1, 2, 3))
    scene.add_stream("S", source)
    filters = {"narrow": ["t.a"], "wide": []}
    outputs = {name: scene.add_consumer("S", name, *wanted) for name, wanted in filters.items()}
    make_topic(cluster.bootstrap, outputs["narrow"], nodes=(2, LOST))
    internal = ("__transaction_state", "__consumer_offsets")

    def feed(to: str, **totals: int) -> None:
        """Ten more records, after which these consumers have been given so many."""
        produce(scene.bootstrap, source, [to] * 10)
        for name, total in totals.items():
            with CommittedReader(scene.bootstrap, outputs[name]) as reader:
                await_records(reader, total)

    with serve(scene) as served:
        feed("a", narrow=10, wide=10)
        # one more transaction, so that nothing of the one before is left to do for a coordinator that is killed
        feed("b", wide=20)
        cluster.brokers[LOST].kill()
        await_stalled(served)
        feed("a", wide=30)
    with serve(scene) as served:
        await_stalled(served)
        feed("a", wide=40)
        findings = {finding.need.name: finding for finding in check_kafka(load(scene.folder))}
        narrow, wide = (findings[outputs[name]] for name in ("narrow", "wide"))
        assert (narrow.state, wide.state) == (NeedState.MISSING, NeedState.OK)
        assert WHY in narrow.remarks[0]
        cluster.brokers[LOST].restart()
        cluster.await_in_sync(*outputs.values(), scene.state_topic, source, *internal)
        feed("a", narrow=40, wide=50)
    records = read_committed(scene.bootstrap, source)
    for name, output in outputs.items():
        check_output(read_committed(scene.bootstrap, output), expect(records, filters[name]), consumer=name)
