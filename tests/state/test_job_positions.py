"""Where the consumers of Spark jobs are, by the state and the plans."""

from __future__ import annotations

from dataclasses import replace

from overlay.kafka.log_position import LogPosition
from overlay.state.job_pace import PaceState
from overlay.state.job_plan import BatchPlan, ConsumerPlan, JobPosition
from overlay.state.job_positions import InJob, find_in_jobs, find_in_state, find_job_places
from overlay.state.lag import Place
from overlay.state.shard_state import ConsumerState, ShardState

C = ("S", "c")
T0, T1 = ("t", 0), ("t", 1)
BATCH = BatchPlan(
    3, 1_000, "S", "", {T0: (30, 45)}, {"c": ConsumerPlan("", 10, 14, 0, claim="C")}, {}, owner="app-7"
).complete(2_000)
MINE = ConsumerState(7, {T0: LogPosition(20)}, job="J", claim="C")
AFTER = JobPosition({T0: 45}, 14, "C")


def test_the_entry_in_the_state_names_the_job() -> None:
    others = {"I": BATCH, "J": BATCH}
    assert find_in_jobs(C, MINE, others) == InJob(C, "J", AFTER, BATCH)
    assert find_in_jobs(C, replace(MINE, job=""), others) is None, "the service has it"
    # claimed since, and no plan written: the entry has the position
    assert find_in_jobs(C, replace(MINE, claim="D"), others) == InJob(C, "J", JobPosition({T0: 20}, 7, "D"), None)
    assert find_in_jobs(C, MINE, {"I": BATCH}) == InJob(C, "J", JobPosition({T0: 20}, 7, "C"), None)


def test_without_an_entry_the_plan_that_delivers_the_consumer_counts() -> None:
    left = replace(BATCH, consumers={}, left={"c": AFTER})
    assert find_in_jobs(C, None, {"A": left, "B": BATCH}) == InJob(C, "B", AFTER, BATCH)
    assert find_in_jobs(C, None, {"A": left}) == InJob(C, "A", AFTER, None)
    assert find_in_jobs(C, None, {"A": replace(BATCH, name="R")}) is None
    assert find_in_jobs(C, None, {}) is None


def test_without_a_job_a_consumer_is_where_the_service_has_left_it() -> None:
    state = ShardState({("S", T0): LogPosition(9), ("S", T1): LogPosition(8)}, {C: replace(MINE, job="")})
    found = InJob(C, "", JobPosition({T0: 20, T1: 8}, 7), None)
    assert find_in_state(C, state, {"J": BATCH}) == found
    assert found.describe() == "no Spark job has begun with it"
    taken = ShardState({}, {C: MINE})
    assert find_in_state(C, taken, {"J": BATCH}) == InJob(C, "J", AFTER, BATCH)
    for unknown in (None, ShardState()):
        assert find_in_state(C, unknown, {"J": BATCH}) == InJob(C, "J", AFTER, BATCH)
        assert find_in_state(C, unknown, {}) is None


def test_what_a_consumer_says_of_its_job() -> None:
    found = InJob(C, "J", AFTER, BATCH)
    assert found.describe() == "Spark job 'J' delivers it, as application app-7"
    assert (found.owner, found.active_ms, found.find_rate(2_000)) == ("app-7", 2_000, 2.0)
    waiting = replace(BATCH.consumers["c"], pace=PaceState(spent_until=9_000))
    assert replace(found, plan=replace(BATCH, consumers={"c": waiting})).active_ms == 9_000
    unknown = replace(found, plan=None)
    assert (unknown.describe(), unknown.owner, unknown.active_ms) == ("Spark job 'J' delivers it", "", 0)
    assert unknown.find_rate(2_000) is None


def test_a_place_without_an_end_is_no_lag_of_zero() -> None:
    found = InJob(C, "J", JobPosition({T0: 45, T1: 9}, 14), None)
    assert find_job_places({C: found}, {T0: 50}) == {C: {T0: Place(45, 50, None, False), T1: Place(9, -1, None, False)}}
