"""Hypothesis strategies for what a partition may hold: records, batches of every codec, whole fetch buffers.

Offsets are increasing with gaps, as compaction and markers leave them. A fetch buffer comes with what a read-committed
consumer must hand out of it, known from how the log was made rather than from reading it back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.oracle.batches import Header, Record
from tests.support.batches import build, empty, end_marker
from tests.support.mutations import mutate as mutate

# Few names, so that duplicates within a record and absences between records are common.
HEADER_NAMES = [b"origin", b"dest", b"carrier", b"dep_delay", b"", "größe".encode(), "航班".encode(), b"\xff\xfe bad"]
ABORT_KEY = b"\x00\x00\x00\x00"  # what a marker's key looks like, in an ordinary record

codecs = st.integers(0, 4)
small_bytes = st.one_of(st.just(b""), st.binary(max_size=24), st.sampled_from([b"null", b"0", ABORT_KEY, b"\xc3\x28"]))
nullable_bytes = st.none() | small_bytes
numbers = st.sampled_from([b"12", b"-3.5", b"1e3", b" 7", b"0x10", b"NaN", b"", b"9223372036854775808", b"true"])

json_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
json_keys = st.sampled_from(["origin", "dest", "leg", "a", "", "ключ", 'q"uote', "back\\slash", "origin "]) | st.text(
    max_size=4
)
json_documents = st.dictionaries(
    json_keys,
    st.recursive(
        json_leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_keys, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=6,
)


@st.composite
def json_values(draw: st.DrawFn) -> bytes:
    """A JSON object as some producer would write it: compact or spread out, escaped or plain UTF-8."""
    text = json.dumps(
        draw(json_documents),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, None, 2])),
        separators=draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])),
    )
    return text.encode("utf-8", "surrogatepass")


@st.composite
def broken_json(draw: st.DrawFn) -> bytes:
    whole = draw(json_values())
    cut = draw(st.integers(0, len(whole)))
    return whole[:cut] + draw(st.sampled_from([b"", b"}", b'"', b"\\", b"\x00", b"\xff"])) + whole[cut + 1 :]


values = st.one_of(nullable_bytes, json_values(), broken_json())


def header_lists() -> st.SearchStrategy[list[Header]]:
    names = st.sampled_from(HEADER_NAMES) | st.binary(max_size=6)
    return st.lists(st.tuples(names, nullable_bytes | numbers), max_size=7)


@st.composite
def any_records(
    draw: st.DrawFn, base_offset: int = 0, max_size: int = 8, value: st.SearchStrategy[bytes | None] = values
) -> list[Record]:
    """Records from `base_offset` on, offsets rising with gaps; timestamps in any order."""
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 1, 2, 5, 300]), max_size=max_size))
    now = draw(st.integers(0, 1 << 42))
    records, offset = [], base_offset - 1
    for gap in gaps:
        offset += gap
        timestamp = now + draw(st.integers(-5000, 5000))
        records.append(Record(offset, timestamp, draw(nullable_bytes), draw(value), draw(header_lists())))
    return records


@st.composite
def any_batches(draw: st.DrawFn, base_offset: int = 0) -> bytes:
    """One sound batch of any codec; its last offset may lie past its last record."""
    return build_any(draw, draw(any_records(base_offset)), base_offset)


def build_any(draw: st.DrawFn, records: list[Record], base_offset: int, producer: int | None = None) -> bytes:
    """A batch of these records, everything that the records leave open chosen by Hypothesis."""
    last = records[-1].offset - base_offset if records else 0
    return build(
        records,
        base_offset=base_offset,
        codec=draw(codecs),
        xerial=draw(st.booleans()),
        transactional=producer is not None,
        producer_id=-1 if producer is None else producer,
        producer_epoch=-1 if producer is None else 0,
        leader_epoch=draw(st.integers(0, 3)),
        last_offset_delta=last + draw(st.sampled_from([0, 0, 0, 3])),
    )


@dataclass(slots=True)
class FetchBuffer:
    """A fetch response of one partition. `committed` is what read-committed hands out; `aborted` as brokers give it."""

    data: bytes = b""
    first_offset: int = 0
    next_offset: int = 0
    last_stable_offset: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)
    committed: list[Record] = field(default_factory=list)
    batches: int = 0
    tail: bytes = b""  # the incomplete last batch; part of `data`


@dataclass(slots=True)
class _Log:
    """The log while it is written: batches with their records, and whose transactions are open since when."""

    next_offset: int
    # (base offset, bytes, records, transaction)
    batches: list[tuple[int, bytes, list[Record], int]] = field(default_factory=list)
    # producer -> (transaction, first offset)
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    # (transaction, producer, first offset, last offset)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)
    transactions: int = 0

    def append(self, data: bytes, records: list[Record], transaction: int = 0) -> None:
        span = int.from_bytes(data[23:27], "big") + 1
        self.batches.append((self.next_offset, data, records, transaction))
        self.next_offset += span

    def begin(self, producer: int) -> int:
        if producer not in self.open:
            self.transactions += 1
            self.open[producer] = (self.transactions, self.next_offset)
        return self.open[producer][0]

    def finish(self, producer: int, *, commit: bool) -> None:
        if producer not in self.open:
            return
        transaction, first = self.open.pop(producer)
        if not commit:
            self.aborted.append((transaction, producer, first, self.next_offset))
        self.append(end_marker(self.next_offset, producer, commit=commit), [])


def _step(draw: st.DrawFn, log: _Log) -> None:
    kind = draw(st.sampled_from(["plain", "transactional", "transactional", "commit", "abort", "empty", "gap"]))
    producer = draw(st.integers(7, 9))
    if kind == "gap":
        log.next_offset += draw(st.integers(1, 50))
    elif kind == "empty":
        log.append(empty(log.next_offset, draw(st.integers(1, 20))), [])
    elif kind in ("commit", "abort"):
        log.finish(producer, commit=kind == "commit")
    else:
        records = draw(any_records(log.next_offset, max_size=5))
        owner = producer if kind == "transactional" else None
        transaction = log.begin(producer) if owner is not None else 0
        log.append(build_any(draw, records, log.next_offset, owner), records, transaction)


@st.composite
def fetch_buffers(draw: st.DrawFn, max_batches: int = 8) -> FetchBuffer:
    """Several batches from somewhere in a log: transactions, markers, empty batches, gaps, an incomplete last batch."""
    start = draw(st.sampled_from([0, 1, 1 << 33]))
    log = _Log(start)
    for _ in range(draw(st.integers(0, max_batches))):
        _step(draw, log)
    stable = min((first for _, first in log.open.values()), default=log.next_offset)
    read = log.batches[draw(st.integers(0, min(2, len(log.batches)))) :]
    first_offset = read[0][0] if read else log.next_offset
    dead = {transaction for transaction, *_ in log.aborted}
    committed = [
        record
        for _, _, records, transaction in read
        for record in records
        if transaction not in dead and record.offset < stable
    ]
    after = draw(any_batches(log.next_offset))
    tail = after[: draw(st.integers(0, len(after) - 1))]
    return FetchBuffer(
        data=b"".join(data for _, data, _, _ in read) + tail,
        first_offset=first_offset,
        next_offset=log.next_offset,
        last_stable_offset=stable,
        aborted=[(producer, first) for _, producer, first, last in log.aborted if last >= first_offset],
        committed=committed,
        batches=len(read),
        tail=tail,
    )
