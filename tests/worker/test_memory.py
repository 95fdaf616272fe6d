"""RSS of `overlay run` at full speed stays under 500 MB, however much there is to read.

OVERLAY_MEMORY_RECORDS and OVERLAY_MEMORY_PARTITIONS set how much: the default is a quick look, 2,000,000 the long run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.service import StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import Scene

RECORDS = int(os.environ.get("OVERLAY_MEMORY_RECORDS", "300000"))
LIMIT = 500 * 1024 * 1024
PARTITIONS = int(os.environ.get("OVERLAY_MEMORY_PARTITIONS", "12"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + RECORDS // 5_000)]


def read_peak(pid: int) -> int:
    """The process's largest RSS so far, bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_memory_at_full_speed(scene: Scene, running_service: StartService, new_topic: NewTopicFixture) -> None:
    """A backlog in many partitions, everything delivered to one consumer and a third to another."""
    topic = new_topic(partitions=PARTITIONS)
    scene.add_stream("S", topic)
    scene.add_consumer("S", "all", output={"partitions": 4})
    scene.add_consumer("S", "third", "t.a")
    noise = os.urandom(1 << 16)
    producer = SureProducer(scene.bootstrap, {"linger.ms": 50, "compression.type": "lz4"})
    for number in range(RECORDS):
        at = number * 331 % 65_000
        producer.produce(
            topic,
            noise[at : at + 340],
            str(number % 99),
            number // 500 % PARTITIONS,
            headers=[("to", "abc"[number % 3])],
        )
        if number % 50_000 == 49_999:
            producer.flush(30)
    assert producer.flush(30) == 0
    service = running_service(scene.folder)

    def is_done() -> bool:
        delivered = {found["name"]: found["delivered"] for found in service.get_json("/consumers")}
        return bool(delivered["all"] == RECORDS and delivered["third"] == len(range(0, RECORDS, 3)))

    wait_until(is_done, 60 + RECORDS / 10_000, "everything is delivered")
    peak = read_peak(service.process.pid)
    assert service.stop() == 0
    assert peak < LIMIT, f"{peak >> 20} MiB at most"
