"""The index topic of a stream: the chunk headers that are there, read into memory.

A record that is no chunk header, or one of a version to come, is passed over and counted; what it was about is then simply
not indexed. The same goes for batches that cannot be read. Nothing that stands in an index topic stops anybody.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.config.stream import StreamConfig
from overlay.index.chunks import Chunks
from overlay.index.encode import Block, parse
from overlay.index.scope import find_scope
from overlay.logs import get_logger
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.columns import Ints
from overlay.scan.kernel import open_bodies

from .mark import Mark, Source
from .span import read_span

log = get_logger(__name__)

_DECODER = Decoder(make_plan())


def index_topic(prefix: str, stream: str) -> str:
    """The name of a stream's index topic; it has one partition."""
    return f"{prefix}.{stream}.index"


class Index:
    """What is known of a stream's chunks."""

    def __init__(self, stream: StreamConfig) -> None:
        self.stream = stream
        self.scope = find_scope(stream)
        self.chunks: dict[Source, Chunks] = {}
        self.position = 0
        """How far its index topic has been read."""
        self.foreign = 0
        """Records that were passed over."""
        self.bytes = 0
        """Bytes of record batches that have been read of it."""

    def of(self, source: Source) -> Chunks:
        """The chunks of a partition, none at first."""
        if source not in self.chunks:
            self.chunks[source] = Chunks(self.scope)
        return self.chunks[source]

    def find_resume(self, source: Source, log_start: int) -> Mark:
        """Where indexing of a partition goes on: behind the last chunk, or at its beginning if it may still grow.

        A chunk that was not made from the config of today is made anew, with all that come after it: so an index follows its
        stream's file, and a property that is listed there for the first time is indexed from the start of the log.
        """
        chunks = self.of(source)
        made = chunks.made
        row = len(chunks) if made.all() else int(np.argmin(made))
        if row == len(chunks) > 0 and not self._is_full(chunks, row - 1):
            row -= 1
        if row == 0:
            return Mark(log_start)
        if row < len(chunks) and chunks.first_offset[row] != chunks.next_offset[row - 1]:
            return Mark(int(chunks.first_offset[row]))  # between them is what cannot be read
        return chunks.mark(row - 1)

    def count_made(self, source: Source, position: int) -> int:
        """How many chunks of a partition lie below `position`, where indexing goes on."""
        return int(np.searchsorted(self.of(source).next_offset, position, side="right"))

    def _is_full(self, chunks: Chunks, row: int) -> bool:
        index = self.stream.index
        return bool(chunks.records[row] >= index.chunk_records or chunks.bytes[row] >= index.chunk_bytes)

    async def read(self, client: AIOKafkaClient, topic: str, end: int) -> None:
        """Read on to `end`, at or below the last stable offset. Raises SourceChanged, SourceUnavailable."""
        async for fetched in read_span(client, topic, 0, self.position, end):
            self.bytes += fetched.data.size
            for piece in _DECODER.decode(fetched.data, fetched.position, stop=end, aborted=fetched.aborted):
                if isinstance(piece, Malformed):
                    self._pass_over(topic, piece.base_offset, piece.fault.text)
                else:
                    self._take(topic, piece)
        self.position = max(self.position, end)

    def _take(self, topic: str, piece: Records) -> None:
        columns = [np.empty(len(piece), np.int64) for _ in range(5)]
        open_bodies(piece.buf, piece.body, piece.end, *columns)
        _, _, at, size, _ = columns
        block = parse(piece.buf, at, size)
        for row in np.flatnonzero((block.flaws != 0) & (size >= 0)).tolist():
            self._pass_over(topic, int(piece.offset[row]), "no chunk header that this version reads")
        for source, rows in _group(block, np.flatnonzero(block.flaws == 0)):
            self.of(source).extend(block, rows)

    def _pass_over(self, topic: str, offset: int, why: str) -> None:
        self.foreign += 1
        log.warning("index record passed over", topic=topic, offset=offset, why=why)


def _group(block: Block, rows: Ints) -> Iterable[tuple[Source, Ints]]:
    """Rows by the partition they are about, each in order."""
    groups: dict[Source, list[int]] = {}
    sizes, ends = block.heads["topic"].tolist(), block.at[:, 0].tolist()
    partitions = block.heads["partition"].tolist()
    for row in rows.tolist():
        name = block.buf[ends[row] - sizes[row] : ends[row]].tobytes().decode(errors="replace")
        groups.setdefault((name, partitions[row]), []).append(row)
    return [(source, np.array(found, np.int64)) for source, found in groups.items()]
