"""Ledgers that other shards keep, read as they grow: a record is delivered here once its sequence
is committed there."""

from __future__ import annotations

from dataclasses import dataclass, field

from overlay.errors import SourceUnavailable
from overlay.kafka.fetcher import Fetched, Fetcher, PartitionFetch
from overlay.worker.assignment import Assignment


@dataclass(slots=True)
class Following:
    """Reads the index topics of the streams whose sequences another shard gives out, so that this
    session learns the sequences once they are committed."""

    assignment: Assignment
    _partition_fetches: dict[str, PartitionFetch] = field(default_factory=dict)

    async def open(self, fetcher: Fetcher) -> None:
        """Begin to fetch from these index topics, behind what was read when the session was
        opened."""
        for stream in self.assignment.ledgers.keys() - self.assignment.heads.keys():
            topic, position = self.assignment.ledger_topics[stream], self.assignment.indexes[stream].position
            partition_fetch = self._partition_fetches[stream] = await fetcher.open(topic, 0, position)
            # fetched records of the stream may wait for nothing but this
            partition_fetch.urgent = True

    def read(self) -> None:
        """Add what was fetched since the last call to the streams' indexes and ledgers; does not
        wait for more.

        Raises SourceUnavailable if a topic is not the log that was read, or cannot be read.
        """
        for stream, partition_fetch in self._partition_fetches.items():
            match partition_fetch.take():
                case Fetched() as fetched:
                    self.assignment.indexes[stream].take(partition_fetch.topic, fetched)
                case None:
                    pass
                case _:
                    raise SourceUnavailable(
                        f"{partition_fetch.topic}: the ledger of stream {stream} cannot be read on. Looking again"
                    )
