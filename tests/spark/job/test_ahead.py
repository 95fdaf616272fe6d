"""num_pending in a job, against a count of all that follows, one record at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlay.client.read.offset_ranges import OffsetRange
from overlay.kafka.log_position import TopicPartition
from overlay.state.job_plan import ConsumerPlan
from overlay.state.job_reads import Ends
from spark.job.ahead import NO_TASK, UNKNOWN, Gap, Passed, count_pending, find_behind, find_gaps, group_gaps, sum_passed
from spark.job.tasks import TaskPlanner

SOURCES: tuple[TopicPartition, ...] = (("t", 0), ("t", 1))

logs = st.lists(st.lists(st.sampled_from("wdgu"), max_size=14), min_size=2, max_size=2)
"""Of each offset of two partitions: read and not delivered, read and delivered, in a gap that the index counts, in one of
which it does not tell. Every offset has a wanted record."""


class Indexed:
    """Logs that are indexed, and a job's consumer of them. Every second offset has a wanted record.

    `sizes`: of the chunks of each log. `skipped`: of each chunk, whether a filter leaves it out.
    """

    def __init__(self, sizes: Sequence[Sequence[int]], skipped: Sequence[bool]) -> None:
        self.bounds = [np.cumsum([0, *row]).tolist() for row in sizes]
        self._skipped = skipped
        self.log_ends = {source: row[-1] for source, row in zip(SOURCES, self.bounds, strict=False)}
        self.scan = SimpleNamespace(fails_on_loss=True)
        self.is_limited = True

    def is_skipped(self, source: TopicPartition, offset: int) -> bool:
        chunk = bisect_right(self.bounds[SOURCES.index(source)], offset)
        return self._skipped[chunk % len(self._skipped)]

    def plan(self, ends: Ends, numbers: Sequence[int], **_: object) -> list[Any]:
        ranges = [
            OffsetRange(source, start + first, start + after)
            for source, (start, stop) in ends.items()
            for first, after in list_runs(
                ["w" if not self.is_skipped(source, at) else "g" for at in range(start, stop)]
            )
        ]
        return [SimpleNamespace(offset_ranges=tuple(ranges[at : at + 2])) for at in range(0, len(ranges), 2)]

    def count_spans(self, numbers: Sequence[int], spans: Sequence[tuple[TopicPartition, int, int]]) -> Any:
        found = [self.count(*span) for span in spans]
        return np.array([found] * len(numbers), np.int64).reshape(len(numbers), len(spans))

    def count(self, source: TopicPartition, first: int, end: int) -> int:
        row = self.bounds[SOURCES.index(source)]
        return sum(at % 2 for at in range(first, end)) if first in row and end in row else UNKNOWN

    def list_batches(self, cuts: Sequence[int]) -> Iterator[Ends]:
        at = dict.fromkeys(self.log_ends, 0)
        for number in range(100):
            ends = {s: (start, min(self.log_ends[s], start + cuts[number % len(cuts)])) for s, start in at.items()}
            yield ends
            at = {source: stop for source, (_, stop) in ends.items()}
            if at == self.log_ends:
                return


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=2),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_what_is_ahead_from_batch_to_batch(sizes: list[list[int]], skipped: list[bool], cuts: list[int]) -> None:
    """The number in a token is right or 0; and it is right where nothing is left out, wherever the batches end."""
    logs: Any = Indexed(sizes, skipped)
    bounds, left = {source: (0, end) for source, end in logs.log_ends.items()}, np.array([UNKNOWN])
    for ends in logs.list_batches(cuts):
        planned = TaskPlanner().plan(logs, ends, {"c": ConsumerPlan("", 0, 0, 0)}, bounds)
        passed, scanned = pass_all(planned.tasks)
        ahead, left = planned.find_ahead(scanned, left)
        for at, (number, source, offset, passed_with) in enumerate(passed):
            later = sum(o % 2 for n, s, o, _ in passed[at + 1 :])
            gaps = [(s, o) for s, (start, stop) in ends.items() for o in range(start, stop) if logs.is_skipped(s, o)]
            read = {each.source for task in planned.tasks for each in task.part.offset_ranges}
            order = SOURCES.index(source), offset
            later += sum(o % 2 for s, o in gaps if (SOURCES.index(s), o) > order or s not in read)
            later += sum(o % 2 for s, (_, stop) in ends.items() for o in range(stop, logs.log_ends[s]))
            pending = int(count_pending(int(ahead[number, 0]), np.array([passed_with]))[0])
            assert pending in (0, later)
            assert pending == later or any(skipped)
        rest = sum(o % 2 for s, (_, stop) in ends.items() for o in range(stop, logs.log_ends[s]))
        assert left[0] in (UNKNOWN, rest) and (left[0] == rest or any(skipped))


def pass_all(tasks: Sequence[Any]) -> tuple[list[tuple[int, TopicPartition, int, int]], Any]:
    """Return task, partition, offset and number passed of each wanted record, and what each task has scanned."""
    found, scanned = [], np.zeros((len(tasks), 1), np.int64)
    for number, task in enumerate(tasks):
        passed = Passed(0, task.gaps)
        for at, each in enumerate(task.part.offset_ranges):
            passed.begin(at)
            offsets = np.arange(each.start, each.stop)
            rows = np.flatnonzero(offsets % 2)
            numbers = passed.number(rows, rows, offsets[rows]).tolist()
            found += [(number, each.source, int(o), n) for o, n in zip(offsets[rows].tolist(), numbers, strict=True)]
            passed.pass_by(rows.size)
        scanned[number, 0] = passed.scanned
    return found, scanned


def list_runs(row: Sequence[str]) -> list[tuple[int, int]]:
    """Return the offsets that are read, in runs."""
    runs: list[tuple[int, int]] = []
    for at, kind in enumerate(row):
        if kind in "wd":
            if runs and runs[-1][1] == at:
                runs[-1] = runs[-1][0], at + 1
            else:
                runs.append((at, at + 1))
    return runs


def divide(kinds: Sequence[Sequence[str]], sizes: Sequence[int]) -> list[list[OffsetRange]]:
    """Return the runs as tasks, each of so many in turn."""
    parts = [OffsetRange(source, *run) for source, row in zip(SOURCES, kinds, strict=True) for run in list_runs(row)]
    tasks: list[list[OffsetRange]] = []
    while parts:
        size = sizes[len(tasks) % len(sizes)]
        tasks.append(parts[:size])
        parts = parts[size:]
    return tasks


def count_ahead(kinds: Sequence[Sequence[str]], beyond: int, source: int, offset: int) -> int:
    """Return how many records follow a delivery, 0 if that is not known. What no batch has read yet follows, of every
    partition, and so does all of a partition that no task reads."""
    count = 0
    for at, row in enumerate(kinds):
        is_read = bool(list_runs(row))
        rest = row[offset + 1 :] if at == source else row if at > source or not is_read else []
        if "u" in rest:
            return 0
        count += len(rest) + beyond
    return count


@given(logs, st.lists(st.integers(1, 6), min_size=1, max_size=8), st.integers(0, 5))
def test_what_is_ahead_of_each_delivery(kinds: list[list[str]], sizes: list[int], beyond: int) -> None:
    """`beyond`: how many offsets the batch leaves at the end of each log."""
    reads = {source: (0, len(row)) for source, row in zip(SOURCES, kinds, strict=True)}
    log_ends = {source: stop + beyond for source, (_, stop) in reads.items()}
    tasks = divide(kinds, sizes)
    gaps = find_gaps(tasks, reads, log_ends)
    counts = np.array([[count_gap(kinds, gap) for gap in gaps]], np.int64).reshape(1, len(gaps))
    grouped = group_gaps(gaps, counts)
    behind = [int(counts[0, at]) for at, gap in enumerate(gaps) if gap.task == NO_TASK]
    base = UNKNOWN if UNKNOWN in behind else sum(behind)
    scanned = np.zeros((len(tasks), 1), np.int64)
    numbers: list[tuple[int, int, int, int]] = []
    for number, task in enumerate(tasks):
        passed = Passed(0, grouped.get(number, {}))
        for at, each in enumerate(task):
            passed.begin(at)
            offsets, source = np.arange(each.start, each.stop), SOURCES.index(each.source)
            rows = np.array([i for i, offset in enumerate(offsets.tolist()) if kinds[source][offset] == "d"], np.int64)
            found_numbers = passed.number(np.arange(offsets.size), rows, offsets[rows]).tolist()
            numbers += ((number, source, int(o), n) for o, n in zip(offsets[rows], found_numbers, strict=True))
            passed.pass_by(offsets.size)
        scanned[number, 0] = passed.scanned
    passing = sum_passed(scanned, [grouped.get(at, {}) for at in range(len(tasks))], [(0,)] * len(tasks))
    ahead = passing.sum_ahead(np.array([base], np.int64))
    for number, source, offset, passed_with in numbers:
        pending = count_pending(int(ahead[number, 0]), np.array([passed_with]))
        assert pending.tolist() == [count_ahead(kinds, beyond, source, offset)]


def count_gap(kinds: Sequence[Sequence[str]], gap: Gap) -> int:
    row = kinds[SOURCES.index(gap.source)]
    return UNKNOWN if "u" in row[gap.first : gap.end] else gap.end - gap.first


def test_what_is_ahead_behind_a_batch() -> None:
    """As the index tells it, else by what was ahead before the batch."""
    known = np.array([5, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN])
    whole, carried = np.array([9, 9, UNKNOWN, UNKNOWN, 9]), np.array([8, 8, 8, UNKNOWN, 8])
    passed = np.array([2, 2, 2, 2, UNKNOWN])
    assert find_behind(known, (whole, carried), passed).tolist() == [5, 7, 6, UNKNOWN, UNKNOWN]
    # the log has lost records since they were counted
    assert find_behind(np.array([UNKNOWN]), (np.array([1]),), np.array([4])).tolist() == [UNKNOWN]
