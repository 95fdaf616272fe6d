"""What topics of a history have held: the records that are there, and those that went with retention or with their topic."""

from __future__ import annotations

from collections import defaultdict

from .kafka.cluster import Cluster
from .reading import Found, read_partition, read_topic

Place = tuple[int, int]
"""A partition and an offset."""


class Archive:
    """Keeps records of the cluster's topics that are about to go. Call `keep` or `keep_whole` just before they do."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, list[dict[Place, Found]]] = defaultdict(lambda: [{}])
        """By topic, for each time that it began anew: its offsets name other records from then on."""
        self.undecided: dict[str, list[Found]] = defaultdict(list)
        """By topic: records of transactions that had not ended in it when the topic was deleted. They may count or not."""

    def keep(self, topic: str) -> None:
        """Keep the committed records of a topic."""
        self._kept[topic][-1].update({(one.partition, one.offset): one for one in read_topic(self._cluster, topic)})

    def keep_whole(self, topic: str) -> None:
        """Keep all records of a topic that is about to be deleted, or to lose its end."""
        self.keep(topic)
        known = self._kept[topic][-1]
        for partition in self._cluster.topics[topic].partitions:
            written = read_partition(partition, committed=False)
            self.undecided[topic] += [one for one in written if (one.partition, one.offset) not in known]
        self._kept[topic].append({})

    def read(self, topic: str) -> list[Found]:
        """Return all committed records that a topic has had. One that outlived the loss of others is there twice."""
        *former, latest = self._kept.get(topic, [{}])
        present = {(one.partition, one.offset): one for one in read_topic(self._cluster, topic)}
        return [kept[place] for kept in (*former, {**latest, **present}) for place in sorted(kept)]
