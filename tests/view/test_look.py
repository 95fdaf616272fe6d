"""What the service says, completed by what Kafka remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overlay.client.control.control import Control
from overlay.config import ConsumerConfig, Loaded, load
from overlay.config.identity import Identity, identify
from overlay.errors import ConfigError, CredentialsRefused, FilePosition, OverlayError, SourceUnavailable
from overlay.kafka.own_topics import shard_of
from overlay.view.facts import ConsumerFacts, OverlayFacts, PartitionFacts, ServiceFacts, StreamFacts
from overlay.view.look import combine, compare, explain_stranger, look
from overlay.view.others import Others, ask_others, read_facts

PARTS = {"t-0": PartitionFacts(7, 9)}
MINE = Identity("1", "overlay", "here:9092", "/etc/overlay", "d1")
WORKER = ServiceFacts("http://here", "1", "overlay", "there:9092", "c1", "/etc/overlay", "d1", (0,), 1)


def test_the_service_knows_better_and_the_state_fills_the_gaps() -> None:
    running = OverlayFacts(
        {"A": StreamFacts("A", state="running", partitions={"t-0": PartitionFacts(8, 9)}), "B": StreamFacts("B")},
        {
            ("A", "fine"): ConsumerFacts("A", "fine", state="running", positions={"t-0": 8}, consumer_sequence=4),
            ("A", "stuck"): ConsumerFacts("A", "stuck", state="stalled", lag_records=6, lag_seconds=9.0, rate=0.0),
        },
        WORKER,
    )
    stored = OverlayFacts(
        {"A": StreamFacts("A", partitions=PARTS), "B": StreamFacts("B", partitions=PARTS), "C": StreamFacts("C")},
        {
            ("A", "fine"): ConsumerFacts("A", "fine", state="waiting", positions={"t-0": 7}, consumer_sequence=3),
            ("A", "stuck"): ConsumerFacts("A", "stuck", positions={"t-0": 5}, consumer_sequence=2, lag_records=4),
            ("A", "gone"): ConsumerFacts("A", "gone", state="removed"),
            ("C", "fresh"): ConsumerFacts("C", "fresh", state="new"),
        },
    )
    config = ConsumerConfig(stream="A", durable_name="fine")
    by_file = {**stored.consumers, ("A", "fine"): replace(stored.consumers["A", "fine"], config=config)}
    assert combine(running, replace(stored, consumers=by_file), MINE).consumers["A", "fine"].config is config
    found = combine(running, stored, MINE)
    assert found.streams["A"].partitions["t-0"].position == 8
    assert found.streams["B"].partitions == PARTS
    assert found.consumers["A", "fine"].consumer_sequence == 4
    stuck = found.consumers["A", "stuck"]
    assert (stuck.state, stuck.positions, stuck.lag_records, stuck.lag_seconds) == ("stalled", {"t-0": 5}, 6, 9.0)
    assert list(found.consumers) == [("A", "fine"), ("A", "gone"), ("A", "stuck"), ("C", "fresh")]
    assert list(found.notes) == [
        "the running service does not know stream C",
        "the running service does not know consumer C/fresh",
    ]


def test_the_same_config_by_another_address_is_ours() -> None:
    assert explain_stranger(WORKER, MINE, "c1") == ""
    assert explain_stranger(replace(WORKER, cluster=""), MINE, "c1") == ""
    assert compare(WORKER, MINE) == []


def test_another_service_at_the_address_is_not_believed() -> None:
    reason = explain_stranger(replace(WORKER, prefix="other", folder="/etc/other"), MINE, "c1")
    assert "the service of another config, /etc/other: its topics.prefix is 'other', here it is 'overlay'" in reason
    reason = explain_stranger(WORKER, MINE, "c2")
    assert "its Kafka is the cluster c1 at there:9092, here it is c2 at here:9092" in reason
    assert "http.listen" in reason


def test_files_that_changed_since_the_start_are_pointed_out() -> None:
    (note,) = compare(replace(WORKER, digest="d2", folder="/old"), MINE)
    assert "than /etc/overlay has now; it follows /old" in note


def test_a_worker_speaks_for_its_own_shards() -> None:
    running = OverlayFacts(
        {"A": StreamFacts("A", state="elsewhere", decoded=0, rate=0.0)},
        {("A", "c"): ConsumerFacts("A", "c", state="elsewhere", delivered=0, rate=0.0, lag_seconds=0.0)},
        replace(WORKER, shards=(0, 2), shard_count=3),
    )
    stored = OverlayFacts(
        {"A": StreamFacts("A", state="waiting", partitions=PARTS)},
        {
            ("A", "c"): ConsumerFacts(
                "A", "c", state="waiting", positions={"t-0": 7}, consumer_sequence=3, lag_records=2
            )
        },
    )
    found = combine(running, stored, MINE)
    stream, consumer = found.streams["A"], found.consumers["A", "c"]
    assert (stream.state, stream.partitions, stream.rate, stream.decoded) == ("elsewhere", PARTS, None, None)
    assert consumer == ConsumerFacts(
        "A", "c", state="elsewhere", positions={"t-0": 7}, consumer_sequence=3, lag_records=2
    )
    (note,) = found.notes
    assert "has these of the 3 shards: 0, 2. Consumers of the others are marked elsewhere" in note


def test_what_other_workers_say_of_their_consumers_counts() -> None:
    info = {
        "stream_name": "A",
        "name": "c",
        "delivered": {"consumer_seq": 5, "stream_seq": 9},
        "num_pending": 2,
        "ack_floor": {"consumer_seq": 4, "stream_seq": 8},
        "num_ack_pending": 1,
        "num_redelivered": 0,
        "num_waiting": 3,
        "overlay": {
            "origin": "file",
            "state": "running",
            "reason": "",
            "positions": {"t-0": 8},
            "lag_records": 1,
            "lag_seconds": 0.5,
            "delivered": 5,
            "dead_letters": {"term": 2},
            "rate": 2.0,
            "num_pending_is": "exact",
            "gate": "free",
            "num_delayed": 0,
        },
    }
    known = {
        ("A", "c"): ConsumerFacts("A", "c", "out", ("a.>",), state="elsewhere", delivered=0, rate=0.0),
        ("A", "d"): ConsumerFacts("A", "d", state="elsewhere", delivered=0, rate=0.0),
    }
    says = read_facts(info, known)
    assert says.acks is not None and (says.acks["num_ack_pending"], says.acks["gate"]) == (1, "free")
    assert replace(says, acks=None) == ConsumerFacts(
        *("A", "c", "out", ("a.>",), "running", "", 5, {"t-0": 8}, 1, 0.5, 5, 2.0, {"term": 2}, 2, "exact")
    )
    running = OverlayFacts({}, known, replace(WORKER, shards=(0, 2), shard_count=3))
    stored = OverlayFacts({}, {("A", "d"): ConsumerFacts("A", "d", positions={"t-0": 7}, lag_records=2)})
    found = combine(running, stored, MINE, Others({says.id: says}, "no answer from the worker of shard 1"))
    assert (found.consumers["A", "c"], found.notes) == (says, ("no answer from the worker of shard 1",))
    assert found.consumers["A", "d"] == ConsumerFacts("A", "d", state="elsewhere", positions={"t-0": 7}, lag_records=2)
    assert combine(running, stored, MINE, Others()).notes == ()


@pytest.mark.parametrize("has_all", [False, True])
def test_the_workers_of_consumers_elsewhere_are_asked(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, has_all: bool
) -> None:
    asked: list[Mapping[int, int]] = []

    def list_shards(control: Control, stream: str, counts: Mapping[int, int], timeout: float) -> dict[int, Any]:
        asked.append(counts)
        return {}

    monkeypatch.setattr(Control, "list_shards", list_shards)
    monkeypatch.setattr("overlay.client.control.control.GATHER_S", 7.0)
    names = [("A", f"c{number}") for number in range(20)]
    mine = range(3) if has_all else (0, 2)
    known = {id: ConsumerFacts(*id, state="running" if shard_of(id, 3) in mine else "elsewhere") for id in names} | {
        ("A", "late"): ConsumerFacts("A", "late", state="spark")
    }
    found = ask_others(loaded, replace(WORKER, shards=tuple(mine), shard_count=3), known)
    if has_all:
        assert (asked, found) == ([], Others())
    else:
        assert asked == [{1: sum(shard_of(id, 3) == 1 for id in known)}]
        assert found.note.startswith("no answer within 7 s from the worker of shard 1, which `overlay shards` names; ")
        assert not found.consumers


def test_of_a_consumer_of_a_job_the_plans_are_newer_and_the_service_knows_the_age() -> None:
    stored = ConsumerFacts("A", "c", state="spark", positions={"t-0": 9}, consumer_sequence=5, rate=2.0, owner="app-2")
    says = replace(
        stored, positions={"t-0": 7}, consumer_sequence=3, rate=1.0, lag_seconds=4.0, delivered=0, owner="app-1"
    )

    def show(running: ConsumerFacts) -> ConsumerFacts:
        facts = OverlayFacts({}, {("A", "c"): running}, WORKER)
        return combine(facts, OverlayFacts({}, {("A", "c"): stored}), MINE).consumers["A", "c"]

    assert show(says) == replace(stored, lag_seconds=4.0)
    assert show(ConsumerFacts("A", "c", state="spark")) == stored
    # its file has changed, and the service has not taken that up
    assert show(replace(says, state="running")).state == "running"


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    (tmp_path / "overlay.yaml").write_text("kafka: {bootstrap.servers: 'localhost:1'}\n")
    return load(tmp_path)


def answer(monkeypatch: pytest.MonkeyPatch, name: str, found: object) -> None:
    """Have a function that `look` calls return this, or raise it."""

    async def ask(_: object) -> object:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(f"overlay.view.look.{name}", ask)


@pytest.mark.parametrize("error", [CredentialsRefused("Kafka refused"), SourceUnavailable("Kafka is away")])
async def test_a_service_that_answers_is_shown_whatever_kafka_says(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, error: OverlayError
) -> None:
    worker = replace(WORKER, prefix=identify(loaded).prefix)
    answer(monkeypatch, "ask_service", OverlayFacts({"A": StreamFacts("A")}, {}, worker))
    answer(monkeypatch, "read_memory", error)
    found = await look(loaded)
    assert list(found.streams) == ["A"]
    assert found.notes[0] == f"this is what the service says; {error}"


@pytest.mark.parametrize(
    "error", [CredentialsRefused("the service refuses"), ConfigError(FilePosition("service.pem"), "is empty")]
)
async def test_a_service_that_refuses_hides_nothing_of_kafka(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, error: OverlayError
) -> None:
    answer(monkeypatch, "ask_service", error)
    answer(monkeypatch, "read_memory", None)
    monkeypatch.setattr("overlay.view.look.describe_memory", lambda *_: OverlayFacts({"A": StreamFacts("A")}, {}))
    found = await look(loaded)
    assert (list(found.streams), found.notes[0].startswith(str(error))) == (["A"], True)


async def test_the_service_and_kafka_are_asked_at_once(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answers once both have been asked."""
    asked = asyncio.Barrier(2)

    async def ask_service(_: object) -> OverlayFacts:
        await asked.wait()
        return OverlayFacts({"A": StreamFacts("A")}, {}, replace(WORKER, prefix=identify(loaded).prefix))

    async def read_memory(_: object) -> object:
        await asked.wait()
        raise SourceUnavailable("Kafka is away")

    monkeypatch.setattr("overlay.view.look.ask_service", ask_service)
    monkeypatch.setattr("overlay.view.look.read_memory", read_memory)
    async with asyncio.timeout(60):
        assert list((await look(loaded)).streams) == ["A"]
