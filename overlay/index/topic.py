"""The index topic of a stream: the chunk headers and the rounds of the ledger that are there, read into memory.

A record that is neither, or one of a version to come, is passed over and counted; what it was about is then simply not
indexed, or without a sequence. The same goes for batches that cannot be read. Nothing that stands in an index topic stops a
reader.

Whoever gives sequences out is another matter. If the last round cannot be read, nobody knows which sequences it gave out, and
going on below them would give some of them out twice: `doubt` says so. A round that was read later ends the doubt, since its
sequencer knew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.config.stream import StreamConfig
from overlay.kafka.fetcher import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.range_reader import read_span
from overlay.logs import get_logger
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.columns import Ints
from overlay.scan.decode import NO_STOP
from overlay.scan.kernel import open_bodies

from .ledger import entries
from .ledger.ledger import Ledger, Refusal
from .skip.chunks import Chunks
from .skip.config_fingerprint import find_scope
from .skip.encode import Block, Flaw, Foreign, parse

log = get_logger(__name__)


def index_topic(prefix: str, stream: str) -> str:
    """The name of a stream's index topic; it has one partition."""
    return f"{prefix}.{stream}.index"


class Index:
    """What is known of a stream's chunks, and of its sequences where it has a ledger.

    Not for two threads at once, except that `ledger` may be asked from any thread. Each index reads with a decoder of its own,
    so two indexes may be read in two threads.
    """

    def __init__(self, stream: StreamConfig, *, with_chunks: bool = True) -> None:
        """Without chunks it knows of sequences alone."""
        self.stream, self._with_chunks = stream, with_chunks
        self.scope = find_scope(stream)
        self._decoder = Decoder(make_plan())
        self.chunks: dict[TopicPartition, Chunks] = {}
        self.ledger = Ledger(lock=threading.Lock())
        self.position = 0
        """How far its index topic has been read."""
        self.foreign = 0
        """Records that were passed over."""
        self.bytes = 0
        """Bytes of record batches that have been read of it."""
        self._doubted = 0, -1  # a sequence that may have been given out, and the offset where that cannot be read

    @property
    def doubt(self) -> int:
        """The offset of a record that may have given out sequences above all that are known; -1 when there is none."""
        sequence, offset = self._doubted
        return offset if sequence >= self.ledger.next_sequence else -1

    def of(self, source: TopicPartition) -> Chunks:
        """The chunks of a partition, none at first."""
        if source not in self.chunks:
            self.chunks[source] = Chunks(self.scope)
        return self.chunks[source]

    def find_resume(self, source: TopicPartition, log_start: int) -> LogPosition:
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
            return LogPosition(log_start)
        if row < len(chunks) and chunks.first_offset[row] != chunks.next_offset[row - 1]:
            return LogPosition(int(chunks.first_offset[row]))  # between them is what cannot be read
        return chunks.log_position(row - 1)

    def count_made(self, source: TopicPartition, position: int) -> int:
        """How many chunks of a partition lie below `position`, where indexing goes on."""
        return int(np.searchsorted(self.of(source).next_offset, position, side="right"))

    def _is_full(self, chunks: Chunks, row: int) -> bool:
        index = self.stream.index
        return bool(chunks.records[row] >= index.chunk_records or chunks.bytes[row] >= index.chunk_bytes)

    async def read(self, client: AIOKafkaClient, topic: str, end: int) -> None:
        """Read on to `end`, at or below the last stable offset. Raises SourceChanged, SourceUnavailable."""
        async for fetched in read_span(client, topic, 0, self.position, end):
            self.take(topic, fetched, end)
        self.position = max(self.position, end)

    def take(self, topic: str, fetched: Fetched, end: int = NO_STOP) -> None:
        """Take in what has been fetched of the index topic, up to `end`."""
        self.bytes += fetched.data.size
        for piece in self._decoder.decode(fetched.data, fetched.position, stop=end, aborted=fetched.aborted):
            if isinstance(piece, Malformed):
                self._pass_over(topic, piece.base_offset, piece.fault.text)
                self._doubted = self.ledger.next_sequence, piece.base_offset
            else:
                self._take(topic, piece)
        self.position = max(self.position, min(fetched.next_offset, end))

    def _take(self, topic: str, piece: Records) -> None:
        key_at, key_size, at, size, headers_at = (np.empty(len(piece), np.int64) for _ in range(5))
        open_bodies(piece.buf, piece.body, piece.end, key_at, key_size, at, size, headers_at)
        block = parse(piece.buf, at, size)
        if self._with_chunks:
            for source, rows in _group(block, np.flatnonzero(block.flaws == 0)):
                self.of(source).extend(block, rows)
        flaws = block.flaws.copy()
        others = np.flatnonzero(flaws == Flaw.KIND)
        if others.size:
            rounds = entries.parse(piece.buf, at[others], size[others])
            flaws[others] = rounds.flaws
            for row, refusal in zip(others.tolist(), self.ledger.extend(rounds).tolist(), strict=True):
                if refusal:
                    self._pass_over(
                        topic, int(piece.offset[row]), f"a round that contradicts others ({Refusal(refusal).name})"
                    )
        for row in np.flatnonzero((flaws != 0) & (size >= 0)).tolist():
            offset = int(piece.offset[row])
            self._pass_over(topic, offset, Foreign.of(flaws[row]).reason)
            key = piece.buf[key_at[row] : key_at[row] + max(0, key_size[row])].tobytes()
            if (named := entries.decode_key(key)) is not None and named[0] == self.stream.name:
                self._doubted = max(self._doubted, (named[1], offset))

    def _pass_over(self, topic: str, offset: int, why: str) -> None:
        self.foreign += 1
        log.warning("index record passed over", topic=topic, offset=offset, why=why)


def _group(block: Block, rows: Ints) -> Iterable[tuple[TopicPartition, Ints]]:
    """Rows by the partition they are about, each in order."""
    groups: dict[TopicPartition, list[int]] = {}
    sizes, ends = block.heads["topic"].tolist(), block.at[:, 0].tolist()
    partitions = block.heads["partition"].tolist()
    for row in rows.tolist():
        name = block.buf[ends[row] - sizes[row] : ends[row]].tobytes().decode(errors="replace")
        groups.setdefault((name, partitions[row]), []).append(row)
    return [(source, np.array(found, np.int64)) for source, found in groups.items()]
