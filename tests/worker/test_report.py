"""Rates over the last ten seconds, however many rounds there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from overlay.clock import now_ms, now_ns
from overlay.errors import CorruptBatch
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.schemas.gate import Wait
from overlay.state.lag import Lags
from overlay.state.shard_state import ConsumerState, ShardState
from overlay.worker.cursors.cursors import Cursors
from overlay.worker.cursors.table import State
from overlay.worker.job_watch import JobStandings
from overlay.worker.places import find_places
from overlay.worker.rates import SLOT_MS, WINDOW_MS, Rates
from overlay.worker.report import PARKED, report_consumer, report_readiness, report_service
from overlay.worker.round.task import Counts
from tests.control.registries import make_config

CONSUMER = ("S", "c")


def test_rates_of_many_rounds() -> None:
    """A thousand rounds a second for half a minute: what is kept is bounded, and the rate that of the last ten seconds."""
    rates = Rates(began=0)
    for now in range(30_000):
        records = 1 if now < 20_000 else 3
        rates.note(Counts(delivered={CONSUMER: records}, decoded={"S": 2}, newest={CONSUMER: now}), now)
    assert rates.delivered[CONSUMER] == 20_000 + 3 * 10_000
    assert rates.newest[CONSUMER] == 29_999
    assert abs(rates.of_consumer(CONSUMER, 30_000) - 3_000) <= 3_000 * SLOT_MS / WINDOW_MS
    assert abs(rates.of_stream("S", 30_000) - 2_000) <= 2_000 * SLOT_MS / WINDOW_MS
    assert len(rates._recent) <= WINDOW_MS // SLOT_MS + 1
    assert rates.of_consumer(CONSUMER, 30_000 + 2 * WINDOW_MS) == 0


def test_what_is_noted_belongs_to_its_source() -> None:
    rates, counts = Rates(began=0), Counts(delivered=Counter({CONSUMER: 1}))
    rates.note(counts, 10)
    rates.note(counts, 20)
    assert counts.delivered[CONSUMER] == 1
    assert rates.of_consumer(CONSUMER, 1_000) == 2


def test_rates_of_first_reads() -> None:
    rates = Rates(began=0)
    for now in range(30_000):
        rates.note_first_reads("S", 1 if now < 20_000 else 3, now)
    assert abs(rates.of_first_reads("S", 30_000) - 3_000) <= 3_000 * SLOT_MS / WINDOW_MS
    assert len(rates._first) <= WINDOW_MS // SLOT_MS + 1
    assert rates.of_first_reads("T", 30_000) == 0
    assert rates.of_first_reads("S", 30_000 + 2 * WINDOW_MS) == 0


def test_dead_letters_are_counted_by_reason() -> None:
    rates, other = Rates(began=0), ("S", "d")
    rates.note(Counts(dead_letters={(CONSUMER, "term"): 2, (other, "term"): 1}), 10)
    rates.note(Counts(dead_letters={(CONSUMER, "max_deliver"): 1, (CONSUMER, "term"): 1}), 20)
    assert rates.dead_letters == {CONSUMER: {"term": 3, "max_deliver": 1}, other: {"term": 1}}
    rates.forget([CONSUMER])
    assert rates.dead_letters.keys() == {other}


def test_counts_of_a_deleted_consumer_are_dropped() -> None:
    rates, other = Rates(began=0), ("S", "d")
    rates.note(Counts(delivered=Counter({CONSUMER: 5, other: 1}), newest={CONSUMER: 7}), 10)
    rates.forget([CONSUMER])
    assert (rates.delivered[CONSUMER], rates.newest, rates.of_consumer(CONSUMER, 20)) == (0, {}, 0)
    assert rates.list_active(20) == {other} == {*rates.delivered}


def report(
    cursors: Cursors,
    pause_until: int | None = None,
    waits: Mapping[str, Mapping[TopicPartition, Wait]] | None = None,
    stopped: Mapping[str, str] = MappingProxyType({}),
    blocked: Collection[str] = (),
) -> dict[str, Any]:
    """What /consumers says of CONSUMER, of a session with these cursors, and with these streams `stopped` and `blocked`."""
    config = make_config("c").model_copy(update={"pause_until": pause_until})
    assignment = SimpleNamespace(stalled={}, stopped=stopped, blocked=blocked, readers={CONSUMER: None})
    estimate = SimpleNamespace(find=lambda consumer, source: None)
    session = SimpleNamespace(
        assignment=assignment,
        cursors=cursors,
        dispatch_loop=None,
        pending_estimate=estimate,
        gates={stream: SimpleNamespace(waits=each) for stream, each in (waits or {}).items()},
        commits=SimpleNamespace(state=ShardState()),
    )
    loaded, lags = SimpleNamespace(consumers={CONSUMER: config}), Lags()
    lags.note(find_places(cast("Any", session), {}), now_ms())
    return report_consumer(
        cast("Any", loaded), [cast("Any", session)], Rates(began=0), lags, CONSUMER, False, JobStandings()
    )


def test_a_consumer_that_is_starting_has_the_reason_of_its_worker() -> None:
    consumers = {("S", "c"): make_config("c"), ("S", "d"): make_config("d")}
    loaded = SimpleNamespace(consumers=consumers, streams={})
    found = report_service(
        cast("Any", loaded), [], Rates(began=0), Lags(), {("S", "d")}, JobStandings(), "loading kernels"
    )
    told = [(each["state"], each["reason"]) for each in found["consumers"]]
    assert told == [("starting", "loading kernels"), ("elsewhere", "")]


def test_readiness_names_each_stop_once_and_goes_through_no_partition() -> None:
    def make_session(stopped: dict[str, str], halts: dict[Any, str]) -> Any:
        assignment = SimpleNamespace(stalled={}, stopped=stopped)
        return SimpleNamespace(assignment=assignment, cursors=SimpleNamespace(halts=halts))

    sessions = [make_session({"S": "gone"}, {}), make_session({"S": "gone"}, {("S", ("t", 0)): "corrupt"})]
    sessions.append(make_session({}, {("T", ("t", 0)): "torn", ("OLD", ("t", 0)): "torn"}))
    shards = [SimpleNamespace(session=session, mine={}, number=n, trouble="") for n, session in enumerate(sessions)]
    loaded = SimpleNamespace(consumers={}, streams={"T": None, "S": None})
    found = report_readiness(cast("Any", loaded), cast("Any", shards), "")
    assert found == {"ready": True, "reasons": ["S: gone; corrupt", "T: torn"]}


def place_at(offset: int) -> Cursors:
    cursors = Cursors()
    cursors.enlist(CONSUMER, ConsumerState(), {("t", 0): LogPosition(offset)})
    (cursor,) = cursors.of(("S", ("t", 0)))
    cursor.stable_end = 9
    return cursors


def test_a_parked_consumer_is_reported_with_its_reason_and_positions() -> None:
    cursors = place_at(5)
    assert (report(cursors)["state"], report(cursors)["positions"]) == ("running", {"t-0": 5})
    cursors.park({CONSUMER})
    found = report(cursors)
    assert (found["state"], found["reason"], found["positions"]) == ("parked", PARKED, {"t-0": 5})
    assert report(cursors, now_ns() + 10**12)["state"] == "paused"
    cursors.resume({CONSUMER}, 0)
    assert report(cursors)["state"] == "starting"


def test_positions_and_lag_begin_at_the_first_message_that_waits_to_be_delivered() -> None:
    cursors = place_at(5)
    cursors.hold(CONSUMER, {("t", 0): 3})
    found = report(cursors)
    assert (found["state"], found["positions"], found["lag_records"]) == ("running", {"t-0": 3}, 9 - 3)
    cursors.park({CONSUMER})
    assert (report(cursors)["state"], report(cursors)["positions"]) == ("parked", {"t-0": 3})


def test_a_consumer_of_a_halted_partition_is_reported_as_stopped() -> None:
    cursors = place_at(5)
    (cursor,) = cursors.of(("S", ("t", 0)))
    cursor.state = State.HALTED
    cursors.halts["S", ("t", 0)] = CorruptBatch("t", 0, 5, "torn")
    found = report(cursors)
    assert found["state"] == "stopped" and found["reason"].startswith("t-0@5: torn")


def test_a_consumer_of_a_stopped_stream_waits_if_only_a_transaction_stops_it() -> None:
    why = {"S": "the ledger waits"}
    for blocked, state in ((), "stopped"), (("S",), "waiting"):
        found = report(place_at(5), stopped=why, blocked=blocked)
        assert (found["state"], found["reason"]) == (state, "the ledger waits")


def test_a_consumer_whose_records_wait_for_a_schema_says_since_when() -> None:
    place, since = ("t", 0), 1_700_000_000_000
    waits = {"S": {place: Wait(8, since, 5, "it is down")}, "OTHER": {place: Wait(9, since, 0)}}
    found = report(place_at(5), waits=waits)
    assert found["state"] == "running"
    assert found["reason"] == "t-0 waits for schema 8 of the registry since 2023-11-14T22:13:20Z: it is down"
