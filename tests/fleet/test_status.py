"""Statuses as bytes: what was written is read, and nothing else passes for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.fleet.status import (
    DAY_MS,
    MOST_BYTES,
    MOST_CONSUMERS,
    MOST_GONE,
    MOST_STREAMS,
    MOST_TEXT,
    ConsumerStatus,
    Refusal,
    ShardStatus,
    Status,
    StreamStatus,
    WorkerStatus,
    clean,
    decode,
    encode,
    judge_time,
)

from .statuses import NOW, make_consumer, make_status, make_stream

TEXTS = st.text(max_size=400).map(clean)
NAMES = st.text(min_size=1, max_size=300).map(lambda text: clean(text, 255))
COUNTS = st.integers(0, 2**63 - 1)
AMOUNTS = st.floats(0, 1e15)
CONSUMERS = st.builds(
    ConsumerStatus,
    stream=NAMES,
    name=NAMES,
    state=NAMES,
    reason=TEXTS,
    sequence=COUNTS,
    delivered=COUNTS,
    rate=AMOUNTS,
    lag=st.none() | COUNTS,
    lag_s=AMOUNTS,
    pending=st.none() | COUNTS,
    pending_is=st.sampled_from(["", "exact", "estimate"]),
    unacked=COUNTS,
    redelivered=COUNTS,
    positions=st.dictionaries(NAMES, COUNTS, max_size=16),
    dead_letters=st.dictionaries(NAMES, COUNTS, max_size=16),
)
STREAMS = st.builds(
    StreamStatus,
    name=NAMES,
    topic=TEXTS,
    partitions=COUNTS,
    state=NAMES,
    reason=TEXTS,
    rate=AMOUNTS,
    lag=st.none() | COUNTS,
    index=st.sampled_from(["", "running", "stopped"]),
    index_lag=st.none() | COUNTS,
)
SHARDS = st.lists(
    st.builds(ShardStatus, number=st.integers(0, 1023), ready=st.booleans(), reason=TEXTS),
    max_size=5,
    unique_by=lambda shard: shard.number,
)
HEADS = st.builds(
    make_status,
    st.from_regex(r"[a-zA-Z0-9._:-]{1,100}", fullmatch=True),
    shard_count=st.just(1024),
    number=st.integers(0, 2**62),
    clock=COUNTS,
    every=st.integers(100, 600_000),
    trouble=TEXTS,
    leaving=st.booleans(),
    served=COUNTS,
    generation=st.none() | COUNTS,
    settings=TEXTS,
)


PARTS = st.tuples(st.lists(CONSUMERS, max_size=5), st.lists(NAMES, max_size=5), st.lists(STREAMS, max_size=5))


@given(HEADS, SHARDS, PARTS, st.lists(NAMES, max_size=5))
def test_what_was_written_is_read(
    head: Status,
    shards: list[ShardStatus],
    parts: tuple[list[ConsumerStatus], list[str], list[StreamStatus]],
    left: list[str],
) -> None:
    consumers, gone, streams = parts
    worker = WorkerStatus(**dict(head) | {"shards": tuple(shards)})
    values = encode(worker, consumers, gone, streams, left)
    read = [decode(worker.worker.encode(), value, worker.prefix) for value in values]
    told: list[ConsumerStatus] = []
    dropped: list[str] = []
    for at, status in enumerate(read):
        assert isinstance(status, Status)
        assert {name: getattr(status, name) for name in WorkerStatus.model_fields} == dict(worker) | {
            "number": worker.number + at
        }
        told += status.consumers
        dropped += status.gone
    assert (told, dropped) == (consumers, gone)
    statuses = [status for status in read if isinstance(status, Status)]
    assert [each for status in statuses for each in status.streams] == streams
    assert [name for status in statuses for name in status.left] == left


@pytest.mark.parametrize("count", [0, 1, MOST_CONSUMERS, MOST_CONSUMERS + 1, 5 * MOST_CONSUMERS])
def test_a_status_takes_as_many_records_as_it_needs(count: int) -> None:
    consumers = [make_consumer(f"c{number}", reason="x" * 200) for number in range(count)]
    gone = [f"S/g{number}" for number in range(count)]
    streams = [make_stream(f"s{number}", reason="x" * 200) for number in range(count)]
    values = encode(make_status(), consumers, gone, streams, [stream.name for stream in streams])
    assert len(values) >= max(1, count // MOST_CONSUMERS, count // MOST_GONE, count // MOST_STREAMS)
    assert all(len(value) < MOST_BYTES // 2 for value in values)
    read = [decode(b"a", value, "overlay") for value in values]
    assert [each.id for status in read if isinstance(status, Status) for each in status.consumers] == [
        each.id for each in consumers
    ]
    assert [name for status in read if isinstance(status, Status) for name in status.gone] == gone
    assert [each for status in read if isinstance(status, Status) for each in status.streams] == streams
    assert [n for status in read if isinstance(status, Status) for n in status.left] == [s.name for s in streams]


def test_a_quiet_status_is_small() -> None:
    (value,) = encode(make_status(), [], [])
    assert len(value) < 250


def body(**fields: Any) -> bytes:
    (value,) = encode(make_status(), [make_consumer()], [])
    return json.dumps(json.loads(value) | fields).encode()


SHARD = {"number": 0}
CONSUMER: dict[str, Any] = {"stream": "S", "name": "c", "state": "running"}
REFUSED: dict[str, tuple[bytes | None, Refusal]] = {
    "no value": (None, Refusal.SIZE),
    "empty": (b"", Refusal.SIZE),
    "too large": (body(trouble=" " * MOST_BYTES), Refusal.SIZE),
    "no JSON": (b"zork", Refusal.MALFORMED),
    "no object": (b"[1]", Refusal.MALFORMED),
    "broken": (body()[:-1], Refusal.MALFORMED),
    "too deep": (b'{"v":1,"prefix":"overlay","x":' + b"[" * 100_000, Refusal.MALFORMED),
    "too deep, and closed": (b'{"v":1,"x":' + b"[" * 9_999 + b"]" * 9_999 + b"}", Refusal.MALFORMED),
    "NaN": (body(consumers=[CONSUMER | {"rate": float("nan")}]), Refusal.MALFORMED),
    "infinite": (body(consumers=[CONSUMER | {"rate": float("inf")}]), Refusal.MALFORMED),
    "larger than an offset": (body(clock=2**63), Refusal.MALFORMED),
    "thousands of digits": (body().replace(b'"number": 0', b'"number": ' + b"9" * 5_000, 1), Refusal.MALFORMED),
    "negative": (body(number=-1), Refusal.MALFORMED),
    "a text for a number": (body(number="1"), Refusal.MALFORMED),
    "a number for a text": (body(digest=1), Refusal.MALFORMED),
    "a fraction": (body(number=1.5), Refusal.MALFORMED),
    "a long text": (body(trouble="x" * (MOST_TEXT + 1)), Refusal.MALFORMED),
    "an escape sequence": (body(trouble="\x1b[2J"), Refusal.MALFORMED),
    "a line break": (body(digest="a\nb"), Refusal.MALFORMED),
    "half a pair": (body().replace(b'"d1"', b'"\\ud800"'), Refusal.MALFORMED),
    "a worker of odd letters": (body(worker="a b"), Refusal.MALFORMED),
    "a shard twice": (body(shards=[SHARD, SHARD]), Refusal.MALFORMED),
    "a shard beyond their number": (body(shards=[{"number": 1}]), Refusal.MALFORMED),
    "too many consumers": (body(consumers=[CONSUMER] * (MOST_CONSUMERS + 1)), Refusal.MALFORMED),
    "too many streams": (body(streams=[{"name": "S", "state": "idle"}] * (MOST_STREAMS + 1)), Refusal.MALFORMED),
    "a stream without a name": (body(streams=[{"state": "idle"}]), Refusal.MALFORMED),
    "a stream that is left without a name": (body(left=[""]), Refusal.MALFORMED),
    "too many positions": (
        body(consumers=[CONSUMER | {"positions": {f"t-{n}": 0 for n in range(17)}}]),
        Refusal.MALFORMED,
    ),
    "too many causes": (
        body(consumers=[CONSUMER | {"dead_letters": {f"c{n}": 0 for n in range(17)}}]),
        Refusal.MALFORMED,
    ),
    "an endless interval": (body(every=10**9), Refusal.MALFORMED),
    "no version": (body(v=None), Refusal.MALFORMED),
    "a later version": (body(v=2), Refusal.VERSION),
    "a later version of another form": (b'{"v":7}', Refusal.VERSION),
    "another prefix": (body(prefix="other"), Refusal.STRANGER),
    "another worker's name": (body(worker="z"), Refusal.STRANGER),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    value, reason = REFUSED[case]
    assert decode(b"a", value, "overlay") is reason


def test_a_key_is_needed() -> None:
    assert decode(None, body(), "overlay") is Refusal.STRANGER
    assert isinstance(decode(b"a", body(), "overlay"), Status)


def test_members_of_a_later_version_are_passed_over() -> None:
    later = body(cpu=0.5, shards=[SHARD | {"more": []}], consumers=[CONSUMER | {"more": {}}])
    status = decode(b"a", later, "overlay")
    assert isinstance(status, Status)
    assert (status.shards, status.consumers) == ((ShardStatus(number=0),), (ConsumerStatus(**CONSUMER),))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.binary(max_size=300) | st.dictionaries(st.sampled_from([*Status.model_fields]), JSON).map(lambda d: body(**d))
)
def test_no_bytes_raise(value: bytes) -> None:
    assert isinstance(decode(b"a", value, "overlay"), Status | Refusal)


@pytest.mark.parametrize(
    ("clock", "appended", "now", "judged"),
    [
        (NOW, NOW, NOW, None),
        (NOW - DAY_MS, NOW, NOW, None),
        (NOW - DAY_MS - 1, NOW, NOW, Refusal.PAST),
        (NOW + DAY_MS, NOW, NOW, None),
        (NOW + DAY_MS + 1, NOW, NOW, Refusal.FUTURE),
        (NOW, NOW, NOW - 3_600_000, None),
        (NOW, NOW, NOW - 3_600_001, Refusal.FUTURE),
    ],
)
def test_the_past_and_the_future(clock: int, appended: int, now: int, judged: Refusal | None) -> None:
    assert judge_time(make_status(clock=clock), appended, now) is judged


def test_cleaned_texts_are_printable() -> None:
    assert clean("a\nb\x1b[2J\ud800\u202e" + "x" * 400) == ("a b [2J  " + "x" * 400)[:MOST_TEXT]
