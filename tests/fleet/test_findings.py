"""Findings: each kind, when it opens and when it closes, and the picture that shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.findings import FRESH_MS, PATIENCE_MS, Expected, Finding, Kind, OpenFindings, Picture, look, survey
from overlay.fleet.live import LivePicture, encode_event
from overlay.fleet.memory import FORGET_MS, Memory
from overlay.fleet.metrics import SHARD_STATES, WORKER_STATES, FleetMetrics
from overlay.fleet.picture import describe
from overlay.fleet.status import EVERY_MS, ShardStatus, Status
from overlay.kafka.own_topics import shard_of

from .statuses import NOW, make_consumer, make_status, make_stream


def see(*statuses: Status, now: int = NOW, appended: int = NOW, expected: Expected | None = None) -> Picture:
    memory = Memory()
    for status in statuses:
        memory.fold(status, appended)
    return look(memory, now, expected or Expected())


def list_kinds(picture: Picture) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.about) for finding in survey(picture)]


def fail(*numbers: int) -> tuple[ShardStatus, ...]:
    return tuple(ShardStatus(number=number, ready=False, reason="no leader") for number in numbers)


TWO: dict[str, Any] = {"shard_count": 2}
CASES: dict[str, tuple[list[Status], list[tuple[Kind, str]]]] = {
    "well": ([make_status("a", **TWO), make_status("b", shards=(1,), **TWO)], []),
    "without any": ([], [(Kind.NO_WORKER, "")]),
    "a shard without owner": ([make_status("a", **TWO)], [(Kind.SHARD_WITHOUT_OWNER, "1")]),
    "two owners": ([make_status("a"), make_status("b")], [(Kind.SHARD_WITH_TWO_OWNERS, "0")]),
    "not ready": ([make_status().model_copy(update={"shards": fail(0)})], [(Kind.SHARD_NOT_READY, "0")]),
    "numbers of shards": (
        [make_status("a"), make_status("b", shards=(1,), **TWO)],
        [(Kind.SHARD_COUNTS_DIFFER, "")],
    ),
    "configs": ([make_status("a"), make_status("b", shards=(), digest="d2")], [(Kind.CONFIGS_DIFFER, "")]),
    "settings": (
        [make_status("a", settings="s1"), make_status("b", shards=(), settings="s2")],
        [(Kind.SETTINGS_DIFFER, "")],
    ),
    "settings of a worker that does not tell them": (
        [make_status("a", settings="s1"), make_status("b", shards=())],
        [],
    ),
    "versions": ([make_status("a"), make_status("b", shards=(), version="2.0")], [(Kind.VERSIONS_DIFFER, "")]),
    "a clock ahead": ([make_status(clock=NOW + 2_001)], [(Kind.CLOCK_DIFFERS, "a")]),
    "a clock behind": ([make_status(clock=NOW - 2_001)], [(Kind.CLOCK_DIFFERS, "a")]),
    "a clock nearly right": ([make_status(clock=NOW - 2_000)], []),
    "one name for two": (
        [make_status(boot="b2", started=NOW), make_status(boot="b1")],
        [(Kind.SAME_NAME, "a")],
    ),
}


class CountedShards(list[ShardStatus]):
    """Shards of a worker. Counts how often they are gone through."""

    passes = 0

    def __iter__(self) -> Iterator[ShardStatus]:
        self.passes += 1
        return super().__iter__()


def test_many_shards_of_one_worker_are_gone_through_few_times() -> None:
    counted = CountedShards(fail(*range(300)))
    memory = Memory()
    memory.fold(make_status(shard_count=300, shards=tuple(range(300))), NOW)
    rows = [row.model_copy(update={"shards": counted}) for row in memory.list_workers()]
    picture = Picture(rows, (), NOW, Expected())
    assert len(survey(picture)) == 300
    assert {row["reason"] for row in describe(picture, [], {})["shards"]} == {"no leader"}
    assert picture.find_trouble(299) == ("a", "no leader")
    assert counted.passes < 10


@pytest.mark.parametrize("case", CASES)
def test_what_is_found(case: str) -> None:
    statuses, found = CASES[case]
    picture = see(*statuses)
    assert list_kinds(picture) == found
    for finding in survey(picture):
        assert finding.text.isprintable()
        assert PATIENCE_MS.keys() == set(Kind)
    json.dumps(describe(picture, survey(picture), {}))


def test_silence() -> None:
    late = NOW + 3 * EVERY_MS + 1_000
    fields = {**TWO, "every": EVERY_MS}
    statuses = [make_status("a", **fields), make_status("b", shards=(1,), **fields)]
    assert list_kinds(see(*statuses, now=late)) == []
    assert list_kinds(see(*statuses, now=late + 1)) == [
        (Kind.NO_WORKER, ""),
        (Kind.WORKER_SILENT, "a"),
        (Kind.WORKER_SILENT, "b"),
    ]
    memory = Memory()
    for status, appended in zip(statuses, (NOW, late), strict=True):
        memory.fold(status.model_copy(update={"clock": appended}), appended)
    picture = look(memory, late + 1, Expected())
    assert list_kinds(picture) == [(Kind.WORKER_SILENT, "a"), (Kind.SHARD_WITHOUT_OWNER, "0")]
    assert [row["state"] for row in describe(picture, [], {})["workers"]] == ["silent", "running"]
    # what it had is in the text, for the operator who looks for it
    assert "it had shards 0" in survey(picture)[0].text


def test_the_folder_of_the_fleet_is_compared_too() -> None:
    assert list_kinds(see(make_status(), expected=Expected(digest="d1"))) == []
    (finding,) = survey(see(make_status(), expected=Expected(digest="d2")))
    assert finding.kind is Kind.CONFIGS_DIFFER
    assert "d1 at a; d2 at the folder of this fleet" in finding.text


def test_settings_that_differ_are_named() -> None:
    (finding,) = survey(see(make_status("a", settings="s1"), make_status("b", shards=(), settings="s2")))
    assert "s1 at a; s2 at b" in finding.text
    assert "topics.reply_to" in finding.text


def expect(*names: str) -> Expected:
    return Expected(1, "", frozenset(("S", name) for name in names))


def test_consumers_that_no_worker_serves() -> None:
    told = make_status(consumers=(make_consumer("c"), make_consumer("e", state="starting")))
    (finding,) = survey(see(told, expected=expect("c", "d")))
    assert (finding.kind, finding.about) == (Kind.CONSUMERS_NOT_SERVED, "0")
    assert "does not serve S/d, S/e." in finding.text
    rows = describe(see(told, expected=expect("c", "d")), [], {})["consumers"]
    assert {row["name"]: row["state"] for row in rows} == {"c": "running", "d": "not served", "e": "not served"}
    assert {row["worker"] for row in rows} == {"a", ""}


def test_what_was_told_long_ago_counts_no_more() -> None:
    memory = Memory()
    memory.fold(make_status(consumers=(make_consumer("c"), make_consumer("gone"))), NOW)
    for at, seen in enumerate((NOW + FRESH_MS, NOW + FRESH_MS + 1), 1):
        memory.fold(make_status(number=at, clock=seen), seen)
        kinds = list_kinds(look(memory, seen, expect("c")))
        assert kinds == ([] if at == 1 else [(Kind.CONSUMERS_NOT_SERVED, "0")])


def test_a_finding_of_a_shard_stands_for_those_of_its_consumers() -> None:
    assert list_kinds(see(make_status(shards=()), expected=expect("c"))) == [(Kind.SHARD_WITHOUT_OWNER, "0")]
    failing = make_status().model_copy(update={"shards": fail(0)})
    assert list_kinds(see(failing, expected=expect("c"))) == [(Kind.SHARD_NOT_READY, "0")]


def test_an_owner_that_is_not_ready_is_named() -> None:
    failing = make_status("b").model_copy(update={"shards": fail(0)})
    found = {finding.kind: finding.text for finding in survey(see(make_status("a"), failing))}
    assert found[Kind.SHARD_NOT_READY] == "b: no leader"


def test_long_lists_are_cut() -> None:
    names = [f"c{number}" for number in range(500)]
    (finding,) = survey(see(make_status(), expected=expect(*names)))
    assert finding.text.count("S/c") == 10
    assert "and 490 more" in finding.text


FLEETS = st.lists(
    st.tuples(
        st.sets(st.integers(0, 7)),
        st.sampled_from([0, 10_000, 20_000]),
        st.sampled_from(["d1", "d2"]),
        st.booleans(),
    ),
    max_size=5,
)


@given(FLEETS)
def test_owners_and_differences_against_a_twin(fleet: list[tuple[set[int], int, str, bool]]) -> None:
    memory = Memory()
    for number, (shards, age, digest, drained) in enumerate(fleet):
        status = make_status(
            f"w{number}",
            shards=tuple(sorted(shards)),
            shard_count=8,
            digest=digest,
            clock=NOW - age,
            drained=drained,
        )
        memory.fold(status, NOW - age)
    picture = look(memory, NOW, Expected(8))
    live = [(f"w{number}", shards, digest) for number, (shards, age, digest, _) in enumerate(fleet) if age < 16_000]
    owners = {shard: tuple(name for name, shards, _ in live if shard in shards) for shard in range(8)}
    assert picture.owners == owners
    found = list_kinds(picture)
    wanted = {(Kind.SHARD_WITHOUT_OWNER, str(shard)) for shard, names in owners.items() if live and not names}
    wanted |= {(Kind.SHARD_WITH_TWO_OWNERS, str(shard)) for shard, names in owners.items() if len(names) > 1}
    wanted |= {(Kind.WORKER_SILENT, f"w{number}") for number, (_, age, *_) in enumerate(fleet) if age > 16_000}
    wanted |= {(Kind.CONFIGS_DIFFER, "")} if len({digest for *_, digest in live}) > 1 else set()
    wanted |= set() if live else {(Kind.NO_WORKER, "")}
    assert set(found) == wanted
    assert len(found) == len(wanted)
    shown = describe(picture, survey(picture), memory.refused)
    assert {row["state"] for row in shown["workers"]} <= set(WORKER_STATES)
    assert {row["state"] for row in shown["shards"]} <= set(SHARD_STATES)
    metrics = FleetMetrics()
    metrics.set(shown)
    counted = [metrics.registry.get_sample_value("overlay_fleet_workers", {"state": state}) for state in WORKER_STATES]
    assert sum(count or 0 for count in counted) == len(fleet)


def test_a_finding_opens_after_a_while_and_closes_at_once() -> None:
    findings = OpenFindings()
    seen = [Finding(Kind.SHARD_WITHOUT_OWNER, "0", "text")]
    patience = PATIENCE_MS[Kind.SHARD_WITHOUT_OWNER]
    assert findings.update(seen, NOW) == ([], [])
    assert findings.update(seen, NOW + patience - 1) == ([], [])
    opened, closed = findings.update(seen, NOW + patience)
    assert ([each.since for each in opened], closed) == ([NOW], [])
    assert findings.update([Finding(Kind.SHARD_WITHOUT_OWNER, "0", "other")], NOW + patience + 1) == ([], [])
    assert [each.text for each in findings.list()] == ["other"]
    # another process, which has the rows alone, neither opens it again nor forgets since when it is there
    other = OpenFindings(json.loads(json.dumps(findings.rows)))
    assert other.update(seen, NOW + patience + 2) == ([], [])
    assert [each.since for each in other.list()] == [NOW]
    assert [each.name for each in other.update([], NOW + patience + 3)[1]] == ["shard_without_owner:0"]
    assert other.list() == []
    # what passes and comes back is looked at from the start
    assert other.update(seen, NOW + patience + 4) == ([], [])


LOOKS = st.lists(st.tuples(st.integers(1, 30_000), st.sets(st.sampled_from([*Kind]))), max_size=20)


@given(LOOKS)
def test_each_finding_that_opens_closes(looks: list[tuple[int, set[Kind]]]) -> None:
    findings, now, is_open, since = OpenFindings(), NOW, set[Kind](), dict[Kind, int]()
    for step, kinds in looks:
        now += step
        since = {kind: since.get(kind, now) for kind in kinds}
        opened, closed = findings.update([Finding(kind, "", "") for kind in kinds], now)
        wanted = {kind for kind in kinds if kind in is_open or now - since[kind] >= PATIENCE_MS[kind]}
        assert {each.kind for each in opened} == wanted - is_open
        assert {each.kind for each in closed} == is_open - wanted
        is_open = wanted
        assert {each.kind for each in findings.list()} == is_open


def test_the_live_picture_follows_the_rows() -> None:
    live, metrics = LivePicture(expected=Expected(1)), FleetMetrics()
    assert live.judge(0) == ([], [])
    assert live.describe(0) == {}
    live.memory.fold(make_status(consumers=(make_consumer(),)), NOW)
    assert live.judge(1_000) == ([], [])
    assert live.describe(1_000)["time"] == NOW
    assert live.describe(1_500) is live.describe(1_000)
    assert live.judge(1_000 + 16_001) == ([], [])
    metrics.set(live.describe(1_000 + 16_001))
    assert metrics.registry.get_sample_value("overlay_fleet_workers", {"state": "silent"}) == 1
    assert metrics.registry.get_sample_value("overlay_fleet_findings", {"kind": "worker_silent"}) == 0
    opened, _ = live.judge(1_000 + 16_001 + PATIENCE_MS[Kind.WORKER_SILENT])
    assert [each.kind for each in opened] == [Kind.WORKER_SILENT]
    metrics.set(live.describe(30_000))
    assert metrics.registry.get_sample_value("overlay_fleet_findings", {"kind": "worker_silent"}) == 1
    assert metrics.registry.get_sample_value("overlay_fleet_workers", {"state": "silent"}) == 1
    assert metrics.registry.get_sample_value("overlay_fleet_active") == 1
    live.memory.fold(make_status(number=1, clock=NOW + 30_000), NOW + 30_000)
    _, closed = live.judge(31_000)
    assert [each.kind for each in closed] == [Kind.WORKER_SILENT]
    live.stand_by()
    assert live.describe(32_000) == {}
    metrics.set({})
    assert metrics.registry.get_sample_value("overlay_fleet_workers", {"state": "running"}) == 0


def test_a_silent_worker_is_forgotten_after_an_hour() -> None:
    live = LivePicture()
    live.memory.fold(make_status(), NOW)
    live.judge(0)
    live.judge(FORGET_MS - 10_000)
    live.judge(FORGET_MS)
    assert Kind.WORKER_SILENT in {each.kind for each in live.open_findings.list()}
    _, closed = live.judge(FORGET_MS + 1)
    assert [each.kind for each in closed] == [Kind.WORKER_SILENT]
    # that none is heard stays
    live.judge(FORGET_MS + 100_000)
    assert [each.kind for each in live.open_findings.list()] == [Kind.NO_WORKER]
    assert live.describe(FORGET_MS + 100_000)["workers"] == []


def test_events_of_findings() -> None:
    finding = Finding(Kind.WORKER_SILENT, "a", "text", NOW)
    key, value = encode_event(finding, NOW * 1_000_000, is_open=True)
    assert key == b"$OVERLAY.EVENT.FLEET.WORKER_SILENT"
    body = json.loads(value)
    assert body.pop("id") != json.loads(encode_event(finding, NOW, is_open=False)[1])["id"]
    assert body == {
        "type": "overlay.fleet.v1.finding",
        "timestamp": "2027-01-15T08:00:00Z",
        "action": "opened",
        "kind": "worker_silent",
        "about": "a",
        "text": "text",
        "since": "2027-01-15T08:00:00Z",
    }


def test_shards_of_consumers_are_those_of_the_service() -> None:
    statuses = [make_status("a", shards=(0, 1, 2), shard_count=3, consumers=tuple(make_consumer(n) for n in "cdef"))]
    shown = describe(see(*statuses), [], {})
    assert {row["name"]: row["shard"] for row in shown["consumers"]} == {n: shard_of(("S", n), 3) for n in "cdef"}
    assert sum(row["consumers"] for row in shown["shards"]) == 4


def test_streams_of_several_workers_are_one_row() -> None:
    first = make_stream(rate=5.0, lag=3, index="running", index_lag=7)
    second = make_stream(rate=9.0, lag=None, state="stopped", reason="corrupt")
    picture = see(
        make_status("a", streams=(first, make_stream("T", state="idle", lag=None))),
        make_status("b", shards=(), streams=(second,)),
    )
    rows = describe(picture, [], {})["streams"]
    assert [row["name"] for row in rows] == ["S", "T"]
    assert rows[0] == {
        "name": "S",
        "topic": "t",
        "partitions": 2,
        "rate": 9.0,
        "lag": 3,
        "owners": ["a", "b"],
        "state": "stopped",
        "reason": "corrupt",
        "index": "running",
        "index_lag": 7,
        "seen": NOW,
    }
    assert (rows[1]["state"], rows[1]["owners"], rows[1]["lag"]) == ("idle", ["a"], None)


def test_a_stream_of_a_silent_worker_is_silent() -> None:
    told = make_status("a", every=EVERY_MS, streams=(make_stream(rate=5.0, lag=3),))
    (row,) = describe(see(told, now=NOW + 7_001), [], {})["streams"]
    assert (row["state"], row["owners"], row["rate"], row["lag"]) == ("silent", [], 0.0, 3)
