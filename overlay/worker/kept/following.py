"""The ledgers that other shards keep, read on as they grow: a record is delivered here once its sequence is committed there."""

from __future__ import annotations

from dataclasses import dataclass, field

from overlay.errors import SourceUnavailable
from overlay.kafka.fetcher import Feed, Fetched, Lane
from overlay.worker.assignment import Roster


@dataclass(slots=True)
class Following:
    roster: Roster
    _lanes: dict[str, Lane] = field(default_factory=dict)

    async def open(self, feed: Feed) -> None:
        """Begin to fetch what comes to the index topics."""
        for stream in self.roster.ledgers.keys() - self.roster.heads.keys():
            topic, position = self.roster.ledger_topics[stream], self.roster.indexes[stream].position
            lane = self._lanes[stream] = await feed.open(topic, 0, position)
            lane.urgent = True  # what lies ready of the stream's partitions may wait for nothing but this

    def read(self) -> None:
        """Take in what has come. Raises SourceUnavailable when the topic is not the one that was read."""
        for stream, lane in self._lanes.items():
            match lane.take():
                case Fetched() as fetched:
                    self.roster.indexes[stream].take(lane.topic, fetched)
                case None:
                    pass
                case _:
                    raise SourceUnavailable(
                        f"{lane.topic}: the ledger of stream {stream} cannot be read on. Looking again"
                    )
