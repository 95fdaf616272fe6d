"""What is said of the streams of a worker, and what that costs with very many of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from overlay.config.consumer import Engine
from overlay.worker.rates import Rates
from overlay.worker.stream_report import report_streams
from tests.fuzz.budget import count_lines

CONSUMERS = 2_000
CURSOR = SimpleNamespace(members={("S0", "c0")}, stable_end=9, position=7, indexed=True)


def make_worker(streams: int) -> tuple[Any, list[Any]]:
    """A folder with CONSUMERS consumers of so many streams, and a session that reads a partition of each."""
    names = [f"S{number}" for number in range(streams)]
    ids = [(f"S{number % streams}", f"c{number}") for number in range(CONSUMERS)]
    config = SimpleNamespace(topic_names=("t",), subjects=())
    loaded = SimpleNamespace(
        streams=dict.fromkeys(names, config), consumers=dict.fromkeys(ids, SimpleNamespace(engine=Engine.SERVICE))
    )
    cursors = {(name, ("t", 0)): [CURSOR] for name in names}
    assignment = SimpleNamespace(
        stopped={"S1": "why", "S2": "open"}, blocked={"S2": None}, held={"S5": "open"},
        sources={}, unindexed={}, indexes=dict.fromkeys(names), ledgers={},
    )  # fmt: skip
    reach = SimpleNamespace(chunks=4, position=5, addresses=SimpleNamespace(records=9, unaddressed=1, last=(2, 5)))
    session = SimpleNamespace(
        assignment=assignment, gates={}, reaches=dict.fromkeys(cursors, reach),
        cursors=SimpleNamespace(halts={}, partitions=lambda: iter(cursors.items()), of=cursors.__getitem__),
    )  # fmt: skip
    return loaded, [session]


def test_a_stream_is_told_of_by_its_own_consumers_and_cursors() -> None:
    loaded, sessions = make_worker(1_000)
    away = {("S2", "c2"), ("S2", "c1002"), ("S3", "c3")}
    found = {each["name"]: each for each in report_streams(loaded, sessions, Rates(began=0), ["S1", "S0"], away)}
    assert list(found) == ["S1", "S0"]
    assert (found["S0"]["state"], found["S0"]["consumers"]) == ("running", ["c0", "c1000"])
    assert found["S0"]["partitions"] == {"t-0": {"end": 9, "position": 7}}
    chunks = {"chunks": 4, "position": 5, "end": 9, "records": 9, "unaddressed": 1, "unaddressed_in": (2, 5)}
    assert found["S0"]["index"]["partitions"] == {"t-0": chunks}
    assert (found["S1"]["state"], found["S1"]["reason"]) == ("stopped", "why")
    for blocked in report_streams(loaded, sessions, Rates(began=0), ["S2", "S5"], ()):
        assert (blocked["state"], blocked["reason"]) == ("waiting", "open")
    states = [each["state"] for each in report_streams(loaded, [], Rates(began=0), ["S2", "S3", "S4"], away)]
    assert states == ["elsewhere", "idle", "idle"]


@pytest.mark.parametrize("streams", [10, 1_000])
def test_all_streams_cost_one_pass_over_the_consumers(streams: int) -> None:
    """/metrics and /streams tell of each stream: a look at all consumers for each would take seconds."""
    loaded, sessions = make_worker(streams)

    def report(_: bytes) -> None:
        found = report_streams(loaded, sessions, Rates(began=0), loaded.streams, frozenset(loaded.consumers))
        assert sum(1 for _ in found) == streams

    report(b"")
    lines = count_lines(cast(Any, report), b"")
    assert lines < 8 * CONSUMERS + 150 * streams
