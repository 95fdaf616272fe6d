"""Blocks and the records of a job's state: what is read is what was written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.match.record_slice import RecordSlice
from overlay.scan.decode import Records
from overlay.scan.plan import make_plan
from overlay.state.job_plan import BatchPlan, BatchUnfinished, ConsumerPlan, JobPosition, Limit, WriterCommit
from overlay.state.job_plan_codec import decode_commit, decode_plan, encode_commit, encode_plan
from overlay.state.shard_state import StateUnreadable
from overlay.subject.dictionary import Texts
from spark.job.blocks import NO_CONSUMER, TALLY, pack, unpack
from spark.job.numbering import Count, Tables, number, number_consumers, tabulate

NO_FIELDS = np.empty((0, 0), np.int64)


def make_slice(sizes: list[int], subjects: list[bytes]) -> RecordSlice:
    """A slice with a record of each size, whose subjects take turns."""
    rows = len(sizes)
    end = np.cumsum(np.array(sizes, np.int64), dtype=np.int64)
    offset = np.arange(rows, dtype=np.int64) * 3 + 7
    buf = np.arange(int(end[-1]), dtype=np.int64).astype(np.uint8)
    records = Records(
        buf, offset, offset + 1_000, end - np.array(sizes), end, NO_FIELDS, NO_FIELDS, int(offset[-1]) + 1, make_plan()
    )
    bounds = np.cumsum([0, *map(len, subjects)]).astype(np.int64)
    texts = Texts(np.frombuffer(b"".join(subjects), np.uint8).copy(), bounds)
    return RecordSlice(records, (np.arange(rows) % len(subjects)).astype(np.int32), texts, 5, offset + 1)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4),
)
def test_a_block_has_the_records_that_were_packed(sizes: list[int], subjects: list[bytes]) -> None:
    kept, ranks = make_slice(sizes, subjects), np.arange(len(sizes), dtype=np.int64) + 11
    found, found_ranks, found_passed = unpack(pack(kept, ranks, ranks * 2))
    for name in ("buf", "offset", "timestamp", "body", "end"):
        assert getattr(found.records, name).tolist() == getattr(kept.records, name).tolist()
    assert (found.records.next_offset, found.partition) == (kept.records.next_offset, 5)
    assert found.sequences.tolist() == kept.sequences.tolist()
    assert found.codes.tolist() == kept.codes.tolist()
    assert (found.texts.text.tobytes(), found.texts.bounds.tolist()) == (b"".join(subjects), kept.texts.bounds.tolist())
    assert (found_ranks.tolist(), found_passed.tolist()) == (ranks.tolist(), (ranks * 2).tolist())


def test_sequences_follow_the_order_of_tasks() -> None:
    counts = [(0, 0, 0, False, 3), (0, 0, 1, False, 2), (2, 0, 1, False, 4), (1, 1, 0, False, 7), (1, 0, 1, True, 6)]
    tables = tabulate([Count(*each, size=10 * each[-1]) for each in counts], 3, 2, 2)
    assert tables.sizes.tolist() == [90, 70]
    assert tables.deliveries.tolist() == [[5, 0], [0, 7], [4, 0]]
    # dead letters take no sequence, and their writer has to write them
    assert tables.letters.tolist() == [6, 0]
    assert tables.by_writer.tolist() == [[3, 2], [7, 6], [0, 4]]
    # what tasks have counted is apart from what they deliver
    tallies = tabulate([Count(1, 0, TALLY, False, 8, 0), Count(1, NO_CONSUMER, TALLY, False, 9, 0)], 3, 2, 2)
    assert (tallies.scanned.tolist(), tallies.lost.tolist()) == ([[0, 0], [8, 0], [0, 0]], [0, 9, 0])
    assert not tallies.by_writer.any() and not tallies.deliveries.any()
    assert number(tables.deliveries, [100, 50]).tolist() == [[100, 50], [105, 50], [105, 57]]


def make_plan_of(batch: int, before: int, last: int) -> BatchPlan:
    consumers = {"c": ConsumerPlan("f", before, last, 0, {("t", 0): 3})}
    return BatchPlan(batch, 1_000, "S", "s", {("t", 0): (3, 9), ("t/u", 1): (0, 4)}, consumers, {("out", 2): 1})


def count_on(last: BatchPlan, batch: int, count: int) -> ConsumerPlan:
    """The plan of consumer c in a batch that has so many records for it."""
    drafts = last.draft(batch, dict(last.ends), {"c": ConsumerPlan("f", 0, 0, 0)}, Limit(10))
    return number_consumers(last, batch, drafts, tables_of(count))["c"]


def tables_of(count: int, letters: int = 0) -> Tables:
    """The tables of one consumer in a batch of one task."""
    return tabulate([Count(0, 0, 0, False, count, 0), Count(0, 0, 0, True, letters, 0)], 1, 1, 1)


def test_a_batch_that_is_run_again_keeps_its_sequences() -> None:
    last = make_plan_of(4, 10, 15)
    assert count_on(last, 4, 5) == ConsumerPlan("f", 10, 15, 0, {("t", 0): 3})
    assert count_on(last, 5, 5) == ConsumerPlan("f", 15, 20, 0, {("t", 0): 3})
    new = {"c": ConsumerPlan("f", 0, 0, 0)}
    assert number_consumers(None, 0, new, tables_of(5, 2))["c"] == ConsumerPlan("f", 0, 5, 0, letters=2)


def test_a_batch_that_lost_records_goes_on_behind_its_former_sequences() -> None:
    """Some of its deliveries may be committed with these."""
    assert count_on(make_plan_of(4, 10, 15), 4, 3).before == 15


def test_the_state_s_records_are_read_as_written() -> None:
    plan = make_plan_of(4, 10, 15)
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_plan(encode_plan(plan.complete(0))).is_complete
    assert plan.fingerprint == make_plan_of(4, 15, 18).fingerprint
    assert plan.fingerprint != make_plan_of(5, 10, 15).fingerprint
    commit = WriterCommit(4, plan.fingerprint, 5)
    assert decode_commit(encode_commit(commit)) == commit


def test_a_position_of_each_consumer_follows_from_the_plan() -> None:
    """One reads what the batch reads, one begins behind it, one catches up, one has left."""
    ends = {("t", 0): (3, 9), ("t", 1): (0, 4)}
    consumers = {
        "all": ConsumerPlan("f", 10, 15, 0),
        "later": ConsumerPlan("f", 0, 0, 0, {("t", 0): 20}, "claimed"),
        "behind": ConsumerPlan("f", 1, 2, 3, {}, "", {("t", 0): (1, 2), ("t", 1): (0, 4)}),
    }
    gone = JobPosition({("t", 0): 2}, 7, "x")
    begun = BatchPlan(4, 1_000, "S", "s", ends, consumers, {}, left={"gone": gone})
    with pytest.raises(BatchUnfinished, match="batch 4 of the Spark job that delivers consumer 'all' of stream 'S'"):
        begun.find_position("all")
    plan = decode_plan(encode_plan(begun.complete(0)))
    assert plan.find_position("all") == JobPosition({("t", 0): 9, ("t", 1): 4}, 15)
    assert plan.find_position("later") == JobPosition({("t", 0): 20, ("t", 1): 4}, 0, "claimed")
    assert plan.find_position("behind") == JobPosition({("t", 0): 2, ("t", 1): 4}, 2)
    assert plan.find_position("gone") == gone
    assert plan.find_position("never") is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "is no plan"),
        (b"[]", "is no plan"),
        (b'{"version": 2, "kind": "plan"}', "cannot be read"),
        (json.dumps({"version": 3, "kind": "plan"}).encode(), "a plan of version 3; .*Use the version that wrote it"),
        (encode_commit(WriterCommit(1, "p", 2)), "a commit of version 2"),
    ],
)
def test_a_record_that_cannot_be_read(data: bytes, message: str) -> None:
    with pytest.raises(StateUnreadable, match=message):
        decode_plan(data)
