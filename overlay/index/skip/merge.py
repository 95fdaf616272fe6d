"""Merging: small neighbours become one header.

A sealer's chunks grow until they are full (seal.py), so small ones are left only where it could not go on: at a restart, at a
batch that cannot be read, after the chunk sizes of the stream were raised. Their records are not read again; what the headers
say is put together. Offsets, counts, times, bytes and zones come out as if the chunk had been sealed as one. Its Bloom filter
does not, because the terms behind it are forgotten: filters are joined (bloom.py) at the size of the largest. Two
filters that share few terms make a fuller one that lets more through, and merging them would cost every later reader; so
neighbours merge only if the joined filter stays under LIMIT, or lets no more through than each of them does.

The merged header has the first one's offset and thereby its key. In the index topic it takes that record's place, and the
others, which it overlaps, are void for every reader that has seen it (chunks.py): one record, so merging is atomic. The
others' keys may be deleted at any time later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from overlay.config.stream import IndexConfig

from . import bloom
from .chunk_header import MAX_SUBJECTS, NO_TIME, Header
from .zones import unite

LIMIT = 2 * bloom.TARGET


@dataclass(frozen=True, slots=True)
class Merged:
    """A header and those that it replaces: the first under the same key, the others to be deleted."""

    header: Header
    replaced: tuple[Header, ...]


def merge(headers: Sequence[Header], index: IndexConfig) -> Iterator[Merged]:
    """What small neighbours can be merged to. `headers`: of one partition, in offset order, without overlap."""
    group: list[Header] = []
    whole: Header | None = None
    for header in headers:
        joined = None if whole is None else join(whole, header, index)
        if joined is None:
            if whole is not None and len(group) > 1:
                yield Merged(whole, tuple(group))
            group, whole = [header], header
        else:
            group.append(header)
            whole = joined
    if whole is not None and len(group) > 1:
        yield Merged(whole, tuple(group))


def join(a: Header, b: Header, index: IndexConfig) -> Header | None:
    """Two chunks as one; None where they are no neighbours, not about the same, too large, or better apart."""
    if a.next_offset != b.first_offset or _describe(a) != _describe(b):
        return None
    if a.records + b.records > index.chunk_records or a.bytes + b.bytes > index.chunk_bytes:
        return None
    joined = bloom.join((a.bloom, b.bloom))
    if joined.false_positives > max(LIMIT, min(a.bloom.false_positives, b.bloom.false_positives)):
        return None
    times = _find_times(a, b)
    return replace(
        a,
        next_offset=b.next_offset,
        records=a.records + b.records,
        addressed=a.addressed + b.addressed,
        bytes=a.bytes + b.bytes,
        min_time=min(times)[0],
        max_time=max(high for _, high in times),
        epoch=b.epoch,
        crc=b.crc,
        exact=a.exact and b.exact,
        bloom=joined,
        subjects=_add(a.subjects, b.subjects),
        zones={property: unite(bounds, b.zones[property]) for property, bounds in a.zones.items()},
    )


def _describe(header: Header) -> tuple[object, ...]:
    return header.topic, header.partition, header.scope, header.indexed, header.zones.keys()


def _find_times(a: Header, b: Header) -> list[tuple[int, int]]:
    """The bounds of time of those that have records to know the times of; NO_TIME as soon as one does not know."""
    times = [(header.min_time, header.max_time) for header in (a, b) if header.records]
    return times if times and min(times)[0] != NO_TIME else [(NO_TIME, NO_TIME)]


def _add(a: Mapping[str, int] | None, b: Mapping[str, int] | None) -> dict[str, int] | None:
    if a is None or b is None:
        return None
    counts = dict(Counter(a) + Counter(b))
    return counts if len(counts) <= MAX_SUBJECTS else None
