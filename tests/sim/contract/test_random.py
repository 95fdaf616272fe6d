"""Random sequences of requests, drawn from a seed: both sides answer alike.

Timing is left out: a step that starts something waits until it is done. $CONTRACT_SEEDS says how many seeds are played.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable

import pytest
from aiokafka.protocol.admin import DeleteRecordsRequest
from aiokafka.protocol.fetch import FetchRequest

from .requests import add_partitions, end, init_producer, list_offset, make_batch, of_producer, produce, read_partition
from .sides import Compare, Side

NOT_ENOUGH_REPLICAS = 19
STEPS = 150
SEEDS = int(os.environ.get("CONTRACT_SEEDS", "4"))
PARTITIONS = 2
IDS = ("a", "b")


class Player:
    """Plays random steps on a side. Everything is drawn before a side is asked, so that both are asked the same."""

    def __init__(self, side: Side, seed: int) -> None:
        self.side = side
        self.chance = random.Random(seed)
        self.producers: dict[str, list[tuple[int, int]]] = {}
        self.sequences: dict[tuple[str, int, int], int] = {}
        """The next sequence by id, number of the producer, and partition."""
        self.topic = ""
        self._time_ms = side.wall_ms - 3_600_000

    def tick(self) -> int:
        """Return a timestamp that no other batch has: how far a wall clock comes is not the same on both sides."""
        self._time_ms += 10
        return self._time_ms

    async def play(self) -> None:
        self.topic = await self.side.make_topic("t", PARTITIONS)
        for id in (*IDS, "idle"):
            await self.init(id)
        steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (10, self.send),
            (3, self.plain),
            (6, self.add),
            (5, self.finish),
            (1, self.renew),
            (10, self.read),
            (3, self.look),
            (1, self.delete),
        ]
        weights, works = zip(*steps, strict=True)
        for _ in range(STEPS):
            await self.chance.choices(works, weights)[0]()

    def note(self, what: str, value: object) -> None:
        self.side.note(what, value)

    async def init(self, id: str) -> None:
        name = None if id == "idle" else self.side.name(id)
        code, producer = await init_producer(self.side, name)
        if name is not None:
            await self.settle()
        self.producers.setdefault(id, []).append(producer)
        self.note(f"init {id}", (code, producer[1]))

    async def settle(self) -> None:
        """Wait for the markers of what was ended."""
        await self.side.sleep(0.1)

    def pick(self) -> tuple[str, int, tuple[int, int]]:
        """Return an id, the number of one of its producers, the last one as a rule, and that producer."""
        id = self.chance.choice(IDS)
        found = self.producers[id]
        number = len(found) - 1
        if number and self.chance.random() < 0.1:
            number -= 1
        return id, number, found[number]

    def draw_sequence(self, key: tuple[str, int, int], count: int) -> int:
        known = self.sequences.get(key, 0)
        drawn = self.chance.random()
        if drawn < 0.75:
            self.sequences[key] = known + count
            return known
        return max(0, known + self.chance.choice((-6, -count, -2, -1, 1, 3)))

    async def send(self) -> None:
        id, number, producer = self.pick()
        partition, count = self.chance.randrange(PARTITIONS), self.chance.randint(1, 4)
        key = id, number, partition
        before = self.sequences.get(key, 0)
        sequence = self.draw_sequence(key, count)
        batch = make_batch(count, self.tick(), **of_producer(producer, sequence, transactional=True))

        async def ask() -> tuple[int, int, int, int]:
            name = self.side.name(id)
            return await produce(self.side.main, self.topic, batch, partition=partition, transactional_id=name)

        # a transaction that still ends
        found = await self.side.until(ask, lambda found: found[0] != NOT_ENOUGH_REPLICAS, 10.0)
        if found[0]:
            self.sequences[key] = before
        self.note(f"send {id} {number} {partition} {sequence} +{count}", (*found[:2], found[3]))

    async def plain(self) -> None:
        partition, count = self.chance.randrange(PARTITIONS), self.chance.randint(1, 4)
        if self.chance.random() < 0.5:
            batch = make_batch(count, self.tick())
            sequence = -1
        else:
            key = "idle", 0, partition
            sequence = self.draw_sequence(key, count)
            batch = make_batch(count, self.tick(), **of_producer(self.producers["idle"][0], sequence))
        found = await produce(self.side.main, self.topic, batch, partition=partition)
        self.note(f"plain {partition} {sequence} +{count}", (*found[:2], found[3]))

    async def add(self) -> None:
        id, number, producer = self.pick()
        partitions = self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS))
        found = await add_partitions(self.side, self.side.name(id), producer, {self.topic: partitions})
        self.note(f"add {id} {number} {partitions}", found)

    async def finish(self) -> None:
        id, number, producer = self.pick()
        is_commit = self.chance.random() < 0.6
        self.note(
            f"end {id} {number} {is_commit}", await end(self.side, self.side.name(id), producer, commit=is_commit)
        )
        await self.settle()

    async def renew(self) -> None:
        await self.init(self.chance.choice(IDS))

    async def read(self) -> None:
        offset, size = self.chance.randint(-1, STEPS), self.chance.choice((1, 200, 500, 1 << 20))
        wanted = [(self.topic, [(i, offset, size) for i in range(PARTITIONS)])]
        whole, isolation = self.chance.choice((1, 700, 1 << 20)), self.chance.randint(0, 1)
        answer = await self.side.main.ask(FetchRequest(0, 1, whole, isolation, wanted))
        for entry in answer.topics[0][1]:
            shown = read_partition(entry)
            del shown["data"]
            if shown["aborted"] is not None:
                shown["aborted"] = [(self.side.alias("producer", one), first) for one, first in shown["aborted"]]
            self.note(f"read {entry[0]} from {offset}, {size}/{whole}, {isolation}", shown)

    async def look(self) -> None:
        partition, is_committed = self.chance.randrange(PARTITIONS), self.chance.random() < 0.5
        for when in (-1, -2, -3):
            code, _, *rest = await list_offset(self.side, self.topic, when, partition=partition, committed=is_committed)
            self.note(f"look {partition} {when} {is_committed}", (code, *rest))

    async def delete(self) -> None:
        partition, before = self.chance.randrange(PARTITIONS), self.chance.choice((-1, self.chance.randint(0, STEPS)))
        answer = await self.side.main.ask(DeleteRecordsRequest([(self.topic, [(partition, before)])], 5_000))
        self.note(f"delete {partition} {before}", [tuple(one[:3]) for one in answer.topics[0][1]])


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_requests(compare: Compare, seed: int) -> None:
    async def script(side: Side) -> None:
        await Player(side, seed).play()

    await compare(script)
