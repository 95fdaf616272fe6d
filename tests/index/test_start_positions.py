"""Deliver policies against the slow twin, with a restart in the middle and records that are out of time order."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition as KafkaPartition
from hypothesis import example, given
from hypothesis import strategies as st

from overlay.config import ConsumerConfig, StreamConfig
from overlay.config.consumer import DeliverPolicy
from overlay.index.ledger.allocate import allocate, extend, restart
from overlay.index.ledger.entries import LedgerEntry, LedgerRun
from overlay.index.ledger.ledger import Ledger, Refusal
from overlay.index.start_positions import choose_last, find_lasts, find_replay_end, find_start, patterns
from overlay.index.topic import Index
from overlay.kafka.admin import Admin
from overlay.kafka.connection import open_client
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.units import INT64_MAX
from tests.index.partitions import Record, seal
from tests.oracle.push import last_per_subject
from tests.support.kafka import NewTopicFixture, SureProducer
from tests.worker.scenes import (
    CommittedReader,
    Scene,
    Seen,
    await_caught_up,
    await_records,
    check_output,
    expect,
    produce,
    read_committed,
    serve,
)

BASE = 1_700_000_000_000
PLACES = ["a", "b", "c", "d", "e", None]
FILTERS = ("t.a", "t.b", "t.d")


def produce_at(bootstrap: str, topic: str, count: int, seed: int) -> None:
    """Records of random subjects whose times go up and down, in small batches."""
    rng = random.Random(seed)
    producer = SureProducer(bootstrap, {"batch.num.messages": 50})
    for number in range(count):
        to = rng.choice(PLACES)
        time = BASE + seed * 1_000_000 + 10 * number + rng.randrange(-300, 300)
        producer.produce(topic, str(number), timestamp=time, headers=[("to", to)] if to else [])
    assert producer.flush(30) == 0


def write_time(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()


def choose(policy: str, before: Sequence[Seen], after: Sequence[Seen]) -> list[Seen]:
    """What a consumer that was created between `before` and `after` has to deliver."""
    wanted, later = expect(before, FILTERS), expect(after, FILTERS)
    match policy:
        case "all" | "epoch" | "first":
            return wanted + later
        case "new" | "future":
            return later
        case "beyond":
            return [record for record in later if record.offset >= 899]
        case "sequence":
            return [record for record in wanted if record.offset >= 299] + later
        case "time":
            first = next(record.offset for record in before if record.timestamp >= BASE + 2_000)
            return [record for record in wanted if record.offset >= first] + later
        case "last":
            return wanted[-1:] + later
        case "lasts":
            keep = last_per_subject((record.offset, str(record.header(b"to"))) for record in wanted)
            return [record for record in wanted if record.offset in keep] + later
    raise AssertionError(policy)


POLICIES: dict[str, dict[str, object]] = {
    # the snapshot first: another consumer at the same place must not be taken for one of its kind
    "lasts": {"deliver_policy": "last_per_subject"},
    "all": {"deliver_policy": "all"},
    "new": {"deliver_policy": "new"},
    "sequence": {"deliver_policy": "by_start_sequence", "opt_start_seq": 300},
    "first": {"deliver_policy": "by_start_sequence", "opt_start_seq": 1},
    "beyond": {"deliver_policy": "by_start_sequence", "opt_start_seq": 900},
    "time": {"deliver_policy": "by_start_time", "opt_start_time": write_time(BASE + 2_000)},
    "future": {"deliver_policy": "by_start_time", "opt_start_time": "2100-01-01T00:00:00Z"},
    "epoch": {"deliver_policy": "by_start_time", "opt_start_time": "1969-12-31T23:59:59.999Z"},
    "last": {"deliver_policy": "last"},
}


def test_policies(scene: Scene, new_topic: NewTopicFixture) -> None:
    """All of them at once, on one partition; stopped in the middle and started again."""
    topic = new_topic()
    produce_at(scene.bootstrap, topic, 600, 0)
    before = list(read_committed(scene.bootstrap, topic))
    scene.add_stream("S", topic)
    outputs = {name: scene.add_consumer("S", name, *FILTERS, **config) for name, config in POLICIES.items()}
    with serve(scene) as served:
        await_caught_up(served, *outputs)
        assert served.report()["reasons"] == []
        produce_at(scene.bootstrap, topic, 200, 1)
    with serve(scene):
        produce_at(scene.bootstrap, topic, 200, 2)
        after = [record for record in read_committed(scene.bootstrap, topic) if record.offset >= len(before)]
        for name, output in outputs.items():
            wanted = choose(name, before, after)
            with CommittedReader(scene.bootstrap, output) as reader:
                await_records(reader, len(wanted))
                check_output(reader.read(), wanted, consumer=name)


async def test_a_time_whose_first_record_was_deleted(bootstrap: str, new_topic: NewTopicFixture, admin: Admin) -> None:
    """Brokers say that there is no record since then, though later ones are there."""
    topic = new_topic(retention_ms=-1)
    for run in range(24):  # a batch each
        producer = SureProducer(bootstrap)
        for number in range(10):
            producer.produce(topic, b"x", timestamp=BASE + 100 * run + number, headers=[("to", "a")])
        assert producer.flush(30) == 0
    delete_below(bootstrap, topic, 170)
    stream = StreamConfig.model_validate({"name": "S", "topics": (topic,)})
    client = await open_client({"bootstrap.servers": bootstrap})
    try:
        found: dict[int, int] = {}
        by_index: dict[int, int] = {}
        index = make_index(stream, topic, list(read_committed(bootstrap, topic)), 25)
        for since in (0, 3, 1_650, 1_705, 2_000, 2_309, 2_310, 10_000):
            config = configure("by_start_time", opt_start_time=write_time(BASE + since))
            for places, known in (found, None), (by_index, index):
                start = await find_start(client, admin, config, stream, [(topic, 0)], None, known)
                places[since] = start.positions[topic, 0]
    finally:
        await client.close()
    assert found == {0: 170, 3: 170, 1_650: 170, 1_705: 175, 2_000: 200, 2_309: 239, 2_310: 240, 10_000: 240}
    assert by_index == found


def configure(policy: str, *filters: str, **more: object) -> ConsumerConfig:
    return ConsumerConfig.model_validate(
        {"stream": "S", "durable_name": "c", "filter_subjects": filters, "deliver_policy": policy, **more}
    )


def make_index(stream: StreamConfig, topic: str, records: Sequence[Seen], size: int) -> Index:
    """Chunks of so many offsets of what a topic holds, the last of them missing."""
    index = Index(stream)
    for first in range(records[0].offset // size * size, records[-1].offset // size * size, size):
        held = [record for record in records if first <= record.offset < first + size]
        named = [(record, (record.header(b"to") or b"").decode()) for record in held]
        sealed = [Record(record.offset, f"t.{to}" if to else None, record.timestamp) for record, to in named]
        index.of((topic, 0)).append(seal(stream, sealed, first, first + size, bytes=size * 1_100))
    return index


@dataclass(slots=True)
class Counting:
    """read_span, and the bytes that it brought."""

    bytes: int = 0

    async def read_span(self, *args: Any, **more: Any) -> AsyncIterator[Fetched]:
        async for fetched in read_span(*args, **more):
            self.bytes += fetched.data.size
            yield fetched


async def test_last_messages_take_little_reading(
    bootstrap: str, new_topic: NewTopicFixture, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same places with an index and without, and with one a small part of the log is fetched. It has lost no match since
    it was indexed, then it has."""
    topic = new_topic(retention_ms=-1)
    # a long linger: every batch is full, so that chunks begin where batches do
    rng = random.Random(3)
    producer = SureProducer(bootstrap, {"batch.num.messages": 50, "linger.ms": 10_000})
    for number in range(6_000):
        to = "rare" if 1_000 <= number < 1_100 else "old" if number < 900 else ("a", "b")[number // 500 % 2]
        producer.produce(topic, rng.randbytes(1_000), timestamp=BASE + number, headers=[("to", to)])
    assert producer.flush(30) == 0
    stream = StreamConfig.model_validate_json(
        json.dumps({"name": "S", "topics": [topic], "subject": {"template": "t.{header:to}"}})
    )
    index = make_index(stream, topic, list(read_committed(bootstrap, topic)), 100)
    counting = Counting()
    monkeypatch.setattr("overlay.index.start_positions.read_span", counting.read_span)
    client = await open_client({"bootstrap.servers": bootstrap})

    async def find(policy: str, filters: tuple[str, ...], known: Index | None) -> tuple[object, int, int]:
        counting.bytes, told = 0, [0]
        config, span = configure(policy, *filters), (await admin.find_bounds([(topic, 0)]))[topic, 0]
        if policy == "last":
            found: object = (await find_start(client, admin, config, stream, [(topic, 0)], None, known)).positions
            return found, counting.bytes, 0
        chunks = (known or Index(stream)).of((topic, 0))
        lasts = await find_lasts(
            client, patterns(config), stream, (topic, 0), span, chunks, lambda done, size: told.append(told[-1] + size)
        )
        return sorted(lasts.values()), counting.bytes, told[-1]

    try:
        for below, wanted in (0, 1_099), (1_100, 6_000):
            delete_below(bootstrap, topic, below)
            for policy, filters in (
                ("last", ("t.rare",)),
                ("last_per_subject", ("t.*",)),
                ("last_per_subject", ("t.rare", "t.old")),
            ):
                plain, by_index = await find(policy, filters, None), await find(policy, filters, index)
                assert plain[0] == by_index[0], (policy, filters)
                assert by_index[1] < plain[1] / 4, (policy, filters)
                if policy == "last_per_subject":  # all of it is told
                    assert (plain[1], by_index[1]) == (plain[2], by_index[2])
                else:
                    assert plain[0] == {(topic, 0): wanted}
    finally:
        await client.close()


@pytest.mark.parametrize("first", [1, 50, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
async def test_a_start_sequence_fits_an_int64(first: int) -> None:
    """JetStream's have 64 bits without a sign. None is left out by arrays of the overlay's, which have 63."""
    config = ConsumerConfig(
        stream="S", durable_name="c", deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first
    )
    stream, source = StreamConfig.model_validate({"name": "S", "topics": ("t",)}), ("t", 0)
    start = await find_start(cast(Any, None), cast(Any, None), config, stream, [source], bounds={source: (40, 100)})
    assert start.positions == {source: min(max(first - 1, 40), 100)}
    assert start.floor == {source: min(first, INT64_MAX) - 1}


async def test_the_end_of_a_replay_counts_what_has_no_sequence_yet() -> None:
    class Bounds:
        async def find_bounds(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
            return {source: (40, 100 + source[1]) for source in sources}

    admin, one, other = cast(Admin, Bounds()), ("t", 0), ("t", 1)
    assert await find_replay_end(admin, [one], {one: 40}) == 100
    ledger = Ledger()
    assert ledger.append(LedgerEntry((LedgerRun(*one, 40, 50, 1), LedgerRun(*other, 0, 101, 51)))) is Refusal.NONE
    starts = {one: 40, other: 60}
    assert await find_replay_end(admin, [one, other], starts, ledger) == 151 + 10
    assert await find_replay_end(admin, [one, other], starts, Ledger()) == 60 + 41


@given(
    st.lists(
        st.tuples(st.sampled_from(["extend", "allocate", "restart"]), st.integers(0, 3), st.integers(0, 3)), max_size=6
    )
)
# an empty stream gets a second partition
@example([("extend", 0, 0)])
# nothing comes for so long that the ends are written again
@example([("allocate", 2, 1), ("restart", 0, 0)])
@example([("extend", 3, 0), ("restart", 0, 0), ("allocate", 0, 0)])
def test_the_end_of_a_replay_is_the_sequence_of_a_record(steps: list[tuple[str, int, int]]) -> None:
    """Entries without records take up sequences. A replay that ends with one of these ends after a live record, which is
    delivered with the gap before it."""
    sources, ledger, ends, last = [("t", 0), ("t", 1)], Ledger(), [0, 0], 0
    for kind, *grown in steps:
        entry: LedgerEntry | None = None
        if kind == "extend" and ledger.next_sequence == 1:
            ends[0] += grown[0]
            entry = extend(sources[0], LogPosition(ends[0]))
        elif kind == "allocate":
            ends = [end + more for end, more in zip(ends, grown, strict=True)]
            entry = allocate(
                ledger.standing, {source: (0, LogPosition(end)) for source, end in zip(sources, ends, strict=True)}
            )
        elif kind == "restart":
            known = ledger.standing.ends
            entry = (
                restart(ledger.standing, {source: LogPosition(end) for source, end in known.items()}) if known else None
            )
        if entry is not None:
            assert ledger.append(entry) is Refusal.NONE
            if any(run.count for run in entry.runs):
                last = entry.next_sequence - 1

    class Bounds:
        async def find_bounds(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
            return {source: (0, end) for source, end in zip(wanted, ends, strict=True)}

    starts = dict.fromkeys(sources, 0)
    assert asyncio.run(find_replay_end(cast(Admin, Bounds()), sources, starts, ledger)) == last


async def test_a_replay_ends_where_records_were_though_retention_has_taken_them() -> None:
    class Bounds:
        async def find_bounds(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
            return dict.fromkeys(wanted, (9, 9))

    source, ledger = ("t", 0), Ledger()
    assert ledger.append(LedgerEntry((LedgerRun(*source, 0, 9, 1),))) is Refusal.NONE
    ledger.drop({source: 9})
    assert await find_replay_end(cast(Admin, Bounds()), [source], {source: 9}, ledger) == 9


def test_last_messages_alone(scene: Scene, new_topic: NewTopicFixture) -> None:
    """A consumer of last messages that has the stream to itself, then the tail."""
    topic = new_topic()
    produce(scene.bootstrap, topic, ["a", "b", "a", None, "b", "c", "a"])
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", "t.*", deliver_policy="last_per_subject")
    with serve(scene), CommittedReader(scene.bootstrap, output) as reader:
        assert [r.token.sequence for r in await_records(reader, 3)] == [5, 6, 7]
        produce(scene.bootstrap, topic, ["a"])
        assert [r.token.sequence for r in await_records(reader, 4)] == [5, 6, 7, 8]


def test_last_over_several_partitions(scene: Scene, new_topic: NewTopicFixture) -> None:
    """The matching record with the latest time, then what comes after in any partition."""
    topic = new_topic(partitions=3)
    producer = SureProducer(scene.bootstrap)
    for number, (partition, to) in enumerate([(0, "a"), (1, "a"), (2, "b"), (1, "b"), (0, "b")]):
        producer.produce(topic, str(number), partition=partition, timestamp=BASE + number, headers=[("to", to)])
    assert producer.flush(30) == 0
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", "c", "t.a", deliver_policy="last")
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_records(reader, 1)
        await_caught_up(served, "c")
        produce(scene.bootstrap, topic, ["a", "a"], partition=2)
        values = [record.value for record in await_records(reader, 3)]
        assert values == [b"1", b"0", b"1"]


@pytest.mark.parametrize("policy", ["lasts", "sequence"])
def test_policies_over_an_empty_topic(scene: Scene, new_topic: NewTopicFixture, policy: str) -> None:
    topic = new_topic()
    scene.add_stream("S", topic)
    output = scene.add_consumer("S", policy, ">", **POLICIES[policy])
    with serve(scene) as served, CommittedReader(scene.bootstrap, output) as reader:
        await_caught_up(served, policy)
        produce(scene.bootstrap, topic, ["a", "b"] * 200)
        wanted = expect(read_committed(scene.bootstrap, topic))[299 if policy == "sequence" else 0 :]
        await_records(reader, len(wanted))
        check_output(reader.seen, wanted, consumer=policy)


def test_a_start_below_the_log_s_start(scene: Scene, new_topic: NewTopicFixture) -> None:
    topic = new_topic()
    produce(scene.bootstrap, topic, ["a"] * 40)
    delete_below(scene.bootstrap, topic, 25)
    scene.add_stream("S", topic)
    names = {"first": POLICIES["first"], "lasts": POLICIES["lasts"], "all": POLICIES["all"]}
    outputs = {name: scene.add_consumer("S", name, ">", **config) for name, config in names.items()}
    with serve(scene) as served:
        await_caught_up(served, *outputs)
    sequences = {
        name: [r.token.sequence for r in read_committed(scene.bootstrap, out)] for name, out in outputs.items()
    }
    assert sequences == {"first": list(range(26, 41)), "lasts": [40], "all": list(range(26, 41))}


def delete_below(bootstrap: str, topic: str, offset: int) -> None:
    """What retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([KafkaPartition(topic, 0, offset)]).values():
        future.result(30)


@pytest.mark.parametrize(
    ("found", "starts"),
    [
        # of the first three records of a the sequences are lost: they count as 5, right before that of the fourth
        ({("a", 0): (9, 1), ("b", 0): (5, 1)}, {("a", 0): 1, ("b", 0): 1}),
        ({("a", 0): (9, 1)}, {("a", 0): 1, ("b", 0): 1}),
        ({("a", 0): (5, 3), ("b", 0): (9, 1)}, {("a", 0): 3, ("b", 0): 2}),
        ({("a", 0): (5, 4), ("b", 0): (9, 1)}, {("a", 0): 4, ("b", 0): 10}),
        ({("a", 0): (5, 4), ("b", 0): (6, 7)}, {("a", 0): 10, ("b", 0): 7}),
        ({}, {("a", 0): 10, ("b", 0): 10}),
    ],
)
def test_which_partition_has_the_last_message(
    found: dict[TopicPartition, tuple[int, int]], starts: dict[TopicPartition, int]
) -> None:
    ledger = Ledger()
    assert ledger.append(LedgerEntry((LedgerRun("b", 0, 0, 2, 4), LedgerRun("a", 0, 3, 1, 6)))) is Refusal.NONE
    bounds = {("a", 0): (0, 10), ("b", 0): (0, 10)}
    assert choose_last(found, bounds, ledger) == starts
