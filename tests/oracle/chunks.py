"""The slow, obvious twin of overlay/index: Bloom filters of Python sets, chunks cut and summed up record by record.

Written from docs/index.md. Terms are taken from overlay/index/skip/terms.py one by one; that they are the right ones is for
its own tests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overlay.index.skip.terms import DEPTH, Term, _count_term, _prefix_term, _token_term, value_term
from tests.oracle.batches import Batch, Record

WORD = (1 << 64) - 1


def find_positions(term: Term, bits: int, hashes: int) -> list[int]:
    """The bits of a term: docs/index.md, Bloom filter."""
    positions = []
    for i in range(hashes):
        x = (term.h1 + i * term.h2) & WORD
        turned = ((x >> 9 * i) | (x << (64 - 9 * i))) & WORD
        positions.append(turned % bits)
    return positions


def make_bloom(terms: Iterable[Term], size: int | None = None) -> tuple[bytes, int]:
    """Bits and k of the filter; size None is auto."""
    distinct = set(terms)
    n = len(distinct)
    if size is None:
        size = 16
        while 8 * size < n * math.log(100) / math.log(2) ** 2 and size < 8192:
            size *= 2
    else:
        size = 2 ** int(math.log2(size))
    k = min(max(round(math.log(2) * 8 * size / max(n, 1)), 1), 7)
    if (1 - math.exp(-k * n / (8 * size))) ** k > 0.5:
        return b"", 0
    number = 0
    for term in distinct:
        for position in find_positions(term, 8 * size, k):
            number |= 1 << position
    return number.to_bytes(size, "little"), k


def subject_terms(subject: str) -> list[Term]:
    """The terms that a record with this subject adds: docs/index.md, Bloom filter."""
    tokens = tuple(subject.split("."))
    return [
        value_term(subject.encode()),
        _count_term(len(tokens)),
        *(_token_term(position, token) for position, token in enumerate(tokens[:DEPTH])),
        *(_prefix_term(tokens[:k]) for k in range(1, min(len(tokens) - 1, DEPTH) + 1)),
    ]


def may_hold(bits: bytes, hashes: int, term: Term) -> bool:
    number = int.from_bytes(bits, "little")
    return not bits or all(number >> position & 1 for position in find_positions(term, 8 * len(bits), hashes))


@dataclass(slots=True)
class Chunk:
    """What a header must say of a chunk; `values` of each property, None for NULL."""

    first_offset: int
    next_offset: int = 0
    records: list[Record] = field(default_factory=list)
    bytes: int = 0
    exact: bool = True
    epoch: int = -1
    crc: int = -1
    subjects: Counter[str] = field(default_factory=Counter)
    terms: set[Term] = field(default_factory=set)
    values: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def addressed(self) -> int:
        return self.subjects.total()

    @property
    def times(self) -> tuple[int, int]:
        times = [record.timestamp for record in self.records]
        return (min(times), max(times)) if times and min(times) >= 0 else (-1, -1)


Describe = Callable[[Record], tuple[str, set[Term], Mapping[str, Any]] | None]
"""A record's subject, terms and values by property; None for one outside the stream."""


def cut(
    batches: Sequence[Batch], visible: Sequence[Record], start: int, limits: tuple[int, int], describe: Describe
) -> Iterator[Chunk]:
    """The chunks of a log from `start` on, the last one as far as it has come. `limits`: records and bytes."""
    chunk, position = Chunk(start), start
    for batch in batches:
        chunk.exact = chunk.exact and batch.base_offset <= position and batch.count == batch.last_offset_delta + 1
        position = chunk.next_offset = batch.last_offset + 1
        chunk.bytes += batch.batch_length + 12
        chunk.epoch, chunk.crc = batch.leader_epoch, batch.crc
        for record in visible:
            if max(batch.base_offset, start) <= record.offset <= batch.last_offset:
                chunk.records.append(record)
                if (said := describe(record)) is not None:
                    subject, terms, values = said
                    chunk.subjects[subject] += 1
                    chunk.terms |= terms
                    for name, value in values.items():
                        chunk.values.setdefault(name, []).append(value)
        if len(chunk.records) >= limits[0] or chunk.bytes >= limits[1]:
            yield chunk
            chunk = Chunk(position)
    yield chunk
