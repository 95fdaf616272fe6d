"""Subscriptions of several members: a Kafka group shares the partitions of an output topic among them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from overlay.client.subscribe.membership import Member
from tests.client.deliveries import DEADLINE_S, make_output, read_numbers
from tests.support.kafka import NewTopicFixture
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_thread_of_a_subscription_is_left")

JOIN_S = 120


def count_moves(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how many partitions members give up from now on, and how many they lose without being asked."""
    moves, give_up, lose = Counter[str](), Member._give_up, Member._lose

    def count_and_give_up(member: Member, consumer: Any, partitions: Sequence[Any]) -> None:
        moves["given up"] += len(partitions)
        give_up(member, consumer, partitions)

    def count_and_lose(member: Member, consumer: Any, partitions: Sequence[Any]) -> None:
        moves["lost"] += len(partitions)
        lose(member, consumer, partitions)

    monkeypatch.setattr(Member, "_give_up", count_and_give_up)
    monkeypatch.setattr(Member, "_lose", count_and_lose)
    return moves


def test_members_share_partitions_and_lose_nothing(
    bootstrap: str, new_topic: NewTopicFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members come and go while messages flow; each acks what it was handed."""
    moves = count_moves(monkeypatch)
    output = make_output(bootstrap, new_topic, partitions=4)
    output.deliver(4_000)
    seen: list[int] = []

    def work(limit: int) -> None:
        with output.subscribe(prefetch=100) as messages:
            for message in islice(messages, limit):
                message.ack()
                seen.append(int(message.data))

    first = [threading.Thread(target=work, args=(limit,), daemon=True) for limit in (1_000, 700, 1_200)]
    for thread in first:
        thread.start()
    for thread in first:
        thread.join(JOIN_S)
        assert not thread.is_alive()
    output.deliver(4_000)
    with output.subscribe() as messages:
        for message in messages:
            message.ack()
            seen.append(int(message.data))
            if len(set(seen)) == 8_000:
                break
    assert set(seen) == set(range(1, 8_001))
    assert set(output.read_acks().acked) == set(seen)
    assert output.read_committed_offsets() == dict.fromkeys(range(4), 2_000)
    # what was in a member's hand while its partition went away may be handed out twice; and all since the last commit, if the
    # group took a member on a machine that stalls for dead
    assert len(seen) - len(set(seen)) <= max(20, moves["given up"]) or moves["lost"]


def test_a_partition_that_goes_away_takes_its_messages_along(bootstrap: str, new_topic: NewTopicFixture) -> None:
    output = make_output(bootstrap, new_topic, partitions=2)
    output.deliver(400)
    with output.subscribe() as first:
        mine = read_numbers(islice(first, 10))
        with output.subscribe() as second:
            theirs = read_numbers(islice(second, 190))
            more = wait_until(lambda: read_numbers(islice(first, 1)), DEADLINE_S, "the first goes on")
            assert first.partitions | second.partitions == {0, 1} and len(second.partitions) == 1
            assert len({number % 2 for number in theirs}) == 1
            assert more[0] % 2 != theirs[0] % 2
            assert not set(theirs) & {*mine, *more}
