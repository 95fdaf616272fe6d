"""Sealing against its twin (tests/oracle/chunks.py), over logs with transactions, gaps and reads that stop anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.config import StreamConfig
from overlay.index.skip import encode as chunks
from overlay.index.skip.chunk_header import Header
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from overlay.index.skip.contents import Contents
from overlay.index.skip.seal import Sealer
from overlay.index.skip.terms import UNFILTERED, Term, null_term, property_term, value_term
from overlay.index.skip.zones import Bounds, text_key
from overlay.match import Addressed, Addressing
from overlay.scan import decode
from overlay.scan.header import split
from overlay.subject import SubjectRule
from overlay.subject.dictionary import Dictionary
from overlay.subject.values import Unaddressed
from tests.oracle.batches import Record, parse
from tests.oracle.chunks import Chunk, cut, make_bloom, subject_terms
from tests.oracle.properties import REASONS, _read_source
from tests.support.batches import build, empty
from tests.support.strategies import FetchBuffer, fetch_buffers

RULE = "s.{header:origin}"
PROPERTIES = {
    "delay": ("double", "{header:dep_delay}"),
    "number": ("long", "{header:dep_delay}"),
    "carrier": ("string", "{header:carrier}"),
    "late": ("boolean", "{header:dep_delay}"),
    "raw": ("binary", "{key}"),
    "when": ("timestamp", "{timestamp}"),
    "where": ("string", "{topic}"),
    "leg": ("string", "{value:a}"),
}
ZONED = ("delay", "number", "carrier", "when", "where", "leg")
FILTER_VALUES: list[dict[str, Any]] = [{"subject": True}, {"header": "carrier"}, {"template": "v.{header:dest}"}]
LATER = 1 << 60


def make_stream(**changes: Any) -> StreamConfig:
    declared = {name: {"type": type, "from": source} for name, (type, source) in PROPERTIES.items()}
    return StreamConfig.model_validate(
        {"name": "S", "topics": ("t",), "subject": {"template": RULE}, "properties": declared, **changes}
    )


def describe(stream: StreamConfig, record: Record) -> tuple[str, set[Term], Mapping[str, Any]] | None:
    """What the twin needs to know of a record, one field after the other."""
    headers = dict(record.headers)
    subject = build_text(RULE, headers)
    if subject is None or not any(pattern.matches(subject) for pattern in stream.patterns):
        return None
    terms = set(subject_terms(subject))
    if stream.filter_value.header:
        value = headers.get(stream.filter_value.header.encode())
        terms.add(value_term(value) if value else UNFILTERED)
    elif stream.filter_value.template:
        made = build_text(stream.filter_value.template, headers)
        terms.add(UNFILTERED if made is None else value_term(made.encode()))
    place = {"{topic}": b"t"} | ({} if record.timestamp == -1 else {"{timestamp}": str(record.timestamp).encode()})
    values: dict[str, Any] = {}
    for name in {*stream.index.terms, *stream.index.zones}:
        type, source = PROPERTIES[name]
        value = _read_source(source, type, record, place)
        values[name] = None if value in REASONS else value
        if name in stream.index.terms:
            terms.add(null_term(name) if values[name] is None else property_term(name, values[name]))
    return subject, terms, values


def build_text(template: str, headers: Mapping[bytes, bytes | None]) -> str | None:
    rule = SubjectRule.from_template(template)
    built = rule.build([headers.get(field.name.encode()) for field in rule.fields], "t", 0)
    return None if isinstance(built, Unaddressed) else built


def check(header: Header, chunk: Chunk, stream: StreamConfig) -> None:
    assert (header.topic, header.partition) == ("t", 3)
    assert (header.first_offset, header.next_offset) == (chunk.first_offset, chunk.next_offset)
    assert (header.records, header.addressed, header.bytes) == (len(chunk.records), chunk.addressed, chunk.bytes)
    assert (header.min_time, header.max_time) == chunk.times
    assert (header.epoch, header.crc, header.exact) == (chunk.epoch, chunk.crc, chunk.exact)
    assert header.subjects == (chunk.subjects if len(chunk.subjects) <= 64 else None)
    size = stream.index.bloom_bytes
    assert (header.bloom.bits, header.bloom.hashes) == make_bloom(chunk.terms, None if size == "auto" else size)
    config_fingerprint = find_config_fingerprint(stream)
    assert header.config_fingerprint == config_fingerprint.subject
    assert header.indexed == tuple(sorted(config_fingerprint.terms.values()))
    for name, property in config_fingerprint.zones.items():
        values = chunk.values.get(name, [])
        present = [value for value in values if value is not None]
        if config_fingerprint.types[name] == "string":
            present = [text_key(value if isinstance(value, bytes) else value.encode()) for value in present]
        expected = Bounds(
            config_fingerprint.types[name], min(present, default=None), max(present, default=None), None in values
        )
        assert header.zones[property] == expected
    assert header.zones.keys() == set(config_fingerprint.zones.values())
    assert chunks.decode(chunks.encode(header)[1]) == header


def fetcher(
    sealer: Sealer, contents: Contents, addressing: Addressing, log: FetchBuffer, stops: list[int]
) -> Iterator[Header]:
    """Read the log in pieces that end at `stops`, each from a fetch that begins with the batch of its position."""
    for stop in sorted({*(s for s in stops if s < log.last_stable_offset), log.last_stable_offset}):
        position = sealer.position
        if stop <= position:
            continue
        data = np.frombuffer(log.data, np.uint8).copy()
        batches = split(data).batches
        aborted = np.array(log.aborted, np.int64).reshape(-1, 2)
        for piece in addressing.read("t", 3, data, position, more=contents.fields, stop=stop, aborted=aborted):
            yield from sealer.add(piece, batches, 0)


streams = st.builds(
    lambda terms, zones, records, size, value, bloom, subjects: make_stream(
        index={
            "terms": tuple(terms), "zones": tuple(zones), "chunk_records": records, "chunk_bytes": size, "bloom_bytes": bloom,
        },
        filter_value=value,
        subjects=subjects,
    ),
    st.sets(st.sampled_from(list(PROPERTIES))),
    st.sets(st.sampled_from(ZONED)),
    st.sampled_from([1, 2, 5, 1000]),
    st.sampled_from([1024, 1 << 20]),
    st.sampled_from(FILTER_VALUES),
    st.sampled_from(["auto", "auto", 16, 64]),
    st.sampled_from([("s.>",), ("s.0", "s.12", "s.null")]),
)  # fmt: skip


def compare(stream: StreamConfig, log: FetchBuffer, stops: list[int]) -> None:
    contents = Contents(stream)
    addressing = Addressing(stream.subject.rule, stream.patterns)
    sealer = Sealer(contents, "t", 3, log.first_offset)
    sealed = list(fetcher(sealer, contents, addressing, log, [log.first_offset + stop for stop in stops]))
    visible = [record for record in log.committed if record.offset >= log.first_offset]
    batches = [batch for batch in parse(log.data) if batch.base_offset < log.last_stable_offset]
    limits = (stream.index.chunk_records, int(stream.index.chunk_bytes))
    *full, rest = cut(batches, visible, log.first_offset, limits, lambda record: describe(stream, record))
    assert len(sealed) == len(full)
    for header, chunk in zip(sealed, full, strict=True):
        check(header, chunk, stream)
    left = sealer.flush()
    assert len(left) == bool(rest.records)
    for header in left:
        check(header, rest, stream)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams, fetch_buffers(), st.lists(st.integers(0, 200), max_size=3), st.sampled_from([1, 3, decode.SLICE_ROWS]))
def test_headers_are_what_the_twin_says(
    stream: StreamConfig, log: FetchBuffer, stops: list[int], slice_rows: int
) -> None:
    """Also if slices end within batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "SLICE_ROWS", slice_rows)
        compare(stream, log, stops)


@pytest.mark.parametrize("value", FILTER_VALUES)
@pytest.mark.parametrize("records", [1, 7])
def test_values_that_are_there_empty_and_missing(value: dict[str, Any], records: int) -> None:
    """Every mixture, in chunks small enough to have records without a value, with one, and with both."""
    kinds: list[list[bytes | None]] = [[b"", b"AA", b"\xff", None], [b"", b"x", b"x y", None], [b"1", b"1.5", b"late"]]
    found = [
        Record(
            at,
            5,
            b"k",
            b'{"a": "v"}',
            [(b"origin", b"o"), (b"carrier", carrier), (b"dest", dest), (b"dep_delay", delay)],
        )
        for at, (carrier, dest, delay) in enumerate(product(*kinds))
    ]
    found = [replace(r, headers=[h for h in r.headers if h[1] is not None or r.offset % 2]) for r in found]
    data = b"".join(build([record], base_offset=record.offset) for record in found)
    log = FetchBuffer(data=data, next_offset=len(found), last_stable_offset=len(found), committed=found)
    index = {"terms": tuple(PROPERTIES), "zones": ZONED, "chunk_records": records}
    compare(make_stream(filter_value=value, index=index), log, [3])


PLAIN = make_stream(index={"chunk_records": 10, "chunk_age": 10_000_000_000})


def make_log(count: int, base: int = 0, name: str = "a{}") -> bytes:
    return b"".join(
        build([Record(at, 1000 + at, None, None, [(b"origin", name.format(at % 7).encode())])], base_offset=at)
        for at in range(base, base + count)
    )


class Reader:
    """Gives a sealer what is appended to a log."""

    def __init__(self, stream: StreamConfig = PLAIN, start: int = 0) -> None:
        self.contents = Contents(stream)
        self.addressing = Addressing(stream.subject.rule, stream.patterns)
        self.sealer = Sealer(self.contents, "t", 3, start)

    def read(self, raw: bytes, now: int = 0) -> list[tuple[int, int]]:
        data = np.frombuffer(raw, np.uint8).copy()
        batches, sealed = split(data).batches, []
        for piece in self.addressing.read("t", 3, data, self.sealer.position, more=self.contents.fields):
            sealed += self.sealer.add(piece, batches, now)
        return show(sealed)


def show(headers: list[Header]) -> list[tuple[int, int]]:
    return [(header.first_offset, header.next_offset) for header in headers]


def test_a_chunk_that_is_handed_out_for_its_age_goes_on_growing() -> None:
    reader = Reader()
    assert reader.sealer.age(LATER) == []
    assert reader.read(make_log(4), now=1000) == []
    assert reader.sealer.age(10_999) == []
    assert show(reader.sealer.age(11_000)) == [(0, 4)]
    assert reader.sealer.age(LATER) == []
    assert reader.read(make_log(3, 4), now=20_000) == []
    assert reader.sealer.age(29_999) == []
    assert show(reader.sealer.age(30_000)) == [(0, 7)]
    assert reader.read(make_log(8, 7), now=40_000) == [(0, 10)]
    assert show(reader.sealer.flush()) == [(10, 15)]


def test_a_batch_that_cannot_be_read_is_in_no_chunk() -> None:
    reader = Reader()
    broken = bytearray(make_log(1, 4))
    broken[-1] ^= 1
    assert reader.read(make_log(4) + bytes(broken) + make_log(12, 5)) == [(0, 4), (5, 15)]
    assert show(reader.sealer.flush()) == [(15, 17)]


def test_what_compaction_left_is_not_exact() -> None:
    for log, exact in (
        (make_log(5), True),
        (make_log(2) + make_log(3, 4), False),
        (make_log(2) + empty(2, 3) + make_log(1, 5), False),
        (make_log(2, 2), False),
    ):
        reader = Reader()
        reader.read(log)
        assert [header.exact for header in reader.sealer.flush()] == [exact]


def test_a_log_without_records_is_no_chunk_until_it_is_large() -> None:
    reader = Reader(make_stream(index={"chunk_bytes": 1024}))
    assert reader.read(b"".join(empty(at, 1) for at in range(10))) == []
    assert reader.sealer.flush() == []
    assert reader.read(b"".join(empty(at, 1) for at in range(10, 40))) == [(0, 17), (17, 34)]


def test_codes_that_are_given_anew_lose_nothing() -> None:
    """Past its limit a dictionary starts afresh, in the middle of a chunk."""
    stream = make_stream(index={"chunk_records": 1000})
    reader, plain = Reader(stream), Reader(stream)
    rule, wanted = stream.subject.rule, reader.addressing._is_wanted
    reader.addressing._dictionaries["t", -1] = small = Dictionary(rule, "t", 3, wanted, limit=5)
    for at in range(0, 60, 4):
        log = make_log(4, at, "b{}" if at % 3 else "a{}")
        assert reader.read(log) == plain.read(log) == []
    assert small.generation > 3
    assert reader.sealer.flush() == plain.sealer.flush()


def test_long_subjects_are_not_counted() -> None:
    """A header stays small, and can be written, however long the subjects of its chunk are."""
    for name in ("x" * 70_000 + "{}", "x" * 6_000 + "{}"):
        reader = Reader(make_stream(index={"chunk_records": 1000}))
        assert reader.read(make_log(4, 0, name)) == []
        (header,) = reader.sealer.flush()
        assert header.subjects is None and len(chunks.encode(header)) < 8_192


def test_partitions_share_what_is_known_of_subjects() -> None:
    contents = Contents(PLAIN)
    addressing = Addressing(PLAIN.subject.rule, PLAIN.patterns)
    sealers = [Sealer(contents, "t", partition, 0) for partition in range(2)]
    for at in range(0, 8, 2):
        for partition, sealer in enumerate(sealers):
            data = np.frombuffer(make_log(2, at, f"p{partition}.{{}}"), np.uint8).copy()
            for piece in addressing.read("t", partition, data, at):
                assert isinstance(piece, Addressed)
                sealer.add(piece, split(data).batches, 0)
    one, other = (sealer.flush()[0] for sealer in sealers)
    assert one.subjects is not None
    assert set(one.subjects) == {f"s.p0%2E{i}" for i in range(7)}
    assert other.subjects == {subject.replace("p0", "p1"): n for subject, n in one.subjects.items()}
