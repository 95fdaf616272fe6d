"""A round in parts: whatever part a crash comes after, each consumer is before all of its records or behind them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.kafka.log_position import LogPosition
from overlay.output.assemble import Body
from overlay.output.batch_builder import OutputBatch
from overlay.output.encoded_batch import EncodedBatch
from overlay.scan.codec import Codec
from overlay.state.shard_state import ConsumerId, ConsumerState, Delta, ShardState
from overlay.worker.commit.transaction_parts import split

SOURCES = (("in", 0), ("in", 1))
BATCH = EncodedBatch(Body(np.zeros(8, np.uint8), size=8, count=1), Codec.NONE, transactional=True)


def name(number: int) -> ConsumerId:
    return ("S", f"c{number}")


def make_before(count: int, catching_up: set[int]) -> ShardState:
    state = ShardState(cursors={("S", source): LogPosition(10) for source in SOURCES})
    for number in range(count):
        own = {SOURCES[0]: LogPosition(4)} if number in catching_up else {}
        state.consumers[name(number)] = ConsumerState(1, own)
    return state


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), max_size=8),
    st.sets(st.integers(0, 7)),
    st.integers(1, 6),
)
def test_every_prefix_is_a_state_one_can_go_on_from(
    outputs: list[list[int]], catching_up: set[int], limit: int
) -> None:
    """Consumer i writes to the partitions outputs[i]; the round moves those at the cursor from 10 to 20, others from 4 to 9."""
    before = make_before(len(outputs), catching_up)
    batches = [((name(i),), OutputBatch("out", p, BATCH)) for i, partitions in enumerate(outputs) for p in partitions]
    after = {
        name(i): ConsumerState(2, {SOURCES[0]: LogPosition(9)} if i in catching_up else {}) for i in range(len(outputs))
    }
    delta = Delta(cursors={("S", SOURCES[0]): LogPosition(20)}, consumers=after)
    parts = list(split(batches, delta, before.cursors, limit))
    assert [out for part, _ in parts for out in part] == [out for _, out in batches]
    state, given_to = make_before(len(outputs), catching_up), set[int]()
    for number, (sent, part) in enumerate(parts):
        widest = max((len(outputs[i]) for i in range(len(outputs))), default=0)
        assert len({out.partition for out in sent}) <= max(limit, widest)
        state.apply(part)
        given_to |= {
            i for i in range(len(outputs)) if any(out is mine for out in sent for (c,), mine in batches if c == name(i))
        }
        if number == len(parts) - 1:
            given_to = set(range(len(outputs)))
        for i in range(len(outputs)):
            at = 9 if i in catching_up else 20
            if i not in given_to:
                at = 4 if i in catching_up else 10
            assert state.log_position_of(name(i), SOURCES[0]) == LogPosition(at)
            assert state.log_position_of(name(i), SOURCES[1]) == LogPosition(10)
            assert state.consumers[name(i)].sequence == (2 if i in given_to else 1)
    assert state.cursors["S", SOURCES[0]] == LogPosition(20)
    assert state.consumers == after


@pytest.mark.parametrize(("limit", "parts"), [(1, 3), (2, 2), (3, 1)])
def test_as_few_parts_as_the_limit_allows(limit: int, parts: int) -> None:
    batches = [((name(i),), OutputBatch("out", i, BATCH)) for i in range(3)]
    delta = Delta(consumers={name(i): ConsumerState(2) for i in range(3)})
    assert len(list(split(batches, delta, {}, limit))) == parts


def test_shared_partitions_count_once() -> None:
    batches = [((name(i),), OutputBatch("out", 0, BATCH)) for i in range(50)]
    delta = Delta(consumers={name(i): ConsumerState(2) for i in range(50)})
    assert len(list(split(batches, delta, {}, 1))) == 1


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), st.integers(0, 5)), max_size=12
    ),
    st.integers(1, 4),
)
def test_consumers_that_share_batches_stay_together(owned: list[tuple[list[int], int]], limit: int) -> None:
    """Each batch with its consumers and its partition: in one part with all others of these, in their order."""
    batches = [(tuple(map(name, owners)), OutputBatch("out", partition, BATCH)) for owners, partition in owned]
    mine = {consumer for consumers, _ in batches for consumer in consumers}
    delta = Delta(consumers={consumer: ConsumerState(2) for consumer in mine})
    parts = list(split(batches, delta, {}, limit))
    sent = [[id(out) for out in part] for part, _ in parts]
    assert sorted(each for part in sent for each in part) == sorted(id(out) for _, out in batches)
    for consumer in mine:
        own = [id(out) for consumers, out in batches if consumer in consumers]
        (holding,) = [part for part in sent if own[0] in part]
        assert [each for each in holding if each in own] == own
    for number, (batches_sent, told) in enumerate(parts[:-1]):
        there = {id(out) for out in batches_sent}
        owners = {consumer for consumers, out in batches if id(out) in there for consumer in consumers}
        assert told.consumers.keys() == owners, number


def test_nothing_to_send_is_one_part() -> None:
    delta = Delta(cursors={("S", SOURCES[0]): LogPosition(20)})
    assert list(split([], delta, {}, 1)) == [([], delta)]
