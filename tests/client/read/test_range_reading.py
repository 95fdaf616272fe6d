"""The way through a range: what is fetched ahead, and what is worked on as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from overlay.client.read.offset_ranges import OffsetRange, SizedRoute
from overlay.client.read.range_reading import AHEAD_BYTES, AHEAD_FETCHES, RangeReading, go_on
from overlay.index.skip.plan import Route, Saving
from overlay.kafka.fetched import Fetched, Lost
from overlay.kafka.fetcher import READY_BYTES
from overlay.kafka.gate import Gate
from overlay.kafka.log_position import LogPosition
from overlay.kafka.partition_fetch import PartitionFetch
from overlay.scan import Decoder, Records, make_plan
from overlay.scan.commit import NO_ABORTS
from overlay.scan.header import split
from tests.oracle.batches import Record
from tests.support.batches import build

SOURCE = ("t", 0)


class Lanes:
    """Opens partition fetches as a fetcher does, and fetches nothing."""

    def __init__(self) -> None:
        self.open_partition_fetches: list[PartitionFetch] = []

    async def open(
        self, topic: str, partition: int, position: int, stop: int, size: int | None = None, gate: Gate | None = None
    ) -> PartitionFetch:
        self.open_partition_fetches.append(PartitionFetch(self, topic, partition, position, stop, size, gate=gate))  # type: ignore[arg-type]
        return self.open_partition_fetches[-1]

    def shut(self, partition_fetch: PartitionFetch) -> None:
        self.open_partition_fetches.remove(partition_fetch)

    def wake(self) -> None:
        pass


def make_range_reading(partition_fetches: Lanes, *fetch_ranges: tuple[int, int, int]) -> RangeReading:
    """Fetch ranges of start, stop and size."""
    first, after, sizes = np.array(fetch_ranges, np.int64).T
    route = Route(first, after, np.zeros(len(fetch_ranges), np.uint8), Saving(0, 0, 0, 0, 0), True)
    fetcher: Any = partition_fetches
    return RangeReading(fetcher, OffsetRange(SOURCE, 0, int(after[-1]), sized_route=SizedRoute(route, sizes)))


def fill(partition_fetch: PartitionFetch, first: int, after: int, *, aborted: Any = NO_ABORTS) -> None:
    """Have a partition fetch hold a batch of these offsets."""
    records = [Record(offset, offset, None, b"x") for offset in range(first, after)]
    data = np.frombuffer(build(records, base_offset=first) + b"the rest is cut off", np.uint8)
    log_position = LogPosition(after)
    partition_fetch.ready = Fetched(partition_fetch.position, data, split(data).batches, aborted, 99, 0, log_position)
    partition_fetch.position = after


def read_offsets(fetched: Any) -> list[int]:
    assert isinstance(fetched, Fetched)
    pieces = Decoder(make_plan()).decode(fetched.data, fetched.position)
    return [o for piece in pieces if isinstance(piece, Records) for o in piece.offset.tolist()]


@pytest.fixture
def partition_fetches() -> Iterator[Lanes]:
    yield Lanes()


async def test_small_fetch_ranges_that_are_there_are_joined(partition_fetches: Lanes) -> None:
    range_reading = make_range_reading(partition_fetches, (0, 3, 100), (5, 8, 100), (20, 24, 100), (40, 44, 100))
    await go_on([range_reading])
    for partition_fetch, (first, after) in zip(
        partition_fetches.open_partition_fetches, ((0, 3), (5, 8), (20, 24)), strict=False
    ):
        fill(partition_fetch, first, after)
    taken, gaps = range_reading.take()
    assert read_offsets(taken) == [0, 1, 2, 5, 6, 7, 20, 21, 22, 23] and gaps == 2 + 12
    assert (range_reading.partition_fetch.stop, taken.position, taken.next_offset) == (24, 0, 24)  # type: ignore[union-attr]
    range_reading.leave()
    assert (
        range_reading.partition_fetch.position == 40
        and len(partition_fetches.open_partition_fetches) == 1
        and not range_reading.is_over
    )
    fill(range_reading.partition_fetch, 40, 44)
    assert read_offsets(range_reading.take()[0]) == [40, 41, 42, 43]
    range_reading.leave()
    assert range_reading.is_over


ABORTED = np.array([(7, 0)], np.int64)


@pytest.mark.parametrize("what", ["aborted", "not whole", "more than the leg", "large", "lost"])
async def test_others_are_not(partition_fetches: Lanes, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    range_reading = make_range_reading(partition_fetches, (0, 3, 100), (5, 8, 100))
    await go_on([range_reading])
    first, second = partition_fetches.open_partition_fetches
    fill(first, 0, 3)
    match what:
        case "aborted":
            fill(second, 5, 8, aborted=ABORTED)
        case "not whole":
            fill(second, 5, 7)
        case "more than the leg":
            fill(second, 5, 9)
        case "large":
            fill(second, 5, 8)
            assert isinstance(first.ready, Fetched)
            monkeypatch.setattr("overlay.client.read.range_reading.SMALL_BYTES", first.ready.data.size - 1)
        case "lost":
            second.ready = Lost(5)
    taken, gaps = range_reading.take()
    assert read_offsets(taken) == [0, 1, 2] and gaps == 0
    range_reading.leave()
    assert range_reading.partition_fetch is second and second.ready is not None


async def test_what_is_fetched_ahead_is_bounded_over_all_range_readings(partition_fetches: Lanes) -> None:
    small = [(at, at + 1, 1_000) for at in range(0, 200, 2)]
    range_readings = [make_range_reading(partition_fetches, *small) for _ in range(5)]
    await go_on(range_readings)
    assert len(partition_fetches.open_partition_fetches) == 5 + AHEAD_FETCHES
    await go_on(range_readings)
    assert len(partition_fetches.open_partition_fetches) == 5 + AHEAD_FETCHES


@pytest.mark.parametrize(("size", "ahead"), [(-1, 0), (AHEAD_BYTES + 1, 0), (AHEAD_BYTES, 1), (AHEAD_BYTES // 3, 3)])
async def test_large_and_unknown_fetch_ranges_are_not(partition_fetches: Lanes, size: int, ahead: int) -> None:
    range_reading = make_range_reading(partition_fetches, *((at, at + 1, size) for at in range(0, 20, 2)))
    await go_on([range_reading])
    assert len(partition_fetches.open_partition_fetches) == 1 + ahead


def test_a_fetcher_goes_on_fetching_beside_what_is_ahead() -> None:
    """Else the first partition fetch could wait for bytes that are never taken."""
    assert AHEAD_BYTES * 2 < READY_BYTES


async def test_a_partition_fetch_is_not_closed_while_it_holds_data(partition_fetches: Lanes) -> None:
    """Data that waits for a gate is behind the position, as is data that is ready."""
    range_reading = make_range_reading(partition_fetches, (0, 3, 100))
    await go_on([range_reading])
    partition_fetch = range_reading.partition_fetch
    fill(partition_fetch, 0, 3)
    held = range_reading.take()[0]
    assert isinstance(held, Fetched)
    partition_fetch.held = held
    range_reading.leave()
    assert not range_reading.is_over
    partition_fetch.held = None
    range_reading.leave()
    assert range_reading.is_over
