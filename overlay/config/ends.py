"""The ends of a stream's logs when a consumer was created, which decide what `new` means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Log ends by topic: Kafka's id of the topic, and the high watermark of each partition.

    A topic that is missing here did not exist at that moment.
    """

    topics: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def find(self, topic: str, partition: int, identity: str) -> int:
        """Return the offset where a partition ended when these ends were taken, so that later
        records are at this offset and above.

        `identity`: Kafka's current id of the topic. Returns 0 if the topic or partition was created
        later.
        """
        known, ends = self.topics.get(topic, ("", ()))
        return ends[partition] if known == identity and partition < len(ends) else 0
