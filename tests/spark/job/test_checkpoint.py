"""A checkpoint that does not belong to a job's state is refused, since records would be passed over or come twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from overlay.state.job_plan import BatchPlan
from spark.job.checkpoint import ForeignCheckpoint, check_batch, check_stream

T, U = ("t", 0), ("u", 1)
IDS = {"t": "T1", "u": "U1"}
LAST = BatchPlan(4, 1_000, "S", "f", {T: (10, 20), U: (0, 3)}, {}, {}, is_complete=True, ids=IDS)


def check(
    last: BatchPlan | None,
    batch: int,
    ends: dict[tuple[str, int], tuple[int, int]],
    ids: Mapping[str, str] = MappingProxyType(IDS),
    *,
    may_jump: bool = False,
) -> None:
    check_batch("J", "o.spark.J", last, batch, ends, ids, may_jump=may_jump)


@pytest.mark.parametrize(
    ("batch", "ends"),
    [
        (4, {T: (10, 20), U: (0, 3)}),
        (5, {T: (20, 29), U: (3, 3)}),
        # batches without work have no plan
        (9, {T: (20, 29), U: (3, 4)}),
        # partitions that were added, and a topic that has left the stream
        (5, {T: (20, 29), U: (3, 3), ("t", 1): (7, 9)}),
        (5, {T: (20, 21)}),
    ],
)
def test_the_batch_behind_the_last_one(batch: int, ends: dict[tuple[str, int], tuple[int, int]]) -> None:
    check(LAST, batch, ends)
    check(replace(LAST, is_complete=False), batch, ends)


def test_a_new_job_begins_with_the_first_batch() -> None:
    check(None, 0, {T: (5, 9)})
    with pytest.raises(ForeignCheckpoint, match=r"begins batch 1, and job 'J' .* topic o\.spark\.J is gone .*Restore"):
        check(None, 1, {T: (5, 9)})


@pytest.mark.parametrize(
    ("batch", "ends", "message"),
    [
        (3, {T: (20, 29), U: (3, 3)}, "begins batch 3, and job 'J' has come to batch 4"),
        (4, {T: (10, 21), U: (0, 3)}, "batch 4 of the checkpoint has other offsets than batch 4 of job 'J'"),
        (
            5,
            {T: (21, 29), U: (3, 3)},
            "batch 5 of the checkpoint begins at offset 21 of t-0, .* come to offset 20 there",
        ),
        (5, {T: (20, 29), U: (2, 3)}, "batch 5 of the checkpoint begins at offset 2 of u-1, .* come to offset 3 there"),
    ],
)
def test_another_job_s_checkpoint(batch: int, ends: dict[tuple[str, int], tuple[int, int]], message: str) -> None:
    with pytest.raises(ForeignCheckpoint, match=message):
        check(LAST, batch, ends)


def test_retention_moves_the_start_of_a_batch_that_is_run_again() -> None:
    """The first offset of a partition that came with it is where its log begins now. Its end, or a lower start, is another
    batch's."""
    for ends in ({T: (15, 20), U: (2, 3)}, {T: (10, 20), U: (3, 3)}):
        check(LAST, 4, ends)
    for ends in ({T: (9, 20), U: (0, 3)}, {T: (10, 20)}, {T: (10, 20), U: (0, 3), ("t", 1): (0, 0)}):
        with pytest.raises(ForeignCheckpoint, match="batch 4 of the checkpoint has other offsets"):
            check(LAST, 4, ends)


def test_after_a_loss_that_is_allowed_a_batch_begins_elsewhere() -> None:
    check(LAST, 5, {T: (0, 9), U: (3, 3)}, may_jump=True)
    check(LAST, 5, {T: (25, 29), U: (3, 3)}, may_jump=True)


def test_the_state_of_a_job_on_another_stream() -> None:
    """Although the two have no partition in common, and the checkpoint has come further."""
    check(LAST, 9, {("elsewhere", 0): (5, 9)})
    for last in (None, LAST, replace(LAST, is_complete=False)):
        check_stream("J", "o.spark.J", last, "S")
    check_stream("J", "o.spark.J", None, "R")
    with pytest.raises(
        ForeignCheckpoint, match=r"topic o\.spark\.J has .* job 'J' on stream 'S', .* on stream 'R'\. Give .*--job"
    ):
        check_stream("J", "o.spark.J", LAST, "R")


def test_topics_that_were_created_again() -> None:
    """A batch of other topics is another one, though its offsets are the same."""
    same, later, again = dict(LAST.ends), {T: (20, 29), U: (3, 3)}, {**IDS, "t": "T2"}
    with pytest.raises(
        ForeignCheckpoint, match=r"batch 4 .* topics that were created again \(t\) since batch 4 of job 'J'"
    ):
        check(LAST, 4, same, again, may_jump=True)
    with pytest.raises(
        ForeignCheckpoint, match=r"batch 5 .* created again \(t\) since batch 4 .* failOnDataLoss=false"
    ):
        check(LAST, 5, later, again)
    check(LAST, 5, {T: (0, 9), U: (3, 3)}, again, may_jump=True)
    # the checkpoint, or the plan, is of an earlier version; a topic has come to the stream
    for ids in ({}, {"u": "U1"}, {**IDS, "new": "N"}):
        check(LAST, 4, same, ids)
        check(LAST, 5, later, ids)
    check(replace(LAST, ids={}), 5, later, again)
