"""The index topic of a stream, read into memory: its chunk headers and its ledger entries.

A record with a value that is neither, or of a later version, is skipped and counted. What it
described is then not indexed, or has no sequence. Batches that cannot be read are skipped as well.
No content of an index topic stops a reader.

The sequencer needs more care. If the last ledger entry cannot be read, it is unknown which
sequences that entry has given out. Continuing below them would give some out twice: `doubt` reports
this. A later entry that can be read ends the doubt, since its sequencer knew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from aiokafka.client import AIOKafkaClient

from overlay.arrays import Ints
from overlay.config.stream import StreamConfig
from overlay.kafka.fetched import Fetched
from overlay.kafka.log_position import LogPosition, TopicPartition
from overlay.kafka.passed_over import PassedOver
from overlay.kafka.range_reader import read_span
from overlay.logs import get_logger
from overlay.scan import Decoder, Malformed, Records, make_plan
from overlay.scan.decode import NO_STOP
from overlay.scan.kernel import open_bodies

from .ledger import entries
from .ledger.ledger import Ledger, Refusal
from .skip.chunks import Chunks
from .skip.config_fingerprint import find_config_fingerprint
from .skip.encode import Block, Flaw, Foreign, parse

log = get_logger(__name__)

MISREADINGS = (
    "batch",
    *(flaw.name.lower() for flaw in Flaw if flaw is not Flaw.NONE),
    *(refusal.name.lower() for refusal in Refusal if refusal is not Refusal.NONE),
)
"""Why records are passed over: a whole batch cannot be decoded, a record has a flaw, or its ledger entry is refused."""


class Index:
    """The index of a stream in memory, as read from its index topic so far: the chunk headers of
    each partition, and the ledger of sequences, empty if the stream has none.

    Not for two threads at once, except that `ledger` may be asked from any thread. Each index has a
    decoder of its own, so two indexes may be read in two threads.
    """

    def __init__(self, stream: StreamConfig, *, with_chunks: bool = True) -> None:
        """Make an empty index; nothing is read. `with_chunks=False`: `read` and `take` keep only
        the ledger, no chunk headers.
        """
        self.stream, self._with_chunks = stream, with_chunks
        self.config_fingerprint = find_config_fingerprint(stream)
        self._decoder = Decoder(make_plan())
        self.chunks: dict[TopicPartition, Chunks] = {}
        self.ledger = Ledger(lock=threading.Lock())
        self.position = 0
        """Offset up to which the index topic has been read."""
        self.foreign = 0
        """Records and batches that were skipped."""
        self.passed_over: dict[str, PassedOver] = {}
        """The same by reason, one of MISREADINGS."""
        self.gap: int | None = None
        """The first sequence after ledger entries that the topic has lost from its midst; None if none are missing."""
        self.bytes = 0
        """Bytes of record batches that were read."""
        # a sequence that may have been given out, and the offset of the unreadable record that
        # would tell
        self._doubted = 0, -1

    @property
    def doubt(self) -> int:
        """Return the offset, in the index topic, of an unreadable record or batch that may have
        given out sequences from `ledger.next_sequence` on; -1 if there is none.
        """
        sequence, offset = self._doubted
        return offset if sequence >= self.ledger.next_sequence else -1

    def of(self, source: TopicPartition) -> Chunks:
        """Return the chunks of a partition, the same object each time. A partition that is not
        known gets empty ones.
        """
        if source not in self.chunks:
            self.chunks[source] = Chunks(self.config_fingerprint)
        return self.chunks[source]

    def find_resume(self, source: TopicPartition, log_start: int) -> LogPosition:
        """Return where indexing of a partition has to continue: after the last chunk, or at that
        chunk's beginning if it is not full and may still grow. Without chunks that can stay, it is
        `log_start`.

        The first chunk that was not made from the current config is made again, with all chunks
        after it. So the index follows the stream's file: a property that is listed for the first
        time is indexed from the log start.
        """
        chunks = self.of(source)
        made = chunks.made
        row = len(chunks) if made.all() else int(np.argmin(made))
        if row == len(chunks) > 0 and not self._is_full(chunks, row - 1):
            row -= 1
        if row == 0:
            return LogPosition(log_start)
        if row < len(chunks) and chunks.first_offset[row] != chunks.next_offset[row - 1]:
            # the gap before it is a batch that cannot be read
            return LogPosition(int(chunks.first_offset[row]))
        return chunks.log_position(row - 1)

    def count_made(self, source: TopicPartition, position: int) -> int:
        """Return how many chunks of a partition end at or below `position`: those that stay if
        indexing continues there.
        """
        return int(np.searchsorted(self.of(source).next_offset, position, side="right"))

    def _is_full(self, chunks: Chunks, row: int) -> bool:
        index = self.stream.index
        return bool(chunks.records[row] >= index.chunk_records or chunks.bytes[row] >= index.chunk_bytes)

    async def read(self, client: AIOKafkaClient, topic: str, end: int, open_s: float | None = None) -> None:
        """Read the index topic from `position` (where the last call ended) up to `end`, and add its
        records to the chunks and the ledger. `end` must not be above the high watermark; what lies
        above the last stable offset is waited for, `open_s` seconds as in `read_span`. Raises SourceChanged,
        CredentialsRefused or SourceUnavailable, of which StillOpen is one.
        """
        async for fetched in read_span(client, topic, 0, self.position, end, compacted=True, open_s=open_s):
            self.take(topic, fetched, end)
        self.position = max(self.position, end)

    def take(self, topic: str, fetched: Fetched, end: int = NO_STOP) -> None:
        """Add the records of one fetch of the index topic, those below offset `end`, to the chunks
        and the ledger. What cannot be read or contradicts the ledger is logged and counted in
        `foreign`, but for records without a value; nothing raises.
        """
        self.bytes += fetched.data.size
        for piece in self._decoder.decode(fetched.data, fetched.position, stop=end, aborted=fetched.aborted):
            if isinstance(piece, Malformed):
                self._pass_over(topic, piece.base_offset, "batch", piece.fault.text)
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
            if self.gap is None and self.doubt < 0:
                self.gap = rounds.find_gap(self.ledger.next_sequence)
            for row, refusal in zip(others.tolist(), self.ledger.extend(rounds).tolist(), strict=True):
                if refusal:
                    name = Refusal(refusal).name
                    why = f"a round that contradicts others ({name})"
                    self._pass_over(topic, int(piece.offset[row]), name.lower(), why)
        for row in np.flatnonzero((flaws != 0) & (size >= 0)).tolist():
            offset = int(piece.offset[row])
            self._pass_over(topic, offset, Flaw(flaws[row]).name.lower(), Foreign.of(flaws[row]).reason)
            key = piece.buf[key_at[row] : key_at[row] + max(0, key_size[row])].tobytes()
            if (named := entries.decode_key(key)) is not None and named[0] == self.stream.name:
                self._doubted = max(self._doubted, (named[1], offset))

    def _pass_over(self, topic: str, offset: int, reason: str, why: str) -> None:
        self.foreign += 1
        first = self.passed_over.get(reason) or PassedOver(topic, 0, offset, reason, why, 0)
        self.passed_over[reason] = replace(first, count=first.count + 1)
        log.warning("index record passed over", topic=topic, offset=offset, why=why)


def _group(block: Block, rows: Ints) -> Iterable[tuple[TopicPartition, Ints]]:
    """Return the `rows` of a block of chunk headers, grouped by the partition that each header
    describes: a pair (partition, its rows) for each. Rows keep their order.
    """
    groups: dict[TopicPartition, list[int]] = {}
    sizes, ends = block.heads["topic"].tolist(), block.at[:, 0].tolist()
    partitions = block.heads["partition"].tolist()
    for row in rows.tolist():
        name = block.buf[ends[row] - sizes[row] : ends[row]].tobytes().decode(errors="replace")
        groups.setdefault((name, partitions[row]), []).append(row)
    return [(source, np.array(found, np.int64)) for source, found in groups.items()]
