"""A consumer's limits over many batches: never more than the rate, and not much less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.log_position import TopicPartition
from overlay.state.job_pace import BATCH_MS, Pace, PaceState, allow, charge, renew
from overlay.state.job_plan import BatchPlan, ConsumerPlan, Limit, draft_first
from overlay.state.job_plan_codec import decode_plan, encode_plan
from overlay.state.job_reads import read_part

SOURCE = ("t", 0)


def test_without_limits_nothing_is_held_back() -> None:
    state = renew(Pace(), PaceState(5, 1 << 60, 3.0))
    assert state == PaceState()
    assert allow(Pace(), state, 0, 10) is None
    assert charge(Pace(), state, 0, 10, 1_000) == state


def test_a_pause_lasts_until_its_time() -> None:
    pace = Pace(paused_until=1_000)
    state = renew(pace, PaceState())
    assert allow(pace, state, 999, 10) == 0
    assert allow(pace, state, 1_000, 10) is None
    # lifted in the file
    assert allow(Pace(), renew(Pace(), state), 0, 10) is None


def test_a_batch_is_paid_for_by_the_time_behind_it() -> None:
    pace = Pace(8_000)
    state = charge(pace, renew(pace, PaceState()), 10_000, 4, 30_000)
    assert state == PaceState(0, 40_000, 7_500.0)
    assert allow(pace, state, 39_999, 100) == 0
    # 5 s have 5000 bytes: less than a record, but one has to go
    assert allow(pace, state, 40_000, 100) == 1


@given(
    rate=st.integers(1_000, 50_000_000),
    sizes=st.lists(st.integers(0, 3_000), min_size=1, max_size=6),
    waits=st.lists(st.integers(1, 20_000), min_size=20, max_size=60),
    most=st.integers(100, 100_000),
)
def test_the_rate_is_kept_in_every_span(rate: int, sizes: list[int], waits: list[int], most: int) -> None:
    """`sizes`: bytes of an offset, each for a hundred offsets, over and over; 0 where nothing matches."""
    pace, state, now, at = Pace(rate), PaceState(), 0, 0
    sent: list[tuple[int, int]] = []
    for wait in waits:
        now += wait
        state = renew(pace, state)
        if offsets := allow(pace, state, now, most):
            assert offsets <= most
            size = sum(sizes[(n // 100) % len(sizes)] for n in range(at, at + offsets))
            at += offsets
            sent.append((now, size))
            state = charge(pace, state, now, offsets, size)
    for first, (begin, _) in enumerate(sent):
        total = 0
        for end, size in sent[first:]:
            # what was sent before the batch at `end` fits into the time since `begin`; a ms for each rounding
            assert total * 8_000 <= (end - begin + len(sent)) * rate
            total += size


@given(st.integers(100, 3_000), st.integers(100_000, 10_000_000))
def test_a_steady_stream_comes_at_about_its_rate(size: int, rate: int) -> None:
    """The next batch begins as soon as it may."""
    pace, state, now, sent = Pace(rate), PaceState(), 0, 0
    while now < 60 * BATCH_MS:
        state = renew(pace, state)
        now = max(now + 1, state.due)
        offsets = allow(pace, state, now, 1 << 40)
        assert offsets
        sent += offsets * size
        state = charge(pace, state, now, offsets, offsets * size)
    assert 0.8 * rate <= sent * 8_000 / now <= 1.2 * rate


def test_after_a_stretch_without_matches_batches_grow_step_by_step() -> None:
    pace = Pace(8_000_000)
    state = charge(pace, PaceState(), 0, 100, 100_000)
    offsets = []
    for _ in range(3):
        found = allow(pace, renew(pace, state), 1 << 40, 1 << 40)
        assert found
        offsets.append(found)
        state = charge(pace, state, 1 << 40, found, 0)
    assert offsets == [5_000, 10_000, 20_000]


def test_each_partition_that_waits_has_its_part() -> None:
    ends = {("t", 0): (0, 100), ("t", 1): (10, 20), ("t", 2): (5, 5)}
    assert read_part({}, ends, 8) == {("t", 0): (0, 4), ("t", 1): (10, 14), ("t", 2): (5, 5)}
    assert read_part({("t", 0): 40, ("t", 1): 20}, ends, 8) == {
        ("t", 0): (40, 48),
        ("t", 1): (20, 20),
        ("t", 2): (5, 5),
    }
    assert read_part({}, ends, 0) == {("t", 0): (0, 0), ("t", 1): (10, 10), ("t", 2): (5, 5)}


def test_only_a_consumer_that_may_be_read_for_asks_for_a_batch() -> None:
    ends: dict[TopicPartition, tuple[int, int]] = {SOURCE: (0, 100)}
    new = {"free": ConsumerPlan("", 0, 0, 0), "held": ConsumerPlan("", 0, 0, 0)}
    drafts = draft_first(0, ends, new, Limit(10, 500, {"held": Pace(paused_until=1_000)}))
    assert (drafts["free"].reads, drafts["held"].reads) == ({}, {SOURCE: (0, 0)})
    plan = decode_plan(encode_plan(BatchPlan(0, 500, "S", "", ends, drafts, {}, is_complete=True)))
    assert plan.count_behind() == {"held": 100}
    assert not plan.has_due(999)
    assert plan.has_due(1_000)
