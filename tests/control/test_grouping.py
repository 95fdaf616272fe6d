"""Which requests are decided together, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.control import grouping
from overlay.control.grouping import group_requests, is_independent
from overlay.control.requests import Request
from tests.control.registries import make_request

Asked = tuple[str, bool]
"""The consumer's name and whether the request is decided alone."""


def make(number: int, name: str) -> Request:
    return make_request("consumer.create", str(number), stream="S", config={"durable_name": name})


def group(asked: list[Asked], shards: int) -> list[tuple[int, list[int]]]:
    """The groups, with the places of requests. A consumer is on the shard that its number says; -1 is elsewhere."""
    requests = [make(number, name) for number, (name, _) in enumerate(asked)]

    def find_shard(about: tuple[str, str]) -> int | None:
        shard = int(about[1]) % (shards + 1)
        return shard if shard < shards else None

    found = group_requests(requests, find_shard, lambda request: asked[int(request.id)][1])
    return [(shard, [int(request.id) for request in some]) for shard, some in found]


def test_different_consumers_of_a_shard_are_decided_together() -> None:
    assert group([("0", False), ("2", False), ("4", False)], 1) == [(0, [0, 1, 2])]
    assert group([("0", False), ("1", False), ("3", False)], 2) == [(0, [0, 2]), (1, [1])]


def test_a_second_request_about_a_consumer_waits_for_the_first() -> None:
    assert group([("0", False), ("2", False), ("0", False)], 1) == [(0, [0, 1]), (0, [2])]


def test_what_is_decided_alone_keeps_its_place() -> None:
    assert group([("0", False), ("2", True), ("4", False)], 1) == [(0, [0]), (0, [1]), (0, [2])]


def test_groups_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MOST", 2)
    assert group([(str(2 * number), False) for number in range(5)], 1) == [(0, [0, 1]), (0, [2, 3]), (0, [4])]


def test_large_requests_make_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(make(0, "0").text)
    monkeypatch.setattr(grouping, "MOST_CHARACTERS", 2 * size)
    assert group([(str(2 * number), False) for number in range(5)], 1) == [(0, [0, 1]), (0, [2, 3]), (0, [4])]


@given(st.lists(st.tuples(st.sampled_from("0123456"), st.booleans())), st.integers(1, 3))
def test_every_request_is_decided_once_and_after_those_it_depends_on(asked: list[Asked], shards: int) -> None:
    groups = group(asked, shards)
    places = {number: place for place, (_, some) in enumerate(groups) for number in some}
    assert sorted(places) == [n for n, (name, _) in enumerate(asked) if int(name) % (shards + 1) < shards]
    assert sum(len(some) for _, some in groups) == len(places)
    for later in places:
        for earlier in (number for number in places if number < later):
            depends = asked[earlier][0] == asked[later][0] or asked[earlier][1] or asked[later][1]
            assert not depends or places[earlier] < places[later]


@pytest.mark.parametrize(
    ("op", "config", "expected"),
    [
        ("consumer.create", {"durable_name": "c", "deliver_subject": "out"}, True),
        ("consumer.update", {"durable_name": "c", "deliver_subject": "out"}, True),
        ("consumer.create", {"durable_name": "c", "deliver_subject": "source"}, False),
        ("consumer.create", {"durable_name": "c", "deliver_subject": "out", "dead_letter": "source"}, False),
        ("consumer.create", "none", False),
        ("consumer.delete", None, True),
        ("consumer.unknown", {"durable_name": "c"}, False),
    ],
)
def test_which_decisions_depend_on_no_other_consumer(op: str, config: object, expected: bool) -> None:
    request = make_request(op, stream="S", consumer="c", config=config)
    assert is_independent(request, {"source"}) is expected


def test_refusals_for_being_too_many_are_decided_together() -> None:
    """Even of one consumer: they depend on nothing."""
    requests = [make(number, "0").shorten() for number in range(3)]
    (found,) = group_requests(requests, lambda _: 0, lambda _: False)
    assert found == (0, requests)
