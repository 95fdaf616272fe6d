"""Consumers come and go while records do: what each is given, and what the index counts, is what the log holds.

Who comes late leaves out whole chunks, meets others on the way, and goes on with them; at every such point a reading
position changes hands. One that changed hands wrongly would lose records, or an index chunk would begin without them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.index import check_chunks, read_index
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.support.ledger import check_in_order, read_ledger
from tests.support.waiting import wait_until
from tests.worker.scenes import DEADLINE_S, Scene, Served, await_caught_up, check_output, expect, read_committed, serve

STEPS = int(os.environ.get("OVERLAY_COMINGS", "8"))
WISHES: tuple[tuple[str, ...], ...] = ((), ("a.*",), ("*.y",), ("b.x", "c.*"), ("unused.*",))
PLACES = tuple(f"{letter}.{end}" for letter in "abcd" for end in "xy")

pytestmark = pytest.mark.timeout(120 + 15 * STEPS)


@dataclass(slots=True)
class Play:
    """A stream, and the consumers that it has and has had, with their filters."""

    scene: Scene
    topic: str
    partitions: int
    rng: random.Random
    wishes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    written: list[int] = field(default_factory=list)

    @property
    def present(self) -> list[str]:
        return sorted(self.wishes.keys() - self.gone)

    def write(self) -> None:
        """A run of one subject in one partition, up to megabytes that do not compress: worth leaving out, or not."""
        place, partition = self.rng.choice(PLACES), self.rng.randrange(self.partitions)
        producer = SureProducer(self.scene.bootstrap, {"linger.ms": 20})
        count = self.rng.choice((1, 300, 4_000))
        for _ in range(count):
            producer.produce(self.topic, self.rng.randbytes(300), headers=[("to", place)], partition=partition)
        assert producer.flush(30) == 0
        self.written[partition] += count

    def come(self) -> None:
        name, wish = f"c{len(self.wishes)}", self.rng.choice(WISHES)
        self.scene.add_consumer("S", name, *wish)
        self.wishes[name] = wish

    def go(self) -> None:
        if self.present:
            name = self.rng.choice(self.present)
            self.scene.remove_consumer(name)
            self.gone.add(name)

    def steps(self, count: int) -> Iterator[bool]:
        """Do one thing after the other; yields whether the folder has changed."""
        for _ in range(count):
            act = self.rng.choice((self.write, self.write, self.come, self.come, self.go))
            act()
            yield act != self.write

    def is_settled(self, served: Served) -> bool:
        """Whether the service has taken up the folder, and begun with all of it."""
        names = {found["name"] for found in served.report()["consumers"]}
        return names == set(self.present) and served.report()["ready"]

    def is_indexed(self) -> bool:
        index = read_index(self.scene)
        ends = [index.of((self.topic, partition)).next_offset for partition in range(self.partitions)]
        return all(not count or (end.size and end[-1] >= count) for end, count in zip(ends, self.written, strict=True))

    def check(self) -> None:
        source = read_committed(self.scene.bootstrap, self.topic)
        assert len(source) == sum(self.written)
        index = read_index(self.scene)
        for partition in range(self.partitions):
            if self.written[partition]:
                check_chunks(index.of((self.topic, partition)), self.scene, self.topic, partition=partition)
        for name, wish in self.wishes.items():
            found = read_committed(self.scene.bootstrap, f"{self.scene.prefix}-{name}")
            wanted = expect(source, wish, prefix="")
            if self.partitions > 1:
                if name not in self.gone:
                    check_in_order(found, wanted, read_ledger(self.scene), name)
            else:
                check_output(found, wanted[: len(found)] if name in self.gone else wanted, consumer=name, prefix="")


@pytest.mark.parametrize("partitions", [1, 3])
def test_nothing_is_lost_where_consumers_come_and_go(scene: Scene, new_topic: NewTopicFixture, partitions: int) -> None:
    seed = int(os.environ.get("OVERLAY_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"chaos: OVERLAY_SEED={seed} OVERLAY_COMINGS={STEPS}")  # noqa: T201 - a failure shows it
    topic = new_topic(partitions=partitions)
    play = Play(scene, topic, partitions, random.Random(seed), written=[0] * partitions)
    scene.add_stream("S", topic, subject={"header": "to"}, index={"chunk_records": 500, "chunk_age": "200ms"})
    play.write()
    play.come()
    for _ in range(2):  # the second time everything begins at once
        with serve(scene) as served:
            for has_changed in play.steps(STEPS):
                if has_changed:
                    served.reload(scene)
                    wait_until(lambda: play.is_settled(served), DEADLINE_S, "the service has taken up its folder")
            wait_until(play.is_indexed, DEADLINE_S, f"chunks reach {play.written}")
            await_caught_up(served, *play.present)
        play.check()
