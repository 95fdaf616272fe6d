"""How far consumers are behind: while they are read for, and while nothing is read."""

from __future__ import annotations

from overlay.state.lag import Lag, Lags, Place

C, D = ("S", "c"), ("S", "d")
T0, T1 = ("t", 0), ("t", 1)


def live(position: int, end: int, read_ms: int | None = None) -> Place:
    return Place(position, end, read_ms, is_live=True)


def unread(position: int, end: int = -1, read_ms: int | None = None) -> Place:
    return Place(position, end, read_ms, is_live=False)


def test_nothing_is_known_before_the_first_place() -> None:
    assert Lags().find(C, 5_000) == Lag(None, None)


def test_the_end_of_a_log_that_is_not_known_is_no_lag_of_zero() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 5), T1: live(0, -1)}}, 5_000)
    assert lags.find(C, 6_000) == Lag(None, None)


def test_a_consumer_at_the_end_has_no_lag_however_old_its_last_record_is() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 5, read_ms=10), T1: live(0, 0)}}, 5_000)
    assert lags.find(C, 9_000) == Lag(0, 0.0)


def test_a_filter_that_rarely_matches_is_behind_since_the_last_record_that_was_read() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 9, read_ms=4_000)}}, 5_000)
    assert lags.find(C, 6_000) == Lag(4, 2.0)


def test_old_timestamps_count_from_when_the_consumer_had_everything() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 5, read_ms=10)}}, 5_000)
    lags.note({C: {T0: live(5, 9, read_ms=10)}}, 6_000)
    assert lags.find(C, 8_000) == Lag(4, 3.0)


def test_the_lag_of_a_consumer_is_that_of_its_last_partition() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 9, read_ms=4_000), T1: live(5, 6, read_ms=1_000), ("t", 2): live(1, 1)}}, 5_000)
    assert lags.find(C, 6_000) == Lag(5, 5.0)


def test_a_timestamp_in_the_future_is_no_lag() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 9, read_ms=10**12)}}, 5_000)
    assert lags.find(C, 6_000) == Lag(4, 0.0)


def test_a_first_record_without_a_known_time_counts_from_when_it_was_seen() -> None:
    lags = Lags()
    lags.note({C: {T0: live(0, 9)}}, 5_000)
    lags.note({C: {T0: live(0, 12)}}, 7_000)
    assert lags.find(C, 8_000) == Lag(12, 3.0)


def test_lag_goes_on_growing_while_nothing_is_noted() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 9, read_ms=4_000)}}, 5_000)
    assert lags.find(C, 1_004_000) == Lag(4, 1_000.0)


def test_an_end_that_no_fetch_tells_is_asked_for() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 5)}, D: {T0: unread(3)}}, 5_000)
    assert lags.list_unread() == {T0}
    assert lags.find(D, 6_000) == Lag(None, None)
    lags.note_ends({T0: 9})
    assert lags.find(D, 6_000) == Lag(6, 1.0)
    assert lags.find(C, 6_000) == Lag(0, 0.0), "a fetch knows better"


def test_a_record_that_is_not_being_read_is_looked_up() -> None:
    lags = Lags()
    lags.note({D: {T0: unread(3)}}, 5_000)
    lags.note_ends({T0: 9})
    assert lags.list_unknown(10) == {(T0, 3): 9}
    lags.note_time((T0, 3), 1_500)
    assert lags.find(D, 6_000) == Lag(6, 4.5)
    assert lags.list_unknown(10) == {}


def test_a_record_that_is_being_read_is_looked_up_only_if_nothing_moves() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 9)}}, 5_000)
    assert lags.list_unknown(10) == {}
    lags.note({C: {T0: live(7, 9)}}, 6_000)
    assert lags.list_unknown(10) == {}
    lags.note({C: {T0: live(7, 12)}}, 7_000)
    assert lags.list_unknown(10) == {(T0, 7): 12}


def test_those_that_wait_longest_are_looked_up_first() -> None:
    lags = Lags()
    lags.note({("S", "z"): {T1: unread(1, 9)}}, 4_000)
    lags.note({("S", name): {T0: unread(place, 9)} for place, name in enumerate("abc")}, 5_000)
    assert list(lags.list_unknown(2)) == [(T1, 1), (T0, 0)]
    assert len(lags.list_unknown(100)) == 4


def test_a_position_that_was_left_is_forgotten() -> None:
    lags = Lags()
    lags.note({C: {T0: unread(3, 9)}}, 5_000)
    lags.note_time((T0, 3), 1_500)
    lags.note({C: {T0: unread(4, 9)}}, 6_000)
    lags.list_unknown(10)
    assert not lags._times
    lags.note({C: {T0: unread(3, 9)}}, 7_000)
    assert (T0, 3) in lags.list_unknown(10)


def test_a_consumer_that_was_rewound_has_not_had_everything() -> None:
    lags = Lags()
    lags.note({C: {T0: live(9, 9, read_ms=10)}}, 5_000)
    lags.note({C: {T0: live(2, 9)}}, 6_000)
    assert lags.find(C, 8_000) == Lag(7, 2.0)
    lags.note_time((T0, 2), 500)
    assert lags.find(C, 8_000) == Lag(7, 7.5)


def test_a_consumer_that_went_has_no_lag() -> None:
    lags = Lags()
    lags.note({C: {T0: live(5, 9)}, D: {T0: unread(5, 9)}}, 5_000)
    lags.forget([C, D, ("S", "other")])
    assert lags.find(C, 6_000) == lags.find(D, 6_000) == Lag(None, None)
    assert not lags.list_unread()


def test_a_job_that_was_at_the_end_is_behind_since_then_at_most() -> None:
    """Its records are not read here, and its ends are asked for."""
    lags = Lags()
    lags.note({C: {T0: unread(5, 5)}}, 5_000)
    lags.note({C: {T0: unread(5, 9)}}, 7_000)
    assert lags.list_unknown(10) == {(T0, 5): 9}
    lags.note_time((T0, 5), 1_000)
    assert lags.find(C, 9_000) == Lag(4, 4.0)
