"""Reading records again that are to be delivered once more and are not at hand.

The wanted offsets are read in stretches, several under way at once; neighbours with a small gap between them are one stretch,
since a gap that is read costs less than another fetch. One fetcher reads all of them, on connections of its own: behind a fetch
that waits for new records each would take half a second. What the log does not hold any more is told apart from what it holds.

Records are decoded in the thread of the dispatcher, which has nothing to do meanwhile. The event loop's default
threads are shared with whatever else the process waits for, and may all be busy for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig
from overlay.dispatch.record_slice import RecordSlice, keep
from overlay.index.ledger.ledger import Ledger
from overlay.jobs import Jobs
from overlay.kafka.admin import Admin
from overlay.kafka.fetcher import Fetched, Fetcher
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.match import Addressed, Addressing
from overlay.waits import run_all

NEAR = 500
"""Offsets between two wanted ones that are rather read than left out."""
AT_ONCE = 8
"""Stretches that are read side by side."""
LEAST_BYTES, GUESS_BYTES = 16 << 10, 1 << 10
"""What is asked for: this for each offset of a stretch, and at least that. Where records are larger it is asked again."""
_NONE: Ints = np.empty(0, np.int64)

Locate = Callable[[Ints], list[tuple[TopicPartition, Ints, Ints]]]
"""Of stream sequences, rising, the partitions that they are in, the sequences and the offsets there, rising."""


def locate_in(source: TopicPartition) -> Locate:
    """For a stream of one partition."""
    return lambda sequences: [(source, sequences, sequences - 1)]


@dataclass(slots=True)
class Recalled:
    """`pieces` by stream, and by stream the wanted sequences that are gone."""

    pieces: list[tuple[str, RecordSlice]] = field(default_factory=list)
    gone: dict[str, Ints] = field(default_factory=dict)


@dataclass(slots=True)
class Refetch:
    """`streams` and `locates` by name."""

    client: AIOKafkaClient
    admin: Admin
    streams: Mapping[str, StreamConfig]
    locates: Mapping[str, Locate]

    async def read(self, wanted: Mapping[str, Ints], jobs: Jobs) -> Recalled:
        """Find these stream sequences; `jobs` decodes. Raises SourceChanged, SourceUnavailable."""
        recalled = Recalled()
        if not wanted:
            return recalled
        fetcher = Fetcher(self.client, requests=AT_ONCE, apart=2)
        try:
            for stream, sequences in wanted.items():
                pieces = [
                    piece
                    for source, own, offsets in self.locates[stream](sequences)
                    for piece in await self._read(fetcher, jobs, stream, source, own, offsets)
                ]
                recalled.pieces += ((stream, piece) for piece in pieces)
                missing = np.setdiff1d(sequences, np.concatenate([_NONE, *(piece.sequences for piece in pieces)]))
                if missing.size:
                    recalled.gone[stream] = missing
        finally:
            await fetcher.close()
        return recalled

    async def _read(
        self, fetcher: Fetcher, jobs: Jobs, stream: str, source: TopicPartition, sequences: Ints, offsets: Ints
    ) -> list[RecordSlice]:
        first, end = (await self.admin.find_bounds([source]))[source]
        there = (offsets >= first) & (offsets < end)
        sequences, offsets = sequences[there], offsets[there]
        cuts = np.flatnonzero(np.diff(offsets) > NEAR) + 1
        stretches = [part for part in np.split(np.arange(offsets.size), cuts) if part.size]
        config, gate = self.streams[stream], asyncio.Semaphore(AT_ONCE)
        decoding = _Decoding(Addressing(config.subject.rule, config.patterns), source, jobs)

        async def read(part: Ints) -> list[RecordSlice]:
            async with gate:
                return await self._read_stretch(fetcher, decoding, sequences[part], offsets[part])

        return [piece for pieces in await run_all(map(read, stretches)) for piece in pieces]

    async def _read_stretch(
        self, fetcher: Fetcher, decoding: _Decoding, sequences: Ints, offsets: Ints
    ) -> list[RecordSlice]:
        pieces: list[RecordSlice] = []
        first, end = int(offsets[0]), int(offsets[-1]) + 1
        size = max(LEAST_BYTES, (end - first) * GUESS_BYTES)
        async for fetched in read_span(self.client, *decoding.source, first, end, size=size, fetcher=fetcher):
            pieces += await decoding.jobs.run(decoding.pick, fetched, sequences, offsets)
        return pieces


@dataclass(slots=True)
class _Decoding:
    """Of one partition. `jobs` runs one job at a time, so the stretches share the buffers of `addressing`."""

    addressing: Addressing
    source: TopicPartition
    jobs: Jobs

    def pick(self, fetched: Fetched, sequences: Ints, offsets: Ints) -> list[RecordSlice]:
        """The wanted records of a fetch."""
        pieces = []
        start, stop = max(fetched.position, int(offsets[0])), int(offsets[-1]) + 1
        for piece in self.addressing.read(*self.source, fetched.data, start, stop=stop, aborted=fetched.aborted):
            if not isinstance(piece, Addressed) or not len(piece.records):
                continue
            rows = np.flatnonzero(np.isin(piece.records.offset, offsets) & (piece.codes >= 0))
            if rows.size:
                places = np.searchsorted(offsets, piece.records.offset[rows])
                pieces.append(keep(piece, rows, sequences[places]))
        return pieces


def locate_by(ledger: Ledger) -> Locate:
    """For a stream whose sequences a ledger gives out."""

    def locate(sequences: Ints) -> list[tuple[TopicPartition, Ints, Ints]]:
        found: dict[TopicPartition, tuple[list[Ints], list[Ints]]] = {}
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
