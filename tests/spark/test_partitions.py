"""Tasks: together they read what the plan reads, each offset once and in order, in shares of about the same weight."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.client.read.offset_ranges import ALL_PARTS, FetchRange, OffsetRange, SizedRoute
from overlay.index.skip.plan import Route, Saving
from overlay.index.skip.probes import Part as Question
from overlay.kafka.log_position import TopicPartition
from spark.partitions import LEAST_BYTES, RECORD_BYTES, TaskPartition, divide, weigh_fetch_range

NOTHING = Saving(0, 0, 0, 0, 0)


@st.composite
def offset_ranges(draw: st.DrawFn) -> list[OffsetRange]:
    """Partitions with a way through them and without; spans touch where only the residual differs."""
    found = []
    for partition in range(draw(st.integers(0, 4))):
        source: TopicPartition = ("t", partition)
        start = draw(st.integers(0, 100))
        stop = start + draw(st.integers(0, 100_000))
        if draw(st.booleans()):
            found.append(OffsetRange(source, start, stop))
            continue
        cuts = sorted(draw(st.sets(st.integers(start, stop), max_size=12)))
        pairs = [(a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
        first, after = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
        residual = np.array([draw(st.sampled_from([int(Question.FILTER), int(ALL_PARTS)])) for _ in pairs], np.uint8)
        sizes = np.array([draw(st.integers(-1, 5_000_000)) for _ in pairs], np.int64)
        found.append(
            OffsetRange(
                source, start, stop, sized_route=SizedRoute(Route(first, after, residual, NOTHING, True), sizes)
            )
        )
    return found


def list_offsets(parts: Sequence[OffsetRange]) -> list[tuple[TopicPartition, int, int]]:
    """What is read, neighbours joined."""
    found: list[tuple[TopicPartition, int, int]] = []
    for part in parts:
        for each in part.fetch_ranges():
            if found and found[-1][0] == part.source and found[-1][2] == each.start:
                found[-1] = (part.source, found[-1][1], each.stop)
            else:
                found.append((part.source, each.start, each.stop))
    return found


@settings(deadline=None)
@given(offset_ranges(), st.integers(20_000, 1 << 24), st.integers(1, 20))
def test_tasks_read_what_the_plan_reads(plan: list[OffsetRange], task_bytes: int, min_tasks: int) -> None:
    tasks = divide(plan, task_bytes, min_tasks)
    assert list_offsets([part for task in tasks for part in task]) == list_offsets(plan)
    assert all(any(list(part.fetch_ranges()) for part in task) for task in tasks)
    for part in (part for task in tasks for part in task):
        (whole,) = (each for each in plan if each.source == part.source)
        for each in part.fetch_ranges():
            assert part.find_residual(each.start, each.start + 1) == whole.find_residual(each.start, each.start + 1)


@settings(deadline=None)
@given(offset_ranges(), st.integers(LEAST_BYTES, 1 << 24), st.integers(1, 20))
def test_tasks_weigh_about_the_same(plan: list[OffsetRange], task_bytes: int, min_tasks: int) -> None:
    tasks = divide(plan, task_bytes, min_tasks)
    fetch_ranges = [part for each in plan for part in each.fetch_ranges()]
    total = sum(map(weigh_fetch_range, fetch_ranges))
    wanted = max(-(-total // task_bytes), min(min_tasks, -(-total // LEAST_BYTES))) if total else 0
    assert len(tasks) <= wanted + len(fetch_ranges)
    if total:
        # a fetch range fills no more tasks than it has offsets, however heavy these are
        share = -(-total // wanted)
        divisible = sum(min(weigh_fetch_range(part), (part.stop - part.start) * share) for part in fetch_ranges)
        assert len(tasks) >= divisible // share - len(fetch_ranges)


def test_a_large_leg_is_cut_evenly() -> None:
    tasks = divide([OffsetRange(("t", 0), 0, 1_000_000)], 16 * 1024 * RECORD_BYTES, 1)
    counts = [part.stop - part.start for task in tasks for part in task]
    assert len(counts) == -(-1_000_000 // (16 * 1024)) and max(counts) - min(counts) <= len(counts)
    assert weigh_fetch_range(FetchRange(0, 10)) == 10 * RECORD_BYTES and weigh_fetch_range(FetchRange(0, 10, 0)) == 1


@settings(deadline=None)
@given(offset_ranges())
def test_tasks_travel(plan: list[OffsetRange]) -> None:
    for task in divide(plan, 1 << 20, 4):
        part = TaskPartition(task, sequenced=True)
        again = pickle.loads(pickle.dumps(part))
        assert list_offsets(again.offset_ranges) == list_offsets(part.offset_ranges) and again.sequenced
