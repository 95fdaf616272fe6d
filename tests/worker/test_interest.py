"""Who sleeps for want of readers. The rest is tested with Kafka in test_acked.py."""

from __future__ import annotations

from typing import Any, cast

import pytest

from overlay.consumer.events import Bound, Event, Unbound, Updated
from overlay.deliver.state import ConsumerId
from overlay.desk.seat import Beginning, seat
from overlay.worker.acks.interest import Readers
from tests.consumer.driver import SECOND, START, configure
from tests.deliver.pressing import Settings


class Admin:
    def __init__(self, members: int) -> None:
        self.members = members

    async def count_members_of(self, groups: set[str]) -> dict[str, int]:
        return dict.fromkeys(groups, self.members)


class Bench:
    """One consumer whose orders are carried out at once."""

    def __init__(self, inactive_threshold: int, members: int) -> None:
        config = configure(interest="group", inactive_threshold=inactive_threshold)
        self.seat = seat(config, Beginning(), START, Settings().make_outlet(), None)
        self.admin = Admin(members)
        nothing = cast("Any", None)
        self.readers = Readers(nothing, cast("Any", self.admin), {config.id: self.seat}, self.order)
        self.orders: list[Event] = []
        if not inactive_threshold:
            self.order(config.id, Bound())

    def order(self, _: ConsumerId, event: Event) -> None:
        self.orders.append(event)
        self.seat.machine.handle(event, START)

    async def look(self) -> list[Event]:
        """What comes of two looks."""
        self.orders.clear()
        for _ in range(2):
            await self.readers._count(self.readers._list_watched(everyone=True))
        return list(self.orders)


@pytest.mark.parametrize(
    ("before", "after", "members", "first", "then"),
    [
        (3600, 0, 0, [], [Bound()]),
        (3600, 0, 1, [Bound()], []),
        (0, 3600, 0, [], [Unbound()]),
        (0, 3600, 1, [], []),
        (0, 0, 0, [], []),
    ],
)
async def test_a_machine_that_runs_is_given_another_threshold(
    before: int, after: int, members: int, first: list[Event], then: list[Event]
) -> None:
    bench = Bench(before * SECOND, members)
    assert await bench.look() == first
    bench.seat.machine.handle(Updated(configure(interest="group", inactive_threshold=after * SECOND)), START)
    assert await bench.look() == then


async def test_readers_come_and_go() -> None:
    bench = Bench(3600 * SECOND, 0)
    bench.admin.members = 2
    assert await bench.look() == [Bound()]
    assert bench.readers.is_bound(("S", "c"))
    bench.admin.members = 0
    assert await bench.look() == [Unbound()]
    assert not bench.readers.is_bound(("S", "c"))
