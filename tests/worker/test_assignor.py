"""How shards are dealt out among workers: evenly, with few moves, never to two at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from hypothesis import given
from hypothesis import strategies as st

from overlay.worker.assignor import Member, deal, make_assignor

TOPIC = "overlay.state"


class Shards(ClusterMetadata):  # type: ignore[misc]
    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(4))


class NoMetadata(ClusterMetadata):  # type: ignore[misc]
    """What a member knows that has not learnt the state topic's partitions."""

    def partitions_for_topic(self, topic: str) -> None:
        return None


def make(member: Member, news: list[bool] | None = None) -> Any:
    noted = [] if news is None else news
    return make_assignor(TOPIC, lambda: member, noted.append)


def deal_on_the_wire(
    cluster: type[ClusterMetadata] = Shards, /, **members: Member
) -> tuple[dict[str, list[int]], bool]:
    """The shards of each member, dealt out by the first of them, and whether shards wait for their present owners."""
    assignors: dict[str, Any] = {name: make(member) for name, member in members.items()}
    told = {name: assignor.metadata([TOPIC]) for name, assignor in assignors.items()}
    told = {name: type(one).decode(one.encode()) for name, one in told.items()}
    found = next(iter(assignors.values())).assign(cluster(), told)
    found = {name: type(one).decode(one.encode()) for name, one in found.items()}
    news: list[bool] = []
    for one in found.values():
        make(Member(), news).on_assignment(one)
    assert len(set(news)) == 1, "all members get the same news"
    return {name: [tp.partition for tp in dealt.partitions()] for name, dealt in found.items()}, news[0]


@pytest.mark.parametrize(
    ("drained", "dealt"),
    [
        ({"a": False, "b": False}, {"a": [0, 1], "b": [2, 3]}),
        ({"a": True, "b": False}, {"a": [], "b": [0, 1, 2, 3]}),
        ({"a": False, "b": True, "c": False}, {"a": [0, 1], "b": [], "c": [2, 3]}),
        ({"a": True}, {"a": [0, 1, 2, 3]}),
        ({"a": True, "b": True}, {"a": [0, 1], "b": [2, 3]}),
    ],
)
def test_drained_workers_get_shards_only_if_all_are_drained(
    drained: dict[str, bool], dealt: dict[str, list[int]]
) -> None:
    assert deal_on_the_wire(**{name: Member(drained=flag) for name, flag in drained.items()}) == (dealt, False)


def test_a_shard_waits_for_its_present_owner() -> None:
    """A worker joins two others, which have all shards: one gives a shard up, and only then it is assigned."""
    a, b = Member(frozenset({0, 1}), 5), Member(frozenset({2, 3}), 5)
    assert deal_on_the_wire(a=a, b=b, c=Member()) == ({"a": [0, 1], "b": [2], "c": []}, True)
    b = Member(frozenset({2}), 6)
    assert deal_on_the_wire(a=a, b=b, c=Member()) == ({"a": [0, 1], "b": [2], "c": [3]}, False)


def test_a_leader_that_knows_no_partitions_stops_and_moves_no_shard() -> None:
    """A shard that its owner lets go of would be known to no member."""
    a, b = Member(frozenset({0, 1, 3}), 5), Member(frozenset({2, 3}), 6, drained=True)
    assert deal_on_the_wire(NoMetadata, new=Member(), a=a, b=b) == ({"new": [], "a": [0, 1], "b": [2, 3]}, False)
    assert deal_on_the_wire(NoMetadata, a=Member(), b=Member()) == ({"a": [], "b": []}, False)


def test_of_two_that_hold_a_shard_the_one_of_the_later_generation_counts() -> None:
    late, early = Member(frozenset({0, 1, 2, 3}), 4), Member(frozenset({0, 1}), 9)
    assert deal({0, 1, 2, 3}, {"early": early, "late": late}).shards == {"early": [0, 1], "late": [2, 3]}


def test_workers_of_earlier_versions_can_be_in_the_group() -> None:
    """They know the protocol by its name, and tell no user data."""
    assignor = make(Member())
    assert (assignor.name, assignor.version) == (RoundRobinPartitionAssignor.name, RoundRobinPartitionAssignor.version)
    old = RoundRobinPartitionAssignor.metadata([TOPIC])
    assert assignor.metadata([TOPIC]).encode() == old.encode()
    found = assignor.assign(Shards(), {"old": old, "new": make(Member(drained=True)).metadata([TOPIC])})
    assert [len(found[name].partitions()) for name in ("old", "new")] == [4, 0]
    assert Member.decode(b"drained") == Member(drained=True)


def test_a_stranger_in_the_group_gets_nothing() -> None:
    stranger = RoundRobinPartitionAssignor.metadata(["other"])
    found = make(Member()).assign(Shards(), {"stranger": stranger, "one": make(Member()).metadata([TOPIC])})
    assert [len(found[name].partitions()) for name in ("stranger", "one")] == [0, 4]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"\xff",
        b"[1]",
        b"{}",
        b'{"holds": 3, "generation": 1, "drained": true}',
        b"[" * 10**5,
        b'{"holds": [Infinity], "generation": 1, "drained": true}',
    ],
)
def test_other_user_data_tells_nothing(data: bytes) -> None:
    assert Member.decode(data) == Member()


def test_a_member_is_read_as_it_was_told() -> None:
    for member in (Member(), Member(frozenset({7, 2}), 3), Member(drained=True)):
        assert Member.decode(member.encode()) == member


MEMBERS = st.builds(Member, st.frozensets(st.integers(0, 11)), st.integers(-1, 5), st.booleans())


@given(shards=st.integers(0, 12), members=st.dictionaries(st.sampled_from("abcdef"), MEMBERS, min_size=1))
def test_shards_find_owners_without_ever_having_two(shards: int, members: Mapping[str, Member]) -> None:
    """From any start, members that do as they are told have all shards after two more rebalances, evenly, and keep them."""
    numbers = range(shards)
    now = dict(members)
    for generation in range(6, 9):
        dealt = deal(numbers, now)
        given_out = [number for each in dealt.shards.values() for number in each]
        assert len(given_out) == len(set(given_out)), "no shard is given to two"
        assert sorted([*given_out, *dealt.waiting]) == list(numbers), "each is given to one, or waits"
        holders = {
            number: {name: one.generation for name, one in now.items() if number in one.holds} for number in numbers
        }
        assert all(holders[number] for number in dealt.waiting)
        for name, each in dealt.shards.items():
            for number in each:
                latest = max(holders[number].values(), default=0)
                assert not holders[number] or holders[number].get(name) == latest, "its owner has it, or none"
        now = {name: Member(frozenset(each), generation, members[name].drained) for name, each in dealt.shards.items()}
    assert not dealt.waiting
    willing = [name for name, one in members.items() if not one.drained] or list(members)
    sizes = [len(dealt.shards[name]) for name in willing]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == shards
    again = deal(numbers, now)
    assert again.shards == dealt.shards and not again.waiting, "what is even stays as it is"
