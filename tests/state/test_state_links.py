"""Links between state records: which of them must not be applied once some are lost."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from overlay.state.state_links import Link, find_void


def write(*places: tuple[int, int | None], whole: Sequence[int] = ()) -> list[Link]:
    """Return links of records that have no machines behind them: each an offset, and the end that it follows."""
    return [Link(offset, offset + 1, after, offset in whole) for offset, after in places]


def test_records_that_follow_each_other_all_count() -> None:
    assert find_void(write((0, 0), (2, 1), (4, 3)), 0) == frozenset()


def test_records_of_earlier_versions_follow_the_record_before_them() -> None:
    assert find_void(write((0, None), (2, None), (4, 3), (6, None)), 0) == frozenset()


def test_a_record_that_follows_a_lost_one_is_void_with_all_that_build_on_it() -> None:
    assert find_void(write((0, 0), (2, 1), (4, 5), (6, 5)), 0) == {4, 6}


def test_a_record_whose_predecessor_has_lost_a_machine_is_void() -> None:
    links = [Link(0, 2, 0, is_whole=False), Link(4, 5, 3, is_whole=False)]
    assert find_void(links, 0) == {4}


def test_a_whole_record_ends_the_doubt() -> None:
    assert find_void(write((0, 0), (2, 9), (4, 3), (6, 5), whole=(4,)), 0) == frozenset()


def test_a_void_record_is_not_passed_on_to_the_owner_that_begins_behind_it() -> None:
    """The next owner has read up to offset 1, and follows what it has read."""
    assert find_void(write((0, 0), (2, 7), (4, 1), (6, 5)), 0) == {2}


def test_an_aborted_record_that_kafka_shows_as_committed_is_void() -> None:
    """Its owner had read the first record only, and so has the next owner."""
    assert find_void(write((0, 0), (2, 1), (4, 1)), 0) == {2}


def test_what_was_deleted_behind_a_checkpoint_is_not_lost() -> None:
    assert find_void(write((10, 9), (12, 11)), 10) == frozenset()


def test_nothing_counts_if_the_first_records_are_lost() -> None:
    assert find_void(write((10, 14), (12, 11)), 10) == {10, 12}


def list_counted(links: Sequence[Link]) -> list[int]:
    """Return the offsets of the records that make the state, from the last whole one on."""
    void = find_void(links, 0)
    counted = [link for link in links if link.offset not in void]
    first = max((link.offset for link in counted if link.is_whole), default=0)
    return [link.offset for link in counted if link.offset >= first]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans(), st.integers(0, 1)), max_size=15))
def test_the_state_is_what_one_writer_knew(steps: Sequence[tuple[int, bool, bool, int]]) -> None:
    """Each step loses up to five records, perhaps begins another owner, and writes a record."""
    links: list[Link] = []
    known: list[int] = []
    views: list[list[int]] = [[]]
    for lost, is_taken_over, is_whole, hole in steps:
        end = links[-1].end + 1 if links else 0
        if lost and links:
            links = links[:-lost]
            end = links[-1].end + 1 if links else 0
        if is_taken_over:
            known = list_counted(links)
        offset = end + hole
        links.append(Link(offset, offset + 1, known[-1] + 1 if known else 0, is_whole))
        known = [offset] if is_whole else [*known, offset]
        views.append(known)
        assert list_counted(links) in views
