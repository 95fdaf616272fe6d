"""Statuses folded into rows, against a twin that keeps every record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.findings import Expected, look
from overlay.fleet.memory import FORGET_MS, WINDOW_MS, KafkaTime, Memory, WorkerRow
from overlay.fleet.picture import describe
from overlay.fleet.status import Refusal, ShardStatus, encode

from .statuses import NOW, make_consumer, make_status, make_stream


def get_worker(memory: Memory, name: str = "a") -> WorkerRow:
    found = memory.find_worker(name)
    assert found is not None
    return found


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 9),
        st.lists(st.sampled_from(["c", "d", "e"]), max_size=2, unique=True),
        st.lists(st.sampled_from(["S/c", "S/d"]), max_size=1),
    ),
    max_size=30,
)


@given(EVENTS)
def test_the_newest_status_counts(events: list[tuple[str, int, list[str], list[str]]]) -> None:
    memory = Memory()
    workers: dict[str, tuple[int, int]] = {}
    consumers: dict[str, tuple[str, int]] = {}
    refused = 0
    for at, (worker, number, names, gone) in enumerate(events):
        told = tuple(make_consumer(name, sequence=at) for name in names)
        status = make_status(worker, number=number, consumers=told, gone=tuple(gone))
        memory.fold(status, NOW + at)
        # the twin: a record counts if its number is higher than all before it
        if number <= workers.get(worker, (-1, 0))[0]:
            refused += 1
            continue
        workers[worker] = number, NOW + at
        consumers |= {f"S/{name}": (worker, at) for name in names}
        for name in gone:
            consumers.pop(name, None)
    assert {row.worker: (row.number, row.seen) for row in memory.list_workers()} == workers
    assert {row.id: (row.worker, row.sequence) for row in memory.list_consumers()} == consumers
    assert memory.refused[Refusal.PAST] == refused


def test_rows_are_json() -> None:
    """Tables of Faust keep them as JSON, and give lists for tuples."""
    memory = Memory()
    status = make_status(
        shards=(), shard_count=9, trouble="t", consumers=(make_consumer(positions={"t-0": 5}, pending=3),)
    ).model_copy(update={"shards": (ShardStatus(number=8, ready=False, reason="r"),)})
    memory.fold(status, NOW + 1)
    other = Memory(json.loads(json.dumps(memory.workers)), json.loads(json.dumps(memory.consumers)))
    assert other.list_workers() == memory.list_workers() == [get_worker(memory)]
    assert other.list_consumers() == memory.list_consumers()
    assert get_worker(other).shards == status.shards
    assert get_worker(other).ahead_ms == -1


def test_records_are_decoded_judged_and_counted() -> None:
    memory = Memory()
    (value,) = encode(make_status(), [make_consumer()], [])
    memory.take(b"a", value, NOW, NOW, "overlay")
    memory.take(b"a", value, NOW, NOW, "overlay")
    memory.take(b"a", value, NOW, NOW, "other")
    memory.take(b"a", value, NOW + 10**9, NOW, "overlay")
    assert memory.refused == {Refusal.PAST: 1, Refusal.STRANGER: 1, Refusal.FUTURE: 1}
    assert [row.id for row in memory.list_consumers()] == ["S/c"]


def test_a_restarted_worker_begins_anew() -> None:
    memory = Memory()
    memory.fold(make_status(number=90), NOW)
    assert memory.fold(make_status(boot="b2", number=0, started=NOW), NOW + 1) is None
    assert get_worker(memory).boot == "b2"


def test_two_processes_under_one_name() -> None:
    memory = Memory()
    memory.fold(make_status(boot="new", started=NOW), NOW)
    assert memory.fold(make_status(boot="old", started=NOW - 5), NOW + 9) is Refusal.PAST
    assert (get_worker(memory).boot, get_worker(memory).rival) == ("new", NOW + 9)
    memory.fold(make_status(boot="new", started=NOW, number=1), NOW + 10)
    assert get_worker(memory).rival == NOW + 9


def test_statuses_that_are_read_again_are_of_no_rival() -> None:
    """After a kill the fleet has tables that are ahead of what it has committed of the topic."""
    memory = Memory()
    told = [(make_status(boot="old", started=NOW - 5, number=number), NOW + number) for number in range(3)]
    told += [(make_status(boot="new", started=NOW + 3, number=number), NOW + 3 + number) for number in range(3)]
    for status, appended in told:
        memory.fold(status, appended)
    for status, appended in told:
        assert memory.fold(status, appended) is Refusal.PAST
    assert (get_worker(memory).boot, get_worker(memory).rival) == ("new", 0)


def test_a_worker_whose_clock_was_set_back_is_taken_up_when_its_former_process_is_silent() -> None:
    memory = Memory()
    memory.fold(make_status(boot="first", started=NOW), NOW)
    late = NOW + get_worker(memory).silent_after_ms + 1
    assert memory.fold(make_status(boot="second", started=NOW - 5), late) is None
    assert get_worker(memory).boot == "second"


def test_a_worker_that_leaves_is_forgotten_at_once_and_a_silent_one_later() -> None:
    memory = Memory()
    for worker in ("a", "b"):
        memory.fold(make_status(worker, consumers=(make_consumer(worker),)), NOW)
    memory.fold(make_status("a", number=1, leaving=True), NOW + 1)
    assert [row.worker for row in memory.list_workers()] == ["b"]
    memory.forget(NOW + FORGET_MS)
    assert (len(memory.workers), len(memory.consumers)) == (1, 2)
    memory.forget(NOW + FORGET_MS + 1)
    assert (memory.workers, memory.consumers) == ({}, {})


def test_each_worker_has_its_own_rows_of_a_stream() -> None:
    memory = Memory()
    for worker in ("a", "b"):
        memory.fold(make_status(worker, streams=(make_stream("S"), make_stream("T"))), NOW)
    assert [(row.name, row.worker) for row in memory.list_streams()] == [("S", "a"), ("S", "b"), ("T", "a"), ("T", "b")]
    memory.fold(make_status("a", number=1, left=("S",)), NOW + 1)
    assert [(row.name, row.worker) for row in memory.list_streams()] == [("S", "b"), ("T", "a"), ("T", "b")]
    # as a table of Faust gives them back
    other = Memory(streams=json.loads(json.dumps(memory.streams)))
    assert other.list_streams() == memory.list_streams()
    # a process that has ended reads nothing, and the next one under its name tells anew
    memory.fold(make_status("a", boot="b2", started=NOW), NOW + 2)
    assert [(row.name, row.worker) for row in memory.list_streams()] == [("S", "b"), ("T", "-"), ("T", "b")]
    memory.fold(make_status("b", number=1, leaving=True), NOW + 3)
    assert [(row.name, row.worker) for row in memory.list_streams()] == [("S", "-"), ("T", "-")]


def test_what_an_ended_process_told_of_a_stream_is_kept_until_a_worker_tells_of_it() -> None:
    memory = Memory()
    memory.fold(make_status("a", streams=(make_stream("S", rate=7.0, lag=3), make_stream("T"), make_stream("U"))), NOW)
    memory.fold(make_status("a", number=1, leaving=True), NOW + 1)

    def describe_streams() -> list[tuple[str, str, float, int, list[str]]]:
        streams = describe(look(memory, NOW + 2, Expected()), [], {})["streams"]
        return [(row["name"], row["state"], row["rate"], row["lag"], row["owners"]) for row in streams]

    nowhere: list[str] = []
    silent = [(name, "silent", 0.0, lag, nowhere) for name, lag in (("S", 3), ("T", 0), ("U", 0))]
    assert describe_streams() == silent
    # the next process has its shards a moment later
    memory.fold(make_status("a", boot="b2", started=NOW), NOW + 2)
    assert describe_streams() == silent
    memory.fold(make_status("a", boot="b2", started=NOW, number=1, streams=(make_stream("S"),), left=("U",)), NOW + 2)
    assert describe_streams() == [("S", "running", 0.0, 0, ["a"]), ("T", "silent", 0.0, 0, [])]
    assert "-/T" in memory.streams
    memory.forget(NOW + FORGET_MS + 1)
    assert sorted(memory.streams) == ["a/S"]


def test_of_two_processes_that_have_ended_the_last_word_counts() -> None:
    memory = Memory()
    memory.fold(make_status("a", streams=(make_stream("S", lag=1),)), NOW)
    memory.fold(make_status("b", streams=(make_stream("S", lag=2),)), NOW + 1)
    for worker in ("b", "a"):
        memory.fold(make_status(worker, number=1, leaving=True), NOW + 2)
    assert [(row.name, row.lag) for row in memory.list_streams()] == [("S", 2)]


def test_streams_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.fleet.memory.MOST_STREAMS", 2)
    memory = Memory()
    assert memory.fold(make_status(streams=tuple(make_stream(name) for name in "STU")), NOW) is Refusal.LIMIT
    assert sorted(memory.streams) == ["a/S", "a/T"]
    memory.forget(NOW + FORGET_MS)
    assert len(memory.streams) == 2
    memory.forget(NOW + FORGET_MS + 1)
    assert memory.streams == {}


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.fleet.memory.MOST_WORKERS", 2)
    monkeypatch.setattr("overlay.fleet.memory.MOST_CONSUMERS", 2)
    memory = Memory()
    told = tuple(make_consumer(name) for name in "cde")
    assert memory.fold(make_status("a", consumers=told), NOW) is Refusal.LIMIT
    memory.fold(make_status("b", consumers=told[:2]), NOW)
    assert memory.fold(make_status("c"), NOW) is Refusal.LIMIT
    assert memory.refused[Refusal.LIMIT] == 2
    assert (sorted(memory.workers), sorted(memory.consumers)) == (["a", "b"], ["S/c", "S/d"])


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 5_000)), min_size=1), st.integers(0, 10**6))
def test_kafkas_time_is_never_ahead(steps: list[tuple[int, int]], silence: int) -> None:
    """Kafka's clock and the monotonic one go at one pace here; statuses are late by up to 5 s."""
    time = KafkaTime()
    assert time.tell(0) is None
    monotonic = 0
    delays = []
    for step, delay in steps:
        monotonic += step
        delays.append(delay)
        time.note(NOW + monotonic - delay, monotonic)
        told = time.tell(monotonic)
        assert told is not None
        assert NOW + monotonic - 5_000 <= told <= NOW + monotonic
    # it goes on while no status comes, and the last status, seen again and again, does not hold it up
    newest = time.tell(monotonic)
    assert newest is not None
    for _ in range(3):
        monotonic += WINDOW_MS + silence
        time.note(NOW, monotonic)
    assert time.tell(monotonic) == newest + 3 * (WINDOW_MS + silence)
