"""What the state keeps of the last transactions of former owners."""

from __future__ import annotations

import json

import pytest

from overlay.output.ending import MOST, Ending, add, find_ending, from_wire, to_wire

OUT, OTHER = ("out", 0), ("other", 3)
COMMITTED, ABORTED = Ending(7, 2, True), Ending(7, 5, False, frozenset({OUT}))


def test_endings_are_read_as_they_were_written() -> None:
    endings = (COMMITTED, ABORTED, Ending(7, 6, False))
    assert from_wire(json.loads(json.dumps(to_wire(endings)))) == endings


@pytest.mark.parametrize("wire", [[1], [[7, 2]], [[7, 2, True, [1]]]])
def test_what_is_no_ending_is_refused(wire: list[object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        from_wire(wire)  # type: ignore[arg-type]


def test_only_the_last_endings_are_kept() -> None:
    endings: tuple[Ending, ...] = ()
    for epoch in range(MOST + 2):
        endings = add(endings, Ending(7, epoch, False))
    assert [each.epoch for each in endings] == list(range(2, MOST + 2))
    assert add(endings, None) == endings


def test_committed_endings_in_a_row_are_one() -> None:
    """A shard that is taken over again and again while an output is silent forgets nothing."""
    endings: tuple[Ending, ...] = (ABORTED,)
    for epoch in range(6, 6 + 2 * MOST):
        endings = add(endings, Ending(7, epoch, True))
    assert endings == (ABORTED, Ending(7, 5 + 2 * MOST, True))
    assert find_ending(endings, 7, 6) == endings[1]
    assert add(endings, Ending(8, 0, True)) == (*endings, Ending(8, 0, True))


@pytest.mark.parametrize(
    ("producer", "epoch", "found"),
    [(7, 2, COMMITTED), (7, 3, ABORTED), (7, 5, ABORTED), (7, 6, None), (8, 2, None)],
)
def test_the_ending_of_an_epoch_is_that_of_its_owner(producer: int, epoch: int, found: Ending | None) -> None:
    """The coordinator raises the epoch when it aborts: what was opened under 4 may have been aborted under 5."""
    assert find_ending((ABORTED, COMMITTED), producer, epoch) == found


def test_what_an_owner_has_open_beside_an_aborted_transaction_was_committed_before() -> None:
    assert COMMITTED.has_committed(OUT)
    assert not ABORTED.has_committed(OUT)
    assert ABORTED.has_committed(OTHER)
    assert not Ending(7, 6, False).has_committed(OTHER)
