"""`kill -9` of the service at random moments while records flow: every matching record once, in order, and no hole; and
chunk indexes without a hole, that count what is there.

What flows: plain producers of every codec, and a transactional one that aborts a third of its transactions, into a stream of
one partition and into one of three. What is served: a consumer of everything, one of two patterns with three output
partitions by key, one that is added half-way and catches up while records flow, and one of the stream of three partitions.

OVERLAY_KILLS sets the number of rounds; OVERLAY_SEED repeats a run's moments and records as far as processes allow.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer

from tests.oracle.push import place
from tests.support.index import check_chunks, read_index
from tests.support.kafka import NewTopicFixture, SureProducer, await_markers
from tests.support.ledger import check_in_order, read_ledger
from tests.support.service import READY_S, RunningService, StartService
from tests.support.waiting import wait_until
from tests.worker.scenes import CommittedReader, Headers, Scene, Seen, check_output, expect, read_committed

KILLS = int(os.environ.get("OVERLAY_KILLS", "3"))
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BURST = 250
RATE = 4_000  # records a second, over both topics
TAKEN_OVER = "shard taken over"
LATEST_KILL_S = 8.0  # after the start: a killed worker is missed by its group after some seconds

pytestmark = pytest.mark.timeout(600 + 60 * KILLS)


@dataclass
class Traffic:
    """Writes until it is told to stop. `error` is what ended it early."""

    bootstrap: str
    topics: Sequence[str]
    rng: random.Random
    rate: int = RATE
    stop: threading.Event = field(default_factory=threading.Event)
    written: int = 0
    error: BaseException | None = None

    def __post_init__(self) -> None:
        common = {"linger.ms": 5, "log_level": 0}
        self._plain = [SureProducer(self.bootstrap, {**common, "compression.type": codec}) for codec in CODECS]
        name = f"traffic-{self.topics[0]}"
        self._transactional = Producer({"bootstrap.servers": self.bootstrap, **common, "transactional.id": name})
        self._thread = threading.Thread(target=self._run, name="traffic")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._transactional.init_transactions(30)
            began = time.monotonic()
            while not self.stop.wait(max(0.0, began + self.written / self.rate - time.monotonic())):
                if self.rng.random() < 0.2:
                    self._write_transaction()
                else:
                    self._write(self.rng.choice(self._plain))
            for producer in self._plain:
                assert producer.flush(30) == 0
        except BaseException as error:  # noqa: BLE001 - raised again by `finish`
            self.error = error

    def _write_transaction(self) -> None:
        self._transactional.begin_transaction()
        self._write(self._transactional)
        if self.rng.random() < 1 / 3:
            # else an abort purges what was not sent yet, and Kafka may know of no transaction to be ended
            assert self._transactional.flush(30) == 0
            self._transactional.abort_transaction(30)
        else:
            self._transactional.commit_transaction(30)

    def _write(self, producer: Producer) -> None:
        for _ in range(BURST):
            self.written += 1
            to = self.rng.choice(["a.x", "a.y", "b.x", "b.y", "c.x", ""])
            headers: Headers = [("to", to), ("n", str(self.written))] if to else []
            key = self.rng.choice([None, f"key-{self.rng.randrange(40)}"])
            value = str(self.written) + "-" * self.rng.randrange(100)
            producer.produce(self.rng.choice(self.topics), value, key, headers=headers)
            producer.poll(0)

    def finish(self) -> None:
        self.stop.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error
        for topic in self.topics:
            await_markers(self.bootstrap, topic)


# a header that holds the whole subject, so that subjects have several tokens
RULE = {"subject": {"header": "to"}, "index": {"chunk_records": 500, "chunk_age": "300ms"}}
FILTERS: dict[str, tuple[str, ...]] = {
    "everything": (),
    "keyed": ("a.*", "*.y"),
    "late": ("b.>",),
    "wide": ("*.x",),
}


def test_kill_at_random_moments(scene: Scene, running_service: StartService, new_topic: NewTopicFixture) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    rng = random.Random(seed)
    print(f"chaos: OVERLAY_SEED={seed} OVERLAY_KILLS={KILLS}")  # noqa: T201 - a failure shows it
    one, many = new_topic(), new_topic(partitions=3)
    scene.add_stream("ONE", one, **RULE)
    scene.add_stream("MANY", many, **RULE)
    outputs = {name: add_consumer(scene, name) for name in ("everything", "keyed", "wide")}
    traffic = Traffic(scene.bootstrap, (one, many), random.Random(seed + 1))
    takeovers = 0
    try:
        for number in range(KILLS):
            if number == (KILLS + 1) // 2:
                outputs["late"] = add_consumer(scene, "late")
            # every other time in the middle of the work, else at any moment of the start and the takeover
            at_work = number % 2 == 0
            service = running_service(scene.folder, wait=at_work)
            if at_work:
                takeovers += 1
                await_commit(service, takeovers)
            time.sleep(rng.uniform(0.0, 1.5 if at_work else LATEST_KILL_S))  # a kill at any moment is what is tested
            assert service.process.poll() is None, service.read_log()
            service.kill()
            takeovers = service.read_log().count(TAKEN_OVER)
        service = running_service(scene.folder)
        await_commit(service, takeovers + 1)
    finally:
        traffic.finish()
    sources = {topic: read_committed(scene.bootstrap, topic) for topic in (one, many)}
    wanted = {name: expect_whole(sources[many if name == "wide" else one], FILTERS[name]) for name in outputs}
    found = {name: await_all(scene.bootstrap, outputs[name], len(wanted[name])) for name in outputs}
    assert service.stop() == 0, service.read_log()

    for name, output in outputs.items():
        found[name] = read_committed(scene.bootstrap, output)
        if name == "wide":
            check_in_order(found[name], wanted[name], read_ledger(scene, "MANY"), "wide", "MANY")
        else:
            check_output(found[name], wanted[name], stream="ONE", consumer=name, prefix="")
    check_places(found["keyed"])
    for stream, topic, partitions in (("ONE", one, 1), ("MANY", many, 3)):
        index = read_index(scene, stream)
        assert index.foreign == 0
        for partition in range(partitions):
            check_chunks(index.of((topic, partition)), scene, topic, partition=partition)


def await_commit(service: RunningService, takeovers: int) -> None:
    """Wait until this start has taken the shard over, the log's so manieth time, and committed what it delivered; a kill
    before that would meet a service that does nothing."""

    def is_at_work() -> bool:
        delivered = sum(found["delivered"] for found in service.get_json("/consumers"))
        return service.read_log().count(TAKEN_OVER) >= takeovers and delivered > 0

    # a member that was killed is missed by its group after some seconds only
    wait_until(is_at_work, READY_S, f"the shard is taken over, and something is committed ({service.log})")


def add_consumer(scene: Scene, name: str) -> str:
    if name == "keyed":
        return scene.add_consumer("ONE", name, *FILTERS[name], output={"partitions": 3, "partition_by": "key"})
    return scene.add_consumer("MANY" if name == "wide" else "ONE", name, *FILTERS[name])


def expect_whole(source: Sequence[Seen], filters: Sequence[str]) -> list[Seen]:
    """As scenes.expect, with the header holding the whole subject."""
    return sorted(expect(source, filters, prefix=""), key=lambda record: (record.partition, record.offset))


def await_all(bootstrap: str, output: str, count: int) -> list[Seen]:
    with CommittedReader(bootstrap, output) as reader:
        wait_until(lambda: len(reader.read()) >= count, 90, f"{output} has {count} records")
        return reader.seen


def check_places(found: Sequence[Seen]) -> None:
    """Where Java's default partitioner would put each key; by subject where there is none."""
    assert {record.partition for record in found} == {0, 1, 2}
    for record in found:
        assert record.partition == place("key", 3, 0, record.key, record.subject)
