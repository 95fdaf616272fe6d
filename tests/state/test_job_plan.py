"""A job's consumers each read every offset once, in order, whenever they come, leave or come back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.kafka.log_position import TopicPartition
from overlay.state.job_pace import Pace
from overlay.state.job_plan import (
    IDLE_MS,
    WINDOW_MS,
    BatchPlan,
    ConsumerPlan,
    JobPosition,
    Limit,
    WriterCommit,
    draft_first,
)
from overlay.state.job_plan_codec import decode_commit, decode_plan, encode_commit, encode_plan
from overlay.state.job_reads import Ends, catch_up
from overlay.state.shard_state import StateUnreadable
from tests.support.large_numbers import enlarge

SOURCES = (("t", 0), ("t", 1), ("u", 0))
NAMES = ("a", "b", "c")

PACES = st.one_of(
    st.builds(Pace, st.integers(1, 20_000)),
    st.builds(Pace, st.just(0), st.integers(0, 200_000)),
    st.builds(Pace, st.integers(1, 20_000), st.integers(0, 200_000)),
)
STEP_MS = 10_000
"""Time between two batches."""

BATCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=len(SOURCES), max_size=len(SOURCES)),
        st.sets(st.sampled_from(NAMES)),
        st.integers(1, 12),
        st.booleans(),
        st.dictionaries(st.sampled_from(NAMES), PACES),
    ),
    min_size=1,
    max_size=25,
)
"""For each batch: how far each partition has grown, which consumers the files have, how much a consumer that is behind may
read, whether the batch is begun twice, and which consumers have limits."""


NOTHING: tuple[list[int], set[str], int, bool, dict[str, Pace]] = ([0, 0, 0], set(), 1, False, {})


GROWN, ALONE = ([5, 5, 5], {"a"}, 1, False, dict[str, Pace]()), ([5, 5, 5], {"b"}, 1, False, dict[str, Pace]())


@given(
    BATCHES,
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 60)),
    st.dictionaries(st.sampled_from(SOURCES[1:]), st.integers(0, 12)),
)
# a consumer that begins above the end of one partition, and behind the end of another
@example(
    [NOTHING, ([0, 0, 4], set(), 1, False, {}), ([0, 0, 0], {"a"}, 1, False, {}), ([0, 2, 0], {"a"}, 1, False, {})],
    {"a": 2},
    {},
)
# a partition that is added, and read by others, while a consumer is away
@example([GROWN, ALONE, ALONE, GROWN, GROWN], {}, {SOURCES[1]: 2})
def test_each_offset_is_read_once_and_in_order(
    batches: list[tuple[list[int], set[str], int, bool, dict[str, Pace]]],
    floors: dict[str, int],
    added: dict[TopicPartition, int],
) -> None:
    """`added`: of partitions that are there later, the batch with which they come. All consumers read them from the start
    that have come before."""
    last: BatchPlan | None = None
    at = dict.fromkeys(SOURCES, 0)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    sequences: dict[str, int] = {}
    for number, (grown, names, most, is_repeated, paces) in enumerate(batches):
        limit = Limit(most, number * STEP_MS, paces)
        there = [source for source in SOURCES if added.get(source, 0) <= number]
        ends = {s: (at[s], at[s] + more) for s, more in zip(SOURCES, grown, strict=True) if s in there}
        at |= {source: stop for source, (_, stop) in ends.items()}
        begins = {name: find_begin(name, last, floors, there) for name in sorted(names)}
        drafts = draft(last, number, ends, begins, limit)
        if is_repeated:
            begun = make_plan(last, number, ends, drafts)
            again = draft(begun, number, ends, begins, Limit(most + 5, limit.now + 1, {}))
            assert {name: (each.before, each.reads, each.pace) for name, each in again.items()} == {
                name: (each.before, each.reads, each.pace) for name, each in drafts.items()
            }
        for name, each in drafts.items():
            offset = offsets.setdefault(name, dict.fromkeys(there, floors.get(name, 0)))
            offset |= {source: 0 for source in there if source not in offset}
            for source, (start, stop) in (each.reads or ends).items():
                begin = max(start, each.floors.get(source, 0))
                if begin < stop:
                    assert begin == offset[source], (number, name, source)
                    offset[source] = stop
                    assert limit.now >= each.pace.due
            assert each.before == sequences.get(name, 0)
            sequences[name] = each.before + 3
        complete = make_plan(last, number, ends, drafts).complete(0)
        last = decode_plan(encode_plan(complete))
        assert last == complete
        for name, offset in offsets.items():
            position = last.find_position(name)
            assert position is not None
            # one that is away does not know of a partition that was added since
            assert {source: position.offsets.get(source, 0) for source in offset} == offset
            assert position.sequence == sequences[name]
        left = {name: sum(max(0, at[source] - offsets[name][source]) for source in there) for name in names}
        assert last.count_behind() == {name: count for name, count in left.items() if count}


def find_begin(
    name: str, last: BatchPlan | None, floors: Mapping[str, int], there: Iterable[TopicPartition]
) -> ConsumerPlan:
    """Where a consumer begins, as the folder of a job finds it. `there`: the partitions that there are."""
    if last is not None and (known := last.consumers.get(name)) is not None:
        return known
    if last is not None and (left := last.left.get(name)) is not None:
        return ConsumerPlan("", left.sequence, left.sequence, 0, left.offsets, left.claim)
    return ConsumerPlan("", 0, 0, 0, dict.fromkeys(there, floors.get(name, 0)))


def draft(
    last: BatchPlan | None, number: int, ends: Ends, begins: Mapping[str, ConsumerPlan], limit: Limit
) -> dict[str, ConsumerPlan]:
    return draft_first(number, ends, begins, limit) if last is None else last.draft(number, ends, begins, limit)


def make_plan(last: BatchPlan | None, number: int, ends: Ends, drafts: Mapping[str, ConsumerPlan]) -> BatchPlan:
    """A batch that has three records for each consumer."""
    consumers = {name: replace(each, last=each.before + 3, letters=1) for name, each in drafts.items()}
    left = {} if last is None else last.leave(consumers)
    return BatchPlan(number, 0, "S", "", ends, consumers, {}, left=left)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=len(SOURCES), max_size=len(SOURCES)), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), min_size=len(SOURCES), max_size=len(SOURCES)),
    st.lists(st.integers(0, 40), min_size=len(SOURCES), max_size=len(SOURCES)),
    st.integers(1, 12),
    st.one_of(st.none(), PACES),
)
def test_a_snapshot_is_read_to_its_end_before_anything_behind_it(
    batches: list[list[int]], floors: list[int], snapshot: list[int], most: int, pace: Pace | None
) -> None:
    """Whatever is read while the plan has the snapshot lies below its end, and what is read afterwards does not."""
    begin = ConsumerPlan(
        "", 0, 0, 0, dict(zip(SOURCES, floors, strict=True)), snapshot=dict(zip(SOURCES, snapshot, strict=True))
    )
    last: BatchPlan | None = None
    at, offsets = dict.fromkeys(SOURCES, 0), dict(begin.floors)
    for number, grown in enumerate(batches):
        ends = {source: (at[source], at[source] + more) for source, more in zip(SOURCES, grown, strict=True)}
        at = {source: stop for source, (_, stop) in ends.items()}
        limit = Limit(most, number * STEP_MS, {} if pace is None else {"a": pace})
        drafts = draft(last, number, ends, {"a": begin}, limit)
        each = drafts["a"]
        is_ahead = any(offsets[source] < end for source, end in begin.snapshot.items())
        assert each.snapshot == (begin.snapshot if is_ahead else {})
        for source, (start, stop) in (each.reads or ends).items():
            if (first := max(start, each.floors[source])) < stop:
                assert first == offsets[source]
                assert not is_ahead or stop <= begin.snapshot[source]
                offsets[source] = stop
        last = decode_plan(encode_plan(make_plan(last, number, ends, drafts).complete(0)))
        position = last.find_position("a")
        assert position is not None and position.offsets == offsets
        assert bool(position.snapshot) == any(offsets[source] < end for source, end in begin.snapshot.items())


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=15),
    st.integers(0, 60),
)
def test_every_offset_is_read_or_counted_as_lost(batches: list[tuple[int, int, bool]], floor: int) -> None:
    """`batches`: how far the log has grown, how many offsets retention removes, whether the consumer is paused."""
    source, last, end, log_start, lost, read = SOURCES[0], None, 0, 0, 0, 0
    for number, (grown, removed, is_paused) in enumerate(batches):
        ends = {source: (end, end + grown)}
        # retention does not pass the batch itself
        end, log_start = end + grown, min(log_start + removed, end)
        limit = Limit(4, number, {"a": Pace(0, number + 1)} if is_paused else {}, {source: log_start})
        drafts = draft(last, number, ends, {"a": ConsumerPlan("", 0, 0, 0, {source: floor})}, limit)
        each = drafts["a"]
        readable, _ = each.find_readable(ends, limit.log_starts)
        counted = each.count_lost(ends, limit.log_starts, 0)
        again = decode_plan(encode_plan(make_plan(last, number, ends, {"a": counted}))).consumers["a"]
        assert again.count_lost(ends, limit.log_starts, 0).lost == counted.lost, (
            "a batch that is run again counts none twice"
        )
        assert again.count_lost(ends, limit.log_starts, 2).lost == counted.lost + 2
        lost += counted.lost
        start, stop = readable[source]
        read += max(0, stop - max(start, floor))
        last = make_plan(last, number, ends, drafts).complete(0)
        position = last.find_position("a")
        assert position is not None
        assert read + lost == position.offsets[source] - floor


def test_the_ids_of_topics_are_kept_and_a_plan_without_any_is_read() -> None:
    plan = BatchPlan(3, 1, "S", "f", {("t", 0): (0, 9)}, {}, {}, ids={"t": "T1", "u": "U1"})
    assert decode_plan(encode_plan(plan)) == plan
    old = json.loads(encode_plan(plan))
    del old["ids"]
    assert decode_plan(json.dumps(old).encode()) == replace(plan, ids={})


def make_log_again(at: int) -> tuple[BatchPlan, Ends]:
    """The plan of a job with topics t and u, whose consumers have come to different offsets, and what the next batch reads
    after t was created again: t has the offsets from 0 to `at`."""
    t, u = ("t", 0), ("u", 0)
    snapshot = {t: 30, u: 30}
    consumers = {
        "all": ConsumerPlan("f", 0, 5, 0, {t: 0, u: 0}),
        "late": ConsumerPlan("f", 0, 5, 2, {t: 39, u: 39}),
        "ahead": ConsumerPlan("f", 0, 5, 2, {t: 70, u: 70}),
        "behind": ConsumerPlan("f", 0, 5, 2, {t: 0, u: 0}, reads={t: (5, 10), u: (6, 12)}, ahead=7),
        "lasts": ConsumerPlan("f", 0, 5, 2, {t: 1, u: 1}, reads={t: (5, 10), u: (6, 12)}, snapshot=snapshot),
    }
    left = {"back": JobPosition({t: 20, u: 20}, 8, "C", snapshot), "away": JobPosition({t: 20, u: 20}, 8, "A")}
    ends = {t: (0, 40), u: (0, 40)}
    last = BatchPlan(7, 1, "S", "f", ends, consumers, {}, True, left, {t: 90, u: 90}, ids={"t": "T1", "u": "U1"})
    return last, {t: (0, at), u: (40, 50)}


@pytest.mark.parametrize("at", [20, 60, 300])
def test_a_topic_that_was_created_again_is_read_from_its_start(at: int) -> None:
    """By every consumer, wherever it was in the former log; in other topics each goes on where it was."""
    last, ends = make_log_again(at)
    t, u = ("t", 0), ("u", 0)
    anew = last.begin_anew({"t"})
    new = {**last.consumers, "back": ConsumerPlan("f", 8, 8, 0, {t: 20, u: 20}, "C", snapshot={t: 30, u: 30})}
    drafts = anew.draft(8, ends, new, Limit(1_000, paces={"behind": Pace(1_000)}))
    begins = dict[str, dict[TopicPartition, int]]()
    for name, each in drafts.items():
        spans = each.reads or ends
        begins[name] = {source: max(start, each.floors.get(source, 0)) for source, (start, _) in spans.items()}
    assert {name: offsets[t] for name, offsets in begins.items()} == dict.fromkeys(drafts, 0)
    assert {name: offsets[u] for name, offsets in begins.items()} == {
        "all": 40, "late": 40, "ahead": 70, "behind": 12, "lasts": 12, "back": 20,
    }  # fmt: skip
    # the last messages of the former log are no messages of the new one
    assert drafts["lasts"].snapshot == drafts["back"].snapshot == {u: 30}
    assert anew.leave(drafts) == {"away": JobPosition({t: 0, u: 20}, 8, "A")}
    assert anew.log_ends == {u: 90} and anew.ids == last.ids
    assert last.begin_anew(()) is last


def test_a_consumer_that_was_added_before_the_first_batch_begins_where_it_wants() -> None:
    """The batch begins where the others begin, so this one catches up. What retention has removed of it counts as lost."""
    a, b, _ = SOURCES
    ends: Ends = {a: (100, 200), b: (5, 8)}
    new = {"old": ConsumerPlan("", 0, 0, 0, {a: 100, b: 5}), "added": ConsumerPlan("", 0, 0, 0, {a: 0, b: 8})}
    limit = Limit(50, log_starts={a: 30, b: 0})
    found = draft_first(0, ends, new, limit)
    assert (found["old"].reads, found["old"].lost) == ({}, 0)
    assert (found["added"].reads, found["added"].lost) == ({a: (30, 80), b: (8, 8)}, 30)
    plan = decode_plan(encode_plan(BatchPlan(0, 1, "S", "", ends, found, {}, is_complete=True, outputs={"out": 3})))
    assert plan.outputs == {"out": 3} and plan.count_behind() == {"added": 120}
    # startingOffsets is where all of them begin
    told = draft_first(0, ends, new, limit, is_start_given=True)
    assert not told["added"].reads


def test_a_consumer_that_comes_back_reads_partitions_that_were_added_meanwhile() -> None:
    """From their start, also those of a topic that was created again with more of them. What retention has removed there
    counts as lost."""
    t, u, v = ("t", 0), ("t", 1), ("t", 2)
    away = JobPosition({t: 20}, 8, "C")
    last = BatchPlan(7, 1, "S", "f", {t: (0, 40), u: (0, 30), v: (0, 9)}, {}, {}, True, {"away": away})
    new = {"away": ConsumerPlan("f", 8, 8, 0, away.offsets, "C")}
    ends = {t: (40, 50), u: (30, 33), v: (9, 9)}
    (each,) = last.draft(8, ends, new, Limit(1_000, log_starts={v: 4})).values()
    assert each.reads == {t: (20, 50), u: (0, 33), v: (4, 9)}
    assert (each.lost, each.floors, each.since, each.before) == (4, {t: 20, u: 0, v: 0}, 8, 8)
    again = replace(last.begin_anew({"t"}), ends={t: (0, 6), u: (0, 5), v: (0, 9)}).draft(
        8, {t: (6, 7), u: (5, 5), v: (9, 9)}, new, Limit(1_000)
    )
    assert again["away"].reads == {t: (0, 7), u: (0, 5), v: (0, 9)}


def test_rates_are_those_of_batches_that_have_ended() -> None:
    """From the end of the batch before, but at most WINDOW_MS before the batch's beginning: a job that waits has no batches."""
    ends = {SOURCES[0]: (0, 9)}
    consumers = {"c": ConsumerPlan("f", 10, 40, 0), "d": ConsumerPlan("f", 0, 0, 0)}
    begun = BatchPlan(3, 100_000, "S", "f", ends, consumers, {}, owner="app-1", ended=99_000)
    assert begun.find_rate("c", 100_500) is None
    over = decode_plan(encode_plan(begun.complete(102_000)))
    assert (over.owner, over.ended, over.is_complete) == ("app-1", 102_000, True)
    assert (over.find_rate("c", 102_001), over.find_rate("d", 102_001), over.find_rate("e", 102_001)) == (
        10.0,
        0.0,
        None,
    )
    assert replace(begun, ended=5_000).complete(105_000).find_rate("c", 105_000) == 30 / ((WINDOW_MS + 5_000) / 1_000)
    later = {SOURCES[0]: (9, 12)}
    # the next batch has the rate until it has ended itself
    drafts = over.draft(4, later, {"c": ConsumerPlan("f", 0, 0, 0)}, Limit(100))
    following = BatchPlan(4, 103_000, "S", "f", later, drafts, {}, ended=over.ended)
    assert following.find_rate("c", 900_000) == 10.0
    assert over.find_rate("c", over.ended + IDLE_MS + 1) == 0.0
    # a clock that was set back
    assert replace(begun, ended=200_000).complete(102_000).find_rate("c", 102_000) is None


@given(
    st.lists(st.tuples(st.integers(-9, 60), st.integers(0, 60)), min_size=1, max_size=6),
    st.integers(1, 100),
)
# one partition is behind, and the batch has many new records in the others
@example([(60, 0), (0, 60), (0, 60)], 30)
# one partition is hardly behind: the others have what it does not need
@example([(60, 0), (1, 60)], 30)
def test_a_consumer_that_catches_up_has_the_batch_and_its_limit(parts: list[tuple[int, int]], limit: int) -> None:
    """`parts`: how far the consumer is below the batch's start in each partition, and how many records the batch has there."""
    ends = {("t", number): (60, 60 + new) for number, (_, new) in enumerate(parts)}
    offsets = {("t", number): 60 - behind for number, (behind, _) in enumerate(parts)}
    reads = catch_up(offsets, ends, limit)
    behind = {source: 60 - at for source, at in offsets.items() if at < 60}
    if not behind:
        assert reads == {}
        return
    read = {source: min(60, stop) - min(60, start) for source, (start, stop) in reads.items()}
    assert all(start == min(offsets[source], ends[source][1]) for source, (start, _) in reads.items())
    assert all(1 <= read[source] <= count for source, count in behind.items())
    # the limit is kept, and is not left unused
    assert sum(read.values()) <= max(limit, len(behind))
    assert sum(read.values()) == sum(behind.values()) or sum(read.values()) > limit - len(behind)
    # it falls behind in no further partition
    assert all(stop == ends[source][1] for source, (_, stop) in reads.items() if stop >= 60)


def test_a_number_of_more_than_64_bits_is_refused() -> None:
    ends, floors = {SOURCES[0]: (0, 9)}, {SOURCES[0]: 4}
    plan = BatchPlan(
        3, 100_000, "S", "f", ends, {"c": ConsumerPlan("f", 10, 40, 0, floors, reads=ends)}, {("out", 1): 2}
    )
    assert decode_plan(encode_plan(plan)) == plan
    for record in enlarge(encode_plan(plan)):
        with pytest.raises(StateUnreadable):
            decode_plan(record)
    for record in enlarge(encode_commit(WriterCommit(3, "f", 7))):
        with pytest.raises(StateUnreadable):
            decode_commit(record)
