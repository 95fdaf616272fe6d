"""Where a stream's logs ended at some moment: what `new` means for a consumer that was created then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogEnds:
    """By topic, Kafka's id of it and the high watermark of each partition. A topic that is not among them was not there."""

    topics: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def find(self, topic: str, partition: int, identity: str) -> int:
        """Return the offset from which on records of a partition are newer. 0 for a partition or a topic that was made later.

        `identity`: Kafka's id of the topic as it is now.
        """
        known, ends = self.topics.get(topic, ("", ()))
        return ends[partition] if known == identity and partition < len(ends) else 0
