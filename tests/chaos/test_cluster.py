"""Three brokers, of which the service loses one after the other: every matching record once and in order all the same.

What flows meanwhile is written by a plain producer that waits for all replicas in sync; what must come out is worked out
from what the source topic holds in the end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.kafka import SureProducer, make_topic
from tests.worker.scenes import CommittedReader, Scene, await_records, check_output, expect, read_committed, serve

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PAUSE_S = 0.005
FLOW = 200
"""So many more records show that everything flows again."""


@dataclass
class Flow:
    """Writes a record now and then, within the block; two of three match."""

    bootstrap: str
    topic: str
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Flow:
        self._producer = SureProducer(self.bootstrap, {"log_level": 0})
        self._thread = threading.Thread(target=self._run, name="flow")
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE_S):
            to = ("a", "b", "c")[number % 3]
            self._producer.produce(self.topic, str(number), headers=[("to", to)])
            self._producer.poll(0)
            number += 1

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def await_flow(reader: CommittedReader) -> None:
    await_records(reader, len(reader.read()) + FLOW)


def test_leaders_are_killed_and_moved(cluster: Cluster, tmp_path: Path) -> None:
    """First the broker that leads source and output, then the one that coordinates groups and transactions, then a
    planned change of all leaders. Each comes back before the next one goes."""
    scene = Scene(tmp_path / "config", cluster.bootstrap, replication=3)
    source = make_topic(cluster.bootstrap, f"{scene.prefix}-source", nodes=(2, 1, 3))
    scene.add_stream("S", source)
    output = scene.add_consumer("S", "c", "t.a", "t.b")
    make_topic(cluster.bootstrap, output, nodes=(2, 3, 1))
    topics = (source, output, scene.state_topic, "__transaction_state", "__consumer_offsets")
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        with Flow(cluster.bootstrap, source):
            await_flow(reader)
            for topic in (source, "__transaction_state", "__consumer_offsets"):
                lost = cluster.find_leader(topic)
                cluster.brokers[lost].kill()
                cluster.await_leader(topic, other_than=lost)
                await_flow(reader)
                cluster.brokers[lost].restart()
                cluster.await_in_sync(*topics)
            cluster.elect_preferred()
            assert (cluster.find_leader(source), cluster.find_leader(output)) == (2, 2)
            await_flow(reader)
        wanted = [r for r in expect(read_committed(scene.bootstrap, source)) if r.header(b"to") != b"c"]
        await_records(reader, len(wanted))
        assert served.report()["ready"]
    check_output(read_committed(scene.bootstrap, output), wanted)
