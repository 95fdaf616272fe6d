"""Records of the overlay's own topics that cannot be read, as the log, the metrics and the events topic tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Records and batches of a partition that were passed over for the same reason: the first of them, and how many. `text`:
    what is wrong with the first.
    """

    topic: str
    partition: int
    offset: int
    reason: str
    text: str
    count: int = 1

    @property
    def place(self) -> str:
        """Where the first of them is, as in `topic-0@17`."""
        return f"{self.topic}-{self.partition}@{self.offset}"


OnPassedOver = Callable[[PassedOver], None]


def ignore(_: PassedOver) -> None:
    """Do nothing with records that were passed over."""


def gather(found: Iterable[PassedOver]) -> list[PassedOver]:
    """Return one entry for each partition and reason, with the first that was found and the sum of the counts."""
    gathered: dict[tuple[str, int, str], PassedOver] = {}
    for each in found:
        key = each.topic, each.partition, each.reason
        first = gathered.get(key)
        gathered[key] = each if first is None else replace(first, count=first.count + each.count)
    return list(gathered.values())
