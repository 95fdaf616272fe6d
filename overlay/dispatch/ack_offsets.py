"""From which offset of an ack topic on each consumer still has to process the records. Pure.

The consumers of a stream share one position in each partition of its ack topic. A consumer that was
away may be behind it. Then the partition is read again from there, and the records are ignored for
the others, which have processed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AckOffsets:
    """Offsets in one partition of an ack topic.

    `shared`: the first offset that is new for all consumers not in `own`. `own`: the first new
    offset by consumer name, for consumers that have processed less.
    """

    shared: int = 0
    own: Mapping[str, int] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The offset from which the partition has to be read."""
        return min([self.shared, *self.own.values()])

    @property
    def last(self) -> int:
        """The offset from which on the records are new for all consumers."""
        return max([self.shared, *self.own.values()])

    def clip(self, cut: int) -> AckOffsets:
        """Return these offsets for a log that lost its end at `cut`: each is at most `cut`, and
        lower ones stay as they are. So every consumer takes the records from `cut` on as new.
        """
        return AckOffsets(min(self.shared, cut), {name: min(at, cut) for name, at in self.own.items()})

    def of(self, name: str) -> int:
        """Return the first offset that is new for a consumer; `shared` for an unknown name."""
        return self.own.get(name, self.shared)


EVERYTHING = AckOffsets()
