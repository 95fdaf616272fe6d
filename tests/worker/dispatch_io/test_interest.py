"""Who sleeps for want of readers, and reader groups that we may not look at. The rest is tested with Kafka in test_acked.py."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.consumer.events import Bound, Event, Unbound, Updated
from overlay.consumer.table import ASLEEP
from overlay.dispatch.served_consumer import Beginning, slot
from overlay.kafka.admin import Admin
from overlay.kafka.groups import Group, GroupAnswers, GroupMember
from overlay.kafka.protocol import Code
from overlay.state.shard_state import ConsumerId
from overlay.worker.dispatch_io.interest import Readers
from tests.consumer.driver import SECOND, START, configure
from tests.control.registries import make_config
from tests.output.pressing import Settings


class Counts:
    """An admin that sees as many readers in every group."""

    def __init__(self, members: int) -> None:
        self.members = members

    async def count_members_of(self, groups: set[str], denied: dict[str, str]) -> dict[str, int]:
        return dict.fromkeys(groups, self.members)


class Bench:
    """One consumer whose orders are carried out at once."""

    def __init__(self, inactive_threshold: int, members: int) -> None:
        config = configure(interest="group", inactive_threshold=inactive_threshold)
        self.slot = slot(config, Beginning(), START, Settings().make_output_topic(), None)
        self.admin = Counts(members)
        nothing = cast("Any", None)
        self.facts = {config.id: self.slot.machine.facts}
        self.readers = Readers(
            nothing, cast("Any", self.admin), {config.id: self.slot.output_topic}, self.facts, self.order
        )
        self.orders: list[Event] = []
        if not inactive_threshold:
            self.order(config.id, Bound())

    def order(self, _: ConsumerId, event: Event) -> None:
        self.orders.append(event)
        self.handle(event)

    def handle(self, event: Event) -> None:
        self.slot.machine.handle(event, START)
        self.facts[self.slot.machine.state.config.id] = self.slot.machine.facts

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
    bench.handle(Updated(configure(interest="group", inactive_threshold=after * SECOND)))
    assert await bench.look() == then


async def test_readers_come_and_go() -> None:
    bench = Bench(3600 * SECOND, 0)
    bench.admin.members = 2
    assert await bench.look() == [Bound()]
    assert bench.readers.is_bound(("S", "c"))
    bench.admin.members = 0
    assert await bench.look() == [Unbound()]
    assert not bench.readers.is_bound(("S", "c"))


MEMBERS: dict[str, int | None] = {"read": 1, "idle": 0, "hidden": None}
"""Of each group; None where Kafka does not allow the question."""


class KnownGroups:
    """Answers about MEMBERS."""

    async def describe(self, groups: Iterable[str], found: GroupAnswers[Group], **_: object) -> None:
        for group in groups:
            count = MEMBERS[group]
            code = Code.GROUP_AUTHORIZATION_FAILED if count is None else Code.NONE
            found.note(group, code, Group((GroupMember("c", "h"),) * (count or 0)))


async def test_a_group_that_may_not_be_looked_at_counts_as_in_use() -> None:
    """Otherwise its consumer would be removed under its readers, and those of all other groups with it."""
    admin = Admin({"bootstrap.servers": "localhost:1"})
    admin._groups = cast("Any", KnownGroups())
    configs = [make_config(group, deliver_group=group, inactive_threshold="5s") for group in MEMBERS]
    (asleep, *_) = ASLEEP
    facts: Any = {config.id: SimpleNamespace(config=config, phase=asleep) for config in configs}
    output_topics: Any = dict.fromkeys(facts, "o")
    told: dict[str, Event] = {}

    def order(consumer: ConsumerId, event: Event) -> None:
        told[consumer[1]] = event

    readers = Readers(cast("Any", None), admin, output_topics, facts, order)
    await readers._count({config.id: config for config in configs})
    assert told == {"read": Bound(), "hidden": Bound()}
    assert readers.is_bound(("S", "hidden"))


async def test_readers_of_a_former_consumer_wake_no_other_of_its_name() -> None:
    """It is deleted, and made again, while Kafka counts the members of its group."""
    bench = Bench(3600 * SECOND, 0)
    consumer, config = next((id, facts.config) for id, facts in bench.facts.items())

    async def count_late(groups: set[str], denied: dict[str, str]) -> dict[str, int]:
        bench.readers.dismiss(consumer)
        bench.slot = slot(config, Beginning(), START, Settings().make_output_topic(), None)
        bench.facts[consumer] = bench.slot.machine.facts
        bench.readers.admit(consumer, bench.slot.output_topic)
        return dict.fromkeys(groups, 1)

    bench.admin.count_members_of = count_late  # type: ignore[method-assign]
    await bench.readers._count({consumer: config})
    assert not bench.orders
    assert not bench.readers.is_bound(consumer)
