"""A partition in plain Python for tests of the planner: records, chunks of them, and what a full scan finds.

Headers are made here from records as the documents say, one record after the other, and go into the Chunks of the overlay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from overlay.config.stream import StreamConfig, place_property
from overlay.filter import Filter, compile_sql
from overlay.filter.message import to_value
from overlay.filter.nodes import Section
from overlay.filter.rows import evaluate, to_truth
from overlay.index.skip import bloom
from overlay.index.skip.chunk_header import NO_TIME, Header
from overlay.index.skip.chunks import Chunks
from overlay.index.skip.config_fingerprint import find_config_fingerprint
from overlay.index.skip.probes import Part
from overlay.index.skip.terms import UNFILTERED, Term, as_hashes, null_term, property_term, value_term
from overlay.index.skip.zones import Bounds, text_key
from overlay.subject import Pattern
from tests.oracle.chunks import subject_terms

Message = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Record:
    offset: int
    subject: str | None
    """None: it is not in the stream."""
    time: int = NO_TIME
    message: Message = field(default_factory=dict)
    value: bytes | None = None
    """The filter value."""


def stream(**config: Any) -> StreamConfig:
    return StreamConfig.model_validate_json(json.dumps({"name": "S", "topics": ["t"], **config}))


def sql(text: str, config: StreamConfig) -> Filter:
    return compile_sql(text, config.properties)


def say(**properties: Any) -> dict[str, dict[str, Any]]:
    """A message with these application properties; None is NULL."""
    return {Section.APPLICATION.value: {name: value for name, value in properties.items() if value is not None}}


def seal(
    config: StreamConfig, records: Sequence[Record], first: int, after: int, *, bytes: int = 1 << 20, exact: bool = True
) -> Header:
    """The header of a chunk of records, first <= offset < after."""
    config_fingerprint = find_config_fingerprint(config)
    ours = [record for record in records if record.subject is not None]
    terms: dict[Term, None] = {}
    for record in ours:
        terms |= dict.fromkeys(list_terms(config, record))
    times = [record.time for record in records]
    has_times = bool(times) and min(times) >= 0
    return Header(
        "t", 0, first, after, len(records), len(ours), bytes,
        min(times) if has_times else NO_TIME,
        max(times) if has_times else NO_TIME,
        epoch=0, crc=-1, exact=exact,
        config_fingerprint=config_fingerprint.subject,
        indexed=tuple(sorted(config_fingerprint.terms.values())),
        bloom=bloom.make(as_hashes(*terms), config.index.bloom_bytes),
        subjects=Counter(record.subject or "" for record in ours),
        zones={config_fingerprint.zones[name]: find_zone(config, name, ours) for name in config.index.zones},
    )  # fmt: skip


def list_terms(config: StreamConfig, record: Record) -> Iterable[Term]:
    assert record.subject is not None
    yield from subject_terms(record.subject)
    if not config.filter_value.subject:
        yield value_term(record.value) if record.value else UNFILTERED
    for name in config.index.terms:
        value = read(record, name)
        yield null_term(name) if value is None else property_term(name, value)


def find_zone(config: StreamConfig, name: str, records: Sequence[Record]) -> Bounds:
    found = [read(record, name) for record in records]
    values = [value for value in found if value is not None]
    low, high = (min(values), max(values)) if values else (None, None)
    if isinstance(low, bytes) and isinstance(high, bytes):
        low, high = text_key(low), text_key(high)
    assert not isinstance(low, bytes) and not isinstance(high, bytes)
    return Bounds(config.properties[name].type.value, low, high, None in found)


def read(record: Record, name: str) -> Any:
    """A declared property as the sealer reads it: NULL stays NULL, also a missing priority."""
    section, field = place_property(name)
    return to_value(record.message.get(section.value, {}).get(field))


def load(config: StreamConfig, headers: Iterable[Header]) -> Chunks:
    chunks = Chunks(find_config_fingerprint(config))
    for header in headers:
        chunks.append(header)
    return chunks


def forget(header: Header, what: str) -> Header:
    """The header without something that headers may lack."""
    match what:
        case "counts":
            return replace(header, subjects=None)
        case "terms":
            return replace(header, indexed=())
        case "zones":
            return replace(header, zones={})
        case "bloom":
            return replace(header, bloom=bloom.NONE)
        case _:
            return header


@dataclass(frozen=True)
class Question:
    """What derive() is asked, and what a full scan answers."""

    patterns: tuple[Pattern, ...] = ()
    values: tuple[str, ...] = ()
    match_unfiltered: bool = False
    filter: Filter | None = None
    since: int | None = None
    until: int | None = None
    start: int | None = None
    stop: int | None = None

    def passes(self, part: Part, record: Record, config: StreamConfig, now: int) -> bool:
        """Whether a record of the stream passes one part."""
        match part:
            case Part.SUBJECT:
                return not self.patterns or any(pattern.matches(record.subject or "") for pattern in self.patterns)
            case Part.VALUES:
                own = record.value or b""
                if config.filter_value.subject:
                    own = (record.subject or "").encode()
                wanted = [value.encode() for value in self.values]
                return not self.values or own in wanted or (not own and self.match_unfiltered)
            case Part.FILTER:
                if self.filter is None:
                    return True
                return to_truth(evaluate(self.filter.bound, record.message, now)) is True
            case _:
                return (
                    (self.since is None or record.time >= self.since)
                    and (self.until is None or record.time < self.until)
                    and (self.start is None or record.offset >= self.start)
                    and (self.stop is None or record.offset < self.stop)
                )
