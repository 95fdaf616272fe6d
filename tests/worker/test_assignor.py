"""How shards are dealt out among workers, some of which are drained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from overlay.worker.assignor import make_assignor

TOPIC = "overlay.state"


class Shards(ClusterMetadata):  # type: ignore[misc]
    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(4))


def say(answer: bool) -> Callable[[], bool]:
    return lambda: answer


def deal(**drained: bool) -> dict[str, list[int]]:
    """The shards of each member, dealt out by the first of them."""
    assignors: dict[str, Any] = {name: make_assignor(say(flag)) for name, flag in drained.items()}
    members = {name: assignor.metadata([TOPIC]) for name, assignor in assignors.items()}
    # as they are on the wire
    members = {name: type(told).decode(told.encode()) for name, told in members.items()}
    found = next(iter(assignors.values())).assign(Shards(), members)
    return {name: [tp.partition for tp in dealt.partitions()] for name, dealt in found.items()}


@pytest.mark.parametrize(
    ("drained", "dealt"),
    [
        ({"a": False, "b": False}, {"a": [0, 2], "b": [1, 3]}),
        ({"a": True, "b": False}, {"a": [], "b": [0, 1, 2, 3]}),
        ({"a": False, "b": True, "c": False}, {"a": [0, 2], "b": [], "c": [1, 3]}),
        ({"a": True}, {"a": [0, 1, 2, 3]}),
        ({"a": True, "b": True}, {"a": [0, 2], "b": [1, 3]}),
    ],
)
def test_drained_workers_get_shards_only_if_all_are_drained(
    drained: dict[str, bool], dealt: dict[str, list[int]]
) -> None:
    assert deal(**drained) == dealt


def test_workers_of_earlier_versions_can_be_in_the_group() -> None:
    """They know the protocol by its name, and tell no user data."""
    assignor = make_assignor(say(False))
    assert (assignor.name, assignor.version) == (RoundRobinPartitionAssignor.name, RoundRobinPartitionAssignor.version)
    old = RoundRobinPartitionAssignor.metadata([TOPIC])
    assert assignor.metadata([TOPIC]).encode() == old.encode()
    found = assignor.assign(Shards(), {"old": old, "new": make_assignor(say(True)).metadata([TOPIC])})
    assert [len(found[name].partitions()) for name in ("old", "new")] == [4, 0]
