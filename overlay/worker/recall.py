"""Reading records again that are to be delivered once more and are not at hand.

The wanted offsets are read in stretches, several under way at once; neighbours with a small gap between them are one stretch,
since a gap that is read costs less than another fetch. What the log does not hold any more is told apart from what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.admin import Admin
from overlay.config.stream import StreamConfig
from overlay.desk.piece import Piece, keep
from overlay.index.ledger import Ledger
from overlay.index.ragged import Ints
from overlay.match import Addressed, Addressing
from overlay.source.feed import Fetched
from overlay.source.mark import Source
from overlay.source.span import read_span

NEAR = 500
"""Offsets between two wanted ones that are rather read than left out."""
AT_ONCE = 8
"""Stretches that are read side by side."""

Locate = Callable[[Ints], list[tuple[Source, Ints, Ints]]]
"""Of stream sequences, rising, the partitions that they are in, the sequences and the offsets there, rising."""


def locate_in(source: Source) -> Locate:
    """For a stream of one partition."""
    return lambda sequences: [(source, sequences, sequences - 1)]


@dataclass(slots=True)
class Recalled:
    """`pieces` by stream, and by stream the wanted sequences that are gone."""

    pieces: list[tuple[str, Piece]] = field(default_factory=list)
    gone: dict[str, Ints] = field(default_factory=dict)


@dataclass(slots=True)
class Recall:
    """`streams` and `locates` by name."""

    client: AIOKafkaClient
    admin: Admin
    streams: Mapping[str, StreamConfig]
    locates: Mapping[str, Locate]

    async def read(self, wanted: Mapping[str, Ints]) -> Recalled:
        """Find these stream sequences. Raises SourceChanged, SourceUnavailable."""
        recalled = Recalled()
        for stream, sequences in wanted.items():
            missing = set(sequences.tolist())
            for source, own, offsets in self.locates[stream](sequences):
                async for piece in self._read(stream, source, own, offsets):
                    recalled.pieces.append((stream, piece))
                    missing.difference_update(piece.sequences.tolist())
            if missing:
                recalled.gone[stream] = np.array(sorted(missing), np.int64)
        return recalled

    async def _read(self, stream: str, source: Source, sequences: Ints, offsets: Ints) -> AsyncIterator[Piece]:
        first, end = (await self.admin.find_bounds([source]))[source]
        there = (offsets >= first) & (offsets < end)
        sequences, offsets = sequences[there], offsets[there]
        cuts = np.flatnonzero(np.diff(offsets) > NEAR) + 1
        stretches = [part for part in np.split(np.arange(offsets.size), cuts) if part.size]
        gate = asyncio.Semaphore(AT_ONCE)

        async def read(part: Ints) -> list[Piece]:
            async with gate:
                return await self._read_stretch(stream, source, sequences[part], offsets[part])

        for pieces in await asyncio.gather(*(read(part) for part in stretches)):
            for piece in pieces:
                yield piece

    async def _read_stretch(self, stream: str, source: Source, sequences: Ints, offsets: Ints) -> list[Piece]:
        config, pieces = self.streams[stream], list[Piece]()
        addressing = Addressing(config.subject.rule, config.patterns)

        def decode(fetched: Fetched) -> None:
            position = max(fetched.position, int(offsets[0]))
            for piece in addressing.read(
                *source, fetched.data, position, stop=int(offsets[-1]) + 1, aborted=fetched.aborted
            ):
                if not isinstance(piece, Addressed) or not len(piece.records):
                    continue
                rows = np.flatnonzero(np.isin(piece.records.offset, offsets) & (piece.codes >= 0))
                if rows.size:
                    places = np.searchsorted(offsets, piece.records.offset[rows])
                    pieces.append(keep(piece, rows, sequences[places]))

        async for fetched in read_span(self.client, *source, int(offsets[0]), int(offsets[-1]) + 1):
            await asyncio.to_thread(decode, fetched)
        return pieces


def locate_by(ledger: Ledger) -> Locate:
    """For a stream whose sequences a ledger gives out."""

    def locate(sequences: Ints) -> list[tuple[Source, Ints, Ints]]:
        found: dict[Source, tuple[list[Ints], list[Ints]]] = {}
        at = 0
        while at < sequences.size:
            run = ledger.locate(int(sequences[at]))
            if run is None:
                break
            first, end = np.searchsorted(sequences, (run.first_sequence, run.first_sequence + run.count)).tolist()
            own = sequences[first:end]
            if own.size:
                columns = found.setdefault(run.source, ([], []))
                columns[0].append(own)
                columns[1].append(own - run.first_sequence + run.first_offset)
            at = end
        return [(source, np.concatenate(own), np.concatenate(offsets)) for source, (own, offsets) in found.items()]

    return locate
