"""The picture as JSON objects, of which those that have not changed are used again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.findings import FRESH_MS, Expected, look
from overlay.fleet.memory import Memory
from overlay.fleet.picture import DescribedConsumers, describe

from .statuses import NOW, make_consumer, make_status

STEPS = st.lists(
    st.tuples(st.sampled_from("cde"), st.integers(0, 2), st.integers(1, 3), st.sampled_from([0, 1_000, 2 * FRESH_MS])),
    max_size=8,
)


@given(STEPS)
def test_objects_that_are_used_again_say_the_same(steps: list[tuple[str, int, int, int]]) -> None:
    memory, described, now = Memory(), DescribedConsumers(), NOW
    for number, (name, lag, shards, pause) in enumerate(steps):
        now += pause
        told = make_consumer(name, lag=lag)
        gone = () if lag else ("S/c",)
        memory.fold(make_status(number=number, clock=now, shard_count=shards, consumers=(told,), gone=gone), now)
        picture = look(memory, now, Expected(1, "", frozenset({("S", "e")})))
        assert describe(picture, [], {}, described) == describe(picture, [], {})


def test_a_consumer_is_described_anew_only_when_it_was_told_of() -> None:
    memory, described = Memory(), DescribedConsumers()
    memory.fold(make_status(consumers=tuple(make_consumer(f"c{number}") for number in range(3))), NOW)

    def list_objects() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = describe(look(memory, NOW, Expected()), [], {}, described)["consumers"]
        return found

    before = list_objects()
    memory.fold(make_status(number=1, consumers=(make_consumer("c1", lag=5),)), NOW)
    after = list_objects()
    assert [new is old for new, old in zip(after, before, strict=True)] == [True, False, True]
    memory.fold(make_status(number=2, gone=("S/c0",)), NOW)
    assert [row["name"] for row in list_objects()] == ["c1", "c2"]
