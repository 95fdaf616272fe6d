"""`kill -9` of Faust workers under load: nothing is lost, and the consumer counts one ack of each message.

The consumer reports each ack that it counts as a sample in the events topic (`sample_freq: 100%`), so that acks are counted by
the service and not by the application.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import overlay
from overlay.kafka.own_topics import events_topic
from tests.faust.workers import FaustApp, end_all
from tests.support.kafka import NewTopicFixture
from tests.support.service import RunningProcess
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene, produce, read_committed, serve

KILLS = int(os.environ.get("OVERLAY_KILLS", "2"))
BURST = 400
LEAST = 40
"""Messages that a worker has handled before it is killed."""
DEADLINE_S = 120.0


def count_lines(app: FaustApp, worker: RunningProcess) -> int:
    """How many messages a worker has recorded."""
    return sum(line["pid"] == worker.process.pid for line in app.read())


def count_acks(scene: Scene) -> Counter[int]:
    """How many acks the consumer has counted for each message, by sequence."""
    records = read_committed(scene.bootstrap, events_topic(scene.prefix))
    samples = [record.value or b"" for record in records if b"METRIC.CONSUMER.ACK" in (record.key or b"")]
    return Counter(json.loads(sample)["stream_seq"] for sample in samples)


def test_kills_under_load(scene: Scene, new_topic: NewTopicFixture, tmp_path: Path) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    scene.add_consumer(
        "S", "c", "t.a", ack_policy="explicit", ack_wait="1s", sample_freq="100%", deliver_group=scene.prefix,
        output={"partitions": 4},
    )  # fmt: skip
    app = FaustApp(
        scene.prefix, scene.bootstrap, scene.folder, "c", "each", tmp_path, concurrency=2, more={"SESSION_S": "6"}
    )
    with ExitStack() as stack, serve(scene), overlay.open(scene.folder) as client:
        stack.callback(end_all, app)
        running, count = [app.start(), app.start()], 0
        for _ in range(KILLS):
            victim = running.pop(0)
            # there is always work, also for a worker that joins late
            while count_lines(app, victim) < LEAST:
                produce(scene.bootstrap, topic, ["a", "b"] * BURST)
                count += BURST
                wait_until(
                    lambda victim=victim, count=count: (  # type: ignore[misc]
                        count_lines(app, victim) >= LEAST or len({line["sequence"] for line in app.read()}) >= count
                    ),
                    DEADLINE_S,
                    "a worker works",
                )
            victim.kill()
            running.append(app.start())
        produce(scene.bootstrap, topic, ["a", "b"] * BURST)
        count += BURST

        def is_over() -> bool:
            app.read()  # fails if a worker has ended by itself
            info = client.control.info("S", "c")
            return info.ack_floor.stream_seq >= 2 * count - 1 and not info.num_ack_pending

        wait_until(is_over, DEADLINE_S, "all is acked")
        wait_until(lambda: count_acks(scene).total() >= count, DEADLINE_S, "all acks are reported")
        acks = count_acks(scene)
    wanted = set(range(1, 2 * count, 2))
    recorded = Counter(line["sequence"] for line in app.read())
    assert recorded.keys() == wanted
    assert acks == Counter(dict.fromkeys(wanted, 1))
