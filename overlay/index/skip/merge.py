"""Merging of small neighbouring chunks into one header.

A sealer's chunks grow until they are full (seal.py). So small ones remain only where it could not
continue: at a restart, at a batch that cannot be read, after the stream's chunk sizes were raised.
Merging does not read their records again; it combines their headers. Offsets, counts, times, bytes
and zones become those of a chunk sealed as one. The Bloom filter does not, because its terms are
forgotten: filters are joined (bloom.py) at the size of the largest. Two filters that share few
terms give a fuller one that rules out less, and every later reader would pay for it. So neighbours
merge only if the joined filter stays under LIMIT, or rules out no less than each of them.

The merged header has the first chunk's offset and thereby its key. In the index topic it replaces
that record. The other chunks, which it overlaps, are void for every reader that has seen it
(chunks.py). So merging is one record, and atomic. The other keys may be deleted at any later time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from overlay.config.stream import IndexConfig

from . import bloom
from .chunk_header import NO_TIME, Header, is_countable
from .zones import unite

LIMIT = 2 * bloom.TARGET


@dataclass(frozen=True, slots=True)
class Merged:
    """A header made of those of several neighbouring chunks (`header`), and these, the first one
    included (`replaced`). In the index topic it has the key of the first one, and so replaces its
    record; the records of the others are to be deleted.
    """

    header: Header
    replaced: tuple[Header, ...]


def merge(headers: Sequence[Header], index: IndexConfig) -> Iterator[Merged]:
    """Yield a merged header for each group of small neighbours. Headers that cannot be merged are
    in no result. `headers`: of one partition, in offset order, without overlap.
    """
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
    """Return one header for two chunks, `a` before `b`; None if they may not or should not be
    merged.

    That is if they are not neighbours in one partition, were not made from the same config, are too
    large together, or if the joined filter is too full.
    """
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
    return header.topic, header.partition, header.config_fingerprint, header.indexed, header.zones.keys()


def _find_times(a: Header, b: Header) -> list[tuple[int, int]]:
    """Return smallest and largest timestamp (ms) of each of the two headers that has records. If
    one of these does not know its times, or if neither has records, return one pair of NO_TIME.
    """
    times = [(header.min_time, header.max_time) for header in (a, b) if header.records]
    return times if times and min(times)[0] != NO_TIME else [(NO_TIME, NO_TIME)]


def _add(a: Mapping[str, int] | None, b: Mapping[str, int] | None) -> dict[str, int] | None:
    if a is None or b is None:
        return None
    counts = dict(Counter(a) + Counter(b))
    return counts if is_countable(counts) else None
