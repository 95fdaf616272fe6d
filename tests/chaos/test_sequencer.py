"""`kill -9` of the sequencer of a stream of eight partitions under load: no sequence is ever taken back or given out twice,
every record has one, and every reader at every time gets the same answers.

Plain producers of every codec and a transactional one that aborts write; consumers on the shard of the sequencer and on
others are given records in the order of their sequences, each once. Between the kills the ledger is read as any client reads
it and held against what it said before.

OVERLAY_KILLS sets the number of kills; OVERLAY_SEED repeats a run's moments and records as far as processes allow.
"""

from __future__ import annotations

import os
import random
import time

import pytest

import overlay
from tests.oracle.ledger import Twin
from tests.support.index import check_chunks, read_index
from tests.support.kafka import NewTopicFixture
from tests.support.ledger import check_in_order, read_ledger
from tests.support.service import StartService
from tests.worker.scenes import Scene, read_committed

from .test_kill import FILTERS, KILLS, LATEST_KILL_S, RULE, Traffic, await_all, await_commit, expect_whole

PARTITIONS = 8
SHARDS = 3
RATE = 1_000  # records a second: every one of them is looked at in the end, four times

pytestmark = pytest.mark.timeout(180 + 60 * KILLS)


def check_kept(before: Twin, after: Twin) -> None:
    """What was said once is said for ever."""
    assert after.next_sequence >= before.next_sequence
    assert after.sequences.items() >= before.sequences.items()


def test_kill_the_sequencer(scene: Scene, running_service: StartService, new_topic: NewTopicFixture) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    rng = random.Random(seed)
    print(f"chaos: OVERLAY_SEED={seed} OVERLAY_KILLS={KILLS}")  # noqa: T201 - a failure shows it
    with (scene.folder / "overlay.yaml").open("a") as file:
        file.write(f"shards: {SHARDS}\n")
    topic = new_topic(partitions=PARTITIONS)
    scene.add_stream("MANY", topic, **RULE)
    outputs = {name: scene.add_consumer("MANY", name, *FILTERS[name]) for name in ("everything", "late", "wide")}
    traffic = Traffic(scene.bootstrap, (topic,), random.Random(seed + 1), rate=RATE)
    ledger, takeovers = Twin(), 0
    try:
        for number in range(KILLS):
            at_work = number % 2 == 0
            service = running_service(scene.folder, wait=at_work)
            if at_work:
                takeovers += 1
                await_commit(service, takeovers)
            time.sleep(rng.uniform(0.0, 2.0 if at_work else LATEST_KILL_S))  # a kill at any moment is what is tested
            assert service.process.poll() is None, service.read_log()
            service.kill()
            takeovers = service.read_log().count("shard taken over")
            if at_work:
                found = read_ledger(scene, "MANY")
                check_kept(ledger, found)
                ledger = found
        service = running_service(scene.folder)
        await_commit(service, takeovers + 1)
    finally:
        traffic.finish()
    source = read_committed(scene.bootstrap, topic)
    wanted = {name: expect_whole(source, FILTERS[name]) for name in outputs}
    for name, output in outputs.items():
        await_all(scene.bootstrap, output, len(wanted[name]))
    assert service.stop() == 0, service.read_log()

    final = read_ledger(scene, "MANY")
    check_kept(ledger, final)
    assert len(set(final.sequences.values())) == len(final.sequences)
    for name, output in outputs.items():
        check_in_order(read_committed(scene.bootstrap, output), wanted[name], final, name, "MANY")
    index = read_index(scene, "MANY")
    assert index.foreign == 0
    for partition in range(PARTITIONS):
        check_chunks(index.of((topic, partition)), scene, topic, partition=partition)
    read = overlay.open(scene.folder).read("MANY", columns=["sequence", "partition", "offset"])
    rows = [row for batch in read for row in batch.to_pylist()]
    assert [row["sequence"] for row in rows] == [
        final.sequences[(topic, record.partition), record.offset]
        for record in sorted(source, key=lambda r: final.sequences[(topic, r.partition), r.offset])
        if record.header(b"to") is not None
    ]
