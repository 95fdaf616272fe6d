"""The making of chunk indexes beside the deliveries: what a pipeline reads is sealed chunk by chunk. No IO.

A stream's index is kept by the shard that the stream hashes to. There it is one more reader of the stream's partitions, at
the place of a track like any consumer: at first it catches up alone, and once it has met the others every batch is
fetched and decoded once for all of them. Headers are written in the transaction of the round they come from. Where the
index stands is nowhere but in the index topic: after a restart it goes on behind its last header.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from overlay.config.stream import StreamConfig
from overlay.deliver.batch import encode_records
from overlay.deliver.outbox import Outgoing
from overlay.field import Field
from overlay.index.chunk import Header
from overlay.index.contents import Contents
from overlay.index.encode import encode
from overlay.index.seal import Sealer
from overlay.match import Addressed
from overlay.scan import Malformed
from overlay.scan.header import Batches
from overlay.source.mark import Source

BATCH_BYTES = 512 << 10
"""Headers are put together up to here; a single one is smaller than any topic's max.message.bytes by default."""


@dataclass(frozen=True, slots=True, eq=False)
class Seal:
    """One fetch of one partition, on its way into chunks."""

    sealer: Sealer
    batches: Batches
    fields: tuple[Field, ...]
    """What its slices must hold."""
    headers: list[Header]

    def add(self, piece: Addressed | Malformed, now: int) -> None:
        """Take in the next slice. `now`: ms since 1970."""
        self.headers.extend(self.sealer.add(piece, self.batches, now))


class Indexing:
    """The sealers of a pipeline's streams. `topics`: the index topic of each. Not for two threads at once."""

    def __init__(self, streams: Mapping[str, StreamConfig], topics: Mapping[str, str]) -> None:
        self._contents = {name: Contents(stream) for name, stream in streams.items()}
        self._topics = topics
        self._sealers: dict[tuple[str, Source], Sealer] = {}
        self._headers: dict[str, list[Header]] = {name: [] for name in streams}

    def open(self, stream: str, source: Source, position: int, batches: Batches) -> Seal:
        """Seal a fetch from `position` on; when that is not where the last one ended, a new chunk begins there."""
        key, contents = (stream, source), self._contents[stream]
        sealer = self._sealers.get(key)
        if sealer is None or sealer.position != position:
            if sealer is not None:
                self._headers[stream].extend(sealer.flush())
            sealer = self._sealers[key] = Sealer(contents, *source, position)
        return Seal(sealer, batches, contents.fields, self._headers[stream])

    def finish(self, now: int) -> tuple[Counter[str], list[Outgoing]]:
        """The headers that are due, by number and as batches for the index topics. `now`: ms since 1970."""
        for (stream, _), sealer in self._sealers.items():
            self._headers[stream].extend(sealer.age(now))
        counts = Counter({stream: len(headers) for stream, headers in self._headers.items() if headers})
        batches = [batch for stream in counts for batch in _pack(self._topics[stream], self._headers[stream], now)]
        for stream in counts:
            self._headers[stream].clear()
        return counts, batches


def _pack(topic: str, headers: list[Header], now: int) -> list[Outgoing]:
    packs: list[list[tuple[bytes | None, bytes]]] = [[]]
    size = 0
    for key, value in map(encode, headers):
        if packs[-1] and size + len(value) > BATCH_BYTES:
            packs.append([])
            size = 0
        packs[-1].append((key, value))
        size += len(key) + len(value)
    return [Outgoing(topic, 0, encode_records(pack, now)) for pack in packs]
