"""Which consumers a status tells of: what changed at once, everything within a minute, and idle ones for nothing more."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.changes import MOST, SHARE, Changes
from overlay.state.shard_state import ConsumerId

ROUND = math.ceil(1 / SHARE)
"""Statuses of a minute."""


def name(count: int) -> list[ConsumerId]:
    return [("S", f"c{number:05}") for number in range(count)]


def tell(
    changes: Changes, values: dict[ConsumerId, int], busy: frozenset[ConsumerId] = frozenset()
) -> list[ConsumerId]:
    """One status: the consumers that it tells."""
    return [id for id in changes.take() if changes.settle(id, values.get(id, 0), is_busy=id in busy)]


def test_new_consumers_are_told_at_once_and_all_within_a_minute() -> None:
    changes, mine = Changes(), name(600)
    assert changes.assign(mine, mine) == []
    assert sorted(tell(changes, {})) == mine
    tell(changes, {})  # what is new counts as changed, and is looked at once more
    later = Counter(id for _ in range(ROUND) for id in tell(changes, {}))
    assert later.keys() == set(mine)
    assert max(later.values()) == 1


def test_idle_consumers_are_not_even_described() -> None:
    changes, mine = Changes(), name(1_200)
    changes.assign(mine, mine)
    for _ in range(4):
        tell(changes, {})
    share = math.ceil(len(mine) * SHARE)
    changes.note([mine[0]])
    assert len(changes.take()) <= share + 1


def test_a_change_is_told_once_and_looked_at_until_it_rests() -> None:
    changes, mine = Changes(), name(24)
    changes.assign(mine, mine)
    tell(changes, {})
    tell(changes, {})
    changes.note([mine[20], ("S", "of another worker")])
    assert mine[20] in tell(changes, {mine[20]: 1})
    assert mine[20] in changes.take()
    assert mine[20] in tell(changes, {mine[20]: 2})  # without a sign: it was watched


def test_what_was_lost_is_told_again_though_nothing_has_changed() -> None:
    changes, mine = Changes(), name(24)
    changes.assign(mine, mine)
    for _ in range(3):
        tell(changes, {})
    changes.note([mine[20]])
    assert mine[20] in tell(changes, {mine[20]: 1})
    changes.note([mine[20]])
    changes.repeat([mine[20], ("S", "of another worker")])
    assert mine[20] in tell(changes, {mine[20]: 1})
    assert mine[20] not in tell(changes, {mine[20]: 1})
    assert ("S", "of another worker") not in changes.take()


def test_busy_consumers_stay_in_view() -> None:
    changes, mine = Changes(), name(24)
    changes.assign(mine, mine)
    busy = frozenset(mine[10:12])
    for number in range(2 * ROUND):
        assert busy <= set(tell(changes, dict.fromkeys(busy, number + 1), busy))


def test_deleted_consumers_are_named_and_moved_ones_are_not() -> None:
    changes, mine = Changes(), name(4)
    changes.assign(mine, mine)
    tell(changes, {})
    assert changes.assign(mine[:1], mine[:2]) == mine[2:]
    assert tell(changes, {}) == mine[:1]
    changes.assign([], mine)
    assert changes.take() == []


@given(st.integers(0, 4 * MOST), st.data())
def test_all_is_told_in_bounded_portions(count: int, data: st.DataObject) -> None:
    changes, mine = Changes(), name(count)
    changes.assign(mine, mine)
    active = mine[: data.draw(st.integers(0, count))]
    first: dict[ConsumerId, int] = {}
    for number in range(2 * ROUND):
        changes.note(active)
        taken = changes.take()
        assert len(taken) <= max(MOST, math.ceil(count / 6))
        assert len(set(taken)) == len(taken)
        for id in taken:
            if changes.settle(id, number, is_busy=id in active):
                first.setdefault(id, number)
    # new ones wait for six statuses at most
    assert first.keys() == set(mine)
    assert max(first.values(), default=0) <= 6


def test_what_cannot_be_described_does_not_hold_up_the_rest() -> None:
    changes, mine = Changes(), name(2)
    changes.assign(mine, mine)
    for id in changes.take():
        changes.drop(id)
    changes.note([mine[0]])
    assert tell(changes, {}) in ([mine[0]], mine)
