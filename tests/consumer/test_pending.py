from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.arrays import Ints
from overlay.consumer.deadlines import NEVER, Deadlines
from overlay.consumer.pending import Pending, Row, are_among, leave_out
from overlay.consumer.snapshot import decode
from tests.consumer.driver import SECOND, Driver, configure, some


def fill(sequences: Ints) -> Pending:
    pending = Pending()
    seqs = np.arange(1, sequences.size + 1)
    pending.append(
        sequence=sequences, consumer_seq=seqs, first=0, last=0, deadline=NEVER, size=1, deliveries=1, state=Row.WAITING
    )
    return pending


@given(st.sets(st.integers(1, 5000), min_size=1), st.sets(st.integers(1, 5000)))
def test_what_is_settled_is_not_found(known: set[int], settled: set[int]) -> None:
    pending = fill(np.array(sorted(known)))
    pending.become(pending.find(np.array(sorted(settled), np.int64)), Row.GONE)
    left = sorted(known - settled)
    assert pending.count == len(left)
    assert pending.view("sequence")[pending.find(np.arange(1, 5001))].tolist() == left
    assert pending.lead == pending.end or pending.view("sequence")[pending.lead] == left[0]


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_numbers_are_compared_as_numpy_does(numbers: set[int], others: set[int]) -> None:
    own, other = np.array(sorted(numbers), np.int64), np.array(sorted(others), np.int64)
    assert are_among(own, other).tolist() == np.isin(own, other).tolist()
    assert leave_out(own, other).tolist() == np.setdiff1d(own, other).tolist()


def test_settled_rows_leave() -> None:
    pending = fill(np.arange(1, 10_001))
    pending.become(pending.find(np.arange(100, 9_000)), Row.GONE)
    pending.become(pending.find(np.arange(1, 50)), Row.GONE)
    pending.compact()
    assert (pending.end, pending.count) == (1051, 1051)
    assert pending.view("sequence")[pending.lead] == 50
    assert pending.view("consumer_seq")[pending.find(some(60, 9_500))].tolist() == [60, 9_500]


@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=8), st.integers(0, 50))
def test_the_heap_is_a_sorted_list(batches: list[list[int]], now: int) -> None:
    heap, model = Deadlines(), []
    for batch in batches:
        heap.push(np.array(batch, np.int64), np.array(batch, np.int64) * 7)
        model += batch
        times, sequences = heap.pop_due(now // 2)
        due = sorted(time for time in model if time <= now // 2)
        model = [time for time in model if time > now // 2]
        assert (times.tolist(), sequences.tolist()) == (due, [time * 7 for time in due])
    assert heap.first == min(model, default=NEVER)
    assert heap.pop_due(50)[0].tolist() == sorted(model)


@pytest.mark.slow
def test_a_million_pending() -> None:
    """At most 100 MB, read back in seconds; a storm of 100,000 expiring at once is over in well under 3 s."""
    driver = Driver(configure(max_ack_pending=-1, ack_wait=5 * SECOND))
    for _ in range(100):
        driver.offer(10_000)
        driver.now += SECOND // 1000
    nbytes = driver.machine.state.window.nbytes
    assert driver.machine.state.window.pending.count == 1_000_000
    assert nbytes <= 100_000_000
    began = time.thread_time()
    twin = Driver(driver.machine.state.config, [decode(driver.machine.take_checkpoint())])
    restored = time.thread_time() - began
    began = time.thread_time()
    driver.ack(*range(1, 900_001))
    driver.pass_time(6 * SECOND)
    storm = time.thread_time() - began
    assert twin.machine.state.window.pending.count == 1_000_000
    assert driver.machine.state.window.delivered.consumer == 1_100_000
    print(f"{nbytes / 1e6:.0f} MB, restored in {restored:.2f} s, storm in {storm:.2f} s")  # noqa: T201
    assert restored < 5
    assert storm < 3
