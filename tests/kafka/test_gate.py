"""Fetched data that a gate holds back, without a broker: responses are handed to the fetcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overlay.kafka.fetched import Fetched, cut_front
from overlay.kafka.fetcher import READY_BYTES, Fetcher
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.scan import Decoder, Records, make_plan
from overlay.scan.commit import NO_ABORTS
from overlay.schemas.ids import find_ids
from overlay.waits import until
from tests.oracle.batches import Record
from tests.support.batches import build

DEADLINE_S = 20.0


def frame(id: int) -> bytes:
    return b"\0" + id.to_bytes(4, "big") + b"value"


def make_log(*batches: Sequence[int], base: int = 0) -> bytes:
    """Batches of records whose values begin with these ids of schemas."""
    found, offset = b"", base
    for ids in batches:
        records = [Record(offset + i, 5, None, frame(id)) for i, id in enumerate(ids)]
        found += build(records, base_offset=offset, leader_epoch=3)
        offset += len(ids)
    return found


class Door:
    """Holds back ids until they are let through."""

    stream, trouble = "S", "the registry is down"

    def __init__(self) -> None:
        self.passed: set[int] = set()
        self.asked: list[tuple[int, int]] = []
        self.faults = 0

    async def find_open(self, fetched: Fetched) -> Sequence[tuple[int, int]]:
        if self.faults:
            self.faults -= 1
            raise RuntimeError("a fault of the gate")
        found = find_ids(fetched.data, fetched.position, fetched.aborted)
        return [(id, offset) for id, offset in found.items() if id not in self.passed]

    async def settle(self, source: tuple[str, int], id: int, offset: int) -> None:
        self.asked.append((id, offset))
        await until(lambda: id in self.passed, pause_s=0.005)


class Client:
    """Knows no leader, so that nothing is fetched."""

    cluster = SimpleNamespace(leader_for_partition=lambda _: None)

    async def force_metadata_update(self) -> None:
        """Learn nothing."""


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    client: Any = Client()
    made = Fetcher(client)
    yield made
    await made.close()


def answer(fetcher: Fetcher, partition_fetch: PartitionFetch, data: bytes, end: int) -> None:
    fetcher._fill(partition_fetch, partition_fetch.position, data, None, end, 0)


def read_offsets(fetched: object) -> list[int]:
    assert isinstance(fetched, Fetched)
    pieces = Decoder(make_plan()).decode(fetched.data, fetched.position)
    return [offset for piece in pieces if isinstance(piece, Records) for offset in piece.offset.tolist()]


def list_idle(*partition_fetches: PartitionFetch) -> list[PartitionFetch]:
    return [each for each in partition_fetches if each.is_idle]


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await until(condition, pause_s=0.005)


async def test_what_need_not_wait_is_ready_at_once_and_the_rest_is_fetched_again(fetcher: Fetcher) -> None:
    door = Door()
    door.passed = {7}
    partition_fetch = fetcher.start("t", 0, 0, gate=door)
    answer(fetcher, partition_fetch, make_log([7, 7], [7], [7, 8], [7]), 6)
    assert list_idle(partition_fetch) == []
    assert partition_fetch.holds(0) and partition_fetch.holds(5)
    await wait_for(lambda: partition_fetch.ready)
    assert (partition_fetch.position, partition_fetch.epoch) == (3, 3)
    assert read_offsets(partition_fetch.take()) == [0, 1, 2]
    assert list_idle(partition_fetch) == [partition_fetch] and door.asked == []
    answer(fetcher, partition_fetch, make_log([7, 8], [7], base=3), 6)
    await wait_for(lambda: door.asked)
    assert door.asked == [(8, 4)] and partition_fetch.ready is None
    door.passed.add(8)
    await wait_for(lambda: partition_fetch.ready)
    assert read_offsets(partition_fetch.take()) == [3, 4, 5]
    assert partition_fetch.position == 6


async def test_other_partitions_do_not_wait(fetcher: Fetcher) -> None:
    door = Door()
    held, free = fetcher.start("t", 0, 0, gate=door), fetcher.start("t", 1, 0)
    for each in (held, free):
        answer(fetcher, each, make_log([8]), 1)
    assert read_offsets(free.take()) == [0]
    await wait_for(lambda: door.asked)
    assert held.ready is None


async def test_a_partition_fetch_that_moves_leaves_what_it_held(fetcher: Fetcher) -> None:
    door = Door()
    partition_fetch = fetcher.start("t", 0, 0, gate=door)
    answer(fetcher, partition_fetch, make_log([8], [7]), 2)
    await wait_for(lambda: door.asked)
    partition_fetch.seek(1)
    assert partition_fetch.is_idle
    door.passed = {7, 8}
    answer(fetcher, partition_fetch, make_log([7], base=1), 2)
    await wait_for(lambda: partition_fetch.ready)
    assert read_offsets(partition_fetch.take()) == [1]
    await wait_for(lambda: not fetcher._holding)
    assert partition_fetch.ready is None


async def test_a_fault_of_the_gate_loses_nothing(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.kafka.fetcher.BACKOFF_S", (0.01, 0.01))
    door = Door()
    door.faults = 1
    partition_fetch = fetcher.start("t", 0, 0, gate=door)
    answer(fetcher, partition_fetch, make_log([7]), 1)
    assert partition_fetch.position == 1
    await wait_for(lambda: partition_fetch.is_idle)
    assert (partition_fetch.position, partition_fetch.ready) == (0, None)


async def test_much_held_data_keeps_only_those_back_that_may_be_held(fetcher: Fetcher) -> None:
    door = Door()
    held, next_one, free = (fetcher.start("t", number, 0, gate=door if number < 2 else None) for number in range(3))
    answer(fetcher, held, make_log([8]), 1)
    assert held.held is not None
    held.held = Fetched(
        0, np.zeros(READY_BYTES, np.uint8), held.held.batches, NO_ABORTS, 1, 0, held.held.log_position
    )  # fmt: skip
    assert fetcher._group_idle() == {None: [free]}
    held.held = None
    assert next_one in fetcher._group_idle()[None]


async def test_closing_ends_waits() -> None:
    client: Any = Client()
    fetcher, door = Fetcher(client), Door()
    answer(fetcher, fetcher.start("t", 0, 0, gate=door), make_log([8]), 1)
    await wait_for(lambda: door.asked)
    await fetcher.close()
    assert not fetcher._holding


def test_the_front_of_a_fetch_ends_with_a_whole_batch(fetched: Fetched) -> None:
    assert [read_offsets(front) if (front := cut_front(fetched, offset)) else [] for offset in range(5)] == [
        [],
        [],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]


@pytest.fixture
async def fetched(fetcher: Fetcher) -> Fetched:
    partition_fetch = fetcher.start("t", 0, 0)
    answer(fetcher, partition_fetch, make_log([7, 7], [7], [7, 8]), 5)
    taken = partition_fetch.take()
    assert isinstance(taken, Fetched)
    return taken
