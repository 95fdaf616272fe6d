"""What topics of a history have held: the records that are there, and those that went with retention or with their topic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from .kafka.cluster import Cluster
from .reading import Found, read_partition, read_topic

Place = tuple[int, int]
"""A partition and an offset."""


class Archive:
    """Keeps records of the cluster's topics that are about to go. Call `keep` or `keep_whole` just before they do, or have
    `cut` make them go."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, list[dict[Place, Found]]] = defaultdict(lambda: [{}])
        """By topic, for each time that it began anew: its offsets name other records from then on."""
        self.undecided: dict[str, list[Found]] = defaultdict(list)
        """By topic: records of transactions that had not ended in it when the topic was deleted or lost its end. They may
        count or not."""
        self.lost: dict[str, list[Found]] = defaultdict(list)
        """By topic: committed records that went with its end, or with the topic."""
        self._known: dict[str, set[Place]] = defaultdict(set)
        """By topic: what is present and outlived a loss of the end, and so is kept from before it, or is undecided."""

    def keep(self, topic: str) -> None:
        """Keep the committed records of a topic."""
        self._kept[topic][-1].update(self._read_present(topic))

    def keep_whole(self, topic: str) -> None:
        """Keep all records of a topic that is about to be deleted, or to lose its end."""
        self.keep(topic)
        known = self._kept[topic][-1]
        self.lost[topic] += known.values()
        for partition in self._cluster.topics[topic].partitions:
            written = read_partition(partition, committed=False)
            self.undecided[topic] += [one for one in written if (one.partition, one.offset) not in known]
        self._kept[topic].append({})
        self._known.pop(topic, None)

    def note_undecided(self, topic: str) -> None:
        """Note the records of a topic whose transactions have not ended: an operator is about to abort them."""
        committed = {(one.partition, one.offset) for one in read_topic(self._cluster, topic)}
        for partition in self._cluster.topics[topic].partitions:
            written = read_partition(partition, committed=False)
            self.undecided[topic] += [one for one in written if (one.partition, one.offset) not in committed]

    def cut(self, topic: str, index: int, lose: Callable[[], None]) -> None:
        """Keep the records of a topic while `lose` takes the end of one of its partitions.

        The records that stay are not there twice. A transaction that has records below the new end and no marker any more
        may end in either way, however it had ended before.
        """
        self.keep(topic)
        partition, latest = self._cluster.topics[topic].partitions[index], self._kept[topic][-1]
        known = self._known[topic] | set(latest)
        before = read_partition(partition, committed=False)
        lose()
        after, end = read_partition(partition, committed=False), partition.log.end
        unsure = [one for one in before if one.offset >= end] + after
        unsure = [one for one in unsure if (one.partition, one.offset) not in known]
        self.undecided[topic] += unsure
        self.lost[topic] += [one for place, one in latest.items() if place[0] == index and place[1] >= end]
        known.update((one.partition, one.offset) for one in unsure)
        self._known[topic] = {place for place in known if place[0] != index or place[1] < end}
        self._kept[topic].append({})

    def _read_present(self, topic: str) -> dict[Place, Found]:
        """Return the committed records that came after the last loss of an end, by place."""
        known = self._known.get(topic, set())
        present = {(one.partition, one.offset): one for one in read_topic(self._cluster, topic)}
        return {place: one for place, one in present.items() if place not in known}

    def read(self, topic: str) -> list[Found]:
        """Return all committed records that a topic has had. One that outlived the loss of others is there twice if
        `keep_whole` has kept it."""
        *former, latest = self._kept.get(topic, [{}])
        present = self._read_present(topic)
        return [kept[place] for kept in (*former, {**latest, **present}) for place in sorted(kept)]
