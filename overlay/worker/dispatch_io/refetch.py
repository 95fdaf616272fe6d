"""Refetch: reads records again for redelivery if the record cache does not have them.

The wanted offsets are read in ranges, several at once. Offsets with a small gap between them are
one range, since reading the gap costs less than another fetch. One fetcher reads all ranges, on
connections of its own: behind a fetch that waits for new records, each would take half a second.
Records that the log does not have any more are reported as gone.

Records are decoded in the dispatcher's thread, which is idle meanwhile. The event loop's default
threads are shared with everything else that the process waits for, and may all be busy for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig
from overlay.config.values import ValueFormat
from overlay.index.ledger.ledger import Ledger
from overlay.jobs import Jobs
from overlay.kafka.admin import Admin
from overlay.kafka.fetched import Fetched
from overlay.kafka.fetcher import Fetcher
from overlay.kafka.log_position import TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.match import Addressed, Addressing, make_addressing
from overlay.match.formats import make_format
from overlay.match.record_slice import RecordSlice, keep
from overlay.scan.values import DeclaredFormat
from overlay.schemas.gate import SchemaGate, open_gate
from overlay.waits import run_all

NEAR = 500
"""Up to so many unwanted offsets between two wanted ones are read with them."""
AT_ONCE = 8
"""Ranges that are read at the same time."""
LEAST_BYTES, GUESS_BYTES = 16 << 10, 1 << 10
"""Bytes to request: GUESS_BYTES for each offset of a range, and at least LEAST_BYTES. If records
are larger, another fetch follows."""
_NONE: Ints = np.empty(0, np.int64)

Locate = Callable[[Ints], list[tuple[TopicPartition, Ints, Ints]]]
"""Returns for stream sequences, ascending, the partitions that they are in; with each, its
sequences and their offsets, ascending."""


def locate_in(source: TopicPartition) -> Locate:
    """Return the lookup for a stream of one partition, where a sequence is its offset + 1."""
    return lambda sequences: [(source, sequences, sequences - 1)]


@dataclass(slots=True)
class Recalled:
    """Records that were read again. `pieces`: record slices, each with the name of its stream.
    `gone`: by stream, the wanted sequences for which no record with a subject could be read;
    streams without any are left out.
    """

    pieces: list[tuple[str, RecordSlice]] = field(default_factory=list)
    gone: dict[str, Ints] = field(default_factory=dict)


@dataclass(slots=True)
class Refetch:
    """Reads records again by stream sequence. `streams` and `locates`: by stream name."""

    client: AIOKafkaClient
    admin: Admin
    streams: Mapping[str, StreamConfig]
    locates: Mapping[str, Locate]
    _formats: dict[str, DeclaredFormat | None] = field(default_factory=dict, init=False)
    """The formats of the streams' values, by stream name; made when a stream is first read."""

    async def read(self, wanted: Mapping[str, Ints], jobs: Jobs) -> Recalled:
        """Read the records with these stream sequences (ascending, by stream) from Kafka. A
        sequence counts as gone if the lookup in `locates` knows no offset of it, if the log does
        not have the record, or if the record has no subject or cannot be read. `jobs`: runs the
        decoding. Raises SourceChanged, SourceUnavailable, CredentialsRefused.
        """
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
        """Return the records of one partition at these offsets (ascending). Records that the log
        does not have, or that have no subject, are left out. `sequences`: the stream sequences of
        the offsets.
        """
        first, end = (await self.admin.find_bounds([source]))[source]
        there = (offsets >= first) & (offsets < end)
        sequences, offsets = sequences[there], offsets[there]
        cuts = np.flatnonzero(np.diff(offsets) > NEAR) + 1
        stretches = [part for part in np.split(np.arange(offsets.size), cuts) if part.size]
        gate = asyncio.Semaphore(AT_ONCE)
        decoding = _Decoding(await self._make_addressing(stream, jobs), source, jobs, open_gate(self.streams[stream]))

        async def read(part: Ints) -> list[RecordSlice]:
            async with gate:
                return await self._read_stretch(fetcher, decoding, sequences[part], offsets[part])

        return [piece for pieces in await run_all(map(read, stretches)) for piece in pieces]

    async def _make_addressing(self, stream: str, jobs: Jobs) -> Addressing:
        """Return the decoder of a stream's records. The schemas of the stream's values are parsed
        once, in the thread of `jobs`, because many of them would block the event loop.
        """
        config = self.streams[stream]
        if config.values.format is not ValueFormat.JSON and stream not in self._formats:
            self._formats[stream] = await jobs.run(make_format, config.values)
        return make_addressing(config, self._formats.get(stream))

    async def _read_stretch(
        self, fetcher: Fetcher, decoding: _Decoding, sequences: Ints, offsets: Ints
    ) -> list[RecordSlice]:
        """Return the records at these offsets (ascending) that have a subject. All offsets from the
        first to the last are fetched. `sequences`: the stream sequences of the offsets.
        """
        pieces: list[RecordSlice] = []
        first, end = int(offsets[0]), int(offsets[-1]) + 1
        size = max(LEAST_BYTES, (end - first) * GUESS_BYTES)
        span = read_span(self.client, *decoding.source, first, end, size=size, fetcher=fetcher, gate=decoding.gate)
        async for fetched in span:
            pieces += await decoding.jobs.run(decoding.pick, fetched, sequences, offsets)
        return pieces


@dataclass(slots=True)
class _Decoding:
    """Decodes what was fetched of one partition. `jobs` runs one job at a time, so the ranges can
    share the buffers of `addressing`.
    """

    addressing: Addressing
    source: TopicPartition
    jobs: Jobs
    gate: SchemaGate | None
    """Holds records back whose schemas are not known yet."""

    def pick(self, fetched: Fetched, sequences: Ints, offsets: Ints) -> list[RecordSlice]:
        """Decode a fetch, and return its records at these offsets that have a subject. `sequences`:
        the stream sequences of the offsets.
        """
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
    """Return the lookup for a stream with a ledger. Sequences for which the ledger has no offset are
    left out."""

    def locate(sequences: Ints) -> list[tuple[TopicPartition, Ints, Ints]]:
        """Return the partitions of ascending stream sequences, each with its sequences and their
        offsets. Sequences for which the ledger has no offset are left out.
        """
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
