"""A watch over a stream's topics while a reading follows them: partitions that are added, topics
that are deleted.

The Kafka client that fetches notices both within seconds, because it renews its metadata. Its
metadata does not say enough: a topic that was created again may look like one with new partitions.
So the topics themselves are looked up before anything is done. A new partition is read from its
start, because everything in it was written after the reading began.
"""

from __future__ import annotations

import asyncio

from aiokafka.client import AIOKafkaClient

from overlay.config.stream import StreamConfig
from overlay.errors import SourceChanged, SourceUnavailable
from overlay.kafka.admin import Admin
from overlay.kafka.log_position import TopicPartition
from overlay.logs import get_logger
from overlay.state.partitions import Sources, list_sources
from overlay.state.shard_state import ShardState

from .offset_ranges import OffsetRange

log = get_logger(__name__)

EVERY_S = 1.0


class Growth:
    """A task that watches the topics of a stream until it is closed. It starts with the
    construction, in the running loop.

    It sets `changed` when `take` has something to return or to raise.
    """

    def __init__(
        self, client: AIOKafkaClient, admin: Admin, stream: StreamConfig, known: Sources, changed: asyncio.Event
    ) -> None:
        self._client, self._admin, self._stream, self._known = client, admin, stream, known
        self._changed = changed
        self._added: list[OffsetRange] = []
        self._watch = asyncio.create_task(self._look(), name="growth")
        self._watch.add_done_callback(lambda _: changed.set())

    def take(self) -> list[OffsetRange]:
        """Return the partitions that were added to the stream's topics since the last call, as ranges
        without an end from their first offsets.

        Raises SourceChanged if a topic was deleted or created again, and CredentialsRefused if the
        topics may not be looked up; the watch is then over.
        """
        if self._watch.done():
            self._watch.result()
        added, self._added = self._added, []
        return added

    async def close(self) -> None:
        """Cancel the task and wait for its end. Its error, if any, is dropped."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)

    async def _look(self) -> None:
        partitions = set(self._known.partitions)
        while True:
            await asyncio.sleep(EVERY_S)
            if not self._hears_of_others(partitions):
                continue
            try:
                added = sorted(await self._find_partitions() - partitions)
                bounds = await self._admin.find_bounds(added)
            except SourceUnavailable:
                continue  # the fetcher reports that Kafka is not reachable
            partitions.update(added)
            for source in added:
                log.warning("a partition was added, and is read from its start", topic=source[0], partition=source[1])
                self._added.append(OffsetRange(source, bounds[source][0]))
                self._changed.set()

    def _hears_of_others(self, partitions: set[TopicPartition]) -> bool:
        """Return whether the Kafka client's metadata lacks a topic of the stream, or has a partition
        that is not in `partitions`, of a topic that the stream has as a whole.
        """
        for entry in self._stream.topics:
            now = self._client.cluster.partitions_for_topic(entry.topic)
            if now is None or (entry.partitions is None and any((entry.topic, p) not in partitions for p in now)):
                return True
        return False

    async def _find_partitions(self) -> set[TopicPartition]:
        topics = await self._admin.find_topics(self._stream.topic_names, with_config=False)
        for name, identity in self._known.identities.items():
            if name not in topics:
                raise SourceChanged(f"topic {name} was deleted")
            if topics[name].identity != identity:
                raise SourceChanged(f"topic {name} was deleted and created again. Read it anew")
        return set(list_sources(self._stream, topics, ShardState()).partitions)
