"""Tasks: together they read what the plan reads, each offset once and in order, in shares of about the same weight."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.client.read.offset_ranges import ALL_PARTS, Leg, Stretch, Way
from overlay.index.skip.plan import Route, Saving
from overlay.index.skip.probes import Part as Question
from overlay.kafka.log_position import TopicPartition
from spark.partitions import LEAST_BYTES, RECORD_BYTES, TaskPartition, divide, weigh_leg

NOTHING = Saving(0, 0, 0, 0, 0)


@st.composite
def stretches(draw: st.DrawFn) -> list[Stretch]:
    """Partitions with a way through them and without; spans touch where only the residual differs."""
    found = []
    for partition in range(draw(st.integers(0, 4))):
        source: TopicPartition = ("t", partition)
        start = draw(st.integers(0, 100))
        stop = start + draw(st.integers(0, 100_000))
        if draw(st.booleans()):
            found.append(Stretch(source, start, stop))
            continue
        cuts = sorted(draw(st.sets(st.integers(start, stop), max_size=12)))
        pairs = [(a, b) for a, b in pairwise(cuts) if draw(st.booleans())]
        first, after = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
        residual = np.array([draw(st.sampled_from([int(Question.FILTER), int(ALL_PARTS)])) for _ in pairs], np.uint8)
        sizes = np.array([draw(st.integers(-1, 5_000_000)) for _ in pairs], np.int64)
        found.append(Stretch(source, start, stop, way=Way(Route(first, after, residual, NOTHING, True), sizes)))
    return found


def list_offsets(parts: Sequence[Stretch]) -> list[tuple[TopicPartition, int, int]]:
    """What is read, neighbours joined."""
    found: list[tuple[TopicPartition, int, int]] = []
    for part in parts:
        for leg in part.legs():
            if found and found[-1][0] == part.source and found[-1][2] == leg.start:
                found[-1] = (part.source, found[-1][1], leg.stop)
            else:
                found.append((part.source, leg.start, leg.stop))
    return found


@settings(deadline=None)
@given(stretches(), st.integers(20_000, 1 << 24), st.integers(1, 20))
def test_tasks_read_what_the_plan_reads(plan: list[Stretch], task_bytes: int, min_tasks: int) -> None:
    tasks = divide(plan, task_bytes, min_tasks)
    assert list_offsets([part for task in tasks for part in task]) == list_offsets(plan)
    assert all(any(list(part.legs()) for part in task) for task in tasks)
    for part in (part for task in tasks for part in task):
        (whole,) = (each for each in plan if each.source == part.source)
        for leg in part.legs():
            assert part.find_residual(leg.start, leg.start + 1) == whole.find_residual(leg.start, leg.start + 1)


@settings(deadline=None)
@given(stretches(), st.integers(LEAST_BYTES, 1 << 24), st.integers(1, 20))
def test_tasks_weigh_about_the_same(plan: list[Stretch], task_bytes: int, min_tasks: int) -> None:
    tasks = divide(plan, task_bytes, min_tasks)
    legs = [leg for each in plan for leg in each.legs()]
    total = sum(map(weigh_leg, legs))
    wanted = max(-(-total // task_bytes), min(min_tasks, -(-total // LEAST_BYTES))) if total else 0
    assert len(tasks) <= wanted + len(legs)
    assert len(tasks) >= min(wanted, sum(leg.stop - leg.start for leg in legs)) - len(legs)


def test_a_large_leg_is_cut_evenly() -> None:
    tasks = divide([Stretch(("t", 0), 0, 1_000_000)], 16 * 1024 * RECORD_BYTES, 1)
    counts = [part.stop - part.start for task in tasks for part in task]
    assert len(counts) == -(-1_000_000 // (16 * 1024)) and max(counts) - min(counts) <= len(counts)
    assert weigh_leg(Leg(0, 10)) == 10 * RECORD_BYTES and weigh_leg(Leg(0, 10, 0)) == 1


@settings(deadline=None)
@given(stretches())
def test_tasks_travel(plan: list[Stretch]) -> None:
    for task in divide(plan, 1 << 20, 4):
        part = TaskPartition(task, sequenced=True)
        again = pickle.loads(pickle.dumps(part))
        assert list_offsets(again.stretches) == list_offsets(part.stretches) and again.sequenced
