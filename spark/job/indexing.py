"""How far the chunk index of a job's stream reaches, and which offsets are sealed next. Pure.

Sealing begins where a chunk begins: behind the last full one, or at a chunk that still grows and is
made again, under its key. So whatever is cut off at the end of a range, by a limit or in the midst
of a record batch, is in no header, and the next range has it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlay.config import IndexConfig
from overlay.index.skip.chunk_header import Header
from overlay.kafka.log_position import LogPosition, TopicPartition


@dataclass(slots=True)
class IndexProgress:
    """What has been indexed of a stream. `resumes`: by partition, where the first chunk begins that is not full."""

    resumes: dict[TopicPartition, LogPosition]
    _sealed: dict[TopicPartition, int] = field(default_factory=dict)
    """By partition, the offset below which there was nothing more to seal."""

    def choose(
        self, ends: Mapping[TopicPartition, int], limit: int, least: int
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first and next offset to seal, by partition. The first one is where the last chunk begins that
        is not full, so it may be before the new offsets. Partitions without new offsets before `ends` are left out.

        `limit`: how many new offsets are sealed at most, of all partitions together; the first ones get theirs first.
        `least`: a partition with fewer new offsets than that, as `limit` leaves them, is left out.
        """
        chosen: dict[TopicPartition, tuple[int, int]] = {}
        for source, resume in self.resumes.items():
            done = max(self._sealed.get(source, 0), resume.position)
            end = min(ends.get(source, 0), done + limit)
            if end > done and end - done >= least:
                chosen[source] = (resume.position, end)
                limit -= end - done
        return chosen

    def add(self, header: Header, index: IndexConfig) -> None:
        """Take in a header that was committed. The headers of a partition come in order."""
        source = header.topic, header.partition
        if header.records >= index.chunk_records or header.bytes >= index.chunk_bytes:
            self.resumes[source] = LogPosition(header.next_offset, header.epoch, header.crc)
        elif self.resumes[source].position != header.first_offset:
            # the batch before it cannot be read, so no header tells of it
            self.resumes[source] = LogPosition(header.first_offset)

    def pass_over(self, source: TopicPartition, end: int) -> None:
        """Note that there is nothing more to seal before `end`: its headers are committed, or it has none."""
        self._sealed[source] = end
