"""From which offset of an ack topic on each consumer is told what the records say. Pure.

Consumers of a stream share one position in each partition of its ack topic. A consumer that was away stands behind it: the
partition is read again from there, and the others have heard all of that before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AckOffsets:
    """Of one partition of an ack topic. `shared`: the first offset that is news for consumers that `own` does not name;
    `own`: the same by name, for those that have heard less."""

    shared: int = 0
    own: Mapping[str, int] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The offset from which the partition has to be read."""
        return min([self.shared, *self.own.values()])

    @property
    def last(self) -> int:
        """The offset from which the records are news for everybody."""
        return max([self.shared, *self.own.values()])

    def clip(self, cut: int) -> AckOffsets:
        """Return the same for a log that was cut: from there on, everything is news for everybody."""
        return AckOffsets(min(self.shared, cut), {name: min(at, cut) for name, at in self.own.items()})

    def of(self, name: str) -> int:
        """Return the first offset that is news for a consumer; for a name that is no consumer's, `shared`."""
        return self.own.get(name, self.shared)


EVERYTHING = AckOffsets()
