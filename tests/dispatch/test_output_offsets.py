"""Readers' offsets as consumer sequences, against a list of all records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.dispatch import output_offsets
from overlay.dispatch.output_offsets import OutputOffsets

batches = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=30
)  # partition, records, offsets that others write behind them


def place(
    partitions: int, written: list[tuple[int, int, int]]
) -> tuple[list[tuple[int, int, int, int, int]], list[tuple[int, int]]]:
    """Batches as `note` takes them, and partition and offset of each delivery in order."""
    ends, notes, where, sequence = [0] * partitions, [], [], 1
    for partition, count, gap in written:
        at = partition % partitions
        notes.append((at, ends[at], count, sequence, sequence + count - 1))
        where += [(at, ends[at] + i) for i in range(count)]
        ends[at] += count + gap
        sequence += count
    return notes, where


@given(written=batches, partitions=st.integers(1, 3), committed=st.lists(st.integers(0, 200), min_size=3, max_size=3))
def test_all_up_to_the_answer_has_been_read(
    written: list[tuple[int, int, int]], partitions: int, committed: list[int]
) -> None:
    notes, where = place(partitions, written)
    found = OutputOffsets({}, 0, 0)
    for note in notes:
        found.note(*note)
    read = found.find_read(dict(enumerate(committed[:partitions])))
    unread = [number for number, (p, offset) in enumerate(where, 1) if offset >= committed[p]]
    assert read == min(unread, default=len(where) + 1) - 1


def test_a_group_that_has_committed_nothing_has_read_nothing() -> None:
    found = OutputOffsets({}, 0, 0)
    found.note(0, 10, 5, 1, 5)
    assert found.find_read({}) == 0


def test_what_was_written_before_counts_when_all_of_it_is_read() -> None:
    found = OutputOffsets({0: 50, 1: 20}, 3, 40)
    assert found.find_read({0: 49, 1: 20}) == 3
    assert found.find_read({0: 50, 1: 20}) == 40
    found.note(0, 50, 2, 41, 42)
    assert found.find_read({0: 51, 1: 20}) == 41


def test_many_entries_become_coarse_and_never_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_offsets, "MOST_ENTRIES", 8)
    found = OutputOffsets({}, 0, 0)
    for n in range(100):
        found.note(0, 2 * n, 1, n + 1, n + 1)
    read = [found.find_read({0: at}) for at in range(201)]
    assert read == sorted(read)
    assert all(sequences <= (at + 1) // 2 for at, sequences in enumerate(read))
    assert read[-1] == 100


def test_what_an_output_has_lost_counts_as_read_when_the_rest_is() -> None:
    found = OutputOffsets({}, 0, 0)
    found.note(0, 0, 5, 1, 5)
    found.note(0, 6, 4, 6, 9)
    found.note(1, 0, 2, 10, 11)
    assert not found.has_lost(0, 10, 11)
    assert found.has_lost(0, 6, 11)
    found.cut(0, 6, 11, 5)
    assert not found.has_lost(0, 6, 11)
    assert found.find_read({0: 2, 1: 0}) == 2
    assert found.find_read({0: 5, 1: 0}) == 9, "a marker follows"
    assert found.find_read({0: 5, 1: 2}) == 11


def test_batches_noted_while_the_end_was_asked_for_are_not_lost() -> None:
    found = OutputOffsets({}, 0, 0)
    found.note(0, 0, 5, 1, 5)
    given = found.given
    found.note(0, 6, 4, 6, 9)
    assert not found.has_lost(0, 5, given)
    assert found.has_lost(0, 5, found.given)


def test_batches_of_open_transactions_are_read_before_lost_ones() -> None:
    found = OutputOffsets({}, 0, 0)
    found.note(0, 0, 5, 1, 5)
    found.note(0, 5, 5, 6, 10)
    found.note(0, 10, 5, 11, 15)
    found.cut(0, 10, 15, 5)
    assert found.find_read({0: 5}) == 5
    assert found.find_read({0: 10}) == 15


def test_a_batch_below_the_last_one_says_that_the_output_has_lost_its_end() -> None:
    found = OutputOffsets({0: 50}, 3, 40)
    found.note(0, 50, 10, 41, 50)
    found.note(0, 20, 2, 51, 52)
    assert found.find_read({0: 19}) == 3
    assert found.find_read({0: 20}) == 50
    assert found.find_read({0: 22}) == 52
